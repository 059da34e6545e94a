//! Bars on anything that takes more than a second, on standard error and for people only.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long nothing is shown.
const PATIENCE: Duration = Duration::from_secs(1);

static QUIET: AtomicBool = AtomicBool::new(false);

/// No bars in this process.
pub fn silence() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether [`silence`] was asked for.
pub fn is_silent() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// One job. It disappears when it is dropped.
pub struct Progress {
    bar: ProgressBar,
    begun: Instant,
    started: Cell<bool>,
}

impl Progress {
    /// A job of so many steps.
    pub fn of(steps: u64) -> Self {
        let new = Self::unbounded();
        new.bar.set_length(steps);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
            new.bar.set_style(style);
        }
        new
    }

    /// A job whose end is not known.
    pub fn unbounded() -> Self {
        let bar = ProgressBar::hidden();
        bar.set_style(ProgressStyle::default_spinner());
        Self { bar, begun: Instant::now(), started: Cell::new(is_silent()) }
    }

    /// So many steps more are done, and what is going on now.
    pub fn step(&self, steps: u64, what: impl FnOnce(u64) -> String) {
        self.bar.inc(steps);
        if !self.started.get() && self.begun.elapsed() > PATIENCE {
            self.started.set(true);
            // Draws nothing where standard error is no terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        if !self.bar.is_hidden() {
            self.bar.set_message(what(self.bar.position()));
        }
    }

    /// Write to the terminal without tearing the bar.
    pub fn suspend<R>(&self, say: impl FnOnce() -> R) -> R {
        self.bar.suspend(say)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// `12.5 MiB`.
pub fn bytes(count: u64) -> String {
    HumanBytes(count).to_string()
}
