//! `cargo xtask mutants`: plants mistakes one at a time in a copy of the tree and checks that the crash
//! explorer or the races detect each.
//!
//! A mutant is a patch below a line that describes the mistake. The tree itself is never changed. A patch
//! that no longer applies and a mutant that no test detects are failures.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Selects the tests of the crash explorer: a part of their names.
const EXPLORER_TESTS: &str = "no_crash_point";

/// A test that must detect mutants.
struct Harness {
    /// The directory of the patches. The patches in a subdirectory are for the test of that name only.
    patches: &'static str,
    /// The arguments of cargo.
    args: &'static [&'static str],
    /// Compiler flags.
    flags: Option<&'static str>,
    target: &'static str,
    /// The variable that sets the number of attempts: `brief` for the unchanged tree, `thorough` for a
    /// mutant.
    effort: &'static str,
    brief: u64,
    thorough: u64,
    /// The text that the test prints when it detects something.
    caught: &'static str,
    /// What it prints if the program itself notices the damage.
    noticed: Option<&'static str>,
    /// The words after each count of attempts in the output; the sum is reported.
    counted: Option<&'static str>,
    /// Additional environment variables.
    env: &'static [(&'static str, &'static str)],
}

const HARNESSES: [Harness; 6] = [
    Harness {
        patches: "testing/crash/mutants",
        args: &["test", "-q", "-p", "ivers-ext4", "--test", "explore", "--", "--nocapture", EXPLORER_TESTS],
        flags: None,
        target: "target",
        effort: "IVERS_CRASH_STATES",
        brief: 600,
        thorough: 6000,
        caught: "the contract was broken",
        noticed: None,
        counted: Some(" distinct crash states"),
        env: &[("IVERS_CRASH_VIOLATIONS", "1")],
    },
    Harness {
        patches: "testing/crash/xfs-mutants",
        args: &[
            "test",
            "-q",
            "-p",
            "ivers-xfs",
            "--lib",
            "--test",
            "explore",
            "--",
            "--nocapture",
            EXPLORER_TESTS,
        ],
        flags: None,
        target: "target",
        effort: "IVERS_CRASH_STATES",
        brief: 300,
        thorough: 3000,
        caught: "the contract was broken",
        noticed: Some("Corrupt {"),
        counted: Some(" distinct crash states"),
        env: &[("IVERS_CRASH_VIOLATIONS", "1")],
    },
    Harness {
        patches: "testing/crash/btrfs-mutants",
        args: &[
            "test",
            "-q",
            "-p",
            "ivers-btrfs",
            "--test",
            "explore",
            "--test",
            "images",
            "--test",
            "subvolumes",
            "--",
            "--nocapture",
            EXPLORER_TESTS,
        ],
        flags: None,
        target: "target",
        effort: "IVERS_CRASH_STATES",
        brief: 200,
        thorough: 2000,
        caught: "the contract was broken",
        noticed: Some("corrupt: "),
        counted: Some(" distinct crash states"),
        env: &[("IVERS_CRASH_VIOLATIONS", "1")],
    },
    Harness {
        patches: "testing/crash/ufs-mutants",
        args: &["test", "-q", "-p", "ivers-ufs", "--test", "images", "--", "--nocapture", "crash_leaves"],
        flags: None,
        target: "target",
        effort: "IVERS_CRASH_STATES",
        brief: 600,
        thorough: 6000,
        caught: "a crash state violated a promise",
        noticed: Some("run ivers check"),
        counted: Some(" distinct crash states"),
        env: &[("IVERS_CRASH_VIOLATIONS", "1")],
    },
    Harness {
        patches: "testing/crash/ocfs2-mutants",
        args: &[
            "test",
            "-q",
            "-p",
            "ivers-ocfs2",
            "--test",
            "images",
            "--",
            "--nocapture",
            "crashes_leave",
            "what_other_mounts_left",
        ],
        flags: None,
        target: "target",
        effort: "IVERS_CRASH_STATES",
        brief: 100,
        thorough: 1500,
        caught: "a crash state violated a promise",
        noticed: Some("panicked at"),
        counted: Some(" distinct crash states"),
        env: &[("IVERS_CRASH_VIOLATIONS", "1")],
    },
    Harness {
        patches: "testing/races/mutants",
        args: &["test", "-q", "-p", "ivers-races", "--test", "races", "--"],
        flags: Some("--cfg shuttle"),
        target: "target/shuttle",
        effort: "IVERS_SCHEDULES",
        brief: 200,
        thorough: 20_000,
        caught: "a race was lost",
        noticed: None,
        counted: None,
        env: &[],
    },
];

