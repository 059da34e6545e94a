//! Locks with ranks: a debug build panics if a thread takes locks in an order that could end in a deadlock.
//!
//! A thread takes a lock only if its level is above the levels of all locks that it holds. Locks of one
//! level are taken in ascending order of their keys, and without keys one at a time. So waiting threads
//! cannot form a cycle. `try_lock` waits for nobody and is always allowed; what it took counts as held.
//!
//! A release build checks nothing, and a lock with a rank is as large and as fast as one without.

use super::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// The place of a lock in the order of all locks.
pub trait Rank {
    /// Locks of lower levels are taken first.
    const LEVEL: u8;
    /// The name in messages.
    const NAME: &'static str;
}

/// The ranks. `ARCHITECTURE.md` has the table. The order is argued in `ivers_vfs::namespace`,
/// `ivers_vfs::driver` and `ivers_journal`.
pub mod rank {
    use super::Rank;

    macro_rules! ranks {
        ($($(#[$doc:meta])* $name:ident = $level:literal;)*) => {$(
            $(#[$doc])*
            #[derive(Debug)]
            pub struct $name;

            impl Rank for $name {
                const LEVEL: u8 = $level;
                const NAME: &'static str = stringify!($name);
            }
        )*};
    }

    ranks! {
        /// The lock of directories that move to another directory.
        MoveLock = 10;
        /// `Inode::lock`; the key is the inode number.
        InodeLock = 20;
        /// The lock of the thread that frees memory for all.
        ShrinkLock = 30;
        /// A busy slot of the inode cache: others wait for it.
        InodeSlot = 35;
        /// The list of subscribers, while they are called.
        Subscribers = 38;
        /// The lock of a file under which its pages are written to the device. A thread that takes two gives
        /// the inode numbers as keys.
        WritebackLock = 40;
        /// A shard of the inode cache.
        InodeShard = 50;
        /// The map of a file's pages.
        PageMap = 55;
        /// A driver's lock under which handles are begun, or a commit is requested.
        BeforeHandle = 58;
        /// The lock of a journal's log: held by a commit, which waits for handles, and by a checkpoint.
        JournalLog = 59;
        /// A journal handle, which a commit waits for.
        Handle = 60;
        /// The state of a journal in memory: taken for each change of a buffer.
        JournalState = 90;
        /// Locks under which nothing else is taken, such as `Inode::with_attr`.
        Leaf = 100;
    }

    /// A driver's own locks, in the order of `N`, which is below 20.
    #[derive(Debug)]
    pub struct Driver<const N: u8>;

    impl<const N: u8> Rank for Driver<N> {
        const LEVEL: u8 = {
            assert!(N < 20, "the levels of drivers end below JournalState");
            70 + N
        };
        const NAME: &'static str = "Driver";
    }
}

/// A lock that this thread holds, or something that others wait for like for a lock.
#[derive(Debug)]
pub struct Held {
    #[cfg(debug_assertions)]
    lock: held::Lock,
    /// Held by the thread that took it.
    thread: PhantomData<*const ()>,
}

impl Held {
    /// Before a wait for something of this rank.
    pub fn before_waiting<R: Rank>() -> Self {
        Self::new::<R>(0, true)
    }

    /// For something that was taken without waiting.
    pub fn without_waiting<R: Rank>() -> Self {
        Self::new::<R>(0, false)
    }

    #[cfg(debug_assertions)]
    fn new<R: Rank>(key: u64, waits: bool) -> Self {
        let lock = held::Lock { level: R::LEVEL, key, name: R::NAME };
        held::push(lock, waits);
        Self { lock, thread: PhantomData }
    }

    #[cfg(not(debug_assertions))]
    fn new<R: Rank>(_key: u64, _waits: bool) -> Self {
        Self { thread: PhantomData }
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        held::pop(self.lock);
    }
}

/// Runs `f` as if on another machine: its locks have no order with those that this thread holds. For a server
/// in the same process.
pub fn on_another_machine<T>(f: impl FnOnce() -> T) -> T {
    #[cfg(debug_assertions)]
    let _here = held::Aside::begin();
    f()
}

/// The locks that each thread holds.
#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Lock {
        pub(super) level: u8,
        pub(super) key: u64,
        pub(super) name: &'static str,
    }

