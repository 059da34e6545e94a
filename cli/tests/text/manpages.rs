//! Manual pages and completions: their sections, and what the programs that read them say.

use crate::common::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn pages(dir: &Path) -> Vec<(String, PathBuf)> {
    let output = ivers(["man", dir.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let mut pages: Vec<(String, PathBuf)> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    pages.sort();
    assert!(pages.len() > 10, "{pages:?}");
    pages
}

#[test]
fn every_page_has_its_sections_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for (name, path) in pages(dir.path()) {
        let text = fs::read_to_string(&path).unwrap();
        let sections: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix(".SH "))
            .map(|title| title.trim_matches('"'))
            .collect();
        let expected = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"];
        let mut rest = sections.iter();
        for section in expected {
            assert!(rest.any(|title| *title == section), "{name}: {section} is not in {sections:?}");
        }
        assert!(!sections.contains(&"EXTRA"), "{name}");
        let has_files = ["ivers", "ivers-mount", "ivers-serve", "ivers-measure"].contains(&name.as_str());
        assert!(!has_files || sections.contains(&"FILES"), "{name}: {sections:?}");
        assert!(text.contains("\n  ivers ") || text.contains("\nivers "), "{name}: no example");
        let see = text.split(".SH \"SEE ALSO\"").nth(1).unwrap();
        assert!(name == "ivers" || see.contains(r"\fBivers\fR(1)"), "{name}: {see}");
    }
}

#[test]
fn readers_of_manual_pages_have_no_complaints() {
    let dir = tempfile::tempdir().unwrap();
    let pages = pages(dir.path());
    for (program, words) in
        [("mandoc", &["-Tlint", "-Wwarning"][..]), ("man", &["--warnings", "-E", "UTF-8", "-l", "-Z"])]
    {
        if !ivers_oracle::have_programs(&[program]) {
            continue;
        }
        for (name, path) in &pages {
            let output = Command::new(program)
                .args(words)
                .arg(path)
                .env("LC_ALL", "C.UTF-8")
                .env("MANROFFSEQ", "")
                .env("MANWIDTH", "80")
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let complaints = if program == "man" { &output.stderr } else { &output.stdout };
            assert!(
                output.status.success() && complaints.is_empty(),
                "{program} on {name}: {}{}",
                String::from_utf8_lossy(complaints),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

/// The changelog and the pages have the date of the release.
#[test]
fn pages_have_the_date_of_the_changelog() {
    let dir = tempfile::tempdir().unwrap();
    ivers(["man", dir.path().to_str().unwrap()]);
    let page = fs::read_to_string(dir.path().join("ivers.1")).unwrap();
    let title = page.lines().find(|line| line.starts_with(".TH ")).unwrap();
    let changelog =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../CHANGELOG.md")).unwrap();
    let newest = changelog.lines().find_map(|line| line.strip_prefix("## ")).unwrap();
    let (version, date) = newest.trim_end_matches(')').split_once(" (").unwrap();
    assert!(title.contains(version) && title.contains(date), "{title}, CHANGELOG.md: {newest}");
}

#[test]
fn shells_read_their_completions() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = ivers(["completions", shell]);
        assert!(output.status.success() && !output.stdout.is_empty(), "{}", said(&output));
        if !ivers_oracle::have_programs(&[shell]) {
            continue;
        }
        let file = dir.path().join(shell);
        fs::write(&file, &output.stdout).unwrap();
        let checked = Command::new(shell).arg("-n").arg(&file).output().unwrap();
        assert!(checked.status.success() && checked.stderr.is_empty(), "{shell}: {}", said(&checked));
    }
}

#[test]
fn completions_offer_files_only_where_an_option_takes_one() {
    if !ivers_oracle::have_programs(&["bash"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ivers.bash");
    fs::write(&file, ivers(["completions", "bash"]).stdout).unwrap();
    // What bash offers after these words.
    let offered = |words: &str| {
        let script = format!(
            "compopt() {{ :; }}; source {}
             COMP_WORDS=(ivers {words} ''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
             _ivers ivers '' \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; echo \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        let output = Command::new("bash").args(["-c", &script]).current_dir(&dir).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let has = |words: &str, value: &str| offered(words).split_whitespace().any(|word| word == value);
    assert!(!has("mkfs --size", "ivers.bash"), "{}", offered("mkfs --size"));
    assert!(has("mount --log", "ivers.bash"), "{}", offered("mount --log"));
    for (words, value) in [
        ("mount --type", "xfs"),
        ("mkfs --type", "fat32"),
        ("mkfs -O", "metadata_csum"),
        ("measure --hash", "sha512"),
        ("changed --only", "removed"),
    ] {
        let all = offered(words);
        assert!(has(words, value) && !has(words, "ivers.bash"), "{words}: {all}");
    }
    for words in ["mkfs --agcount", "tar --exclude", "tree --depth", "serve --listen"] {
        assert!(!has(words, "ivers.bash"), "{words}: {}", offered(words));
    }
}
