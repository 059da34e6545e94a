//! Ends a run on Ctrl-C, SIGTERM or SIGHUP between two rounds, so that temporary files and mounts are
//! removed. A second signal ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_default};

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Installs the signal handlers, so that [`check`] works.
pub(crate) fn watch() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order, so that the first signal finds the flag unset.
        register_conditional_default(signal, INTERRUPTED.clone())?;
        register(signal, INTERRUPTED.clone())?;
    }
    Ok(())
}

/// Returns an error after a signal.
pub(crate) fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted: no results");
    }
    Ok(())
}
