//! Ctrl-C and SIGTERM end a run between two rounds, so that what it made and mounted goes with it. A second one ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_default};

use crate::failure::{FAILED, failure};

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on [`check`] tells.
pub(super) fn watch() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first signal finds the flag down.
        register_conditional_default(signal, ASKED.clone())?;
        register(signal, ASKED.clone())?;
    }
    Ok(())
}

/// An error once somebody wants the run to end.
pub(super) fn check() -> Result<()> {
    if ASKED.load(Ordering::Relaxed) {
        return Err(failure(FAILED, "bench: interrupted, nothing is reported"));
    }
    Ok(())
}
