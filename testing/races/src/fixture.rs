//! The fixture of the races: a filesystem, its device, a manual clock, and a log that compares observations
//! with completed writes.

use ivers_block::Budget;
use ivers_mem::Mem;
use ivers_vfs::*;
use shuttle::rand::{Rng, thread_rng};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The page size of the VFS in bytes.
pub const PAGE: u64 = 4096;

/// Returns a random choice of the schedule's seed.
pub fn coin() -> bool {
    thread_rng().gen_bool(0.5)
}

/// Returns a random number below `end`, from the schedule's seed.
pub fn draw(end: usize) -> usize {
    thread_rng().gen_range(0..end)
}

/// A clock in seconds that `tick` advances. It does not use shuttle's atomics, because it takes no part in a
/// race.
#[derive(Default)]
pub struct Ticks(AtomicI64);

impl Ticks {
    /// Advances the clock by a tick.
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

/// A mounted in-memory filesystem and its device.
pub struct Fixture {
    /// The mount.
    pub vfs: Arc<Vfs>,
    /// The clock.
    pub clock: Arc<Ticks>,
    mem: Arc<Mem>,
    budget: Arc<Budget>,
    free_at_start: u64,
}

impl Fixture {
    /// Mounts a new filesystem with a cache of this size; `adjust` may change the other options.
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

    /// Mounts the device's present contents separately, without the memory of the other mount.
    pub fn device(&self) -> Arc<Vfs> {
        let options = MountOptions { read_only: true, background: false, ..MountOptions::default() };
        Vfs::mount(self.mem.clone(), options).unwrap()
    }

    /// Returns the root directory.
    pub fn root(&self) -> InodeRef {
        self.vfs.root().unwrap()
    }

    /// Creates a file.
    pub fn file(&self, dir: &InodeRef, name: &str) -> InodeRef {
        self.make(dir, name, &CreateSpec::file(0o640))
    }

    /// Creates a directory.
    pub fn dir(&self, dir: &InodeRef, name: &str) -> InodeRef {
        self.make(dir, name, &CreateSpec::directory(0o755))
    }

    fn make(&self, dir: &InodeRef, name: &str, spec: &CreateSpec) -> InodeRef {
        self.vfs.create(&Cred::root(), dir, name.as_bytes(), spec, false).unwrap().0
    }

    /// Returns the number of blocks that are used or reserved, compared with the start.
    pub fn blocks_in_use(&self) -> u64 {
        self.free_at_start - self.mem.stat_fs().unwrap().blocks_free
    }

    /// Exceeds the cache bound slightly, so that one thread reclaims memory while the others continue.
    pub fn press(&self) {
        self.budget.set_limit(self.budget.used() - 1);
    }

    /// Unmounts and checks that all memory is freed.
    pub fn end(self) {
        self.vfs.unmount().unwrap();
        self.gone();
    }

    /// Checks that an unmounted filesystem has freed all memory.
    pub fn gone(self) {
        drop(self.vfs);
        assert_eq!(self.budget.used(), 0, "unused memory is still charged");
    }
}

/// Writes a number at the start of page `page` of a file.
pub fn put(vfs: &Vfs, file: &InodeRef, page: u64, value: u64, flags: WriteFlags) {
    let whole_page = flags.intersects(WriteFlags::DIRECT | WriteFlags::CACHED_BY_CALLER);
    let mut data = vec![0; if whole_page { PAGE as usize } else { 8 }];
    data[..8].copy_from_slice(&value.to_le_bytes());
    assert_eq!(vfs.write(&Cred::root(), file, page * PAGE, &data, flags).unwrap(), data.len());
}

/// Returns the number at the start of page `page` of a file; 0 past its end.
pub fn value(vfs: &Vfs, file: &InodeRef, page: u64) -> u64 {
    let mut bytes = [0; 8];
    vfs.read(&Cred::root(), file, page * PAGE, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// Looks up a name.
pub fn find(vfs: &Vfs, dir: &InodeRef, name: &str) -> Option<InodeRef> {
    match vfs.lookup(&Cred::root(), dir, name.as_bytes()) {
        Ok(inode) => Some(inode),
        Err(Error::Name(NameError::NotFound)) => None,
        Err(error) => panic!("lookup of {name}: {error}"),
    }
}

/// Lists a directory without `.` and `..`: names and inode numbers.
pub fn list(vfs: &Vfs, dir: &InodeRef) -> Vec<(String, Ino)> {
    let mut names = Vec::new();
    vfs.readdir(&Cred::root(), dir, 0, &mut |entry| {
        if !entry.name.starts_with(b".") {
            names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.ino));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    names
}

/// A log of completed writes and observations of one inode with `N` numbers, each of which only grows.
///
/// It checks contract C6, including C1 and C2: if a query returns a value that stood for some contents, these
/// contain every change completed before the query; and no query returns less than an earlier one.
pub struct ObservationLog<const N: usize>(Mutex<Pages<N>>);

struct Pages<const N: usize> {
    completed: [u64; N],
    seen: Vec<(u64, [u64; N])>,
    highest: u64,
}

impl<const N: usize> Default for ObservationLog<N> {
    fn default() -> Self {
        Self(Mutex::new(Pages { completed: [0; N], seen: Vec::new(), highest: 0 }))
    }
}

impl<const N: usize> ObservationLog<N> {
    // A standard lock, never held where a schedule may switch threads: the log sees everything in one order.
    fn open(&self) -> MutexGuard<'_, Pages<N>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the change of number `of` to this value has returned.
    pub fn completed(&self, of: usize, value: u64) {
        let mut book = self.open();
        book.completed[of] = book.completed[of].max(value);
    }

    /// Returns the completed values.
    pub fn floor(&self) -> [u64; N] {
        self.open().completed
    }

    /// Returns the observed values, with the contents of that time.
    pub fn seen(&self) -> Vec<(u64, [u64; N])> {
        self.open().seen.clone()
    }

    /// Queries the change attribute, reads the contents, and checks them against the log.
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

    /// Queries the change attribute and checks it against the log.
    pub fn query(&self, vfs: &Vfs, inode: &Inode) -> u64 {
        let (floor, highest) = {
            let book = self.open();
            (book.completed, book.highest)
        };
        let version = vfs.change(inode).expect("there is a change attribute");
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
