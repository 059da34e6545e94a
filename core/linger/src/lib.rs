//! Looking out for the next request for a moment before going to sleep.
//!
//! A program that works with files sends one request after the other, each a few microseconds after the answer to the one before. A
//! thread that sleeps meanwhile has to be woken for each, often on a processor that has gone idle: on a virtual
//! machine that takes longer than most requests. So one thread at a time polls before it sleeps. It yields between two
//! looks, so whoever else wants the processor has it, and where looking out is in vain it is given up, but for a try now and then.

#![forbid(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// One try of so many is made where it has been in vain for long.
const SELDOM: u32 = 64;

/// Who looks out, of the threads that share it: one at a time.
#[derive(Debug)]
pub struct Linger {
    longest: Duration,
    /// Somebody is at it.
    busy: AtomicBool,
}

/// What came of looking out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// There was something to read before anybody looked.
    AtOnce,
    /// Something came.
    InTime,
    /// Nothing came, or nobody looked.
    Not,
}

impl Linger {
    /// `longest` zero: never.
    pub fn new(longest: Duration) -> Self {
        Self { longest, busy: AtomicBool::new(false) }
    }

    /// As long as is worth while on this machine: not at all on a single processor, where who looks out keeps the program from
    /// running that would send the request.
    pub fn usual() -> Duration {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Duration::from_micros(if processors > 1 { 100 } else { 0 })
    }

    /// Return when there is something to read, or when it is time to sleep until there is.
    pub fn until_readable(&self, source: impl AsFd, rhythm: &Rhythm) -> Came {
        if self.longest.is_zero() || !rhythm.is_worth_it() || self.busy.swap(true, Ordering::Acquire) {
            return Came::Not;
        }
        let start = Instant::now();
        let mut came = Came::AtOnce;
        // Whatever is wrong with the source, reading it will tell.
        while let Ok(0) = poll(&mut [PollFd::new(&source, PollFlags::IN)], Some(&NOW)) {
            came = Came::InTime;
            if start.elapsed() >= self.longest {
                came = Came::Not;
                break;
            }
            std::thread::yield_now();
        }
        self.busy.store(false, Ordering::Release);
        rhythm.note(came != Came::Not);
        came
    }
}

/// Whether requests from one source follow each other closely enough at present. Races between threads cost a look too many or too few.
#[derive(Debug, Default)]
pub struct Rhythm {
    /// How many looks out in a row have been in vain.
    in_vain: AtomicU32,
    skipped: AtomicU32,
}

impl Rhythm {
    fn is_worth_it(&self) -> bool {
        let every = 1_u32.checked_shl(self.in_vain.load(Ordering::Relaxed)).map_or(SELDOM, |n| n.min(SELDOM));
        self.skipped.fetch_add(1, Ordering::Relaxed) % every == every - 1
    }

    fn note(&self, came: bool) {
        if came {
            self.in_vain.store(0, Ordering::Relaxed);
        } else {
            self.in_vain.fetch_add(1, Ordering::Relaxed);
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
    fn ends_when_something_comes() {
        let (from, mut to) = UnixStream::pair().unwrap();
        let (linger, rhythm) = (Linger::new(LONG), Rhythm::default());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| linger.until_readable(&from, &rhythm));
            std::thread::sleep(Duration::from_millis(5));
            assert!(!waiting.is_finished());
            to.write_all(b"x").unwrap();
            assert_eq!(waiting.join().unwrap(), Came::InTime);
        });
        assert_eq!(rhythm.in_vain.load(Ordering::Relaxed), 0);
        assert_eq!(linger.until_readable(&from, &rhythm), Came::AtOnce);
    }

    #[test]
    fn ends_when_the_source_does() {
        let (from, to) = UnixStream::pair().unwrap();
        drop(to);
        assert_eq!(Linger::new(LONG).until_readable(&from, &Rhythm::default()), Came::AtOnce);
    }

    #[test]
    fn ends_when_it_is_time_to() {
        let (from, _to) = UnixStream::pair().unwrap();
        let rhythm = Rhythm::default();
        assert_eq!(Linger::new(Duration::from_millis(1)).until_readable(&from, &rhythm), Came::Not);
        assert_eq!(rhythm.in_vain.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn one_at_a_time() {
        let (from, mut to) = UnixStream::pair().unwrap();
        let (linger, rhythm) = (Linger::new(LONG), Rhythm::default());
        std::thread::scope(|scope| {
            scope.spawn(|| linger.until_readable(&from, &rhythm));
            while !linger.busy.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            assert_eq!(linger.until_readable(&from, &rhythm), Came::Not);
            to.write_all(b"x").unwrap();
        });
    }

    #[test]
    fn in_vain_it_becomes_seldom_and_one_success_brings_it_back() {
        let rhythm = Rhythm::default();
        let tries = (0..10 * SELDOM)
            .filter(|_| {
                let tries = rhythm.is_worth_it();
                if tries {
                    rhythm.note(false);
                }
                tries
            })
            .count();
        assert!((10..30).contains(&tries), "{tries}");
        rhythm.note(true);
        assert!((0..10).all(|_| rhythm.is_worth_it()));
    }

    #[test]
    fn none_is_none() {
        let (from, _to) = UnixStream::pair().unwrap();
        let rhythm = Rhythm::default();
        assert_eq!(Linger::new(Duration::ZERO).until_readable(&from, &rhythm), Came::Not);
        assert_eq!(rhythm.skipped.load(Ordering::Relaxed), 0);
    }
}
