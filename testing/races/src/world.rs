//! What the races have in common: a filesystem, its device, a clock that moves when it is told, and the book in which observers and
//! writers are held against each other.

use ivers_block::Budget;
use ivers_mem::Mem;
use ivers_vfs::*;
use shuttle::rand::{Rng, thread_rng};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes a page of the VFS.
pub const PAGE: u64 = 4096;

/// One of two, drawn by the schedule's seed.
pub fn coin() -> bool {
    thread_rng().gen_bool(0.5)
}

/// A number below `end`, drawn by the schedule's seed.
pub fn draw(end: usize) -> usize {
    thread_rng().gen_range(0..end)
}

/// Seconds, moved by whoever calls `tick`. Not shuttle's atomic: the clock is no part of the race.
#[derive(Default)]
pub struct Ticks(AtomicI64);

impl Ticks {
    /// A tick later.
    pub fn tick(&self) -> Timestamp {
        self.0.fetch_add(1, Relaxed);
        self.now()
    }
}

impl Clock for Ticks {
    fn now(&self) -> Timestamp {
        Timestamp { sec: self.0.load(Relaxed), nsec: 0 }
    }
}

/// A mounted filesystem in memory, and what is below it.
pub struct World {
    /// The mount.
    pub vfs: Arc<Vfs>,
    /// Its clock.
    pub clock: Arc<Ticks>,
    mem: Arc<Mem>,
    budget: Arc<Budget>,
    free_at_start: u64,
}

impl World {
    /// A new filesystem, mounted with a cache of so many bytes; `adjust` may change the other options.
    pub fn new(cache_bytes: u64, adjust: impl FnOnce(&mut MountOptions)) -> Self {
        let mem = Arc::new(Mem::new(1 << 20));
        let free_at_start = mem.stat_fs().unwrap().blocks_free;
        let (clock, budget) = (Arc::new(Ticks::default()), Arc::new(Budget::new(cache_bytes)));
        let mut options = MountOptions {
            clock: Some(Box::new(clock.clone())),
            background: false,
            atime: AtimeMode::Never,
            budget: Some(budget.clone()),
            ..MountOptions::default()
        };
        adjust(&mut options);
        let vfs = Vfs::mount(mem.clone(), options).unwrap();
        Self { vfs, clock, mem, budget, free_at_start }
    }

    /// What the device alone holds now: a mount that sees nothing of the other's memory.
    pub fn device(&self) -> Arc<Vfs> {
        let options = MountOptions { read_only: true, background: false, ..MountOptions::default() };
        Vfs::mount(self.mem.clone(), options).unwrap()
    }

    /// The root directory.
    pub fn root(&self) -> InodeRef {
        self.vfs.root().unwrap()
    }

    /// A new file.
    pub fn file(&self, dir: &InodeRef, name: &str) -> InodeRef {
        self.make(dir, name, &CreateSpec::file(0o640))
    }

    /// A new directory.
    pub fn dir(&self, dir: &InodeRef, name: &str) -> InodeRef {
        self.make(dir, name, &CreateSpec::directory(0o755))
    }

    fn make(&self, dir: &InodeRef, name: &str, spec: &CreateSpec) -> InodeRef {
        self.vfs.create(&Cred::root(), dir, name.as_bytes(), spec, false).unwrap().0
    }

    /// Free blocks that are neither in use nor promised, less than at the start.
    pub fn blocks_in_use(&self) -> u64 {
        self.free_at_start - self.mem.stat_fs().unwrap().blocks_free
    }

    /// Let the cache be over its bound by so little that one thread makes room and the others go on meanwhile.
    pub fn press(&self) {
        self.budget.set_limit(self.budget.used() - 1);
    }

    /// Unmount: it succeeds, and gives all memory back.
    pub fn end(self) {
        self.vfs.unmount().unwrap();
        self.gone();
    }

