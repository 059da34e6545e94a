//! A full filesystem: reservations are kept, freed blocks are available, and no operation is left half done.

use crate::common::{fsck, mkfs};
use ivers_block::{ByteOffset, Device, MemDevice};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

struct Full {
    _dir: tempfile::TempDir,
    path: PathBuf,
    device: Arc<MemDevice>,
    vfs: Arc<Vfs>,
    cred: Cred,
    dirs: u32,
}

fn vfs_on(device: Arc<dyn Device>) -> Arc<Vfs> {
    let ext4 = Ext4::open(device, OpenOptions::default()).unwrap();
    Vfs::mount(ext4, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

impl Full {
    fn new(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        mkfs(&path, args, 18 << 20);
        let device = Arc::new(MemDevice::from_bytes(&std::fs::read(&path).unwrap()));
        Self { _dir: dir, path, vfs: vfs_on(device.clone()), device, cred: Cred::root(), dirs: 0 }
    }

    fn root(&self) -> InodeRef {
        self.vfs.root().unwrap()
    }

    fn file(&self, name: &str) -> InodeRef {
        let spec = CreateSpec::file(0o600);
        self.vfs.create(&self.cred, &self.root(), name.as_bytes(), &spec, false).unwrap().0
    }

    /// Fills the filesystem, large files first.
    fn fill(&mut self) {
        let found = self.vfs.lookup(&self.cred, &self.root(), b"ballast");
        let ballast = found.unwrap_or_else(|_| self.file("ballast"));
        let mut at = 0;
        for len in [1 << 20, 64 << 10, 1024] {
            while self.vfs.fallocate(&self.cred, &ballast, FallocateMode::empty(), at, len).is_ok() {
                at += len;
            }
        }
        self.fill_with_directories();
    }

    fn fill_with_directories(&mut self) {
        while self.mkdir(self.dirs).is_ok() {
            self.dirs += 1;
        }
    }

    fn mkdir(&self, number: u32) -> Result<()> {
        let name = format!("d{number}");
        self.vfs
            .create(&self.cred, &self.root(), name.as_bytes(), &CreateSpec::directory(0o700), false)
            .map(drop)
    }

    /// Frees this many single blocks.
    fn drop_directories(&mut self, count: u32) {
        for _ in 0..count {
            self.dirs -= 1;
            let name = format!("d{}", self.dirs);
            self.vfs.rmdir(&self.cred, &self.root(), name.as_bytes(), false).unwrap();
        }
        let _ = self.vfs.sync();
    }

    /// Recovers the image that a crash would leave now, and checks it.
    fn crash(&self, what: &str) -> Arc<Vfs> {
        // The journal may be writing in place now, and a copy made meanwhile is not one that a crash could
        // leave.
        let bytes = loop {
            let bytes = self.device.to_bytes();
            if bytes == self.device.to_bytes() {
                break bytes;
            }
        };
        let copy = Arc::new(MemDevice::from_bytes(&bytes));
        let vfs = vfs_on(copy.clone());
        vfs.unmount().unwrap();
        drop(vfs);
        self.check(&copy, what);
        vfs_on(copy)
    }

    fn check(&self, device: &MemDevice, what: &str) {
        std::fs::write(&self.path, device.to_bytes()).unwrap();
        fsck(&self.path, what);
    }

    fn finish(self, what: &str) {
        let _ = self.vfs.unmount();
        self.check(&self.device, what);
    }
}

fn is_full<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Name(NameError::NoSpace)))
}

/// Blocks freed by an earlier call are available without waiting for the commit timer.
#[test]
fn freed_blocks_are_available_immediately() {
    let mut it = Full::new(&["-t", "ext4", "-b", "1024", "-O", "ea_inode", "-I", "128"]);
    let file = it.file("f");
    it.fill();
    let root = it.root();
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    let ballast = it.vfs.lookup(&it.cred, &root, b"ballast").unwrap();
    for round in 0..4 {
        assert!(is_full(it.mkdir(it.dirs)), "{round}: not full");
        it.vfs.set_attr(&it.cred, &ballast, &cut).unwrap();
        let done = match round {
            0 => it.mkdir(1 << 20),
            1 => it
                .vfs
                .create(&it.cred, &root, b"link", &CreateSpec::symlink("x".repeat(100)), false)
                .map(drop),
            2 => it.vfs.set_xattr(&it.cred, &file, b"user.large", &[1; 3000], XattrMode::Any),
            _ => it
                .vfs
                .write(&it.cred, &file, 0, &[1; 5000], WriteFlags::empty())
                .and_then(|_| it.vfs.fsync(&file, false)),
        };
        done.unwrap_or_else(|error| panic!("{round}: {error}"));
        it.fill();
    }
    drop((root, file, ballast));
    it.finish("freed");
}

