//! Project chores: `cargo xtask test` is what CI runs, `cargo xtask demo` shows the point,
//! `cargo xtask soak` is the long proof.

mod demo;
mod fuzz;
mod mutants;
mod suites;
#[cfg(test)]
mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};

fn run(step: &str, program: &str, args: &[&str], env: &[(&str, &str)]) -> bool {
    println!("== {step}: {program} {}", args.join(" "));
    let ok = Command::new(program).args(args).envs(env.iter().copied()).status().is_ok_and(|s| s.success());
    if !ok {
        eprintln!("xtask: the step `{step}` failed");
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
        let mut args = vec!["install", "-y", "-q", "--no-install-recommends"];
        args.extend(&missing);
        if run("package lists", "apt-get", &["update", "-q"], &[]) && run("packages", "apt-get", &args, &[]) {
            return true;
        }
    }
    eprintln!("xtask: please install {} (Debian: apt-get install {})", missing.join(", "), missing.join(" "));
    false
}

fn test() -> bool {
    let programs = [
        ("mkfs.ext4", "e2fsprogs"),
        ("fusermount3", "fuse3"),
        ("getfattr", "attr"),
        ("getfacl", "acl"),
        ("rsync", "rsync"),
        ("restic", "restic"),
        ("tar", "tar"),
        ("gcc", "gcc"),
        ("mkfs.xfs", "xfsprogs"),
        ("mkfs.btrfs", "btrfs-progs"),
    ];
    ensure(&programs)
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
}

/// How long each fuzz target runs in the long proof.
const SOAK_FUZZ_MINUTES: u64 = 30;

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

/// The long proofs. A failure prints the seed that replays it.
fn soak() -> bool {
    let long_days = |seed: &str| {
        let env = [("IVERS_SEED", seed), ("IVERS_STEPS", "5000")];
        run("long days", "cargo", &["test", "--release", "-p", "ivers-ext4", "--test", "workday"], &env)
    };
    let contract = |seed: &str| {
        let env = [("IVERS_SEED", seed), ("IVERS_STEPS", "20000")];
        let args = ["test", "--release", "-p", "ivers-contract", "--", "--nocapture"];
        run("the contract, in-process, through FUSE and the kernel's", "cargo", &args, &env)
    };
    let kill9 = ["test", "--release", "-p", "ivers", "--test", "kill9", "--", "--nocapture"];
    let programs = [
        ("mkfs.ext4", "e2fsprogs"),
        ("fusermount3", "fuse3"),
        ("mkfs.xfs", "xfsprogs"),
        ("mkfs.btrfs", "btrfs-progs"),
    ];
    ensure(&programs)
        && ["1", "2", "3", "4", "5"].into_iter().all(long_days)
        && ["11", "12", "13"].into_iter().all(contract)
        && run(
            "100,000 crash states",
            "cargo",
            &["test", "--release", "-p", "ivers-ext4", "--test", "explore", "--", "--nocapture"],
            &[("IVERS_CRASH_STATES", "20000")],
        )
        && run(
            "round trip of 20,000 files and 100,000 names",
            "cargo",
            &[
                "test",
                "--release",
                "-p",
                "ivers",
                "--test",
                "roundtrip",
                "--",
                "--test-threads=2",
                "--nocapture",
            ],
            &[("IVERS_ROUND_FILES", "20000")],
        )
        && suites::suites()
        && run("200 kills", "cargo", &kill9, &[("IVERS_KILLS", "200")])
        && fuzz::fuzz(None, SOAK_FUZZ_MINUTES)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage = || {
        eprintln!(
            "usage: cargo xtask demo | test | soak | mutants [NAME] | fuzz [TARGET] [--minutes N] | fuzz --seed-corpus DIR"
        );
        ExitCode::from(2)
    };
    let ok = match words.first().map_or("", String::as_str) {
        "test" => test(),
        "soak" => soak(),
        "mutants" => mutants::mutants(std::env::args().nth(2).as_deref()),
        "demo" => ensure(&[("mkfs.ext4", "e2fsprogs")]) && demo::demo(),
        "fuzz" => match fuzz(&words[1..]) {
            Some(ok) => ok,
            None => return usage(),
        },
        _ => return usage(),
    };
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
