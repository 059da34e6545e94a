//! Processes of this program: starting another one, how one ended, where the user's files are.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};
use signal_hook::consts::SIGSYS;

/// Returns a command that runs this program under the name `ivers`, whatever name it was called by.
pub fn this_program() -> Result<Command> {
    let program = std::env::current_exe().context("cannot find the file of this program")?;
    let mut command = Command::new(program);
    command.arg0("ivers");
    Ok(command)
}

/// Returns how a process ended, as the end of a sentence.
pub fn describe_exit(status: ExitStatus) -> String {
    match status.signal() {
        Some(SIGSYS) => {
            "was killed by the sandbox for a forbidden system call (a hostile image, or a bug)".into()
        }
        Some(signal) => format!("was killed by signal {signal}"),
        None => format!("ended with {status}"),
    }
}

/// Returns the value of an environment variable, unless it is empty.
pub fn env_path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns `$XDG_STATE_HOME/ivers`, by default `~/.local/state/ivers`. `None` without a home directory.
pub fn user_state_dir() -> Option<PathBuf> {
    let state = env_path("XDG_STATE_HOME").or_else(|| Some(env_path("HOME")?.join(".local/state")))?;
    Some(state.join("ivers"))
}
