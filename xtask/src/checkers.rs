//! Running checkers on damaged images: with a time limit, and what `ivers check --json` says.

use anyhow::{Context, Result};
use std::path::Path;
use std::process::{Command, Stdio};

/// How a checker ended.
pub struct Ran {
    /// The exit code. `None`: the checker did not end in time.
    pub code: Option<i32>,
    /// What it printed, on standard output and then on standard error.
    pub text: String,
}

/// Runs a program with these words for at most `limit_s` seconds.
pub fn run_limited(limit_s: u32, words: &[&str], image: &Path) -> Result<Ran> {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", &limit_s.to_string()]).args(words).arg(image).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let text = [output.stdout, output.stderr].concat();
    // timeout(1) ends with 124, or 137 if the program had to be killed.
    let code = output.status.code().filter(|code| ![124, 137].contains(code));
    Ok(Ran { code, text: String::from_utf8_lossy(&text).into_owned() })
}

/// Runs `ivers check --json` with options. Returns also the kinds of its findings.
pub fn ivers_check(limit_s: u32, ivers: &str, options: &[&str], image: &Path) -> Result<(Ran, Vec<String>)> {
    let ran = run_limited(limit_s, &[&[ivers, "check", "--json"][..], options].concat(), image)?;
    // The last line is the summary; after an error there is none.
    let summary: serde_json::Value =
        ran.text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let listed = summary["codes"].as_array().into_iter().flatten();
    let codes = listed.filter_map(|one| Some(one["code"].as_str()?.to_owned())).collect();
    Ok((ran, codes))
}

/// Copies an image, with its holes.
pub fn copy_image(from: &Path, to: &Path) -> Result<()> {
    let done = Command::new("cp").args(["--reflink=auto", "--sparse=always"]).args([from, to]).status()?;
    anyhow::ensure!(done.success(), "cannot copy {}", from.display());
    Ok(())
}
