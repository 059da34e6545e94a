//! `cargo xtask soak release`: what must hold before a version is published, and takes too long for each
//! change.

use crate::{dist, ensure, run, target_dir};

/// Runs all parts, even after a failure.
pub(crate) fn release() -> bool {
    oldest_compiler() & dependencies() & packages() & static_program()
}

/// Builds everything with the oldest compiler that `rust-version` admits. clippy reports newer parts of the
/// standard library, but only this build finds newer parts of the language.
fn oldest_compiler() -> bool {
    let version = env!("CARGO_PKG_RUST_VERSION");
    let target = target_dir().join("oldest-compiler");
    let target = target.to_string_lossy();
    let check =
        ["run", version, "cargo", "check", "--workspace", "--all-targets", "--locked", "--target-dir"];
    run("oldest compiler", "rustup", &["toolchain", "install", version, "--profile", "minimal"], &[])
        && run("build with it", "rustup", &[&check[..], &[&target]].concat(), &[])
}

/// Checks licenses, sources and known vulnerabilities of all crates. The database of vulnerabilities comes
/// from the network.
fn dependencies() -> bool {
    run("cargo-deny", "cargo", &["install", "--locked", "cargo-deny"], &[])
        && run("crates", "cargo", &["deny", "check"], &[])
}

/// Packs every published crate, and builds it from the package.
fn packages() -> bool {
    run("packages of crates", "cargo", &["publish", "--workspace", "--dry-run", "--locked"], &[])
}

/// Builds the release with musl, as published, and tries it in a clean Debian, which requires root.
fn static_program() -> bool {
    run("musl", "rustup", &["target", "add", dist::MUSL], &[])
        && ensure(&[("musl-gcc", "musl-tools")])
        && ensure(&dist::PROGRAMS)
        && ensure(&dist::PROGRAMS_OF_CHECK)
        && dist::dist(None, true)
}
