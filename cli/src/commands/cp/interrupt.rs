//! Ending a copy on a signal: what is open is closed, and the command says what was copied.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code after a signal, as that of a shell for SIGINT.
pub const INTERRUPTED: u8 = 130;

static IS_SET: LazyLock<Arc<AtomicBool>> = LazyLock::new(Default::default);

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// A signal asks to end the copy.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// From now on a signal makes [`check`] fail.
pub fn catch() -> Result<()> {
    for signal in SIGNALS {
        flag::register(signal, IS_SET.clone())?;
    }
    Ok(())
}

/// As [`catch`], but a second signal ends the process at once.
pub fn catch_once() -> Result<()> {
    for signal in SIGNALS {
        // Before the flag is set: the first signal sees it unset.
        flag::register_conditional_shutdown(signal, INTERRUPTED.into(), IS_SET.clone())?;
    }
    catch()
}

/// Forgets a signal: what starts now is not what it asked to end.
pub fn clear() {
    IS_SET.store(false, Ordering::Relaxed);
}

/// Fails after a signal.
pub fn check() -> Result<()> {
    if is_set() { Err(Interrupted.into()) } else { Ok(()) }
}

/// Returns whether a signal came.
pub fn is_set() -> bool {
    IS_SET.load(Ordering::Relaxed)
}