/// Directories do not use blocks that are reserved for delayed writes.
#[test]
fn directories_leave_reserved_blocks_to_data() {
    for args in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext3", "-b", "1024"]] {
        let mut it = Full::new(args);
        let file = it.file("f");
        it.fill();
        it.drop_directories(60);
        let ballast = it.vfs.lookup(&it.cred, &it.root(), b"ballast").unwrap();
        let cut = SetAttr { size: Some(1 << 20), ..SetAttr::default() };
        it.vfs.set_attr(&it.cred, &ballast, &cut).unwrap();
        let mut written = 0_u64;
        while it.vfs.write(&it.cred, &file, written * 8192, &[7], WriteFlags::empty()).is_ok() {
            written += 1;
        }
        assert!(written > 20, "{args:?}: {written}");
        it.fill_with_directories();
        it.vfs.fsync(&file, false).unwrap_or_else(|error| panic!("{args:?}: {error}"));
        drop(ballast);
        let after = it.crash(&format!("{args:?}"));
        let file = after.resolve(&it.cred, b"/f", true).unwrap();
        for page in 0..written {
            let mut byte = [0];
            after.read(&Cred::root(), &file, page * 8192, &mut byte).unwrap();
            assert_eq!(byte, [7], "{args:?}: page {page} of {written}");
        }
        drop(file);
        after.unmount().unwrap();
    }
}

#[test]
fn blocks_after_the_end_of_a_file_can_be_freed() {
    for args in [&["-t", "ext4"][..], &["-t", "ext4", "-b", "1024"]] {
        let it = Full::new(args);
        let file = it.file("f");
        it.vfs.write(&it.cred, &file, 0, &[7; 5000], WriteFlags::empty()).unwrap();
        it.vfs.fsync(&file, false).unwrap();
        let free = || it.vfs.stat_fs().unwrap().blocks_free;
        let before = free();

        let failed = it.vfs.fallocate(&it.cred, &file, FallocateMode::empty(), 0, 1 << 40);
        assert!(matches!(failed, Err(Error::Name(NameError::NoSpace))), "{args:?}: {failed:?}");
        it.vfs.sync().unwrap();
        assert_eq!((free(), file.size()), (before, 5000), "{args:?}: a failed call keeps nothing");

        it.vfs.fallocate(&it.cred, &file, FallocateMode::KEEP_SIZE, 1 << 20, 4 << 20).unwrap();
        let failed = it.vfs.fallocate(&it.cred, &file, FallocateMode::empty(), 0, 1 << 40);
        assert!(failed.is_err() && free() < before, "{args:?}: but takes nothing away that was there");
        let same = SetAttr { size: Some(5000), ..SetAttr::default() };
        it.vfs.set_attr(&it.cred, &file, &same).unwrap();
        it.vfs.sync().unwrap();
        assert_eq!((free(), file.size()), (before, 5000), "{args:?}: a cut to the same size");

        let mut data = [0; 5000];
        assert_eq!(it.vfs.read(&Cred::root(), &file, 0, &mut data).unwrap(), 5000);
        assert_eq!(data, [7; 5000], "{args:?}");
        drop(file);
        it.crash(&format!("{args:?}")).unmount().unwrap();
    }
}

/// Writing into a preallocated file needs nodes of its tree. If there are none, the logged inode still
/// describes every extent in the tree and every extent added to it.
#[test]
fn an_extent_tree_that_cannot_grow_stays_consistent() {
    let mut it = Full::new(&["-t", "ext4", "-b", "1024"]);
    let file = it.file("f");
    it.vfs.fallocate(&it.cred, &file, FallocateMode::KEEP_SIZE, 0, 8 << 20).unwrap();
    let pages = (8 << 20) / 4096_u64;
    let put = |it: &Full, page: u64| {
        it.vfs.write(&it.cred, &file, page * 4096, &[page as u8 | 1], WriteFlags::empty()).unwrap();
    };
    let mut durable = Vec::new();
    for page in (0..pages).step_by(16) {
        put(&it, page);
        durable.push(page);
    }
    it.vfs.fsync(&file, false).unwrap();
    for _ in 0..300 {
        it.mkdir(it.dirs).unwrap();
        it.dirs += 1;
    }
    it.fill();
    let (mut state, mut failures) = (5_u64, 0);
    for round in 0..60 {
        it.drop_directories(u32::from(round % 12 == 11));
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let start = random(pages - 200);
        let now: Vec<u64> = (0..14).map(|_| start + random(200)).collect();
        now.iter().for_each(|&page| put(&it, page));
        if it.vfs.fsync(&file, false).is_ok() {
            durable.extend(now);
            continue;
        }
        failures += 1;
        let _ = it.vfs.sync();
        let after = it.crash(&format!("round {round}"));
        let copy = after.resolve(&it.cred, b"/f", true).unwrap();
        for &page in &durable {
            let mut byte = [0];
            after.read(&Cred::root(), &copy, page * 4096, &mut byte).unwrap();
            assert_eq!(byte, [page as u8 | 1], "round {round}: page {page}");
        }
        drop(copy);
        after.unmount().unwrap();
    }
    assert!(failures > 10, "{failures}");
    it.vfs.unlink(&it.cred, &it.root(), b"ballast", false).unwrap();
    // The previous round's write-back error has not been reported yet.
    let _ = it.vfs.fsync(&file, false);
    it.vfs.fsync(&file, false).unwrap();
    drop(file);
    it.finish("grown");
}

