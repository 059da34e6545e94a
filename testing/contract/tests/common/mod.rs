//! Subjects that the tests share.
#![allow(dead_code)]

pub mod ganesha;
pub mod serving;
mod slow;

use ivers_block::{Budget, Device, MemDevice};
use ivers_contract::{
    ChangeSource, Figures, InProcess, Mounted, MountedVfs, Report, Subject, Tallies, Together, check,
    check_together,
};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_fuse::{FuseOptions, MountError, Session};
use ivers_mem::Mem;
use ivers_oracle::Image;
use ivers_vfs::{AtimeMode, ChangeMode, Clock, DriverOptions, FileSystem, MountOptions, Timestamp, Vfs};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The options of a mount.
#[derive(Debug, Clone, Copy)]
pub struct How {
    pub mode: ChangeMode,
    pub lazytime: bool,
    pub lazyversion: bool,
    pub cache_bytes: u64,
    /// Whether clock and device are slow, so that several actors overlap.
    pub slow: bool,
}

pub const LAZY: How =
    How { mode: ChangeMode::Lazy, lazytime: false, lazyversion: false, cache_bytes: 64 << 20, slow: false };
pub const EAGER: How = How { mode: ChangeMode::Eager, ..LAZY };
pub const OFF: How = How { mode: ChangeMode::Off, ..LAZY };
pub const LAZYTIME: How = How { lazytime: true, ..LAZY };
pub const TIGHT: How = How { cache_bytes: 512 << 10, ..LAZY };
/// Deferred updates wait until the inode is evicted.
pub const LAZYVERSION: How = How { lazytime: true, lazyversion: true, ..TIGHT };
pub const SLOW: How = How { slow: true, ..LAZY };
pub const SLOW_EAGER: How = How { slow: true, ..EAGER };
pub const SLOW_LAZYTIME: How = How { slow: true, ..LAZYTIME };
pub const SLOW_TIGHT: How = How { slow: true, ..TIGHT };
pub const SLOW_LAZYVERSION: How = How { slow: true, ..LAZYVERSION };
pub const SLOW_OFF: How = How { slow: true, ..OFF };

impl How {
    pub fn label(self) -> String {
        let mode = format!("{:?}", self.mode).to_lowercase();
        let lazytime = if self.lazytime { ", lazytime" } else { "" };
        let lazyversion = if self.lazyversion { ", lazyversion" } else { "" };
        let tight = if self.cache_bytes < 1 << 20 { ", small cache" } else { "" };
        let slow = if self.slow { ", slow" } else { "" };
        format!("{mode}{lazytime}{lazyversion}{tight}{slow}")
    }

    /// Returns options with frequent write-back and access times at every read: neither is a change.
    pub fn options(self, budget: &Arc<Budget>) -> MountOptions {
        MountOptions {
            mode: self.mode,
            lazytime: self.lazytime,
            lazyversion: Some(self.lazyversion),
            atime: AtimeMode::Strict,
            budget: Some(budget.clone()),
            cache_bytes: self.cache_bytes,
            writeback_interval: Duration::from_millis(2),
            dirty_expire: Duration::ZERO,
            clock: self.slow.then(|| Box::new(slow::SlowClock::default()) as Box<dyn Clock>),
            ..MountOptions::default()
        }
    }

    pub fn mount(self, fs: Arc<dyn FileSystem>, budget: Arc<Budget>) -> MountedVfs {
        let vfs = Vfs::mount(fs, self.options(&budget)).expect("it mounts");
        (vfs, budget)
    }

    /// Returns the device to mount.
    pub fn device(self, device: &Arc<dyn Device>) -> Arc<dyn Device> {
        if self.slow { Arc::new(slow::SlowDevice::over(device.clone())) } else { device.clone() }
    }

    pub fn budget(self) -> Arc<Budget> {
        Arc::new(Budget::new(self.cache_bytes))
    }
}

