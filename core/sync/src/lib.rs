//! Locks, atomics and threads of the VFS, the journal and the drivers: parking_lot's and the standard
//! library's. `ivers_vfs::sync` is this crate.
//!
//! Locks that live as long as their mount have ranks: see [`rank`].
//!
//! Under `--cfg shuttle` all are shuttle's. It runs all threads on one and decides at every lock, atomic and
//! wait which continues, so that a seed chooses an interleaving and can repeat it. `testing/races` uses this.
//! A driver that takes its locks from here is explored together with the VFS. Another driver works too, but
//! nothing is interleaved inside it.
//!
//! The statistics and the memory budget do not use this crate: no promise depends on them. Shuttle models
//! only sequential consistency; loom checks the memory order of the counter (`core/iversion/tests/loom.rs`).
#![forbid(unsafe_code)]

mod ranked;

pub use ranked::{
    Held, Rank, RankedGuard, RankedMutex, RankedMutexGuard, RankedReadGuard, RankedRwLock, RankedWriteGuard,
    on_another_machine, rank,
};

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

/// What shuttle lacks or does differently.
#[cfg(shuttle)]
mod scheduled {
    use super::MutexGuard;
    use shuttle::rand::{Rng, thread_rng};
    use std::sync::PoisonError;
    use std::time::Duration;

    /// Threads. Time is not modelled: a sleeping thread lets the others run.
    pub mod thread {
        pub use shuttle::thread::{Builder, JoinHandle, current, spawn, yield_now};

        /// Yields, whatever the time.
        pub fn sleep(_: std::time::Duration) {
            yield_now();
        }
    }

    /// parking_lot's condition variable, made of shuttle's.
    #[derive(Debug, Default)]
    pub struct Condvar {
        /// Held from before the caller's lock is released, and by notifiers, so that no notification is
        /// missed.
        gate: shuttle::sync::Mutex<()>,
        inner: shuttle::sync::Condvar,
    }

    impl Condvar {
        /// A condition variable without waiters.
        pub const fn new() -> Self {
            Self { gate: shuttle::sync::Mutex::new(()), inner: shuttle::sync::Condvar::new() }
        }

        fn gate(&self) -> shuttle::sync::MutexGuard<'_, ()> {
            // A panic elsewhere has failed the schedule already; do not panic again while unwinding.
            self.gate.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Releases the lock until a notification.
        pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
            let gate = self.gate();
            MutexGuard::unlocked(guard, || {
                drop(self.inner.wait(gate).unwrap_or_else(PoisonError::into_inner));
            });
        }

        /// Releases the lock. The time may be up at once. Half of the waits continue without yielding: a
        /// scheduler that ranks threads would otherwise never let this one run in between.
        pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            MutexGuard::unlocked(guard, || {
                if thread_rng().gen_bool(0.5) {
                    shuttle::thread::yield_now();
                }
            });
        }

        /// Wakes all waiters.
        pub fn notify_all(&self) {
            let _gate = self.gate();
            self.inner.notify_all();
        }
    }
}
