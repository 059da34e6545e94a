//! Programs under test.
#![allow(dead_code)]

use std::path::Path;
use std::process::Command;
use std::sync::Once;

const BENCH: &str = env!("CARGO_BIN_EXE_ivers-bench");

pub fn bench() -> Command {
    Command::new(BENCH)
}

/// Builds `ivers`, which the bench mounts images with, unless `cargo test --workspace` has done so.
pub fn build_ivers() {
    static BUILT: Once = Once::new();
    let profile = Path::new(BENCH).parent().unwrap();
    BUILT.call_once(|| {
        if profile.join("ivers").exists() {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "ivers", "--target-dir"]).arg(profile.parent().unwrap());
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
    });
}
