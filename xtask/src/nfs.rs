//! `cargo xtask nfs`: the Linux NFS client against our server, with fsx, two clients of each version, and ten
//! kills of the server.

use crate::{ensure, run, target_dir};
use ivers_oracle::machine;

const FSX: &str = "fsx@0.3.2";
/// The emulated machines have this target and no libraries.
const GUEST: &str = "x86_64-unknown-linux-gnu";
const ROUNDS: &str = "10";

/// Runs the test. Returns whether it passed; a test that cannot run has not passed.
pub(crate) fn nfs() -> bool {
    let programs =
        [&machine::PROGRAMS[..], &[("mkfs.ext4", "e2fsprogs"), ("gcc", "gcc"), ("tar", "tar")]].concat();
    let target = target_dir();
    let Ok(tools) = std::path::absolute(target.join("guest-tools")) else { return false };
    let (Some(root), Some(fsx)) = (tools.to_str(), tools.join("bin/fsx").to_str().map(str::to_owned)) else {
        eprintln!("xtask: nfs: {} is not UTF-8", tools.display());
        return false;
    };
    let install = ["install", "--locked", "--target", GUEST, "--root", root, FSX];
    ensure(&programs)
        && run("fsx", "cargo", &install, &[("RUSTFLAGS", "-C target-feature=+crt-static")])
        && run(
            "the Linux NFS client",
            "cargo",
            &["test", "--release", "-p", "ivers", "--test", "linux", "--", "--nocapture"],
            &[("CI", "1"), ("IVERS_NFS_ROUNDS", ROUNDS), ("IVERS_FSX", &fsx)],
        )
}
