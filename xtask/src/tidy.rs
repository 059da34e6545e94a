//! What must stay true of the tree as a whole.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

fn files(dir: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                files(&path, ending, found);
            }
        } else if name.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
}

fn all(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&root(), ending, &mut found);
    assert!(!found.is_empty());
    found
}

/// Targets of Markdown links that are neither addresses nor anchors.
fn links(text: &str) -> Vec<String> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.split('#').next().unwrap_or_default().to_owned())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .collect()
}

#[test]
fn links_lead_somewhere() {
    for page in all(".md") {
        for link in links(&fs::read_to_string(&page).unwrap()) {
            let target = page.parent().unwrap().join(&link);
            assert!(target.exists(), "{}: dead link {link}", page.display());
        }
    }
}

#[test]
fn the_seeds_page_misses_nothing() {
    let page = fs::read_to_string(root().join("SEEDS.md")).unwrap();
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    for patch in 1..=19 {
        let patch = format!("{patch:02}");
        let row =
            rows.iter().find(|row| row[0] == patch).unwrap_or_else(|| panic!("no row for patch {patch}"));
        let state = row.last().unwrap();
        let built = state.starts_with("built");
        assert!(
            built || state.starts_with("unbuilt") || state.starts_with("partly"),
            "patch {patch}: {state}"
        );
        assert!(
            !built || row[2..4].iter().all(|cell| cell.contains("](")),
            "patch {patch} names no code or no test"
        );
    }
    let reviewers =
        ["J. Bruce Fields", "NeilBrown", "Dave Chinner", "Theodore Ts'o", "Jan Kara", "Jeff Layton"];
    for reviewer in reviewers {
        assert!(page.contains(&format!("| {reviewer}, 2017-12-")), "no row for {reviewer}");
    }
    for figure in
        ["13.84 s", "85.6, 110, 117", "86.7 to 129", "110 MiB/s", "49.1 to 50.3", "1146 to 1253", "43.5 %"]
    {
        assert!(page.contains(figure), "the figure {figure} has no row");
    }
}

#[test]
fn floors_use_only_lower_floors() {
    let floors = ["core", "fs", "serve", "cli"];
    for (height, floor) in floors.iter().enumerate() {
        for manifest in all("Cargo.toml").iter().filter(|path| path.starts_with(root().join(floor))) {
            let text = fs::read_to_string(manifest).unwrap();
            // Tests may look up: only what is shipped counts.
            let shipped = text.split("[dev-dependencies]").next().unwrap_or_default();
            let uses: BTreeSet<&str> = shipped
                .lines()
                .filter_map(|line| line.split(['.', ' ', '=']).next())
                .filter(|name| name.starts_with("ivers"))
                .collect();
            for name in uses {
                let folder = name.strip_prefix("ivers-").unwrap_or(name);
                let lives = floors.iter().position(|floor| root().join(floor).join(folder).is_dir());
                let same_floor_is_fine = *floor == "core";
                let ok = lives.is_some_and(|lives| lives < height || (lives == height && same_floor_is_fine))
                    // A front end serves any driver, through the VFS alone.
                    && !(*floor == "serve" && lives == Some(1));
                let itself = manifest.parent().is_some_and(|dir| dir.ends_with(folder));
                assert!(ok || itself, "{} uses {name}", manifest.display());
            }
        }
    }
}

#[test]
fn nothing_is_left_unfinished() {
    for source in all(".rs").iter().filter(|path| !path.ends_with("xtask/src/tidy.rs")) {
        for (number, line) in fs::read_to_string(source).unwrap().lines().enumerate() {
            let place = format!("{}:{}", source.display(), number + 1);
            assert!(!line.contains("todo!(") && !line.contains("unimplemented!("), "{place}: unfinished");
            assert!(!line.contains("#[ignore]"), "{place}: an ignored test without a reason");
        }
    }
}

#[test]
fn every_race_has_a_mistake_to_catch() {
    let races = root().join("testing/races");
    let mut sources = Vec::new();
    files(&races.join("tests"), ".rs", &mut sources);
    let mut tests = 0;
    for source in sources {
        let text = fs::read_to_string(&source).unwrap();
        for after in text.split("#[test]\nfn ").skip(1) {
            let name = after.split('(').next().unwrap_or_default();
            let mut patches = Vec::new();
            files(&races.join("mutants").join(name), ".patch", &mut patches);
            assert!(!patches.is_empty(), "{name} has never been seen to fail");
            tests += 1;
        }
    }
    assert!(tests > 0);
}

/// `[RFC8881 18.46.3]` in code says which requirement it answers; a test that names the same says how that was seen.
#[test]
fn every_requirement_that_is_answered_has_a_test() {
    fn tags(text: &str) -> BTreeSet<&str> {
        let is_tag = |inside: &&str| {
            inside.strip_prefix("RFC").and_then(|rest| rest.split_once(' ')).is_some_and(
                |(number, section)| {
                    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '.');
                    !number.is_empty() && digits(number) && !section.is_empty() && digits(section)
                },
            )
        };
        text.split('[').skip(1).filter_map(|rest| Some(rest.split_once(']')?.0)).filter(is_tag).collect()
    }

    let mut sources = Vec::new();
    files(&root().join("serve/nfsd/src/state"), ".rs", &mut sources);
    let (mut answered, mut tested) = (BTreeSet::new(), BTreeSet::new());
    for source in sources {
        let text = fs::read_to_string(&source).unwrap();
        let is_test = source.components().any(|part| part.as_os_str() == "tests");
        let (code, tests) = if is_test {
            ("", &*text)
        } else {
            text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((&text, ""))
        };
        answered.extend(tags(code).into_iter().map(str::to_owned));
        tested.extend(tags(tests).into_iter().map(str::to_owned));
    }
    let missing: Vec<_> = answered.difference(&tested).collect();
    assert!(missing.is_empty(), "no test names {missing:?}");
    let stray: Vec<_> = tested.difference(&answered).collect();
    assert!(stray.is_empty(), "no code answers {stray:?}");
    assert!(answered.len() > 20);
}
