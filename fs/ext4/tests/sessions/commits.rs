//! Commits: what they make durable, who shares them, and that a new file is complete at every commit.

use ivers_block::{ByteOffset, Device, FaultDevice, MemDevice, Recorded};
use ivers_crash::whole;
use ivers_ext4::mkfs::{MkfsOptions, mkfs};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

fn mount(device: Arc<dyn Device>) -> Arc<Vfs> {
    let fs = Ext4::open(device, OpenOptions::default()).unwrap();
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

fn formatted() -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(32 << 20));
    mkfs(&device, &MkfsOptions { zeroed: true, ..MkfsOptions::default() }).unwrap();
    device
}

/// Writes and flushes of the device since the last call.
struct DeviceLog {
    device: Arc<FaultDevice>,
    seen: usize,
}

impl DeviceLog {
    fn take(&mut self) -> Vec<Recorded> {
        let log = self.device.record();
        let new = log[self.seen..].to_vec();
        self.seen = log.len();
        new
    }
}

fn flushes(ops: &[Recorded]) -> bool {
    ops.iter().any(|op| matches!(op, Recorded::Flush | Recorded::Write { fua: true, .. }))
}

fn holds(ops: &[Recorded], bytes: &[u8]) -> bool {
    let found = |data: &[u8]| data.windows(bytes.len()).any(|window| window == bytes);
    ops.iter().any(|op| matches!(op, Recorded::Write { data, .. } if found(data)))
}

#[test]
fn a_commit_writes_no_data_and_does_not_replace_the_flush_of_fsync() {
    let device = Arc::new(FaultDevice::new(formatted()));
    let (vfs, cred) = (mount(device.clone()), Cred::root());
    let root = vfs.root().unwrap();
    let mut news = DeviceLog { device: device.clone(), seen: 0 };
    let (file, _) = vfs.create(&cred, &root, b"f", &CreateSpec::file(0o600), false).unwrap();
    vfs.sync().unwrap();
    let text = [0xC7; 4096];
    vfs.write(&cred, &file, 0, &text, WriteFlags::empty()).unwrap();
    vfs.set_attr(&cred, &file, &SetAttr { perm: Some(0o641), ..SetAttr::default() }).unwrap();
    news.take();
    vfs.commit(&[&root, &file]).unwrap();
    let ops = news.take();
    assert!(flushes(&ops) && !holds(&ops, &text));
    let crashed = mount(Arc::new(device.image_where(device.len(), |_| false).unwrap()));
    let there = crashed.resolve(&cred, "/f", false).unwrap();
    assert_eq!((crashed.stat(&there).perm, crashed.stat(&there).size), (0o641, 0));
    vfs.commit(&[&root, &file]).unwrap();
    assert!(news.take().is_empty(), "already durable");
    // Write-back sends the data; a commit for other changes follows it.
    vfs.read_direct(&Cred::root(), &file, 0, &mut [0; 4096]).unwrap();
    assert!(holds(&news.take(), &text));
    vfs.commit(&[&file]).unwrap();
    news.take();
    vfs.fsync(&file, false).unwrap();
    assert!(flushes(&news.take()));
    vfs.fsync(&file, false).unwrap();
    assert!(news.take().is_empty());
}

/// A command such as `ivers mkdir` waits for the medium this often.
/// Returns the flushes with something to flush, and the durable writes, of a session that creates a directory
/// and does what `also` does.
fn waits(short_session: bool, also: &dyn Fn(&Vfs, &InodeRef)) -> (u32, u32) {
    let device = Arc::new(FaultDevice::new(formatted()));
    let fs = Ext4::open(device.clone(), OpenOptions { short_session, ..OpenOptions::default() }).unwrap();
    let vfs = Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap();
    let root = vfs.root().unwrap();
    vfs.create(&Cred::root(), &root, b"d", &CreateSpec::of(FileType::Directory, 0o755), false).unwrap();
    also(&vfs, &root);
    vfs.unmount().unwrap();
    device.waits()
}