/// An attribute whose value has its own inode, without space for its entry.
#[test]
fn a_failed_attribute_leaves_no_blocks_allocated() {
    let mut it = Full::new(&["-t", "ext4", "-b", "1024", "-O", "ea_inode", "-I", "128"]);
    let files: Vec<InodeRef> = (0..12).map(|i| it.file(&format!("f{i}"))).collect();
    it.fill();
    let mut failures = 0;
    for (count, file) in files.iter().enumerate() {
        it.drop_directories(count as u32 / 2);
        let set = it.vfs.set_xattr(&it.cred, file, b"user.large", &[1; 3000], XattrMode::Any);
        failures += u32::from(is_full(set));
        it.vfs.sync().unwrap();
        it.crash(&format!("{count} blocks")).unmount().unwrap();
    }
    assert!(failures > 3, "{failures}");
    drop(files);
    it.finish("attributes");
}

/// A device that reports each read and delays it until the test receives the report.
struct Gated {
    inner: Arc<MemDevice>,
    reads: SyncSender<()>,
}

impl Gated {
    fn new(inner: Arc<MemDevice>) -> (Arc<Self>, Receiver<()>) {
        let (reads, seen) = sync_channel(0);
        (Arc::new(Self { inner, reads }), seen)
    }
}

impl Device for Gated {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> ivers_block::Result<()> {
        // Without a receiver, reads are not delayed.
        let _ = self.reads.send(());
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> ivers_block::Result<()> {
        self.inner.write_at(offset, buf)
    }

    fn flush(&self) -> ivers_block::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> ivers_block::Result<()> {
        self.inner.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

/// An allocation waits for the blocks of a file that another thread is deleting.
#[test]
fn allocation_waits_for_a_running_deletion() {
    const LEN: usize = 12 << 20;
    let data = vec![7; LEN];
    for kind in ["ext2", "ext3"] {
        let it = Full::new(&["-t", kind, "-b", "1024"]);
        let old = it.file("old");
        it.vfs.write(&it.cred, &old, 0, &data, WriteFlags::empty()).unwrap();
        drop((old, it.file("new")));
        it.vfs.unmount().unwrap();

        let (device, reads) = Gated::new(it.device.clone());
        let opening = std::thread::spawn(move || {
            let vfs = vfs_on(device);
            let find = |path: &[u8]| vfs.resolve(&Cred::root(), path, true).unwrap();
            let (old, new) = (find(b"/old"), find(b"/new"));
            vfs.unlink(&Cred::root(), &vfs.root().unwrap(), b"old", false).unwrap();
            (vfs, old, new)
        });
        while !opening.is_finished() {
            let _ = reads.recv_timeout(Duration::from_millis(1));
        }
        let (vfs, old, new) = opening.join().unwrap();
        let deleting = std::thread::spawn(move || drop(old));
        // The map is not in memory: the deletion stops at the second block that it reads.
        reads.recv().unwrap();
        let write = {
            let (vfs, new, data) = (vfs.clone(), new.clone(), data.clone());
            std::thread::spawn(move || vfs.write(&Cred::root(), &new, 0, &data, WriteFlags::empty()))
        };
        std::thread::sleep(Duration::from_millis(100));
        assert!(!deleting.is_finished() && !write.is_finished(), "{kind}: it waits");
        drop(reads);
        deleting.join().unwrap();
        assert_eq!(write.join().unwrap().unwrap(), LEN, "{kind}");
        vfs.fsync(&new, false).unwrap();
        drop(new);
        vfs.unmount().unwrap();
        it.check(&it.device, kind);
    }
}
