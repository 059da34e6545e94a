//! A mounted XFS on a device that remembers its writes, and what a crash leaves of it.

use crate::fixture::{Ticks, coin, find, list};
use ivers_block::{Budget, Device, FaultDevice, MemDevice};
use ivers_vfs::check::Memory;
use ivers_vfs::*;
use ivers_xfs::mkfs::{Features, MkfsOptions, mkfs};
use ivers_xfs::{OpenOptions, Xfs};
use shuttle::rand::{Rng, thread_rng};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Bytes of the image: two groups of the least size.
const IMAGE_BYTES: u64 = 34 << 20;
/// Bytes of the cache, before [`XfsFixture::press`] lowers the bound.
const CACHE_BYTES: u64 = 4 << 20;

/// A mounted XFS and its device.
pub struct XfsFixture {
    /// The mount.
    pub vfs: Arc<Vfs>,
    device: Arc<FaultDevice>,
    budget: Arc<Budget>,
}

/// The log of an image.
#[derive(Debug, Clone, Copy)]
pub enum Log {
    /// A few changes fill it.
    Tiny,
    /// The least that has space for the intents of a few shared extents.
    Small,
}

impl Log {
    fn bytes(self) -> u64 {
        match self {
            Self::Tiny => 1 << 20,
            Self::Small => 4 << 20,
        }
    }
}

/// Returns an empty image, with parent pointers or without. It is made once, since making one takes no part
/// in a race.
fn empty(log: Log, parents: bool) -> Arc<MemDevice> {
    static EMPTY: [[OnceLock<Arc<MemDevice>>; 2]; 2] = [const { [const { OnceLock::new() }; 2] }; 2];
    let made = EMPTY[log as usize][usize::from(parents)].get_or_init(|| {
        let device = MemDevice::new(IMAGE_BYTES);
        let features =
            if parents { Features::parse("parent,exchange").unwrap() } else { Features::default() };
        let options = MkfsOptions {
            features,
            log_bytes: Some(log.bytes()),
            uuid: [7; 16],
            small: true,
            zeroed: true,
            ..MkfsOptions::default()
        };
        mkfs(&device, &options).unwrap();
        Arc::new(device)
    });
    made.clone()
}

/// Opens a device. A commit in the background happens at any time, or never: shuttle models no time.
fn open(device: Arc<dyn Device>, commits: bool, budget: Arc<Budget>) -> Arc<dyn FileSystem> {
    let commit_interval = if commits { Duration::ZERO } else { Duration::from_secs(1 << 20) };
    let common =
        DriverOptions { commit_interval, budget, place: "test image".into(), ..DriverOptions::default() };
    Xfs::open(device, OpenOptions { common, ..OpenOptions::default() }).unwrap()
}

impl XfsFixture {
    /// Mounts a new filesystem. The schedule draws its features, and what happens in the background.
    pub fn new(log: Log) -> Self {
        let (parents, commits) = (coin(), coin());
        let device = Arc::new(FaultDevice::new(empty(log, parents)));
        let budget = Arc::new(Budget::new(CACHE_BYTES));
        let options = MountOptions {
            clock: Some(Box::new(Ticks::default())),
            background: coin(),
            lazytime: coin(),
            lazyversion: Some(coin()),
            atime: AtimeMode::Never,
            budget: Some(budget.clone()),
            ..MountOptions::default()
        };
        let vfs = Vfs::mount(open(device.clone(), commits, budget.clone()), options).unwrap();
        Self { vfs, device, budget }
    }

    /// Returns the device as a crash now could leave it: with all durable writes, and some of the others.
    pub fn crash(&self) -> Arc<dyn Device> {
        let salt: u64 = thread_rng().r#gen();
        let kept = |nth: usize| salt.rotate_left(nth as u32 % 64) & 1 == 0;
        Arc::new(self.device.image_where(self.device.len(), kept).unwrap())
    }

    /// Exceeds the cache bound slightly, so that one thread reclaims memory while the others continue.
    pub fn press(&self) {
        self.budget.set_limit(self.budget.used() - 1);
    }

    /// Drops the blocks from the cache that nobody uses or has to write.
    pub fn drop_blocks(&self) {
        self.vfs.fs().evict_blocks(u64::MAX);
    }

    /// Writes everything, and checks that a crash then leaves all files as they are, and an unmount too.
    pub fn end(self) {
        let files = contents(&self.vfs);
        self.vfs.sync().unwrap();
        recover(self.crash(), |vfs| assert_eq!(contents(vfs), files, "after a crash"));
        self.vfs.unmount().unwrap();
        recover(self.device, |vfs| assert_eq!(contents(vfs), files, "after an unmount"));
    }
}

/// What a user sees of a file: inode number, link count, size, the bytes, and the attribute [`ATTRIBUTE`].
type Seen = (u64, u32, u64, Vec<u8>, Option<Vec<u8>>);

/// The extended attribute that races use.
pub const ATTRIBUTE: &str = "user.race";
/// Of larger files only the start is compared.
const COMPARED_BYTES: u64 = 1 << 20;

/// Returns all files by their paths.
pub fn contents(vfs: &Arc<Vfs>) -> BTreeMap<String, Seen> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![(String::new(), vfs.root().unwrap())];
    while let Some((path, dir)) = dirs.pop() {
        for (name, ino) in list(vfs, &dir) {
            let inode = find(vfs, &dir, &name).expect("nobody removes names now");
            assert_eq!(inode.ino, ino, "{path}/{name} in the list and by its name");
            let (path, attr) = (format!("{path}/{name}"), vfs.stat(&inode));
            let mut bytes = Vec::new();
            if inode.kind == FileType::Regular {
                bytes.resize(attr.size.min(COMPARED_BYTES) as usize, 0);
                vfs.read(&Cred::root(), &inode, 0, &mut bytes).unwrap();
            } else if inode.kind == FileType::Directory {
                dirs.push((path.clone(), inode.clone()));
            }
            let attribute = vfs.get_xattr(&Cred::root(), &inode, ATTRIBUTE).ok();
            files.insert(path, (ino.0, attr.nlink, attr.size, bytes, attribute));
        }
    }
    files
}

/// Recovers a device, lets `look` see the files, and checks what is left.
pub fn recover(device: Arc<dyn Device>, look: impl FnOnce(&Arc<Vfs>)) {
    let budget = Arc::new(Budget::new(CACHE_BYTES));
    let options = MountOptions { background: false, budget: Some(budget.clone()), ..MountOptions::default() };
    let vfs = Vfs::mount(open(device.clone(), false, budget), options).unwrap();
    look(&vfs);
    vfs.unmount().unwrap();
    drop(vfs);
    let found = ivers_xfs::check::check(device, Memory::unlimited(), "test image").unwrap();
    assert!(found.is_clean(), "{:?}", found.kept());
}