#[test]
fn a_session_with_one_change_waits_for_few_writes() {
    // Flushes: two commits (the record OPEN; the change with the record CLOSED) and the blocks in place.
    // Durable writes: the superblock at both ends, two commit records, and the empty log.
    assert_eq!(waits(false, &|_, _| {}), (3, 5));
    // Record, change and record again are one transaction.
    assert_eq!(waits(true, &|_, _| {}), (2, 4));
    // Data in place, and a value that an observer keeps, come after the record.
    let query = |vfs: &Vfs, root: &InodeRef| assert!(vfs.change(root).is_some());
    let write = |vfs: &Vfs, root: &InodeRef| {
        let (file, _) = vfs.create(&Cred::root(), root, b"f", &CreateSpec::file(0o644), false).unwrap();
        vfs.write(&Cred::root(), &file, 0, b"data", WriteFlags::empty()).unwrap();
    };
    assert_eq!((waits(true, &query), waits(true, &write)), ((3, 5), (3, 5)));
}

/// A device whose flushes take as long as a disk's, and are counted.
struct Slow {
    inner: Arc<dyn Device>,
    flushes: AtomicU64,
}

impl Device for Slow {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> ivers_block::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> ivers_block::Result<()> {
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> ivers_block::Result<()> {
        self.flushes.fetch_add(1, SeqCst);
        thread::sleep(Duration::from_millis(3));
        self.inner.flush()
    }
    fn discard(&self, offset: ByteOffset, len: u64) -> ivers_block::Result<()> {
        self.inner.discard(offset, len)
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn describe(&self) -> String {
        "a slow device".into()
    }
}

/// Returns the flushes per call when `callers` threads call concurrently. `call` gets the thread's number and
/// the number of its call.
fn flushes_a_call(callers: u64, call: impl Fn(&Vfs, &InodeRef, u64, u64) -> Result<()> + Sync) -> f64 {
    const EACH: u64 = 25;
    let device = Arc::new(Slow { inner: formatted(), flushes: AtomicU64::new(0) });
    let vfs = mount(device.clone());
    let root = vfs.root().unwrap();
    let (file, _) = vfs.create(&Cred::root(), &root, b"file", &CreateSpec::file(0o600), false).unwrap();
    vfs.sync().unwrap();
    let before = device.flushes.load(SeqCst);
    thread::scope(|scope| {
        for caller in 0..callers {
            let (vfs, file, call) = (&vfs, &file, &call);
            scope.spawn(move || (0..EACH).try_for_each(|nth| call(vfs, file, caller, nth)).unwrap());
        }
    });
    let count = (device.flushes.load(SeqCst) - before) as f64;
    count / (callers * EACH) as f64
}

fn creates_and_commits(vfs: &Vfs, _: &InodeRef, caller: u64, nth: u64) -> Result<()> {
    let (root, name) = (vfs.root()?, format!("{caller}.{nth}"));
    let (file, _) = vfs.create(&Cred::root(), &root, name.as_bytes(), &CreateSpec::file(0o600), false)?;
    vfs.commit(&[&root, &file])
}

fn writes_and_fsyncs(vfs: &Vfs, file: &InodeRef, caller: u64, nth: u64) -> Result<()> {
    let at = (caller * 100 + nth) * 4096;
    vfs.write(&Cred::root(), file, at, &[7; 4096], WriteFlags::empty())?;
    vfs.fsync(file, false)
}

#[test]
fn concurrent_callers_share_a_commit() {
    for (what, call) in [
        ("creation", creates_and_commits as fn(&Vfs, &InodeRef, u64, u64) -> _),
        ("fsync", writes_and_fsyncs),
    ] {
        let (alone, shared) = (flushes_a_call(1, call), flushes_a_call(8, call));
        println!("flushes a {what}: {alone:.2} alone, {shared:.2} of eight");
        assert!(shared < alone * 0.6, "{what}: {alone} alone, {shared} of eight");
    }
}

/// Commits happen at any moment here; the crash explorer's happen between calls.
#[test]
fn a_new_file_is_complete_at_every_commit() {
    let device = Arc::new(FaultDevice::new(formatted()));
    let vfs = mount(device.clone());
    let root = vfs.root().unwrap();
    let (stop, made, commits) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut committed = 0;
            while !stop.load(SeqCst) {
                // An empty commit is not a useful crash point.
                let now = made.load(SeqCst);
                if now > committed {
                    vfs.sync().unwrap();
                    commits.fetch_add(1, SeqCst);
                    committed = now;
                }
            }
        });
        let worked = (0..100_000).take_while(|_| commits.load(SeqCst) < 60).try_for_each(|nth| {
            let (name, old) = (nth.to_string(), (nth - 100).to_string());
            if nth >= 100 {
                vfs.unlink(&Cred::root(), &root, old.as_bytes(), false)?;
            }
            vfs.create(&Cred::root(), &root, name.as_bytes(), &whole(), true)?;
            made.fetch_add(1, SeqCst);
            Ok::<_, ivers_vfs::Error>(())
        });
        stop.store(true, SeqCst);
        worked.unwrap();
    });
    let (points, mut found) = (device.len(), 0);
    for point in (0..points).step_by((points / 60).max(1)).chain([points]) {
        let crashed = mount(Arc::new(device.image_where(point, |_| false).unwrap()));
        let root = crashed.root().unwrap();
        for entry in crashed.list(&Cred::root(), &root, 0, 100_000).unwrap() {
            let file = entry.inode.unwrap();
            if file.kind != FileType::Regular {
                continue;
            }
            let attr = crashed.stat(&file);
            let shown = (attr.perm, attr.uid, attr.gid, attr.size, attr.atime.sec, attr.mtime.sec);
            assert_eq!(shown, (0o4751, 70, 71, 5000, 1_111, 2_222), "at {point} of {points}");
            found += 1;
        }
    }
    assert!(found > 0, "{points} points, and no file");
}