    #[cfg(not(shuttle))]
    thread_local! {
        static HELD: RefCell<Vec<Lock>> = const { RefCell::new(Vec::new()) };
    }
    #[cfg(shuttle)]
    shuttle::thread_local! {
        static HELD: RefCell<Vec<Lock>> = RefCell::new(Vec::new());
    }

    /// Locks are also taken while a thread ends, when its list of locks is gone. Then nothing is checked.
    fn with<T: Default>(f: impl FnOnce(&mut Vec<Lock>) -> T) -> T {
        HELD.try_with(|held| f(&mut held.borrow_mut())).unwrap_or_default()
    }

    pub(super) fn push(lock: Lock, waits: bool) {
        let above = with(|held| {
            let in_order = |held: &Lock| (held.level, held.key) < (lock.level, lock.key);
            let above = held.iter().find(|held| waits && !in_order(held)).copied();
            held.push(lock);
            above
        });
        if let Some(above) = above
            && !std::thread::panicking()
        {
            with(|held| held.pop());
            panic!(
                "{} (key {}) is taken while {} (key {}) is held: see the ranks in ivers_sync::rank",
                lock.name, lock.key, above.name, above.key
            );
        }
    }

    pub(super) fn pop(lock: Lock) {
        with(|held| {
            if let Some(at) = held.iter().rposition(|held| *held == lock) {
                held.remove(at);
            }
        });
    }

    /// The locks that this thread held before [`super::on_another_machine`].
    pub(super) struct Aside(Vec<Lock>);

    impl Aside {
        pub(super) fn begin() -> Self {
            Self(with(std::mem::take))
        }
    }

    impl Drop for Aside {
        fn drop(&mut self) {
            let before = std::mem::take(&mut self.0);
            with(|held| *held = before);
        }
    }
}

/// A guard of a lock with a rank.
pub struct RankedGuard<G> {
    // Dropped first.
    guard: G,
    _held: Held,
}

impl<G: Deref> Deref for RankedGuard<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for RankedGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<T> RankedGuard<MutexGuard<'_, T>> {
    /// Releases the lock until `condvar` is notified.
    pub fn wait(&mut self, condvar: &Condvar) {
        condvar.wait(&mut self.guard);
    }

    /// Releases the lock until `condvar` is notified or the time is up.
    pub fn wait_for(&mut self, condvar: &Condvar, time: Duration) {
        condvar.wait_for(&mut self.guard, time);
    }

    /// Lets a waiting thread have the lock first, and takes it again.
    pub fn give_way(&mut self) {
        MutexGuard::bump(&mut self.guard);
    }
}

/// A guard of a [`RankedMutex`].
pub type RankedMutexGuard<'a, T> = RankedGuard<MutexGuard<'a, T>>;
/// A shared guard of a [`RankedRwLock`].
pub type RankedReadGuard<'a, T> = RankedGuard<RwLockReadGuard<'a, T>>;
/// An exclusive guard of a [`RankedRwLock`].
pub type RankedWriteGuard<'a, T> = RankedGuard<RwLockWriteGuard<'a, T>>;

/// A mutex with a rank.
pub struct RankedMutex<R, T> {
    lock: Mutex<T>,
    rank: PhantomData<fn() -> R>,
}

impl<R: Rank, T> RankedMutex<R, T> {
    /// A free mutex.
    pub fn new(value: T) -> Self {
        Self { lock: Mutex::new(value), rank: PhantomData }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> RankedMutexGuard<'_, T> {
        self.lock_with_key(0)
    }

    /// Waits for the lock. The key orders it among the locks of its rank that the thread holds. It is not in
    /// the mutex, because each inode has one.
    pub fn lock_with_key(&self, key: u64) -> RankedMutexGuard<'_, T> {
        let held = Held::new::<R>(key, true);
        RankedGuard { guard: self.lock.lock(), _held: held }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<RankedMutexGuard<'_, T>> {
        self.lock.try_lock().map(|guard| RankedGuard { guard, _held: Held::new::<R>(0, false) })
    }
}

impl<R: Rank, T: Default> Default for RankedMutex<R, T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<R: Rank, T: std::fmt::Debug> std::fmt::Debug for RankedMutex<R, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", R::NAME)?;
        self.lock.fmt(f)
    }
}

/// A readers-writer lock with a rank. Also two shared holds count as two locks: a waiting writer is between
/// them.
pub struct RankedRwLock<R, T> {
    lock: RwLock<T>,
    #[cfg(debug_assertions)]
    key: u64,
    rank: PhantomData<fn() -> R>,
}