/// Returns the seed; `IVERS_SEED` and `IVERS_STEPS` replay and lengthen a run.
pub fn seed() -> u64 {
    std::env::var("IVERS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

pub fn steps(usual: usize) -> usize {
    std::env::var("IVERS_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(usual)
}

/// Returns the number of concurrent phases: `IVERS_PHASES`.
pub fn phases(usual: usize) -> usize {
    std::env::var("IVERS_PHASES").ok().and_then(|phases| phases.parse().ok()).unwrap_or(usual)
}

pub fn mem(how: How, hold: bool) -> Box<InProcess> {
    let name = format!("mem, {}", how.label());
    Box::new(InProcess::new(name, hold, false, move || how.mount(Arc::new(Mem::default()), how.budget())))
}

/// Kinds of images: a 32-bit store, the default, no fallback, small blocks, data in the inode, old formats.
pub const KINDS: [(&str, &str, &[&str]); 7] = [
    ("ext4", "ext4", &["-b", "4096"]),
    ("ext4, 128-byte inodes", "ext4", &["-b", "4096", "-I", "128"]),
    ("ext4, 1 KiB blocks", "ext4", &["-b", "1024"]),
    ("ext4, no journal", "ext4", &["-b", "4096", "-O", "^has_journal"]),
    ("ext4, inline_data", "ext4", &["-b", "4096", "-O", "inline_data"]),
    ("ext3", "ext3", &["-b", "4096"]),
    ("ext2", "ext2", &["-b", "1024"]),
];

/// Returns the bytes of a fresh image.
pub fn image(kind: &str, args: &[&str]) -> Vec<u8> {
    let image = Image::new(kind, 128 << 20, args).expect("mkfs");
    std::fs::read(image.path()).expect("the image")
}

pub fn open_ext4(device: Arc<dyn Device>, budget: Arc<Budget>) -> Arc<dyn FileSystem> {
    let options =
        OpenOptions::from(DriverOptions { budget, place: "memory".into(), ..DriverOptions::default() });
    Ext4::open(device, options).expect("it opens")
}

/// Mounts a format with lasting inode numbers on a device in memory; each mount takes the next of `hows`.
fn in_memory(name: &str, base: &Arc<Vec<u8>>, hows: &'static [How], open: Open) -> Box<InProcess> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(base));
    let mut mounts = hows.iter().cycle();
    let labels: Vec<_> = hows.iter().map(|how| how.label()).collect();
    Box::new(InProcess::new(format!("{name}, {}", labels.join(" then ")), false, true, move || {
        let how = *mounts.next().expect("a cycle");
        let budget = how.budget();
        how.mount(open(how.device(&device), budget.clone()), budget)
    }))
}

/// Mounts ext4 on a device in memory.
pub fn ext4(name: &str, base: &Arc<Vec<u8>>, hows: &'static [How]) -> Box<InProcess> {
    in_memory(name, base, hows, open_ext4)
}

/// Kinds of XFS: block sizes, and the features of mkfs.xfs.
pub const XFSES: [(&str, u32, &str); 4] = [
    ("xfs", 4096, "rmapbt"),
    ("xfs, 1 KiB blocks", 1024, "rmapbt"),
    ("xfs without reverse map", 4096, "^rmapbt,^nrext64"),
    ("xfs with parent pointers", 4096, "parent,exchange"),
];

/// Returns the bytes of an empty XFS filesystem.
pub fn new_xfs(block_size: u32, features: &str) -> Vec<u8> {
    use ivers_xfs::mkfs::{Features, MkfsOptions, mkfs};
    let device = MemDevice::new(96 << 20);
    let features = Features::parse(features).expect("features");
    let small = MkfsOptions { small: true, zeroed: true, uuid: [7; 16], ..MkfsOptions::default() };
    mkfs(&device, &MkfsOptions { block_size, features, ..small }).expect("it is made");
    device.to_bytes()
}

pub fn open_xfs(device: Arc<dyn Device>, budget: Arc<Budget>) -> Arc<dyn FileSystem> {
    let common = DriverOptions { budget, place: "memory".into(), ..DriverOptions::default() };
    let options = ivers_xfs::OpenOptions { common, ..ivers_xfs::OpenOptions::default() };
    ivers_xfs::Xfs::open(device, options).expect("it opens")
}

/// Mounts XFS on a device in memory.
pub fn xfs(name: &str, base: &Arc<Vec<u8>>, hows: &'static [How]) -> Box<InProcess> {
    in_memory(name, base, hows, open_xfs)
}

/// Kinds of btrfs: arguments of mkfs.btrfs.
pub const BTRFSES: [(&str, &[&str]); 3] =
    [("btrfs", &[]), ("btrfs, 4 KiB nodes", &["-n", "4096"]), ("btrfs, mixed groups", &["-M"])];

/// Returns the bytes of an empty btrfs filesystem.
pub fn new_btrfs(args: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("image");
    std::fs::File::create(&path).and_then(|file| file.set_len(128 << 20)).expect("the image");
    let path = path.to_str().expect("a path of this test");
    let words = ["-q", "-f"].iter().chain(args).copied().chain([path]);
    ivers_oracle::run("mkfs.btrfs", words).expect("mkfs");
    std::fs::read(path).expect("the image")
}

pub fn open_btrfs(device: Arc<dyn Device>, budget: Arc<Budget>) -> Arc<dyn FileSystem> {
    let common = DriverOptions { budget, place: "memory".into(), ..DriverOptions::default() };
    let options = ivers_btrfs::OpenOptions { common, ..Default::default() };
    ivers_btrfs::Btrfs::open(vec![device], options).expect("it opens")
}

/// Mounts btrfs on a device in memory.
pub fn btrfs(name: &str, base: &Arc<Vec<u8>>, hows: &'static [How]) -> Box<InProcess> {
    in_memory(name, base, hows, open_btrfs)
}

/// Variants of AFFS: the low bytes of their `DOS` words.
pub const AMIGAS: [(u8, &str); 3] = [(0, "OFS"), (3, "FFS, international"), (5, "FFS, directory caches")];

/// Returns an empty AFFS volume with this low byte of the `DOS` word.
pub fn amiga(low: u8) -> Vec<u8> {
    let device = MemDevice::new(32 << 20);
    let now = Timestamp { sec: 1_763_766_000, nsec: 0 };
    ivers_affs::mkfs::format(&device, low, 512, "Contract", now).expect("it is made");
    device.to_bytes()
}

pub fn open_affs(device: Arc<dyn Device>, budget: Arc<Budget>) -> Arc<dyn FileSystem> {
    let options = ivers_affs::OpenOptions::from(DriverOptions {
        budget,
        place: "memory".into(),
        ..DriverOptions::default()
    });
    ivers_affs::Affs::open(device, options).expect("it opens")
}

/// Mounts OFS or FFS on a device in memory.
pub fn affs(name: &str, base: &Arc<Vec<u8>>, how: How, hold: bool) -> Box<InProcess> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(base));
    Box::new(InProcess::new(format!("{name}, {}", how.label()), hold, true, move || {
        let budget = how.budget();
        how.mount(open_affs(how.device(&device), budget.clone()), budget)
    }))
}

/// Returns an empty filesystem of the example driver with a journal.
pub fn example() -> Vec<u8> {
    use ivers_examplefs::layout::MIN_LOG_BLOCKS;
    let device = MemDevice::new(64 << 20);
    let now = Timestamp { sec: 1_763_766_000, nsec: 0 };
    ivers_examplefs::format(&device, 1024, MIN_LOG_BLOCKS, [7; 16], now).expect("it is made");
    device.to_bytes()
}

pub fn open_example(device: Arc<dyn Device>, budget: Arc<Budget>) -> Arc<dyn FileSystem> {
    let options = DriverOptions { budget, place: "memory".into(), ..DriverOptions::default() };
    Arc::new(ivers_examplefs::ExampleFs::open(device, options).expect("it opens"))
}

/// Mounts the example driver on a device in memory.
pub fn examplefs(base: &Arc<Vec<u8>>, hows: &'static [How]) -> Box<InProcess> {
    in_memory("examplefs", base, hows, open_example)
}

/// Small and large FAT entries, with clusters of one sector.
pub const FATS: [(&str, &[&str]); 2] = [("FAT16", &["-F", "16"]), ("FAT32", &["-F", "32", "-s", "1"])];

/// Returns an empty FAT volume, made by mkfs.fat with these arguments.
pub fn vfat(args: &[&str]) -> Vec<u8> {
    let image = ivers_oracle::fat::FatImage::mkfs(48 << 20, args).expect("mkfs.fat");
    std::fs::read(image.path()).expect("the image")
}

/// Opens FAT with the permission bits that the model expects.
pub fn open_fat(device: Arc<dyn Device>, budget: Arc<Budget>) -> Arc<dyn FileSystem> {
    let options = ivers_fat::OpenOptions {
        common: DriverOptions { budget, place: "memory".into(), ..DriverOptions::default() },
        fmask: 0o133,
        dmask: 0o022,
        ..ivers_fat::OpenOptions::default()
    };
    ivers_fat::Fat::open(device, options).expect("it opens")
}

/// Mounts FAT on a device in memory.
pub fn fat(name: &str, base: &Arc<Vec<u8>>, how: How, hold: bool) -> Box<InProcess> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(base));
    let subject = InProcess::new(format!("{name}, {}", how.label()), hold, true, move || {
        let budget = how.budget();
        how.mount(open_fat(how.device(&device), budget.clone()), budget)
    });
    Box::new(subject.without_modes())
}