    /// What was unmounted has given all memory back.
    pub fn gone(self) {
        drop(self.vfs);
        assert_eq!(self.budget.used(), 0, "memory that nobody uses is charged for");
    }
}

/// Let page `page` of a file begin with a number.
pub fn put(vfs: &Vfs, file: &InodeRef, page: u64, value: u64, flags: WriteFlags) {
    let mut data = vec![0; if flags.contains(WriteFlags::DIRECT) { PAGE as usize } else { 8 }];
    data[..8].copy_from_slice(&value.to_le_bytes());
    assert_eq!(vfs.write(&Cred::root(), file, page * PAGE, &data, flags).unwrap(), data.len());
}

/// The number that page `page` of a file begins with; 0 behind its end.
pub fn value(vfs: &Vfs, file: &InodeRef, page: u64) -> u64 {
    let mut bytes = [0; 8];
    vfs.read(file, page * PAGE, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// Find a name.
pub fn look(vfs: &Vfs, dir: &InodeRef, name: &str) -> Option<InodeRef> {
    match vfs.lookup(&Cred::root(), dir, name.as_bytes()) {
        Ok(inode) => Some(inode),
        Err(Error::Name(NameError::NotFound)) => None,
        Err(error) => panic!("lookup of {name}: {error}"),
    }
}

/// All names of a directory but `.` and `..`, with what they stand for.
pub fn list(vfs: &Vfs, dir: &InodeRef) -> Vec<(String, Ino)> {
    let mut names = Vec::new();
    vfs.readdir(dir, 0, &mut |entry| {
        if !entry.name.starts_with(b".") {
            names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.ino));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    names
}

/// What writers have completed and observers have seen of one inode: `N` numbers of its contents, each of which only grows.
///
/// This is contract C6, with C1 and C2 in it: when a query gives the value that vouched for some contents, these contents hold every change
/// that had completed before; and no query gives less than one before it.
pub struct Book<const N: usize>(Mutex<Pages<N>>);

struct Pages<const N: usize> {
    completed: [u64; N],
    seen: Vec<(u64, [u64; N])>,
    highest: u64,
}

impl<const N: usize> Default for Book<N> {
    fn default() -> Self {
        Self(Mutex::new(Pages { completed: [0; N], seen: Vec::new(), highest: 0 }))
    }
}

impl<const N: usize> Book<N> {
    // A plain lock of the standard library, never held where a schedule may change threads: the book sees all in one order.
    fn open(&self) -> MutexGuard<'_, Pages<N>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The change that made the number `of` this large has returned.
    pub fn completed(&self, of: usize, value: u64) {
        let mut book = self.open();
        book.completed[of] = book.completed[of].max(value);
    }

    /// What has completed by now.
    pub fn floor(&self) -> [u64; N] {
        self.open().completed
    }

    /// Ask for the change attribute, look at the contents, and check that against everything known.
    pub fn observe(&self, vfs: &Vfs, inode: &Inode, contents: impl FnOnce() -> [u64; N]) {
        let version = self.query(vfs, inode);
        let floor = self.floor();
        let contents = contents();
        assert!(
            (0..N).all(|of| contents[of] >= floor[of]),
            "{contents:?} were read where {floor:?} had been written"
        );
        self.open().seen.push((version, contents));
    }

    /// Ask for the change attribute, and check what it vouches for.
    pub fn query(&self, vfs: &Vfs, inode: &Inode) -> u64 {
        let (floor, highest) = {
            let book = self.open();
            (book.completed, book.highest)
        };
        let version = vfs.change(inode).expect("there is a cookie");
        let mut book = self.open();
        assert!(version >= highest, "C2: the change attribute is {version} and was {highest} before");
        book.highest = book.highest.max(version);
        for (vouched, contents) in &book.seen {
            assert!(
                *vouched != version || (0..N).all(|of| contents[of] >= floor[of]),
                "C6: the change attribute {version} vouches for {contents:?} after {floor:?} was written"
            );
        }
        version
    }
}