impl<R: Rank, T> RankedRwLock<R, T> {
    /// A free lock.
    pub fn new(value: T) -> Self {
        Self::with_key(value, 0)
    }

    /// A free lock with a key, which orders the locks of its rank.
    #[cfg_attr(not(debug_assertions), allow(unused_variables))]
    pub fn with_key(value: T, key: u64) -> Self {
        Self {
            lock: RwLock::new(value),
            #[cfg(debug_assertions)]
            key,
            rank: PhantomData,
        }
    }

    fn held(&self, waits: bool) -> Held {
        #[cfg(debug_assertions)]
        let key = self.key;
        #[cfg(not(debug_assertions))]
        let key = 0;
        Held::new::<R>(key, waits)
    }

    /// Waits for the shared lock.
    pub fn read(&self) -> RankedReadGuard<'_, T> {
        let held = self.held(true);
        RankedGuard { guard: self.lock.read(), _held: held }
    }

    /// Waits for the exclusive lock.
    pub fn write(&self) -> RankedWriteGuard<'_, T> {
        let held = self.held(true);
        RankedGuard { guard: self.lock.write(), _held: held }
    }

    /// Takes the exclusive lock if it is free.
    pub fn try_write(&self) -> Option<RankedWriteGuard<'_, T>> {
        self.lock.try_write().map(|guard| RankedGuard { guard, _held: self.held(false) })
    }
}

impl<R: Rank, T: Default> Default for RankedRwLock<R, T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<R: Rank, T: std::fmt::Debug> std::fmt::Debug for RankedRwLock<R, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", R::NAME)?;
        self.lock.fmt(f)
    }
}

#[cfg(all(test, debug_assertions, not(shuttle)))]
mod tests {
    use super::rank::*;
    use super::*;

    #[test]
    fn ascending_ranks_and_keys_are_allowed() {
        let (first, second) = (RankedRwLock::<InodeLock, _>::with_key((), 1), RankedRwLock::with_key((), 2));
        let second: RankedRwLock<InodeLock, ()> = second;
        let leaf = RankedMutex::<Leaf, _>::new(1);
        let held = (first.read(), second.write(), leaf.lock());
        drop(held.0);
        drop(held.1);
        assert_eq!(*held.2, 1);
        drop(held.2);
        drop((second.write(), ()));
        drop(first.write());
    }

    #[test]
    fn try_lock_is_allowed_in_any_order() {
        let (high, low) = (RankedMutex::<Leaf, _>::new(()), RankedMutex::<MoveLock, _>::new(()));
        let _high = high.lock();
        assert!(low.try_lock().is_some());
        on_another_machine(|| drop(low.lock()));
    }

    #[test]
    #[should_panic(expected = "MoveLock (key 0) is taken while InodeLock (key 7) is held")]
    fn a_lower_rank_panics() {
        let (high, low) =
            (RankedRwLock::<InodeLock, _>::with_key((), 7), RankedMutex::<MoveLock, _>::new(()));
        let _high = high.read();
        drop(low.lock());
    }

    #[test]
    #[should_panic(expected = "InodeLock (key 1) is taken while InodeLock (key 2) is held")]
    fn a_lower_inode_number_panics() {
        let (first, second) =
            (RankedRwLock::<InodeLock, _>::with_key((), 1), RankedRwLock::<InodeLock, _>::with_key((), 2));
        let _second = second.write();
        drop(first.write());
    }

    #[test]
    fn another_wait_is_allowed_under_the_same_locks() {
        let log = RankedMutex::<JournalLog, _>::new(());
        let _log = log.lock();
        drop(Held::before_waiting::<Handle>());
        let _handle = Held::before_waiting::<Handle>();
    }

    #[test]
    #[should_panic(expected = "Handle (key 0) is taken while Driver (key 0) is held")]
    fn another_wait_under_a_higher_rank_panics() {
        let lock = RankedMutex::<Driver<3>, _>::new(());
        let handle = Held::before_waiting::<Handle>();
        let _lock = lock.lock();
        drop(handle);
        let _handle = Held::before_waiting::<Handle>();
    }

    #[test]
    #[should_panic(expected = "Leaf")]
    fn two_leaves_panic() {
        let (one, other) = (RankedMutex::<Leaf, _>::new(()), RankedMutex::<Leaf, _>::new(()));
        let _one = one.lock();
        drop(other.lock());
    }
}
