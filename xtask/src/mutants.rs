//! `cargo xtask mutants`: plant real mistakes one at a time in a copy of the tree, and see the crash explorer or the races catch each.
//!
//! A mistake is a patch with a line above it that says what is wrong. The tree itself is never touched. A patch that no longer applies, and
//! a mistake that nobody notices, are failures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A test that mistakes are planted for.
struct Harness {
    /// Where the patches lie. Those in a folder of their own are for the test of the folder's name alone.
    patches: &'static str,
    /// What cargo is told.
    args: &'static [&'static str],
    /// Compiler flags, and the directory that what is built with them goes to.
    flags: Option<&'static str>,
    target: &'static str,
    /// The variable that says how much is tried: for the tree as it is, and for a mistake to show.
    effort: &'static str,
    brief: &'static str,
    thorough: &'static str,
    /// What the test prints when it found something.
    caught: &'static str,
}

const HARNESSES: [Harness; 2] = [
    Harness {
        patches: "testing/crash/mutants",
        args: &["test", "-q", "-p", "ivers-ext4", "--test", "explore"],
        flags: None,
        target: "target",
        effort: "IVERS_CRASH_STATES",
        brief: "600",
        thorough: "6000",
        caught: "promises were broken",
    },
    Harness {
        patches: "testing/races/mutants",
        args: &["test", "-q", "-p", "ivers-races", "--test", "races"],
        flags: Some("--cfg shuttle"),
        target: "target/shuttle",
        effort: "IVERS_SCHEDULES",
        brief: "200",
        thorough: "20000",
        caught: "a race was lost",
    },
];

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

impl Harness {
    /// Whether something is found in the scratch tree; `None`: the test does not get as far as looking.
    fn is_caught(&self, scratch: &Path, effort: &str, test: Option<&str>) -> Option<bool> {
        let mut command = Command::new("cargo");
        command.args(self.args).current_dir(scratch).env("CARGO_TARGET_DIR", scratch.join(self.target));
        command.env(self.effort, effort);
        if let Some(flags) = self.flags {
            command.env("RUSTFLAGS", flags);
        }
        if let Some(test) = test {
            command.arg("--").arg(format!("::{test}"));
        }
        let run = command.output().ok()?;
        let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
        match (run.status.success(), said.contains(self.caught)) {
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => {
                eprintln!("{said}");
                None
            }
        }
    }

    /// The patches whose names contain `only`, in order.
    fn patches(&self, root: &Path, only: Option<&str>) -> Vec<PathBuf> {
        let inside = |dir: PathBuf| {
            fs::read_dir(dir).map(|dir| dir.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
        };
        let mut all: Vec<PathBuf> = inside(root.join(self.patches));
        all.extend(all.clone().into_iter().flat_map(inside));
        all.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".patch") && only.is_none_or(|only| name.contains(only))
        });
        all.sort();
        all
    }

    /// Plant one mistake after another; says how many there were and how many were missed. `None`: it cannot go on.
    fn plant(&self, root: &Path, scratch: &Path, only: Option<&str>) -> Option<(usize, usize)> {
        let patches = self.patches(root, only);
        if patches.is_empty() {
            return Some((0, 0));
        }
        if self.is_caught(scratch, self.brief, None) != Some(false) {
            eprintln!("xtask: something is found in the tree as it is");
            return None;
        }
        let mut missed = 0;
        for patch in &patches {
            let name = patch.file_stem().unwrap_or_default().to_string_lossy();
            let folder = patch.parent().filter(|folder| *folder != root.join(self.patches));
            let test = folder.and_then(Path::file_name).and_then(|test| test.to_str());
            let verdict = if !patched(scratch, patch, &[]) {
                "DOES NOT APPLY ANY MORE"
            } else {
                let caught = self.is_caught(scratch, self.thorough, test);
                if !patched(scratch, patch, &["--reverse"]) {
                    eprintln!("xtask: {name} cannot be taken back");
                    return None;
                }
                match caught {
                    Some(true) => "caught",
                    Some(false) => "NOT CAUGHT",
                    None => "DOES NOT BUILD OR RUN",
                }
            };
            missed += usize::from(verdict != "caught");
            println!("{name:40} {verdict}{}", test.map(|test| format!(" ({test})")).unwrap_or_default());
        }
        Some((patches.len(), missed))
    }
}

/// All of them, or those whose names contain `only`.
pub fn mutants(only: Option<&str>) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let scratch = root.join("target/mutants");
    if copy_tree(root, &scratch).is_none() {
        eprintln!("xtask: the tree cannot be copied to {}", scratch.display());
        return false;
    }
    let (mut planted, mut missed) = (0, 0);
    for harness in &HARNESSES {
        let Some((here, missed_here)) = harness.plant(root, &scratch, only) else { return false };
        planted += here;
        missed += missed_here;
    }
    if planted == 0 {
        eprintln!("xtask: no mistake has such a name");
        return false;
    }
    println!("{} of {planted} caught", planted - missed);
    missed == 0
}
