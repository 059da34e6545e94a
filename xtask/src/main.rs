//! Project chores: `cargo xtask test` is what CI runs, `cargo xtask demo` shows the point,
//! `cargo xtask soak` is the long proof.

mod demo;
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
        ("gcc", "gcc"),
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

/// The long proofs. A failure prints the seed that replays it.
fn soak() -> bool {
    let long_days = |seed: &str| {
        let env = [("IVERS_SEED", seed), ("IVERS_STEPS", "5000")];
        run("long days", "cargo", &["test", "--release", "-p", "ivers-ext4", "--test", "workday"], &env)
    };
    let kill9 = ["test", "--release", "-p", "ivers", "--test", "kill9", "--", "--nocapture"];
    ensure(&[("mkfs.ext4", "e2fsprogs"), ("fusermount3", "fuse3")])
        && ["1", "2", "3", "4", "5"].into_iter().all(long_days)
        && run(
            "100,000 crash states",
            "cargo",
            &["test", "--release", "-p", "ivers-ext4", "--test", "explore", "--", "--nocapture"],
            &[("IVERS_CRASH_STATES", "20000")],
        )
        && run("200 kills", "cargo", &kill9, &[("IVERS_KILLS", "200")])
}

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let ok = match task.as_str() {
        "test" => test(),
        "soak" => soak(),
        "demo" => ensure(&[("mkfs.ext4", "e2fsprogs")]) && demo::demo(),
        _ => {
            eprintln!("usage: cargo xtask demo | test | soak");
            return ExitCode::from(2);
        }
    };
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
