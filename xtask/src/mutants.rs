//! `cargo xtask mutants`: plant real mistakes one at a time in a copy of the tree, and see the crash explorer catch each.
//!
//! A mistake is a patch in `testing/crash/mutants`, with a line above it that says what is wrong. The tree itself is never touched. A patch
//! that no longer applies, and a mistake that nobody notices, are failures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// States of each kind of image within which a mistake must show.
const STATES: &str = "6000";
/// What the explorer's test prints when it found something.
const CAUGHT: &str = "promises were broken";

/// Apply a patch in the scratch tree, or take it back.
fn patched(scratch: &Path, patch: &Path, args: &[&str]) -> bool {
    Command::new("git")
        .arg("apply")
        .args(args)
        .arg(patch)
        .current_dir(scratch)
        // Inside another repository git would skip files that are not its own.
        .env("GIT_CEILING_DIRECTORIES", scratch.parent().unwrap_or(scratch))
        .status()
        .is_ok_and(|status| status.success())
}

/// What git knows of the tree, as it is on disk now.
fn copy_tree(root: &Path, scratch: &Path) -> Option<()> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = Command::new("git").args(args).current_dir(root).output().ok()?;
    for name in listed.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = std::str::from_utf8(name).ok()?;
        let (from, to) = (root.join(name), scratch.join(name));
        // Listed and deleted, but not committed so.
        if from.is_file() {
            fs::create_dir_all(to.parent()?).ok()?;
            // Only what differs is written, so that a second run builds little.
            if fs::read(&to).ok() != fs::read(&from).ok() {
                fs::copy(&from, &to).ok()?;
            }
        }
    }
    Some(())
}

/// Whether the explorer finds something in the scratch tree; `None`: it does not get as far as looking.
fn is_caught(scratch: &Path, states: &str) -> Option<bool> {
    let run = Command::new("cargo")
        .args(["test", "-q", "-p", "ivers-ext4", "--test", "explore"])
        .current_dir(scratch)
        .env("CARGO_TARGET_DIR", scratch.join("target"))
        .env("IVERS_CRASH_STATES", states)
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    match (run.status.success(), said.contains(CAUGHT)) {
        (true, _) => Some(false),
        (false, true) => Some(true),
        (false, false) => {
            eprintln!("{said}");
            None
        }
    }
}

/// All of them, or those whose names contain `only`.
pub fn mutants(only: Option<&str>) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let scratch = root.join("target/mutants");
    let mut patches: Vec<PathBuf> = fs::read_dir(root.join("testing/crash/mutants"))
        .map(|dir| dir.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    patches.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".patch") && only.is_none_or(|only| name.contains(only))
    });
    patches.sort();
    if patches.is_empty() {
        eprintln!("xtask: no patch in testing/crash/mutants has such a name");
        return false;
    }
    if copy_tree(root, &scratch).is_none() {
        eprintln!("xtask: the tree cannot be copied to {}", scratch.display());
        return false;
    }
    if is_caught(&scratch, "600") != Some(false) {
        eprintln!("xtask: the explorer finds something in the tree as it is");
        return false;
    }
    let mut missed = 0;
    for patch in &patches {
        let name = patch.file_stem().unwrap_or_default().to_string_lossy();
        let verdict = if !patched(&scratch, patch, &[]) {
            "DOES NOT APPLY ANY MORE"
        } else {
            let caught = is_caught(&scratch, STATES);
            if !patched(&scratch, patch, &["--reverse"]) {
                eprintln!("xtask: {name} cannot be taken back");
                return false;
            }
            match caught {
                Some(true) => "caught",
                Some(false) => "NOT CAUGHT",
                None => "DOES NOT BUILD OR RUN",
            }
        };
        missed += u32::from(verdict != "caught");
        println!("{name:40} {verdict}");
    }
    println!("{} of {} caught", patches.len() as u32 - missed, patches.len());
    missed == 0
}