/// Kinds of UFS: options of makefs.
pub const UFSES: [(&str, &[&str]); 3] = [
    ("UFS1", &["-o", "version=1"]),
    ("UFS2", &["-o", "version=2"]),
    ("UFS2, big-endian, 4 KiB blocks", &["-B", "be", "-o", "version=2,bsize=4096,fsize=512"]),
];

/// Returns an empty UFS, made by makefs.
pub fn new_ufs(args: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    std::fs::create_dir(&tree).expect("a folder");
    let words = ["-t", "ffs", "-s", "96m", "-f", "20000"].iter().chain(args).map(std::ffi::OsStr::new);
    ivers_oracle::run("makefs", words.chain([image.as_os_str(), tree.as_os_str()])).expect("makefs");
    std::fs::read(image).expect("the image")
}

pub fn open_ufs(device: Arc<dyn Device>, budget: Arc<Budget>) -> Arc<dyn FileSystem> {
    let common = DriverOptions { budget, place: "memory".into(), ..DriverOptions::default() };
    ivers_ufs::Ufs::open(device, ivers_ufs::OpenOptions { common }).expect("it opens")
}

/// Mounts UFS on a device in memory.
pub fn ufs(name: &str, base: &Arc<Vec<u8>>, how: How, hold: bool) -> Box<InProcess> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(base));
    Box::new(InProcess::new(format!("{name}, {}", how.label()), hold, true, move || {
        let budget = how.budget();
        how.mount(open_ufs(how.device(&device), budget.clone()), budget)
    }))
}

