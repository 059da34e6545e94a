//! Processes of this program: starting another one, how one ended, where the user's files are.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_block::{Budget, Meter};
use signal_hook::consts::SIGSYS;

/// Returns a command that runs this program under the name `ivers`, whatever name it was called by.
pub fn this_program() -> Result<Command> {
    let program = std::env::current_exe().context("cannot find the file of this program")?;
    let mut command = Command::new(program);
    command.arg0("ivers");
    Ok(command)
}

/// Returns a meter of this process's resident memory. It opens no file later. `None` without procfs.
pub fn resident_meter() -> Option<Meter> {
    let file = File::open("/proc/self/statm").ok()?;
    let page_bytes = rustix::param::page_size() as u64;
    Some(Box::new(move || {
        let mut text = [0; 128];
        let len = file.read_at(&mut text, 0).ok()?;
        // The second number, in pages (proc_pid_statm(5)).
        let pages = std::str::from_utf8(text.get(..len)?).ok()?.split(' ').nth(1)?;
        Some(pages.parse::<u64>().ok()? * page_bytes)
    }))
}

/// Returns a memory bound that shrinks while this process is much larger; `None` without procfs. It opens no
/// file later.
pub fn metered_budget(limit_bytes: u64) -> Option<Arc<Budget>> {
    Some(Arc::new(Budget::with_meter(limit_bytes, resident_meter()?)))
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

/// Refuses to run under fakeroot(1). That replaces functions of the C library, which this program does not
/// call: owners and device nodes of the host would silently be the real ones.
pub fn refuse_fakeroot(instead: &str) -> anyhow::Result<()> {
    if std::env::var_os("FAKEROOTKEY").is_none() {
        return Ok(());
    }
    Err(crate::output::failure::usage(format!("ivers sees nothing of what fakeroot pretends; {instead}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meter_sees_memory_that_is_used() {
        let meter = resident_meter().unwrap();
        // Other tests of this process allocate and free meanwhile, so only a lower bound is certain.
        let used = std::hint::black_box(vec![1_u8; 64 << 20]);
        let resident = meter().unwrap();
        assert!(resident > 64 << 20, "{resident}");
        drop(used);
    }
}
