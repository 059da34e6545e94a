//! `SOURCE_DATE_EPOCH`: equal commands that change an image leave equal images, byte for byte.

use crate::common::*;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// Sunday, 9 September 2001.
const EPOCH: &str = "1000000000";

fn at_epoch(words: &[&str]) -> Output {
    Command::new(IVERS).args(words).env("SOURCE_DATE_EPOCH", EPOCH).output().unwrap()
}

fn works_at_epoch(words: &[&str]) {
    let output = at_epoch(words);
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {}", said(&output));
}

/// Files that fill a transaction of a small journal several times.
fn fill(tree: &Path) {
    for dir in ["many", "sub"] {
        fs::create_dir_all(tree.join(dir)).unwrap();
    }
    for nth in 0..700 {
        fs::write(tree.join(format!("many/file {nth}")), vec![nth as u8; nth * 3]).unwrap();
    }
    fs::write(tree.join("sub/large"), (0..900_000).map(|at| (at / 7) as u8).collect::<Vec<_>>()).unwrap();
}

/// Changes an image by every command. `full`: the format has links and attributes.
fn change(image: &str, dir: &Path, full: bool) {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let inside = |path: &str| format!("{image}:{path}");
    works_at_epoch(&["mkdir", "-p", &inside("/made/below")]);
    works_at_epoch(&["touch", &inside("/made/touched")]);
    works_at_epoch(&["cp", "-r", &path("tree"), &inside("/")]);
    works_at_epoch(&["tar", "-x", &inside("/made"), "-f", &path("tree.tar")]);
    works_at_epoch(&["mv", &inside("/made/touched"), &inside("/moved")]);
    works_at_epoch(&["rm", "-r", &inside("/tree/many")]);
    works_at_epoch(&[
        "shell",
        image,
        "-c",
        "mkdir /shell",
        "-c",
        "cp /tree/sub/large /shell",
        "-c",
        "rm /moved",
    ]);
    works_at_epoch(&["cp", &path("tree/many/file 9"), &inside("/late")]);
    if full {
        works_at_epoch(&["attr", "set", "user.x", "y", &inside("/late")]);
        works_at_epoch(&["chmod", "-R", "go=", &inside("/made")]);
        works_at_epoch(&["ln", "-s", "late", &inside("/link")]);
    }
}

#[test]
fn equal_commands_leave_equal_images() {
    if !ivers_oracle::have_programs(&["e2fsck", "debugfs", "fsck.fat", "xfs_repair", "tar"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fill(&dir.path().join("tree"));
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    ivers_oracle::run("tar", ["--sort=name", "-cf", &path("tree.tar"), "-C", &path("tree"), "."]).unwrap();
    for (fs_type, full) in
        [("ext4", true), ("ext3", true), ("ext2", true), ("xfs", true), ("fat32", false), ("ffs", false)]
    {
        let images = ["one", "other"].map(|name| path(&format!("{fs_type}-{name}")));
        let made = &images[0];
        let small: &[&str] = if fs_type == "xfs" { &["--small"] } else { &[] };
        works_at_epoch(&[&["mkfs", "-q", "-t", fs_type, "--size", "64M", made][..], small].concat());
        fs::copy(made, &images[1]).unwrap();
        for (nth, image) in images.iter().enumerate() {
            if nth > 0 {
                std::thread::sleep(Duration::from_millis(1100));
            }
            change(image, dir.path(), full);
        }
        let [one, other] = images.each_ref().map(|image| fs::read(image).unwrap());
        let differs = one.iter().zip(&other).position(|(one, other)| one != other);
        assert!(one.len() == other.len() && differs.is_none(), "{fs_type}: byte {differs:?}");
        match fs_type {
            "ext4" | "ext3" | "ext2" => {
                ivers_oracle::run("e2fsck", ["-fn", &images[0]]).unwrap();
                for file in ["/shell", "/shell/large", "/late", "/made/below"] {
                    let stat = ivers_oracle::debugfs(Path::new(&images[0]), &format!("stat {file}")).unwrap();
                    assert!(stat.contains("ctime: 0x3b9aca00"), "{fs_type} {file}: {stat}");
                }
            }
            "xfs" => drop(ivers_oracle::run("xfs_repair", ["-n", &images[0]]).unwrap()),
            "fat32" => drop(ivers_oracle::run("fsck.fat", ["-n", &images[0]]).unwrap()),
            _ => drop(works(&["check", &images[0]])),
        }
    }
}

/// Sessions at one time do not give the same generation to successive files.
#[test]
fn a_later_session_has_other_generations() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    works_at_epoch(&["mkfs", "-q", "--size", "16M", &image]);
    let file = format!("{image}:/file");
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..5 {
        works_at_epoch(&["touch", &file]);
        let stat: serde_json::Value = serde_json::from_str(&works(&["stat", "--json", &file])).unwrap();
        assert_eq!(stat["mtime"]["sec"].to_string(), EPOCH);
        assert!(seen.insert(stat["generation"].as_u64()), "round {round}: {seen:?}");
        works_at_epoch(&["rm", &file]);
    }
}

#[test]
fn a_time_that_is_no_number_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    works(&["mkfs", "-q", "--size", "16M", &image]);
    let output =
        Command::new(IVERS).args(["mkdir", &format!("{image}:/a")]).env("SOURCE_DATE_EPOCH", "now").output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("SOURCE_DATE_EPOCH=now"), "{}", said(&output));
}
