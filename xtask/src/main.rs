//! Project chores: `cargo xtask test` is what CI runs, `cargo xtask demo` shows the point,
//! `cargo xtask soak` is the long proof, `cargo xtask bench` measures everything.

mod bench;
mod demo;
mod fuzz;
mod kmod;
mod limit;
mod mutants;
mod nfs;
mod soak;
mod suites;
#[cfg(test)]
mod tidy;

use ivers_oracle::machine;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Instant;

/// cargo without what `cargo xtask` has set for this program: build scripts that look at it (ring's does) would be run anew, in turns with those of a
/// `cargo build` by hand.
fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_"))
        {
            cargo.env_remove(name);
        }
    }
    cargo
}

fn run(step: &str, program: &str, args: &[&str], env: &[(&str, &str)]) -> bool {
    println!("== {step}: {program} {}", args.join(" "));
    let start = Instant::now();
    let mut command = if program == "cargo" { cargo() } else { Command::new(program) };
    command.args(args).envs(env.iter().copied());
    let status = limit::status(&mut command);
    println!("== {step}: {} s", start.elapsed().as_secs());
    let ok = status.as_ref().is_ok_and(ExitStatus::success);
    if !ok {
        let why = status.err().map(|error| format!(": {error:#}")).unwrap_or_default();
        eprintln!("xtask: the step `{step}` failed{why}");
    }
    ok
}

/// Install what is missing where this process may; otherwise say in one message what to install.
fn ensure(programs: &[(&str, &str)]) -> bool {
    let there = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|dir: std::path::PathBuf| dir.join(program).is_file())
    };
    let mut missing: Vec<&str> =
        programs.iter().filter(|(p, _)| !there(p)).map(|(_, package)| *package).collect();
    missing.dedup();
    if missing.is_empty() {
        return true;
    }
    let is_root = std::os::unix::fs::MetadataExt::uid(&match std::fs::metadata("/proc/self") {
        Ok(meta) => meta,
        Err(_) => return false,
    }) == 0;
    if is_root && Path::new("/usr/bin/apt-get").exists() {
        let retries = ["-o", "Acquire::Retries=5"];
        let mut args = [&["install", "-y", "-q", "--no-install-recommends"], &retries[..]].concat();
        args.extend(missing.iter().flat_map(|packages| packages.split(' ')));
        if run("package lists", "apt-get", &[&["update", "-q"], &retries[..]].concat(), &[])
            && run("packages", "apt-get", &args, &[])
        {
            return true;
        }
    }
    eprintln!("xtask: please install {} (Debian: apt-get install {})", missing.join(", "), missing.join(" "));
    false
}

fn test() -> bool {
    limit::begin();
    let programs = [
        ("mkfs.ext4", "e2fsprogs"),
        ("fusermount3", "fuse3"),
        ("getfattr", "attr"),
        ("getfacl", "acl"),
        ("rsync", "rsync"),
        ("nfs-ls", "libnfs-utils"),
        ("restic", "restic"),
        ("tar", "tar"),
        ("gcc", "gcc"),
        ("fio", "fio"),
        ("fuse2fs", "fuse2fs libfuse3-dev pkgconf"),
        ("python3", "python3"),
        ("evmctl", "ima-evm-utils"),
        ("openssl", "openssl"),
        ("mkfs.xfs", "xfsprogs"),
        ("mkfs.btrfs", "btrfs-progs"),
        ("unadf", "unadf"),
        ("pip3", "python3-pip python3-venv"),
        ("mkfs.fat", "dosfstools"),
        ("mcopy", "mtools"),
    ];
    ensure(&[&programs[..], &machine::PROGRAMS].concat())
        && run("format", "cargo", &["fmt", "--all", "--check"], &[])
        && run("lints", "cargo", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])
        && run(
            "documentation",
            "cargo",
            &["doc", "--workspace", "--no-deps", "--quiet"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        )
        && run("tests", "cargo", &["test", "--workspace"], &[])
        && run(
            "memory order",
            "cargo",
            &["test", "-p", "iversion", "--test", "loom", "--release", "--target-dir", "target/loom"],
            &[("RUSTFLAGS", "--cfg loom")],
        )
        && run(
            "races",
            "cargo",
            &["test", "-p", "ivers-races", "--target-dir", "target/shuttle"],
            &[("RUSTFLAGS", "--cfg shuttle -D warnings")],
        )
}

/// `fuzz [TARGET] [--minutes N]`, or `fuzz --seed-corpus DIR`.
fn fuzz(words: &[String]) -> Option<bool> {
    let mut target = None;
    let mut minutes = 10;
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--seed-corpus" => return Some(fuzz::seeds(Path::new(rest.next()?))),
            "--minutes" => minutes = rest.next()?.parse().ok()?,
            name if !name.starts_with('-') && target.is_none() => target = Some(name),
            _ => return None,
        }
    }
    Some(fuzz::fuzz(target, minutes))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage = || {
        eprintln!(
            "usage: cargo xtask demo | test | soak [STEP] | bench [DIR [OPTION-OF-IVERS-BENCH...]] | nfs-speed [OPTION...] | kmod | nfs | mutants [NAME] | fuzz [TARGET] [--minutes N] | fuzz --seed-corpus DIR"
        );
        ExitCode::from(2)
    };
    if words.get(1).is_some_and(|word| matches!(word.as_str(), "--help" | "-h")) {
        return usage();
    }
    let ok = match words.first().map_or("", String::as_str) {
        "test" => test(),
        "soak" => match soak::soak(words.get(1).map(String::as_str)) {
            Some(ok) => ok,
            None => return usage(),
        },
        "kmod" => kmod::kmod(),
        "nfs" => nfs::nfs(),
        "mutants" => mutants::mutants(words.get(1).map(String::as_str)),
        "demo" => ensure(&[("mkfs.ext4", "e2fsprogs")]) && demo::demo(),
        "bench" => {
            let dir = words.get(1).map_or("target/report", String::as_str);
            ensure(&[("mkfs.ext4", "e2fsprogs"), ("fusermount3", "fuse3")])
                && bench::bench(Path::new(dir), words.get(2..).unwrap_or_default())
        }
        "nfs-speed" => {
            ensure(&[("mkfs.ext4", "e2fsprogs"), bench::GANESHA[0]]) && bench::nfs_speed(&words[1..])
        }
        "fuzz" => match fuzz(&words[1..]) {
            Some(ok) => ok,
            None => return usage(),
        },
        _ => return usage(),
    };
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