/// The result of a mutant.
enum Verdict {
    /// Detected, after this number of states if they are counted, with the output.
    Caught(Option<u64>, String),
    /// Not detected.
    Missed(Option<u64>),
    /// The test failed in another way.
    Broken,
    /// The patch does not apply.
    Stale,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Caught(Some(states), _) => write!(f, "caught after {states} states"),
            Verdict::Caught(None, _) => write!(f, "caught"),
            Verdict::Missed(Some(states)) => write!(f, "NOT CAUGHT in {states} states"),
            Verdict::Missed(None) => write!(f, "NOT CAUGHT"),
            Verdict::Broken => write!(f, "DOES NOT BUILD OR RUN"),
            Verdict::Stale => write!(f, "DOES NOT APPLY"),
        }
    }
}

/// A mutant, its result, and the time including the build.
struct Planted {
    name: String,
    verdict: Verdict,
    took: Duration,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Runs `git apply` in a tree.
fn patched(tree: &Path, patch: &Path, args: &[&str]) -> bool {
    Command::new("git")
        .arg("apply")
        .args(args)
        .arg(patch)
        .current_dir(tree)
        // Inside another repository git would skip files that are not tracked there.
        .env("GIT_CEILING_DIRECTORIES", tree.parent().unwrap_or(tree))
        .status()
        .is_ok_and(|status| status.success())
}

/// Copies the files that git lists, in their current state.
fn copy_tree(root: &Path, scratch: &Path) -> Option<()> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = Command::new("git").args(args).current_dir(root).output().ok()?;
    for name in listed.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = std::str::from_utf8(name).ok()?;
        let (from, to) = (root.join(name), scratch.join(name));
        // A deleted file can still be listed.
        if from.is_file() {
            fs::create_dir_all(to.parent()?).ok()?;
            // Writes only changed files, so that a second run builds little.
            if fs::read(&to).ok() != fs::read(&from).ok() {
                fs::copy(&from, &to).ok()?;
            }
        }
    }
    Some(())
}

/// Returns the sum of the numbers before these words.
fn sum_before(words: &str, said: &str) -> u64 {
    let of_line = |line: &str| -> Option<u64> { line.split_once(words)?.0.rsplit(' ').next()?.parse().ok() };
    said.lines().filter_map(of_line).sum()
}

/// Returns the first line of the report after the summary of violations.
fn first_violation(said: &str) -> Option<&str> {
    let behind = said.lines().skip_while(|line| !line.contains(" violations, the first after"));
    behind.skip(1).find(|line| !line.trim().is_empty())
}

/// Returns the number of states of its kind of image before the first violation.
fn violated_after(said: &str) -> Option<u64> {
    let (_, rest) = said.split_once(" violations, the first after ")?;
    rest.split(' ').next()?.parse().ok()
}

impl Harness {
    /// Runs the test in the scratch tree.
    fn look(&self, scratch: &Path, effort: u64, test: Option<&str>) -> Verdict {
        let mut command = crate::cargo();
        // The name of a test replaces that of the harness's own tests.
        let args = self.args.iter().filter(|word| test.is_none() || **word != EXPLORER_TESTS);
        command.args(args).current_dir(scratch).env("CARGO_TARGET_DIR", scratch.join(self.target));
        command.env(self.effort, effort.to_string()).envs(self.env.iter().copied());
        if let Some(flags) = self.flags {
            command.env("RUSTFLAGS", flags);
        }
        if let Some(test) = test {
            command.arg(format!("::{test}"));
        }
        let Ok(run) = command.output() else { return Verdict::Broken };
        let said = String::from_utf8_lossy(&run.stdout);
        let complained = String::from_utf8_lossy(&run.stderr);
        let counted = self.counted.map(|words| sum_before(words, &said));
        let mut texts = std::iter::once(self.caught).chain(self.noticed);
        let found = texts.any(|text| said.contains(text) || complained.contains(text));
        match (run.status.success(), found) {
            (true, _) => Verdict::Missed(counted),
            (false, true) => Verdict::Caught(counted, format!("{said}\n{complained}")),
            (false, false) => {
                eprintln!("{said}\n{complained}");
                Verdict::Broken
            }
        }
    }