/// Blocks of 4 KiB that the device wrote, in order.
fn blocks_of(ops: &[Recorded]) -> Vec<u64> {
    let written = ops.iter().filter_map(|op| match op {
        Recorded::Write { offset, data, .. } => Some((offset.0, data.len() as u64)),
        _ => None,
    });
    written.flat_map(|(at, len)| at / 4096..(at + len).div_ceil(4096)).collect()
}

/// A commit logs each metadata block once, however many files were created or removed in it, and the
/// checkpoint writes each once in place.
#[test]
fn creating_and_removing_many_files_writes_each_metadata_block_once_a_commit() {
    const FILES: u64 = 1500;
    const INODES_OF_A_BLOCK: u64 = 16;
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(64 << 20));
    let options = MkfsOptions { block_size: Some(4096), zeroed: true, ..MkfsOptions::default() };
    mkfs(&device, &options).unwrap();
    let device = Arc::new(FaultDevice::new(device));
    let mut news = DeviceLog { device: device.clone(), seen: 0 };
    let create = |vfs: &Vfs, dir: &InodeRef, name: &[u8]| {
        vfs.create(&Cred::root(), dir, name, &CreateSpec::file(0o600), false).map(drop)
    };
    let unlink =
        |vfs: &Vfs, dir: &InodeRef, name: &[u8]| vfs.unlink(&Cred::root(), dir, name, false).map(drop);
    for (what, change) in
        [("creation", &create as &dyn Fn(&Vfs, &InodeRef, &[u8]) -> Result<()>), ("removal", &unlink)]
    {
        let vfs = mount(device.clone());
        let root = vfs.root().unwrap();
        vfs.sync().unwrap();
        news.take();
        for nth in 0..FILES {
            change(&vfs, &root, format!("a file with the number {nth}").as_bytes()).unwrap();
        }
        assert!(news.take().is_empty(), "{what}: something was written before the commit");
        vfs.sync().unwrap();
        let logged = blocks_of(&news.take()).len();
        drop(root);
        vfs.unmount().unwrap();
        let mut in_place = blocks_of(&news.take());
        let writes = in_place.len();
        in_place.sort_unstable();
        in_place.dedup();
        println!(
            "{what}: {logged} blocks logged, {writes} written in place, {} of them different",
            in_place.len()
        );
        // The superblock and that of the journal are written once more when the image is marked clean.
        assert!(writes <= in_place.len() + 4, "{what}");
        // Descriptors, a commit record, and blocks that only the log has.
        assert!(logged <= in_place.len() + in_place.len() / 100 + 8, "{what}");
        assert!(
            in_place.len() as u64 > FILES / INODES_OF_A_BLOCK,
            "{what}: the blocks of inodes are missing"
        );
    }
}
