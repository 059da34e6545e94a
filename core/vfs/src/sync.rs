//! The locks, atomics and threads of the VFS: parking_lot's and the standard library's.
//!
//! Under `--cfg shuttle` they are shuttle's, which runs all threads on one and decides at every lock, atomic and wait who goes on, so that an
//! interleaving is chosen by a seed and can be had again. `testing/races` does that. A driver that takes its own from here
//! can be explored with the VFS; one that does not is as right as ever, but nothing is interleaved inside it.
//!
//! What stays outside on purpose: the figures of [`Stats`](crate::Stats) and of the memory budget, on which no
//! promise rests. Shuttle knows sequential consistency alone; the orders of the counter's atomics are loom's matter
//! (`core/iversion/tests/loom.rs`).

#[cfg(not(shuttle))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(shuttle))]
pub use std::{sync::atomic, thread};

#[cfg(shuttle)]
pub use self::scheduled::{Condvar, thread};
#[cfg(shuttle)]
pub use shuttle::sync::atomic;
#[cfg(shuttle)]
pub use shuttle_parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What shuttle lacks or does otherwise.
#[cfg(shuttle)]
mod scheduled {
    use super::MutexGuard;
    use shuttle::rand::{Rng, thread_rng};
    use std::sync::PoisonError;
    use std::time::Duration;

    /// Threads. Time is not modelled: who sleeps lets the others go first.
    pub mod thread {
        pub use shuttle::thread::{Builder, JoinHandle, current, spawn, yield_now};

        /// Give way, whatever the time.
        pub fn sleep(_: std::time::Duration) {
            yield_now();
        }
    }

    /// parking_lot's condition variable, made of shuttle's.
    #[derive(Debug, Default)]
    pub struct Condvar {
        /// Taken before the caller's lock is given back and by whoever notifies, so that nothing is missed in between.
        gate: shuttle::sync::Mutex<()>,
        inner: shuttle::sync::Condvar,
    }

    impl Condvar {
        /// One that nobody waits for.
        pub const fn new() -> Self {
            Self { gate: shuttle::sync::Mutex::new(()), inner: shuttle::sync::Condvar::new() }
        }

        fn gate(&self) -> shuttle::sync::MutexGuard<'_, ()> {
            // A panic elsewhere has failed the schedule already; what unwinds must not panic over it.
            self.gate.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Let the lock go until somebody notifies.
        pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
            let gate = self.gate();
            MutexGuard::unlocked(guard, || {
                drop(self.inner.wait(gate).unwrap_or_else(PoisonError::into_inner));
            });
        }

        /// Let the lock go; the time may be up at any moment, and so at once. Half of the waits go on without giving way: a scheduler
        /// that ranks threads would else never let this one come in between.
        pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            MutexGuard::unlocked(guard, || {
                if thread_rng().gen_bool(0.5) {
                    shuttle::thread::yield_now();
                }
            });
        }

        /// Wake all who wait.
        pub fn notify_all(&self) {
            let _gate = self.gate();
            self.inner.notify_all();
        }
    }
}