    /// Returns the patches whose paths contain `only`, sorted.
    fn patches(&self, only: Option<&str>) -> Vec<PathBuf> {
        let inside = |dir: PathBuf| {
            fs::read_dir(dir).map(|dir| dir.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
        };
        let mut all: Vec<PathBuf> = inside(root().join(self.patches));
        all.extend(all.clone().into_iter().flat_map(inside));
        all.retain(|path| {
            let name = path.strip_prefix(root()).unwrap_or(path).to_string_lossy();
            name.ends_with(".patch") && only.is_none_or(|only| name.contains(only))
        });
        all.sort();
        all
    }

    /// Plants the mutants in turn; `None` if it cannot continue.
    fn plant(&self, scratch: &Path, only: Option<&str>) -> Option<Vec<Planted>> {
        let patches = self.patches(only);
        if patches.is_empty() {
            return Some(Vec::new());
        }
        let unchanged = self.look(scratch, self.brief, None);
        if !matches!(unchanged, Verdict::Missed(_)) {
            if let Verdict::Caught(_, said) = &unchanged {
                eprintln!("{said}");
            }
            eprintln!("xtask: unchanged tree: {unchanged}");
            return None;
        }
        let mut planted = Vec::new();
        for patch in &patches {
            let begin = Instant::now();
            let folder = patch.parent().filter(|folder| *folder != root().join(self.patches));
            let test = folder.and_then(Path::file_name).and_then(|test| test.to_str());
            let stem = patch.file_stem().unwrap_or_default().to_string_lossy();
            let name = test.map_or(stem.to_string(), |test| format!("{stem} ({test})"));
            let verdict = if patched(scratch, patch, &[]) {
                let verdict = self.look(scratch, self.thorough, test);
                if let Verdict::Caught(_, what) = &verdict {
                    // Keeps the output as evidence that this mutant was detected.
                    let _ = fs::write(scratch.join(&*stem).with_extension("said"), what);
                }
                if !patched(scratch, patch, &["--reverse"]) {
                    eprintln!("xtask: cannot revert {name}");
                    return None;
                }
                verdict
            } else {
                Verdict::Stale
            };
            println!("{name}: {verdict}");
            if let Verdict::Caught(_, what) = &verdict
                && let Some(first) = first_violation(what)
            {
                println!("    {first}");
            }
            planted.push(Planted { name, verdict, took: begin.elapsed() });
        }
        // A fault of the unchanged tree that shows after as many attempts would count as a detected mutant.
        let furthest = planted.iter().filter_map(|planted| match &planted.verdict {
            Verdict::Caught(_, what) => Some(violated_after(what).unwrap_or(self.thorough)),
            _ => None,
        });
        // Threads take workloads in a different order each time, so try some more.
        let effort = furthest.max().unwrap_or(0) * 5 / 4;
        if effort > self.brief {
            let unchanged = self.look(scratch, effort, None);
            println!(
                "unchanged tree, with the effort of the mutants ({}={effort}): {unchanged}",
                self.effort
            );
            if !matches!(unchanged, Verdict::Missed(_)) {
                return None;
            }
        }
        Some(planted)
    }
}

/// Runs all mutants, or those whose paths contain `only`: a mutant, a test, or `races`.
pub fn mutants(only: Option<&str>) -> bool {
    let scratch = root().join("target/mutants");
    if copy_tree(root(), &scratch).is_none() {
        eprintln!("xtask: cannot copy the tree to {}", scratch.display());
        return false;
    }
    let mut results = Vec::new();
    for harness in &HARNESSES {
        let Some(planted) = harness.plant(&scratch, only) else { return false };
        results.extend(planted);
    }
    if results.is_empty() {
        eprintln!("xtask: no mutant has this name");
        return false;
    }
    println!("\n| mutant | result | time with build, s |\n|---|---|---|");
    for Planted { name, verdict, took } in &results {
        println!("| {name} | {verdict} | {} |", took.as_secs());
    }
    let caught = results.iter().filter(|planted| matches!(planted.verdict, Verdict::Caught(..))).count();
    println!("{caught} of {} caught", results.len());
    caught == results.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_applies_and_is_described() {
        for harness in &HARNESSES {
            let patches = harness.patches(None);
            assert!(patches.len() >= 8, "{} patches in {}", patches.len(), harness.patches);
            for patch in &patches {
                assert!(patched(root(), patch, &["--check"]), "{} no longer applies", patch.display());
                let text = fs::read_to_string(patch).unwrap();
                let (header, _) = text.split_once("\n\ndiff --git ").expect("a header above the patch");
                assert!(header.ends_with('.'), "{}: {header}", patch.display());
            }
        }
    }

    #[test]
    fn the_text_of_a_detection_is_in_the_test() {
        for (harness, source) in HARNESSES.iter().zip([
            "fs/ext4/tests/explore.rs",
            "testing/crash/src/kinds.rs",
            "testing/crash/src/kinds.rs",
            "testing/crash/src/kinds.rs",
            "testing/crash/src/kinds.rs",
            "testing/races/src/lib.rs",
        ]) {
            let text = fs::read_to_string(root().join(source)).unwrap();
            assert!(text.contains(harness.caught), "{source} does not print {:?}", harness.caught);
        }
    }

    #[test]
    fn summaries_are_parsed() {
        let said = "ext4: 3 workloads, 600 distinct crash states (1 prefixes) in 2 s\nrecovered by us\n0 \
            violations\n\
            ext3: 1 workloads, 41 distinct crash states (1 prefixes) in 0 s\nrecovered by us\n1 \
            violations, the first after 40 states\n\n\
            ext3, workload `x`: it is gone\n  worker 0\n";
        assert_eq!(sum_before(" distinct crash states", said), 641);
        assert_eq!(violated_after(said), Some(40));
        assert_eq!(first_violation(said), Some("ext3, workload `x`: it is gone"));
    }
}
