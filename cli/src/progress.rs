//! Bars on anything that takes more than a second, on standard error and for people only.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
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
    started: AtomicBool,
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
        Self { bar, begun: Instant::now(), started: AtomicBool::new(is_silent()) }
    }

    /// So many steps more are done, and what is going on now.
    pub fn step(&self, steps: u64, what: impl FnOnce(u64) -> String) {
        self.bar.inc(steps);
        let late = !self.started.load(Ordering::Relaxed) && self.begun.elapsed() > PATIENCE;
        if late && !self.started.swap(true, Ordering::Relaxed) {
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

/// Somebody else's work, of which nothing is known but that it goes on. It disappears when it is dropped.
pub struct Waiting {
    over: Option<mpsc::Sender<()>>,
    shown: Option<std::thread::JoinHandle<()>>,
}

impl Waiting {
    /// Wait for this.
    pub fn to(what: &str) -> Self {
        let (over, ended) = mpsc::channel::<()>();
        let what = what.to_owned();
        let show = move || {
            if ended.recv_timeout(PATIENCE) != Err(mpsc::RecvTimeoutError::Timeout) {
                return;
            }
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_message(what);
            while ended.recv_timeout(Duration::from_millis(100)) == Err(mpsc::RecvTimeoutError::Timeout) {
                bar.tick();
            }
            bar.finish_and_clear();
        };
        let builder = std::thread::Builder::new().name("ivers-waiting".into());
        let shown = if is_silent() { None } else { builder.spawn(show).ok() };
        Self { over: Some(over), shown }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.over = None;
        // Nothing else is written before the line is gone.
        let _ = self.shown.take().map(std::thread::JoinHandle::join);
    }
}

/// `12.5 MiB`.
pub fn bytes(count: u64) -> String {
    HumanBytes(count).to_string()
}
