//! Parts of the work that end even if the server does not answer: a mount waits for its server forever.

use super::servers::Server;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time limit of a part. Emulated machines are slow, and the run may be paused.
const LIMIT: Duration = Duration::from_secs(3600);
const INTERVAL: Duration = Duration::from_millis(500);

/// The process of a mount.
pub(super) fn process_of(ivers: &Path, dir: &Path) -> Result<Pid> {
    let output = Command::new(ivers).args(["info", "--json"]).arg(dir).output()?;
    let about: serde_json::Value = serde_json::from_slice(&output.stdout).context("ivers info")?;
    let pid = about["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
    pid.with_context(|| format!("no process in {about}"))
}

/// The processes of the mounts of a part.
#[derive(Debug, Default)]
pub(super) struct Mounts(Mutex<Vec<Pid>>);

impl Mounts {
    pub(super) fn add(&self, process: Pid) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(process);
    }

    fn kill(&self) {
        for process in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // Those of ended mounts are gone.
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

/// Runs a part. If the server ends or the time is over, kills the mounts, so that the part ends too.
pub(super) fn watched<T>(
    server: &mut Server,
    mounts: &Mounts,
    part: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let (over, wait) = channel::<()>();
    let (done, why) = std::thread::scope(|scope| {
        let watcher = scope.spawn(move || {
            let begin = Instant::now();
            while wait.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let why = match server.has_ended() {
                    Some(how) => format!("the server has ended: {how}"),
                    None if begin.elapsed() > LIMIT => format!("no end after {} s", LIMIT.as_secs()),
                    None => continue,
                };
                mounts.kill();
                return Some(why);
            }
            None
        });
        let done = part();
        drop(over);
        (done, watcher.join())
    });
    mounts.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    match why {
        Ok(None) => done,
        Ok(Some(why)) => bail!(why),
        Err(_) => bail!("the watcher has panicked"),
    }
}
