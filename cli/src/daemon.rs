//! Going into the background without `fork`: the command starts itself again and waits until that serves.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::failure::{failure, say};

/// What the child says when it serves, before [`Served`]; anything else is an exit code and why it does not.
const READY: &str = "ready ";

/// What is said of a mount that serves.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Served {
    /// It cannot be written.
    pub read_only: bool,
    /// Why, if that was not asked for.
    pub read_only_because: Option<String>,
}

/// Where messages go if nobody says.
pub fn default_log() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
    Some(state.join("ivers/ivers.log"))
}

fn open_log(path: &Path) -> std::io::Result<File> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// This program once more, under its own name whatever it was called by.
pub fn this_program() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's own file")?);
    command.arg0("ivers");
    Ok(command)
}

/// Start this program again with these arguments; return its process id and what it says once it is ready.
pub fn start(args: &[std::ffi::OsString], log: Option<&Path>) -> Result<(u32, Served)> {
    let log = match log {
        Some(path) => {
            Some(open_log(path).with_context(|| format!("cannot open the log {}", path.display()))?)
        }
        // Without a home there is no log.
        None => default_log().and_then(|path| open_log(&path).ok()),
    };
    let mut child = this_program()?
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.map_or_else(Stdio::null, Stdio::from))
        .spawn()
        .context("cannot start the process that serves")?;
    let mut line = String::new();
    let waiting = crate::progress::Waiting::to("until the mount serves");
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    drop(waiting);
    let line = line.trim_end();
    if let Some(served) = line.strip_prefix(READY) {
        return Ok((child.id(), serde_json::from_str(served)?));
    }
    let status = child.wait()?;
    match line.split_once(' ') {
        Some((code, message)) => Err(failure(code.parse().unwrap_or(1), message)),
        None => bail!("the process that serves ended with {status}"),
    }
}

/// In the child: a session of its own, so that the terminal's signals do not reach it.
pub fn leave_terminal() -> Result<()> {
    // Fails only for a process group leader, which has no terminal to leave then.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    Ok(())
}

/// In the child: tell the parent how it went.
pub fn tell_parent(result: Result<&Served, &anyhow::Error>) {
    let mut stdout = std::io::stdout();
    let line = match result {
        Ok(served) => format!("{READY}{}", serde_json::json!(served)),
        Err(error) => format!("{} {}", crate::failure::code(error), crate::failure::line(error)),
    };
    // The parent may be gone; that is no reason not to serve.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Lines within one [`Pace`] window; whoever may read a damaged file can cause a line each time, and must not fill the disk.
const LINES_A_WINDOW: u32 = 200;
const WINDOW_SECONDS: u64 = 10;

/// How many lines may still go out.
#[derive(Debug, Default)]
struct Pace {
    window: u64,
    lines: u32,
    left_out: u64,
}

impl Pace {
    /// Whether a line may go out at this second; and how many were left out before it, to be said first.
    fn admit(&mut self, second: u64) -> Option<u64> {
        let window = second / WINDOW_SECONDS;
        if window != self.window {
            (self.window, self.lines) = (window, 0);
        }
        if self.lines == LINES_A_WINDOW {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Messages of the crates below, on standard error, with the time.
pub struct Log(Mutex<Pace>);

impl log::Log for Log {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Info
    }

    fn log(&self, record: &log::Record<'_>) {
        // The transport's own chatter below warnings is nobody's affair.
        if !self.enabled(record.metadata())
            || (record.level() > log::Level::Warn && !record.target().starts_with("ivers"))
        {
            return;
        }
        // Held to the end: one line at a time.
        let mut pace = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let Some(left_out) = pace.admit(now.as_secs()) else { return };
        let time = crate::show::time(now.as_secs() as i64);
        let head = format!("{time} ivers[{}]", std::process::id());
        if left_out > 0 {
            say(format_args!("{head} WARN: {left_out} messages were left out here"));
        }
        let text = crate::show::one_line(&record.args().to_string());
        say(format_args!("{head} {}: {text}", record.level()));
    }

    fn flush(&self) {}
}

/// Show messages from here on.
pub fn start_log() {
    static LOG: Log = Log(Mutex::new(Pace { window: 0, lines: 0, left_out: 0 }));
    if log::set_logger(&LOG).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_messages_is_cut_and_told() {
        let mut pace = Pace::default();
        let admitted = (0..1000).filter(|_| pace.admit(1_000_000).is_some()).count();
        assert_eq!(admitted as u32, LINES_A_WINDOW);
        assert_eq!(pace.admit(1_000_000 + WINDOW_SECONDS), Some(1000 - u64::from(LINES_A_WINDOW)));
        assert_eq!(pace.admit(1_000_000 + WINDOW_SECONDS), Some(0));
    }
}
