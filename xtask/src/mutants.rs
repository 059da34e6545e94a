//! `cargo xtask mutants`: plant real mistakes one at a time in a copy of the tree, and see the crash explorer catch each.
//!
//! A mistake is a patch in `testing/crash/mutants`, with a paragraph above it that says what is wrong. The tree itself is never
//! touched. A patch that no longer applies, and a mistake that nobody notices, are failures.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// States of each kind of image within which a mistake must show.
const STATES: &str = "6000";
/// What the explorer's test prints when it found something.
const CAUGHT: &str = "promises were broken";

/// What became of a mistake.
enum Verdict {
    /// Noticed after so many states of all kinds together; what was said of it.
    Caught(u64, String),
    /// Nothing was noticed in so many states.
    Missed(u64),
    /// The explorer did not get as far as looking.
    Broken,
    /// The patch does not fit.
    Stale,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Caught(states, _) => write!(f, "caught after {states} states"),
            Verdict::Missed(states) => write!(f, "NOT CAUGHT in {states} states"),
            Verdict::Broken => write!(f, "DOES NOT BUILD OR RUN"),
            Verdict::Stale => write!(f, "DOES NOT APPLY ANY MORE"),
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// The patches whose names contain `only`, in order.
fn patches(only: Option<&str>) -> Vec<PathBuf> {
    let mut patches: Vec<PathBuf> = fs::read_dir(root().join("testing/crash/mutants"))
        .map(|dir| dir.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    patches.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".patch") && only.is_none_or(|only| name.contains(only))
    });
    patches.sort();
    patches
}

/// Apply a patch in a tree, or take it back, or only see whether it applies.
fn patched(tree: &Path, patch: &Path, args: &[&str]) -> bool {
    Command::new("git")
        .arg("apply")
        .args(args)
        .arg(patch)
        .current_dir(tree)
        // Inside another repository git would skip files that are not its own.
        .env("GIT_CEILING_DIRECTORIES", tree.parent().unwrap_or(tree))
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

/// Look for broken promises in the scratch tree, up to the first.
fn explore(scratch: &Path, states: &str) -> Verdict {
    let run = Command::new("cargo")
        .args(["test", "-q", "-p", "ivers-ext4", "--test", "explore", "--", "--nocapture"])
        .current_dir(scratch)
        .env("CARGO_TARGET_DIR", scratch.join("target"))
        .env("IVERS_CRASH_STATES", states)
        .env("IVERS_CRASH_VIOLATIONS", "1")
        .output();
    let Ok(run) = run else { return Verdict::Broken };
    let said = String::from_utf8_lossy(&run.stdout);
    let complained = String::from_utf8_lossy(&run.stderr);
    let explored = explored(&said);
    match (run.status.success(), complained.contains(CAUGHT)) {
        (true, _) => Verdict::Missed(explored),
        (false, true) => Verdict::Caught(explored, first_violation(&said)),
        (false, false) => {
            eprintln!("{said}\n{complained}");
            Verdict::Broken
        }
    }
}

/// The states of all kinds of image, from the summaries in what the explorer said.
fn explored(said: &str) -> u64 {
    let of_line = |line: &str| -> Option<u64> {
        let (before, _) = line.split_once(" distinct crash states")?;
        before.rsplit(' ').next()?.parse().ok()
    };
    said.lines().filter_map(of_line).sum()
}

/// The first paragraph behind a summary that counts violations.
fn first_violation(said: &str) -> String {
    let behind = said.lines().skip_while(|line| !line.contains(" violations, the first after"));
    behind.skip(1).find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
}

/// All of them, or those whose names contain `only`.
pub fn mutants(only: Option<&str>) -> bool {
    let scratch = root().join("target/mutants");
    let patches = patches(only);
    if patches.is_empty() {
        eprintln!("xtask: no patch in testing/crash/mutants has such a name");
        return false;
    }
    if copy_tree(root(), &scratch).is_none() {
        eprintln!("xtask: the tree cannot be copied to {}", scratch.display());
        return false;
    }
    let begin = Instant::now();
    let unchanged = explore(&scratch, "600");
    if !matches!(unchanged, Verdict::Missed(_)) {
        eprintln!("xtask: the tree as it is: {unchanged}");
        return false;
    }
    println!("the tree as it is: nothing found in {} s", begin.elapsed().as_secs());
    let mut results: Vec<(String, Verdict, Duration)> = Vec::new();
    for patch in &patches {
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let begin = Instant::now();
        let verdict = if patched(&scratch, patch, &[]) {
            let verdict = explore(&scratch, STATES);
            if !patched(&scratch, patch, &["--reverse"]) {
                eprintln!("xtask: {name} cannot be taken back");
                return false;
            }
            verdict
        } else {
            Verdict::Stale
        };
        println!("{name}: {verdict}");
        if let Verdict::Caught(_, what) = &verdict {
            println!("    {what}");
        }
        results.push((name, verdict, begin.elapsed()));
    }
    println!("\n| mistake | | with the build, s |\n|---|---|---|");
    for (name, verdict, took) in &results {
        println!("| {name} | {verdict} | {} |", took.as_secs());
    }
    let caught = results.iter().filter(|(_, verdict, _)| matches!(verdict, Verdict::Caught(..))).count();
    println!("{caught} of {} caught", results.len());
    caught == results.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_still_applies_and_says_what_it_is() {
        let patches = patches(None);
        assert!(patches.len() >= 10, "{} patches", patches.len());
        for patch in &patches {
            assert!(patched(root(), patch, &["--check"]), "{} no longer applies", patch.display());
            let text = fs::read_to_string(patch).unwrap();
            let (header, _) = text.split_once("\n\ndiff --git ").expect("a header above the patch");
            assert!(header.ends_with('.'), "{}: {header}", patch.display());
        }
    }

    #[test]
    fn summaries_are_read() {
        let said = "ext4: 3 workloads, 600 distinct crash states (1 prefixes) in 2 s\nrecovered by us\n0 violations\n\
            ext3: 1 workloads, 41 distinct crash states (1 prefixes) in 0 s\nrecovered by us\n1 violations, the first after 40 states\n\n\
            ext3, workload `x`: it is gone\n  worker 0\n";
        assert_eq!(explored(said), 641);
        assert_eq!(first_violation(said), "ext3, workload `x`: it is gone");
    }
}
