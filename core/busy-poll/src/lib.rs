//! Busy polling: looking for the next request for a short time before a thread sleeps.
//!
//! A program that works with files often sends one request after another, each a few microseconds after the
//! previous reply. If the serving thread sleeps in between, the kernel must wake it for each request, often
//! on a processor that is idle. On a virtual machine the wake-up takes longer than most requests. Therefore
//! one thread at a time polls before it sleeps. It yields between two polls, so other threads that need the
//! processor get it. After polling in vain several times it polls rarely.

#![forbid(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const IMMEDIATELY: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// If polling never succeeds, one attempt of this many still polls.
const MAX_SKIP: u32 = 64;

/// A busy poller shared by several threads. At most one of them polls at a time.
#[derive(Debug)]
pub struct BusyPoller {
    max_duration: Duration,
    /// A thread is polling.
    is_polling: AtomicBool,
}

/// The result of [`BusyPoller::poll_readable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The source was readable at the first poll.
    Immediate,
    /// The source became readable during polling.
    Polled,
    /// The source did not become readable in time, or this call did not poll.
    NotReady,
}

impl BusyPoller {
    /// Creates a poller that polls for at most `max_duration`. Zero disables polling.
    pub fn new(max_duration: Duration) -> Self {
        Self { max_duration, is_polling: AtomicBool::new(false) }
    }

    /// Returns the recommended duration for this machine. It is zero on a single processor, where polling
    /// would delay the program that sends the request.
    pub fn default_duration() -> Duration {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Duration::from_micros(if processors > 1 { 100 } else { 0 })
    }

    /// Polls until `source` is readable or the time is over. `history` belongs to the source.
    pub fn poll_readable(&self, source: impl AsFd, history: &PollHistory) -> Outcome {
        if self.max_duration.is_zero()
            || !history.should_poll()
            || self.is_polling.swap(true, Ordering::Acquire)
        {
            return Outcome::NotReady;
        }
        let start = Instant::now();
        let mut outcome = Outcome::Immediate;
        // An error ends the loop as well: the caller gets it when it reads.
        while let Ok(0) = poll(&mut [PollFd::new(&source, PollFlags::IN)], Some(&IMMEDIATELY)) {
            outcome = Outcome::Polled;
            if start.elapsed() >= self.max_duration {
                outcome = Outcome::NotReady;
                break;
            }
            std::thread::yield_now();
        }
        self.is_polling.store(false, Ordering::Release);
        history.record(outcome != Outcome::NotReady);
        outcome
    }
}

/// Recent results of polling one source, from which [`BusyPoller`] decides whether to poll it again.
///
/// A race between threads costs at most one poll too many or too few.
#[derive(Debug, Default)]
pub struct PollHistory {
    /// Consecutive polls that did not succeed.
    failures: AtomicU32,
    attempts: AtomicU32,
}

impl PollHistory {
    fn should_poll(&self) -> bool {
        let failures = self.failures.load(Ordering::Relaxed);
        let every = 1_u32.checked_shl(failures).map_or(MAX_SKIP, |n| n.min(MAX_SKIP));
        self.attempts.fetch_add(1, Ordering::Relaxed) % every == every - 1
    }

    fn record(&self, succeeded: bool) {
        if succeeded {
            self.failures.store(0, Ordering::Relaxed);
        } else {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn polling_ends_when_data_arrives() {
        let (source, mut sender) = UnixStream::pair().unwrap();
        let (poller, history) = (BusyPoller::new(LONG), PollHistory::default());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| poller.poll_readable(&source, &history));
            std::thread::sleep(Duration::from_millis(5));
            assert!(!waiting.is_finished());
            sender.write_all(b"x").unwrap();
            assert_eq!(waiting.join().unwrap(), Outcome::Polled);
        });
        assert_eq!(history.failures.load(Ordering::Relaxed), 0);
        assert_eq!(poller.poll_readable(&source, &history), Outcome::Immediate);
    }

    #[test]
    fn polling_ends_when_the_peer_closes() {
        let (source, sender) = UnixStream::pair().unwrap();
        drop(sender);
        assert_eq!(BusyPoller::new(LONG).poll_readable(&source, &PollHistory::default()), Outcome::Immediate);
    }

    #[test]
    fn polling_ends_after_the_maximum_duration() {
        let (source, _sender) = UnixStream::pair().unwrap();
        let history = PollHistory::default();
        assert_eq!(
            BusyPoller::new(Duration::from_millis(1)).poll_readable(&source, &history),
            Outcome::NotReady
        );
        assert_eq!(history.failures.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn only_one_thread_polls_at_a_time() {
        let (source, mut sender) = UnixStream::pair().unwrap();
        let (poller, history) = (BusyPoller::new(LONG), PollHistory::default());
        std::thread::scope(|scope| {
            scope.spawn(|| poller.poll_readable(&source, &history));
            while !poller.is_polling.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            assert_eq!(poller.poll_readable(&source, &history), Outcome::NotReady);
            sender.write_all(b"x").unwrap();
        });
    }

    #[test]
    fn failures_make_polling_rare_until_one_success() {
        let history = PollHistory::default();
        let tries = (0..10 * MAX_SKIP)
            .filter(|_| {
                let polls = history.should_poll();
                if polls {
                    history.record(false);
                }
                polls
            })
            .count();
        assert!((10..30).contains(&tries), "{tries}");
        history.record(true);
        assert!((0..10).all(|_| history.should_poll()));
    }

    #[test]
    fn a_zero_duration_disables_polling() {
        let (source, _sender) = UnixStream::pair().unwrap();
        let history = PollHistory::default();
        assert_eq!(BusyPoller::new(Duration::ZERO).poll_readable(&source, &history), Outcome::NotReady);
        assert_eq!(history.attempts.load(Ordering::Relaxed), 0);
    }
}
