//! Project chores: `cargo xtask demo` shows what ivers does, `cargo xtask test` is what CI runs, `cargo xtask soak` is the long
//! proof.

mod demo;
#[cfg(test)]
mod tidy;
mod tools;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

const USAGE: &str = "usage: cargo xtask demo|test|soak
  demo  build, and take the tour of one minute
  test  format, lints, documentation, all tests, and the models of the counter
  soak  the long proofs: hundreds of kills, long days of work on every kind of image";

fn cargo(step: &str, env: &[(&str, &str)], args: &[&str]) -> Result<(), String> {
    let set: String = env.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    println!("== {step}: {set}cargo {}", args.join(" "));
    let start = Instant::now();
    let status = Command::new("cargo").args(args).envs(env.iter().copied()).status();
    println!("== {step} took {:.0} s", start.elapsed().as_secs_f64());
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("{step} failed")),
        Err(error) => Err(format!("{step}: cannot run cargo: {error}")),
    }
}

fn test() -> Result<(), String> {
    tools::provide()?;
    cargo("format", &[], &["fmt", "--all", "--check"])?;
    cargo("lints", &[], &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    cargo(
        "documentation",
        &[("RUSTDOCFLAGS", "-D warnings")],
        &["doc", "--workspace", "--no-deps", "--quiet"],
    )?;
    let loom =
        ["test", "--release", "--package", "iversion", "--test", "loom", "--target-dir", "target/loom"];
    cargo("models of the counter", &[("RUSTFLAGS", "--cfg loom")], &loom)?;
    cargo("tests", &[], &["test", "--workspace"])
}

fn soak() -> Result<(), String> {
    tools::provide()?;
    for seed in ["1", "2", "3", "4", "5"] {
        let env = [("IVERS_SEED", seed), ("IVERS_STEPS", "5000")];
        cargo("long days", &env, &["test", "--release", "--package", "ivers-ext4", "--test", "workday"])?;
    }
    let kill = ["test", "--release", "--package", "ivers", "--test", "kill9", "--", "--nocapture"];
    cargo("200 kills", &[("IVERS_KILLS", "200")], &kill)
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let result = match std::env::args().nth(1).as_deref() {
        Some("demo") => demo::demo(root),
        Some("test") => test(),
        Some("soak") => soak(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
