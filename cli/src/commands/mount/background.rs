//! Mounting in the background without `fork`: the command starts itself again and waits until that process
//! serves.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::output::failure::{self, failure};
use crate::output::format::Shown;
use crate::output::progress::Waiting;
use crate::process::{describe_exit, this_program, user_state_dir};

/// The text before the [`MountStatus`] that the child prints when it serves. If it fails, it prints an exit
/// code and an error instead.
const READY: &str = "ready ";

/// The status of a mount that serves.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct MountStatus {
    /// The mount is read-only.
    pub read_only: bool,
    /// Why it is read-only although that was not requested.
    pub read_only_because: Option<String>,
}

fn open_log(path: &Path) -> std::io::Result<File> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    // Readable: the supervisor bounds its length.
    OpenOptions::new().create(true).read(true).append(true).open(path)
}

/// Starts this program again with these arguments. Returns its process ID and status once it serves.
pub fn start(args: &[std::ffi::OsString], log: Option<&Path>) -> Result<(u32, MountStatus)> {
    let log = match log {
        Some(path) => Some(open_log(path).with_context(|| format!("cannot open the log {}", path.shown()))?),
        // Without a home directory there is no log.
        None => user_state_dir().and_then(|dir| open_log(&dir.join("ivers.log")).ok()),
    };
    let mut child = this_program()?
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.map_or_else(Stdio::null, Stdio::from))
        .spawn()
        .context("cannot start the process of the mount")?;
    let mut line = String::new();
    let waiting = Waiting::to("waiting until the mount serves");
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    drop(waiting);
    let line = line.trim_end();
    if let Some(status) = line.strip_prefix(READY) {
        return Ok((child.id(), serde_json::from_str(status)?));
    }
    let exit = child.wait()?;
    match line.split_once(' ') {
        Some((code, message)) => Err(failure(code.parse().unwrap_or(1), message)),
        None => bail!("the process of the mount {}", describe_exit(exit)),
    }
}

/// Starts a new session in the child, so that signals of the terminal do not reach it.
pub fn leave_terminal() -> Result<()> {
    // Fails only for a process group leader, which has no terminal then.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    Ok(())
}

/// Reports to the parent from the child.
pub fn report_to_parent(result: Result<&MountStatus, &anyhow::Error>) {
    let mut stdout = std::io::stdout();
    let line = match result {
        Ok(status) => format!("{READY}{}", serde_json::json!(status)),
        Err(error) => format!("{} {}", failure::code(error), failure::line(error)),
    };
    // The mount serves even if the parent has ended.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}
