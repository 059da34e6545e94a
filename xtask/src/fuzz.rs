//! `cargo xtask fuzz`: coverage-guided fuzzing.

use crate::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The longest time of one input, unless the command gives another.
pub const INPUT_SECONDS: u64 = 10;

/// Returns the targets: the files of `fuzz/fuzz_targets`.
pub fn targets() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(root().join("fuzz/fuzz_targets"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Returns cargo-fuzz; installs it into `target/tools` if it is missing.
fn cargo_fuzz() -> Option<PathBuf> {
    let installed =
        Command::new("cargo").args(["fuzz", "--version"]).output().is_ok_and(|o| o.status.success());
    if installed {
        return Some("cargo-fuzz".into());
    }
    let tools = root().join("target/tools");
    let program = tools.join("bin/cargo-fuzz");
    let tools = tools.to_str()?;
    let is_installed = program.is_file()
        || run("cargo-fuzz", "cargo", &["install", "--locked", "cargo-fuzz", "--root", tools], &[]);
    is_installed.then_some(program)
}

fn nightly() -> bool {
    let is_installed =
        Command::new("cargo").args(["+nightly", "--version"]).output().is_ok_and(|o| o.status.success());
    if !is_installed {
        eprintln!("xtask: fuzzing requires a nightly compiler: run `rustup toolchain install nightly`");
    }
    is_installed
}

/// Runs one target, or all in turn, for this number of minutes each. An input that takes longer than
/// `input_seconds` is a failure. Failing inputs are written to
/// `fuzz/artifacts/TARGET`: commit them to `testing/fuzz-targets/regressions/TARGET` together with the fix.
pub fn fuzz(only: Option<&str>, minutes: u64, input_seconds: u64) -> bool {
    let targets = targets();
    if let Some(name) = only
        && !targets.iter().any(|target| target == name)
    {
        eprintln!("xtask: no fuzz target {name}; use one of {}", targets.join(", "));
        return false;
    }
    let corpus = root().join("fuzz/corpus");
    let Some(program) = nightly().then(cargo_fuzz).flatten() else { return false };
    write_inputs(&corpus)
        && targets
            .iter()
            .filter(|target| only.is_none_or(|name| *target == name))
            .all(|target| one(&program, target, minutes, input_seconds))
}

/// Writes the generated inputs into a corpus: a directory for each target.
pub fn write_inputs(corpus: &Path) -> bool {
    let dir = corpus.to_string_lossy();
    let args = ["run", "--quiet", "-p", "ivers-fuzz-targets", "--example", "inputs", "--", &*dir];
    run("fuzz inputs", "cargo", &args, &[])
}

fn one(program: &Path, target: &str, minutes: u64, input_seconds: u64) -> bool {
    let timeout = format!("-timeout={input_seconds}");
    let seconds = format!("-max_total_time={}", minutes * 60);
    let committed = format!("testing/fuzz-targets/corpus/{target}");
    let failed = format!("testing/fuzz-targets/regressions/{target}");
    let mut args = vec!["+nightly", "fuzz", "run", "--fuzz-dir", "fuzz"];
    // Without sanitizer and comparison tracing several times as many inputs run. The drivers contain no
    // unsafe code, and inputs refer to places by number. The targets' allocator limits memory.
    args.extend(["--sanitizer", "none", "--no-trace-compares", target]);
    let corpus = format!("fuzz/corpus/{target}");
    args.push(&corpus);
    args.extend(
        [&committed, &failed].into_iter().filter(|dir| root().join(dir).is_dir()).map(String::as_str),
    );
    // Several requests need a longer input than one; damage to an image needs few bytes.
    let max_len = if target.starts_with("nfs_") { "-max_len=2000" } else { "-max_len=1200" };
    args.extend(["--", &timeout, "-rss_limit_mb=1024", max_len, "-print_final_stats=1", &seconds]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let tools = program.parent().map(Path::to_owned).unwrap_or_default();
    let path =
        std::env::join_paths(std::iter::once(tools).chain(std::env::split_paths(&path))).unwrap_or(path);
    run(&format!("fuzz {target}"), "cargo", &args, &[("PATH", &*path.to_string_lossy())])
}
