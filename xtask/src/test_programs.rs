//! Runs the test programs of the workspace, several at once: most of them wait for disks, mounts and emulated
//! machines for much of their time.

use crate::{cargo, limit};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

/// The programs that run at the same time. Many wait for disks and mounts for half of their time.
const AT_ONCE: usize = 5;

/// The longest programs and steps. They begin first and in this order, so that none of them runs alone at the
/// end, and that programs that wait (for emulated machines, servers, package lists) run beside those that
/// compute.
const LONGEST: [&str; 16] = [
    "cli linux",
    "races",
    "fs/btrfs sessions",
    "fs/nfs client",
    "fs/btrfs images",
    "tests of documentation",
    "fs/ext4 sizes",
    "package",
    "fs/xfs log",
    "testing/contract inprocess",
    "cli measure",
    "fs/ext4 explore",
    "cli roundtrip",
    "fs/xfs images",
    "memory order",
    "documentation",
];

/// A test program, or another command that must succeed.
pub struct Program {
    /// Of a test program, the folder of the crate and the program's name in it.
    pub name: String,
    pub command: Command,
}

/// Builds all tests, then runs them and `others`. Returns whether all passed.
pub fn run(others: Vec<Program>) -> Result<bool> {
    let start = Instant::now();
    println!("== tests: cargo test --workspace, {AT_ONCE} programs at once");
    let mut programs = build()?;
    println!("== tests: built in {} s", start.elapsed().as_secs());
    programs.extend(others);
    for long in LONGEST {
        let is_there = programs.iter().any(|program| program.name == long);
        anyhow::ensure!(is_there, "no test program is named {long}: see {}", file!());
    }
    let place = |name: &str| LONGEST.iter().position(|long| *long == name).unwrap_or(LONGEST.len());
    programs.sort_by_key(|program| place(&program.name));
    let waiting = Mutex::new(VecDeque::from(programs));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(mut program) = waiting.lock().unwrap().pop_front() else { break };
                    if let Err(output) = run_one(&mut program) {
                        failed.lock().unwrap().push((program.name, output));
                    }
                }
            });
        }
    });
    println!("== tests: {} s", start.elapsed().as_secs());
    let failed = failed.into_inner().unwrap();
    // Print failures again at the end: if a log is truncated, its end remains.
    for (name, output) in &failed {
        eprintln!("xtask: the test program {name} failed:\n{}", failures(output));
    }
    Ok(failed.is_empty())
}

/// Returns the messages of the tests that failed, or all output if there are none.
fn failures(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    text.find("\nfailures:\n").map_or(&*text, |at| &text[at..]).trim().to_owned()
}

/// Builds all test programs.
fn build() -> Result<Vec<Program>> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().context("cargo test --no-run")?;
    anyhow::ensure!(output.status.success(), "cargo test --no-run: {}", output.status);
    let mut programs = Vec::new();
    for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"{")) {
        programs.extend(program(&serde_json::from_slice(line)?));
    }
    anyhow::ensure!(!programs.is_empty(), "cargo test --no-run names no test program");
    let mut documentation = cargo();
    documentation.args(["test", "--workspace", "--doc"]);
    programs.push(Program { name: "tests of documentation".into(), command: documentation });
    Ok(programs)
}

/// Returns the test program that a message of cargo names, if any.
fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let mut command = Command::new(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    command.current_dir(folder);
    // Tests hold images in memory. Large pages save up to half of their time ("Memory Allocation Tunables" in
    // the manual of glibc).
    command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let folder = folder.strip_prefix(root).unwrap_or(folder).display();
    let target = message["target"]["name"].as_str()?;
    Some(Program { name: format!("{folder} {target}"), command })
}

/// Runs a program and prints its output when it ends, so that it does not mix with that of others. If the
/// program failed, the output is the error.
fn run_one(program: &mut Program) -> std::result::Result<(), Vec<u8>> {
    let start = Instant::now();
    println!("running {} ({})", program.name, program.command.get_program().display());
    let (ended, output) = limit::output(&mut program.command);
    let passed = ended.as_ref().is_ok_and(|ended| ended.status.success());
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "\n== {}: {}", program.name, limit::took(start, &ended));
    let _ = out.write_all(&output).and_then(|()| out.flush());
    if let Err(error) = ended {
        eprintln!("xtask: {}: {error:#}", program.name);
    }
    if passed { Ok(()) } else { Err(output) }
}
