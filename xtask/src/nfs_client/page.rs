//! The page with the results: a table for each server, a row for each part. A run replaces its own results,
//! and keeps the others.

use super::VERSIONS;
use std::fmt::Write;

const HEAD: &str = "\
# The NFS client

For people who mount servers with ivers, and for maintainers: tests of the client on servers of other projects
and on ours. `cargo xtask soak nfs_client` runs the tests and writes this page.
[limits.md](../limits.md#files-of-a-server) has what the client does not do, [nfs.md](../nfs.md) how it works.

- A table for each server, a row for each test. A test runs with NFSv4.2, 4.1 and 4.0; a version that is
  missing in its row was not run. If the results differ, each has a line of its own, which begins with the
  version.
- The last column has the commit that was tested, and the date. \"And changes\": with changes that were not
  committed yet.
- A test that fails is a result that begins with FAILED.
";

/// Stands before a result that is the same with all versions.
const ALL: &str = "4.2, 4.1, 4.0: ";

/// The result of a part of the work on a server.
pub(super) struct Row {
    pub(super) server: String,
    pub(super) part: String,
    /// The version, unless the part is run once for all.
    pub(super) vers: Option<&'static str>,
    /// What was seen, or what failed.
    pub(super) seen: Result<String, String>,
}

/// The results of a part, as the page shows them.
struct Cell {
    part: String,
    seen: Vec<(Option<String>, String)>,
    when: String,
}

impl Cell {
    /// Reads a row of the page.
    fn read(line: &str) -> Option<Self> {
        let columns: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        let [part, seen, when] = columns[..] else { return None };
        let result = |text: &str| {
            let of =
                VERSIONS.iter().find_map(|vers| Some((*vers, text.strip_prefix(vers)?.strip_prefix(": ")?)));
            match of {
                Some((vers, text)) => vec![(Some(vers.to_owned()), text.to_owned())],
                None => vec![(None, text.to_owned())],
            }
        };
        let mut seen: Vec<_> = seen.split("<br>").flat_map(result).collect();
        if let [(None, text)] = &seen[..]
            && let Some(text) = text.strip_prefix(ALL)
        {
            seen = VERSIONS.iter().map(|vers| (Some((*vers).to_owned()), text.to_owned())).collect();
        }
        Some(Self { part: part.to_owned(), seen, when: when.to_owned() })
    }

    fn of(row: &Row, when: &str) -> Self {
        let text = row.seen.clone().unwrap_or_else(|why| {
            let first: String = why.lines().next().unwrap_or_default().chars().take(200).collect();
            format!("FAILED: {first}")
        });
        let seen = vec![(row.vers.map(str::to_owned), text.replace('|', "/"))];
        Self { part: row.part.clone(), seen, when: when.to_owned() }
    }

    /// Replaces the results of the versions that were run.
    fn replace(&mut self, new: Self) {
        for (vers, text) in new.seen {
            match self.seen.iter_mut().find(|(known, _)| *known == vers) {
                Some((_, old)) => *old = text,
                None => self.seen.push((vers, text)),
            }
        }
        self.seen.sort_by_key(|(vers, _)| VERSIONS.iter().position(|known| Some(*known) == vers.as_deref()));
        self.when = new.when;
    }

    fn line(&self) -> String {
        let is_one =
            self.seen.len() == VERSIONS.len() && self.seen.windows(2).all(|two| two[0].1 == two[1].1);
        let seen = if is_one {
            format!("{ALL}{}", self.seen[0].1)
        } else {
            let shown = |(vers, text): &(Option<String>, String)| {
                vers.as_ref().map_or_else(|| text.clone(), |vers| format!("{vers}: {text}"))
            };
            self.seen.iter().map(shown).collect::<Vec<_>>().join("<br>")
        };
        format!("| {} | {seen} | {} |", self.part, self.when)
    }
}

/// Returns the page `old` with a new result. `order` has the names of all servers and parts: what
/// has another name is removed. `when` says what was tested, and when.
pub(super) fn page(old: &str, row: &Row, order: &[(String, Vec<&str>)], when: &str) -> String {
    let mut text = HEAD.to_owned();
    for (server, parts) in order {
        let section = old.split("\n## ").find_map(|section| section.strip_prefix(server)?.strip_prefix('\n'));
        let mut cells: Vec<Cell> = section.unwrap_or_default().lines().filter_map(Cell::read).collect();
        if row.server == *server {
            let new = Cell::of(row, when);
            match cells.iter_mut().find(|cell| cell.part == new.part) {
                Some(cell) => cell.replace(new),
                None => cells.push(new),
            }
        }
        let place = |cell: &Cell| parts.iter().position(|part| *part == cell.part);
        cells.retain(|cell| place(cell).is_some());
        cells.sort_by_key(place);
        if cells.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n## {server}\n\n| test | result | commit |\n|---|---|---|");
        for cell in cells {
            let _ = writeln!(text, "{}", cell.line());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(server: &str, part: &str, vers: Option<&'static str>, seen: Result<&str, &str>) -> Row {
        let seen = seen.map(str::to_owned).map_err(str::to_owned);
        Row { server: server.to_owned(), part: part.to_owned(), vers, seen }
    }

    #[test]
    fn a_run_replaces_what_it_has_and_keeps_the_rest() {
        let order = [("one".to_owned(), vec!["a", "b"]), ("two".to_owned(), vec!["a", "c"])];
        let mut all = String::new();
        let mut add = |row: Row, when: &str| {
            all = page(&all, &row, &order, when);
            all.clone()
        };
        VERSIONS.into_iter().for_each(|vers| drop(add(row("one", "b", Some(vers), Ok("3 tests")), "abc")));
        add(row("one", "a", Some("4.1"), Ok("x")), "abc");
        let first = add(row("two", "c", None, Ok("clean")), "abc");
        let expected = "\n## one\n\n| test | result | commit |\n|---|---|---|\n| a | 4.1: x | abc |\n\
            | b | 4.2, 4.1, 4.0: 3 tests | abc |\n\n## two\n\n| test | result | commit |\n|---|---|---|\n\
            | c | clean | abc |\n";
        assert!(first.starts_with(HEAD.trim_end()) && first.ends_with(expected), "{first}");
        add(row("one", "b", Some("4.0"), Err("why\nmore")), "def");
        let second = add(row("one", "a", Some("4.2"), Ok("y")), "def");
        assert!(second.contains("\n| a | 4.2: y<br>4.1: x | def |\n"), "{second}");
        let mixed = "\n| b | 4.2: 3 tests<br>4.1: 3 tests<br>4.0: FAILED: why | def |\n";
        assert!(second.contains(mixed), "{second}");
        assert!(second.ends_with("| c | clean | abc |\n"), "{second}");
        let fewer = page(&second, &row("two", "a", None, Ok("z")), &order[1..], "later");
        assert!(!fewer.contains("## one") && fewer.contains("| a | z | later |"), "{fewer}");
    }
}
