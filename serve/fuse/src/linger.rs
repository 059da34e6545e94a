//! Looking out for the next request for a moment before going to sleep.
//!
//! A program that works with files sends one request after the other, each a few microseconds after the answer to the one before. A
//! thread that sleeps in read(2) meanwhile has to be woken for each, often on a processor that has gone idle: on a virtual
//! machine that takes longer than most requests. So one thread at a time polls the device before it sleeps. It yields between two
//! looks, so whoever else wants the processor has it, and where looking out is in vain it is given up, but for a try now and then.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// One try of so many is made where it has been in vain for long.
const SELDOM: u32 = 64;

pub(crate) struct Linger {
    longest: Duration,
    device: OnceLock<OwnedFd>,
    /// Somebody is at it.
    busy: AtomicBool,
    rhythm: Rhythm,
}

impl Linger {
    /// `longest` zero: never.
    pub(crate) fn new(longest: Duration) -> Self {
        Self { longest, device: OnceLock::new(), busy: AtomicBool::new(false), rhythm: Rhythm::default() }
    }

    /// The device that requests come from. Until then nobody lingers.
    pub(crate) fn watch(&self, device: OwnedFd) {
        let _ = self.device.set(device);
    }

    /// Return when there is a request to read, or when it is time to sleep until there is one.
    pub(crate) fn for_next_request(&self) {
        let Some(device) = self.device.get().filter(|_| !self.longest.is_zero()) else { return };
        if !self.rhythm.is_worth_it() || self.busy.swap(true, Ordering::Acquire) {
            return;
        }
        let start = Instant::now();
        let came = loop {
            // Whatever is wrong with the device, read(2) will tell.
            match poll(&mut [PollFd::new(device, PollFlags::IN)], Some(&NOW)) {
                Ok(0) => {}
                _ => break true,
            }
            if start.elapsed() >= self.longest {
                break false;
            }
            std::thread::yield_now();
        };
        self.busy.store(false, Ordering::Release);
        self.rhythm.note(came);
    }
}

/// Whether requests follow each other closely enough at present. Races between threads cost a look too many or too few.
#[derive(Default)]
struct Rhythm {
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

    /// A socket polls as the device does.
    fn lingering(longest: Duration) -> (Linger, UnixStream) {
        let (from, to) = UnixStream::pair().unwrap();
        let linger = Linger::new(longest);
        linger.watch(from.into());
        (linger, to)
    }

    #[test]
    fn ends_when_something_comes() {
        let (linger, mut to) = lingering(Duration::from_secs(60));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| linger.for_next_request());
            std::thread::sleep(Duration::from_millis(5));
            assert!(!waiting.is_finished());
            to.write_all(b"x").unwrap();
        });
        assert_eq!(linger.rhythm.in_vain.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn ends_when_the_device_does() {
        let (linger, to) = lingering(Duration::from_secs(60));
        drop(to);
        linger.for_next_request();
    }

    #[test]
    fn one_at_a_time() {
        let (linger, mut to) = lingering(Duration::from_secs(60));
        std::thread::scope(|scope| {
            scope.spawn(|| linger.for_next_request());
            while !linger.busy.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            linger.for_next_request();
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
        let (linger, _to) = lingering(Duration::ZERO);
        linger.for_next_request();
        assert_eq!(linger.rhythm.skipped.load(Ordering::Relaxed), 0);
    }
}
