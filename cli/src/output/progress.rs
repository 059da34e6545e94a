//! Progress bars on standard error, for jobs that take more than a second. Shown on a terminal only.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time before a bar appears.
const DELAY: Duration = Duration::from_secs(1);

static QUIET: AtomicBool = AtomicBool::new(false);

/// Shows no bars in this process.
pub fn silence() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Returns whether [`silence`] was called.
pub fn is_silent() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// The bar of one job. It disappears when it is dropped.
pub struct Progress {
    bar: ProgressBar,
    begun: Instant,
    started: AtomicBool,
}

impl Progress {
    /// Creates the bar of a job of unknown length.
    pub fn unbounded() -> Self {
        let bar = ProgressBar::hidden();
        // A long message is cut at the width of the terminal.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            bar.set_style(style);
        }
        Self { bar, begun: Instant::now(), started: AtomicBool::new(is_silent()) }
    }

    /// Advances by `steps`; `what` formats the message from the position.
    pub fn step(&self, steps: u64, what: impl FnOnce(u64) -> String) {
        self.bar.inc(steps);
        let late = !self.started.load(Ordering::Relaxed) && self.begun.elapsed() > DELAY;
        if late && !self.started.swap(true, Ordering::Relaxed) {
            // Draws nothing if standard error is not a terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        if !self.bar.is_hidden() {
            self.bar.set_message(what(self.bar.position()));
        }
    }

    /// Hides the bar while `print` writes to the terminal.
    pub fn suspend<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bar.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A spinner while another process works. It disappears when it is dropped.
pub struct Waiting {
    ended: Option<mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Waiting {
    /// Starts a spinner with the message `what`.
    pub fn to(what: &str) -> Self {
        let (sender, ended) = mpsc::channel::<()>();
        let what = what.to_owned();
        let show = move || {
            if ended.recv_timeout(DELAY) != Err(mpsc::RecvTimeoutError::Timeout) {
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
        let thread = if is_silent() { None } else { builder.spawn(show).ok() };
        Self { ended: Some(sender), thread }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.ended = None;
        // The line must be gone before anything else is printed.
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Formats a number of bytes for people: `12.5 MiB`.
pub fn bytes(count: u64) -> String {
    HumanBytes(count).to_string()
}
