//! `cargo xtask soak nfs_client`: mounts of other projects' servers and of ours, with the suites and work of
//! `work`, and kills of server and client. Writes `docs/results/nfs-client.md`.
//!
//! `IVERS_SERVER` selects servers by a part of their name, `IVERS_VERS` a version, `IVERS_PART` a part of the
//! work. With `IVERS_SERVER` alone, only the sections of these servers are replaced in the page. With one of
//! the others, the page is printed and not written.

mod kills;
mod servers;
mod work;

use crate::ensure;
use crate::suites::{Setup, with_setup};
use anyhow::Result;
use ivers_oracle::machine;
use servers::Kind;
use std::fmt::Write;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;
use tempfile::TempDir;
use work::{PARTS, Place};

const VERSIONS: [&str; 3] = ["4.2", "4.1", "4.0"];
const PAGE: &str = "docs/results/nfs-client.md";

const HEAD: &str = "\
# The NFS client

For people who mount servers with ivers, and for maintainers: what was run on mounts of other projects'
servers and of ours, and what was seen, with NFSv4.2, 4.1 and 4.0. `cargo xtask soak nfs_client` writes this
page. [limits.md](../limits.md#files-of-a-server) has what the client does not do, [nfs.md](../nfs.md) how it
works.

";

/// The results of one part of the work on one server, by version.
struct Row {
    server: String,
    part: String,
    seen: Vec<Result<String, String>>,
}

fn only(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn is_wanted(only: Option<&String>, name: &str) -> bool {
    only.is_none_or(|only| name.contains(only.as_str()))
}

/// Creates a directory that only this user may enter, as a persistent cache requires.
fn private_dir() -> std::io::Result<TempDir> {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir()
}

/// Prints and returns the result of a part.
fn told(
    server: &str,
    vers: &str,
    part: &str,
    result: Result<String>,
    begin: Instant,
) -> Result<String, String> {
    let result = result.map_err(|error| format!("{error:#}"));
    let shown = result.as_ref().map_or_else(|why| format!("FAILED: {why}"), String::clone);
    println!("== {server}, {vers}, {part}: {shown} ({} s)", begin.elapsed().as_secs());
    result
}

/// Runs all parts on one server.
fn on_server(setup: &Setup, kind: Kind, rows: &mut Vec<Row>) -> Result<()> {
    let (vers, part) = (only("IVERS_VERS"), only("IVERS_PART"));
    let server = kind.start(&setup.ivers, &crate::target_dir())?;
    let mut table: Vec<Row> = PARTS
        .iter()
        .filter(|(name, _)| is_wanted(part.as_ref(), name))
        .map(|(name, _)| Row { server: kind.name(), part: (*name).to_owned(), seen: Vec::new() })
        .collect();
    let mut first = true;
    for vers in VERSIONS.into_iter().filter(|version| is_wanted(vers.as_ref(), version)) {
        let place = Place { setup, kind, url: &server.url, vers };
        if first {
            place.make("other-filesystem")?;
            first = false;
        }
        for row in &mut table {
            let Some((nth, (_, work))) = PARTS.iter().enumerate().find(|(_, (name, _))| *name == row.part)
            else {
                continue;
            };
            let dir = format!("{}-{nth}", vers.replace('.', ""));
            let begin = Instant::now();
            let done = place.make(&dir).and_then(|()| work(&place, &dir));
            row.seen.push(told(&row.server, vers, &row.part, done, begin));
        }
    }
    rows.append(&mut table);
    let begin = Instant::now();
    let checked = server.stop(kind).map(|()| "clean".to_owned());
    let seen = vec![told(&kind.name(), "-", "filesystem afterwards", checked, begin)];
    rows.push(Row { server: kind.name(), part: "filesystem afterwards".to_owned(), seen });
    Ok(())
}

/// The name of a server, and what the page says of it.
type Section = (String, String);

/// Returns the results of each server as a table.
fn sections(rows: &[Row]) -> Result<Vec<Section>> {
    let git = ivers_oracle::run("git", ["log", "-1", "--format=%h, %as"])?;
    let commit = String::from_utf8_lossy(&git.stdout).trim().to_owned();
    let mut sections: Vec<Section> = Vec::new();
    for row in rows {
        if sections.last().is_none_or(|(server, _)| *server != row.server) {
            let head = format!("At commit {commit}, or its parent.\n\n| part | seen |\n|---|---|\n");
            sections.push((row.server.clone(), head));
        }
        let seen: Vec<String> = row
            .seen
            .iter()
            .map(|seen| {
                seen.clone()
                    .unwrap_or_else(|why| format!("FAILED: {}", why.lines().next().unwrap_or_default()))
            })
            .collect();
        let all_equal = seen.windows(2).all(|pair| pair[0] == pair[1]);
        let shown = match &seen[..] {
            [one, ..] if all_equal => one.clone(),
            many => VERSIONS
                .iter()
                .zip(many)
                .map(|(vers, seen)| format!("{vers}: {seen}"))
                .collect::<Vec<_>>()
                .join("<br>"),
        };
        if let Some((_, text)) = sections.last_mut() {
            writeln!(text, "| {} | {} |", row.part, shown.replace('|', "\\|"))?;
        }
    }
    Ok(sections)
}

/// Returns the page with new sections, and the other sections of the page `old`.
fn page(old: &str, new: &[Section]) -> String {
    let kept = old.split("\n## ").skip(1).filter_map(|section| section.split_once('\n'));
    let mut all: Vec<Section> = kept.map(|(name, text)| (name.to_owned(), text.trim().to_owned())).collect();
    for (name, text) in new {
        match all.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => old.clone_from(text),
            None => all.push((name.clone(), text.clone())),
        }
    }
    let sections = all.iter().map(|(name, text)| format!("## {name}\n\n{}\n", text.trim()));
    format!("{HEAD}{}", sections.collect::<Vec<_>>().join("\n"))
}

fn run(setup: &Setup) -> Result<bool> {
    let (wanted, part) = (only("IVERS_SERVER"), only("IVERS_PART"));
    let mut rows = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| is_wanted(wanted.as_ref(), &kind.name())) {
        let begin = Instant::now();
        if let Err(error) = on_server(setup, kind, &mut rows) {
            let (server, part) = (kind.name(), "the server".to_owned());
            let seen = vec![told(&server, "-", &part, Err(error), begin)];
            rows.push(Row { server, part, seen });
        }
    }
    for (name, work) in kills::PARTS {
        if is_wanted(wanted.as_ref(), kills::SERVER) && is_wanted(part.as_ref(), name) {
            let begin = Instant::now();
            let seen = vec![told(kills::SERVER, "4.2", name, work(setup), begin)];
            rows.push(Row { server: kills::SERVER.to_owned(), part: name.to_owned(), seen });
        }
    }
    let sections = sections(&rows)?;
    if part.is_none() && only("IVERS_VERS").is_none() {
        let kept = if wanted.is_some() { std::fs::read_to_string(PAGE)? } else { String::new() };
        std::fs::write(PAGE, page(&kept, &sections))?;
    }
    sections.iter().for_each(|(server, text)| println!("## {server}\n\n{text}"));
    Ok(rows.iter().all(|row| row.seen.iter().all(Result::is_ok)))
}

/// Runs everything. It requires root, for the suites and for nfs-ganesha's filesystem.
pub(crate) fn nfs_client() -> bool {
    let programs = [
        ("ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs"),
        ("mkfs.ext4", "e2fsprogs"),
        ("mkfs.xfs", "xfsprogs"),
        ("mkfs.btrfs", "btrfs-progs"),
        ("python3", "python3"),
        ("tar", "tar"),
    ];
    ensure(&[&machine::PROGRAMS[..], &programs].concat())
        && with_setup(|setup| run(setup).inspect_err(|error| eprintln!("xtask: nfs_client: {error:#}")).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_and_others_stay() {
        let section = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let first = page("", &[section("one", "| a |"), section("two", "| b |")]);
        assert!(first.ends_with("## one\n\n| a |\n\n## two\n\n| b |\n"), "{first}");
        let second = page(&first, &[section("two", "| c |\n"), section("three", "| d |")]);
        assert!(second.starts_with(HEAD));
        assert!(second.ends_with("## one\n\n| a |\n\n## two\n\n| c |\n\n## three\n\n| d |\n"), "{second}");
    }
}
