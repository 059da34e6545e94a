//! `ivers measure`, and mounts that measure: which files are read again, the list, and whether other tools
//! agree with it.
//!
//! `IVERS_MEASURED_FILES` sets the number of files in the large tree (default 400; 20000 in the soak).

#[path = "../common/mod.rs"]
mod common;

mod command;
mod evmctl;
mod kernel;
mod mounted;

use common::*;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory where a test keeps its list and its store.
struct Kept(tempfile::TempDir);

impl Kept {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Measures; returns the last object of the answer, and whether the exit code was 0.
    fn run(&self, words: &[&OsStr]) -> (Value, bool) {
        let (list, store) = (self.path("list"), self.path("store"));
        let fixed = ["measure".as_ref(), "--json".as_ref(), "--list".as_ref(), list.as_os_str()];
        let fixed = fixed.into_iter().chain(["--store".as_ref(), store.as_os_str()]);
        let output = ivers(fixed.chain(words.iter().copied()));
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().unwrap_or_else(|| panic!("{words:?}: {}", said(&output)));
        (serde_json::from_str(last).unwrap(), output.status.success())
    }

    fn measure(&self, what: impl AsRef<OsStr>) -> Value {
        let (sums, well) = self.run(&[what.as_ref()]);
        assert!(well, "{sums}");
        sums
    }

    /// Returns how many files were read, and how many were not.
    fn counts(&self, what: impl AsRef<OsStr>) -> (u64, u64) {
        let sums = self.measure(what);
        (sums["read"].as_u64().unwrap(), sums["not_read"].as_u64().unwrap())
    }
}

/// Returns the root of an image.
fn root_of(place: &Place) -> String {
    format!("{}:/", place.image.path().display())
}

/// Creates a tree in a mounted directory.
fn fill(dir: &Path, files: usize, bytes: usize) {
    for number in 0..files {
        let dir = dir.join(format!("d{:03}", number / 100));
        fs::create_dir_all(&dir).unwrap();
        let mut contents = vec![(number % 251) as u8; bytes];
        contents[..8].copy_from_slice(&(number as u64).to_le_bytes());
        fs::write(dir.join(format!("f{number:05}")), contents).unwrap();
    }
}