/// Kinds of OCFS2: options of mkfs.ocfs2.
pub const OCFS2S: [(&str, &[&str]); 3] = [
    ("OCFS2", &["-b", "4K", "-C", "4K"]),
    ("OCFS2, checksums, 1 KiB blocks", &["-b", "1K", "-C", "4K", "--fs-features=metaecc"]),
    (
        "OCFS2, no indexes, 8 KiB clusters",
        &["-b", "2K", "-C", "8K", "--fs-feature-level=max-compat", "--fs-features=sparse,xattr,unwritten"],
    ),
];

/// Returns an empty OCFS2, made by mkfs.ocfs2.
pub fn new_ocfs2(args: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    let image = dir.path().join("image");
    ivers_oracle::mkfs_ocfs2(&image, 128 << 20, &[&["-J", "size=8M"], args].concat()).expect("mkfs.ocfs2");
    std::fs::read(image).expect("the image")
}

pub fn open_ocfs2(device: Arc<dyn Device>, budget: Arc<Budget>) -> Arc<dyn FileSystem> {
    let common = DriverOptions { budget, place: "memory".into(), ..DriverOptions::default() };
    ivers_ocfs2::Ocfs2::open(device, ivers_ocfs2::OpenOptions { common, no_replay: false }).expect("it opens")
}

/// Mounts OCFS2 on a device in memory.
pub fn ocfs2(name: &str, base: &Arc<Vec<u8>>, how: How, hold: bool) -> Box<InProcess> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(base));
    Box::new(InProcess::new(format!("{name}, {}", how.label()), hold, true, move || {
        let budget = how.budget();
        how.mount(open_ocfs2(how.device(&device), budget.clone()), budget)
    }))
}

/// Returns whether FUSE tests can run. Under CI a missing FUSE is a failure, otherwise a message.
pub fn can_mount() -> bool {
    ivers_oracle::can_mount(&["python3", "fusermount3"])
}

/// A FUSE mount served by this process; unmounted when dropped.
pub struct FuseMount {
    session: Option<Session>,
    vfs: Option<Arc<Vfs>>,
    dir: TempDir,
}

impl FuseMount {
    pub fn new((vfs, _): MountedVfs) -> Self {
        let dir = tempfile::tempdir().expect("a directory to mount on");
        let mut mount = Self { session: None, vfs: None, dir };
        mount.serve(vfs);
        mount
    }

