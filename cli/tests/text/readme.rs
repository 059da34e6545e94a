//! The README shows what the program prints, and lists its commands.

use crate::common::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap()
}

fn section(title: &str) -> String {
    readme().split(&format!("\n## {title}\n")).nth(1).unwrap().split("\n## ").next().unwrap().to_owned()
}

/// Returns a line with its words in the form in which they can be compared: what differs between two runs
/// (owner, UUID, date and time) is a `#`.
fn comparable(line: &str) -> String {
    let varies = |word: &str| {
        let is_date = word.len() >= 8 && word.starts_with(|c: char| c.is_ascii_digit());
        let is_uuid = word.len() == 36 && word.matches('-').count() == 4;
        is_uuid || (is_date && word.contains(['-', ':']))
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_listed = words.first().is_some_and(|word| word.len() == 10 && word.contains("rw"));
    let shown = words
        .iter()
        .enumerate()
        .map(|(at, &word)| if varies(word) || (is_listed && (2..4).contains(&at)) { "#" } else { word });
    shown.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_first_example_prints_what_it_shows() {
    if !can_mount() {
        return;
    }
    let readme = readme();
    let start = readme.split("\n## ").next().unwrap();
    let shown: Vec<&str> = start.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let words = |nth: usize| shown[nth].strip_prefix("$ ivers ").unwrap().split("    #").next().unwrap();
    let (save, since) = (words(0), words(1));
    let place = Place::new();
    place.mount("rw");
    let run = |words: &str| {
        let mut command = Command::new(IVERS);
        let output = command.args(words.split(' ')).current_dir(place.image.dir()).output().unwrap();
        assert!(output.status.success(), "{words}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let files = ["css/main.css", "css/print.css", "index.html"].map(|name| place.path("site").join(name));
    fs::create_dir_all(files[0].parent().unwrap()).unwrap();
    for file in &files {
        fs::write(file, "before").unwrap();
    }
    run(save);
    for file in [&files[0], &files[2]] {
        fs::write(file, "after").unwrap();
    }
    assert_eq!(run(since).lines().collect::<Vec<_>>(), shown[2..]);
    place.unmount();
}

#[test]
fn the_quick_start_prints_what_it_shows() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let site = dir.path().join("site");
    fs::create_dir_all(site.join("css")).unwrap();
    // Of the size that the README shows.
    fs::write(site.join("index.html"), vec![b'a'; 12813]).unwrap();
    let shown = section("Quick start");
    let lines: Vec<&str> = shown.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let commands: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert_eq!(commands.len(), 5, "{commands:?}");
    let programs = Path::new(IVERS).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let script: String = commands.iter().map(|command| format!("echo '$ {command}'\n{command}\n")).collect();
    let output = Command::new("sh")
        .args(["-ec", &format!("umask 022; chmod -R u=rwX,go=rX site\n{script}")])
        .current_dir(dir.path())
        .env("PATH", path)
        .env("XDG_STATE_HOME", dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    let printed: Vec<String> = printed.lines().map(comparable).collect();
    let shown: Vec<String> = lines.iter().map(|line| comparable(line)).collect();
    assert_eq!(printed, shown);
}

#[test]
fn every_command_is_listed() {
    let table = section("Commands");
    let rows =
        table.lines().filter_map(|line| line.strip_prefix("| `")).filter_map(|row| row.split_once(" |"));
    let listed: BTreeSet<&str> =
        rows.flat_map(|(names, _)| names.split(", ")).map(|name| name.trim_matches('`')).collect();
    let help = String::from_utf8(ivers(["--help"]).stdout).unwrap();
    let commands = help.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let commands: BTreeSet<&str> = commands
        .lines()
        .filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|&name| name != "help")
        .collect();
    assert!(commands.len() > 10, "{help}");
    let missing: Vec<_> = commands.difference(&listed).collect();
    assert!(missing.is_empty(), "README.md does not list {missing:?}");
    let extra: Vec<_> = listed.difference(&commands).collect();
    assert!(extra.is_empty(), "README.md lists {extra:?}, which do not exist");
}
