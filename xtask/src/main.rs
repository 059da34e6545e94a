//! Project chores: `cargo xtask test` is what CI runs.

#[cfg(test)]
mod tidy;

use std::process::{Command, ExitCode};

fn run(step: &str, args: &[&str]) -> bool {
    println!("== {step}: cargo {}", args.join(" "));
    Command::new("cargo").args(args).status().is_ok_and(|s| s.success())
}

fn main() -> ExitCode {
    let Some(task) = std::env::args().nth(1) else {
        eprintln!("usage: cargo xtask test");
        return ExitCode::from(2);
    };
    let ok = match task.as_str() {
        "test" => {
            run("format", &["fmt", "--all", "--check"])
                && run("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
                && run("tests", &["test", "--workspace"])
        }
        other => {
            eprintln!("xtask: no task named {other}; there is: test");
            return ExitCode::from(2);
        }
    };
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
