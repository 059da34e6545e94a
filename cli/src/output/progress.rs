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

    /// Returns the time since the start of the job.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
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

/// Describes how far a copy of `size` bytes is: percentage, rate, time left. `size` is 0 if it is not known.
pub fn describe(done: u64, size: u64, elapsed: Duration) -> String {
    let rate = (done as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
    let rate_text = format!("{}/s", bytes(rate));
    // The size is what the source said first. The file can be longer now.
    if size < done.max(1) {
        return format!("{}, {rate_text}", bytes(done));
    }
    let percent = u128::from(done) * 100 / u128::from(size);
    let left = (size - done).checked_div(rate).map_or_else(String::new, |seconds| match seconds {
        0..60 => format!(", {seconds} s left"),
        60..3600 => format!(", {} min left", seconds.div_ceil(60)),
        _ => format!(", {} h left", seconds.div_ceil(3600)),
    });
    format!("{percent} % of {}, {rate_text}{left}", bytes(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_a_file_has_percentage_rate_and_time_left() {
        let second = Duration::from_secs(1);
        assert_eq!(describe(1 << 20, 4 << 20, second), "25 % of 4.00 MiB, 1.00 MiB/s, 3 s left");
        assert_eq!(describe(1 << 20, 1 << 30, second), "0 % of 1.00 GiB, 1.00 MiB/s, 18 min left");
        assert_eq!(describe(2 << 20, 1 << 20, second), "2.00 MiB, 2.00 MiB/s", "it grew");
        assert!(describe(0, 5, Duration::ZERO).starts_with("0 % of 5 B"));
    }
}
