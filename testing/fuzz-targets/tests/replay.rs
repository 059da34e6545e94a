//! Runs every input that once failed, and the small committed corpus, through the targets.

use ivers_fuzz_targets::{TARGETS, target};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time limit of an input: far above what any takes, for slow machines and unoptimised builds.
const LONGEST: Duration = Duration::from_secs(10);

fn inputs(folder: &str, target: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    paths
}

fn replay(folder: &str) {
    for target in TARGETS {
        for path in inputs(folder, target.name) {
            let input = std::fs::read(&path).unwrap();
            // Shown only if the test fails: the input.
            println!("{}", path.display());
            let started = Instant::now();
            (target.run)(&input);
            assert!(started.elapsed() < LONGEST, "{} took {:?}", path.display(), started.elapsed());
        }
    }
}

#[test]
fn regressions_pass() {
    replay("regressions");
}

#[test]
fn the_committed_corpus_passes() {
    replay("corpus");
}

#[test]
fn folders_are_named_after_targets() {
    for folder in ["regressions", "corpus"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in std::fs::read_dir(dir).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(target(&name).is_some(), "{folder}/{name} belongs to no target");
        }
    }
}