    pub fn serve(&mut self, vfs: Arc<Vfs>) {
        let mut options = FuseOptions::default();
        let asked = std::env::var("IVERS_FUSE_OPTIONS").unwrap_or_default();
        for option in asked.split(',').filter(|option| !option.is_empty()) {
            assert_eq!(options.set(option), Ok(true), "IVERS_FUSE_OPTIONS: {option}");
        }
        let session = ivers_fuse::mount(vfs.clone(), self.dir.path(), options).expect("it mounts");
        (self.session, self.vfs) = (Some(session), Some(vfs));
    }

    /// Returns the directory for the suite.
    pub fn top(&self) -> PathBuf {
        let top = self.dir.path().join("contract");
        std::fs::create_dir_all(&top).expect("the top directory");
        top
    }

    /// Unmounts, then closes the image.
    pub fn end(&mut self) {
        if let Some(session) = self.session.take() {
            // A process that another test is starting inherits our descriptors until it executes its program:
            // on tmpfs 17 of 3,000 times.
            let patience = Instant::now() + Duration::from_secs(10);
            let mut left = session.unmount();
            while matches!(left, Err(MountError::Busy(_))) && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(5));
                left = session.unmount();
            }
            left.expect("a process still uses the mount");
        }
        if let Some(vfs) = self.vfs.take() {
            vfs.unmount().expect("it closes");
        }
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            session.detach().expect("it leaves the tree");
        }
    }
}

/// Mounts through FUSE with `mount`; again for each remount, if `remounts`.
pub fn fuse(
    name: &str,
    remounts: bool,
    mut mount: impl FnMut() -> MountedVfs + Send + 'static,
) -> Box<Mounted> {
    let mut served = FuseMount::new(mount());
    let top = served.top();
    if !remounts {
        return Box::new(Mounted::new(name, &top, ChangeSource::Ivers, None).keeping(served));
    }
    let remount = move || {
        served.end();
        served.serve(mount().0);
        served.top()
    };
    Box::new(Mounted::new(name, &top, ChangeSource::Ivers, Some(Box::new(remount))))
}

/// A function that opens a device with a driver.
pub type Open = fn(Arc<dyn Device>, Arc<Budget>) -> Arc<dyn FileSystem>;

/// Mounts an image on a device in memory through FUSE; each mount takes the next of `hows`.
pub fn image_through_fuse(name: &str, base: &Arc<Vec<u8>>, hows: &'static [How], open: Open) -> Box<Mounted> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(base));
    let mut mounts = hows.iter().cycle();
    let labels: Vec<_> = hows.iter().map(|how| how.label()).collect();
    fuse(&format!("{name} through FUSE, {}", labels.join(" then ")), true, move || {
        let how = *mounts.next().expect("a cycle");
        let budget = how.budget();
        how.mount(open(how.device(&device), budget.clone()), budget)
    })
}

/// A promise that is not claimed and was checked this often without a failure is reported, also by a passing
/// test.
const OFTEN: u64 = 100;

/// Runs the suite, prints the row, and fails with the script.
pub fn hold(make: &mut dyn FnMut() -> Box<dyn Subject>, seed: u64, operations: usize) -> Report {
    match check(make, seed, operations) {
        Ok(report) => {
            println!("{}", report.tallies.row(&report.name));
            let unclaimed = report.tallies.kept_unclaimed(report.claims, OFTEN);
            if !unclaimed.is_empty() {
                let more = format!("{} keeps more than it claims: {unclaimed:?}", report.name);
                let _ = writeln!(std::io::stderr(), "{more}");
            }
            report
        }
        Err(broken) => panic!("{broken}"),
    }
}

/// Runs the concurrent suite, prints the row and the amount of work, and fails with the script.
pub fn hold_together(make: &mut dyn FnMut() -> Box<dyn Subject>, seed: u64, phases: usize) -> Together {
    let together = check_together(make, seed, phases).unwrap_or_else(|broken| panic!("{broken}"));
    let Figures { phases, calls, overlapping, forced, .. } = together.figures;
    println!("{}", together.tallies.row(&together.name));
    println!("    seed {seed}: {phases} phases, {calls} operations, {overlapping} overlapping others");
    if forced > 0 {
        println!("    {forced} phases with forced bumps");
    }
    together
}

/// Reports the results of threads; a broken promise fails.
pub fn hold_threads(name: &str, tallies: &Tallies) {
    println!("{}", tallies.row(name));
    for promise in ivers_contract::Promise::ALL {
        let tally = tallies.of(promise);
        assert_eq!(tally.broken, 0, "{name}, {}: {:?}", promise.label(), tally.first);
    }
}
