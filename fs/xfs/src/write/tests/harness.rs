//! Files whose extents a test sets itself: the owners of what it allocates.

use super::common::{self, mkfs};
use crate::check::check;
use crate::layout::bytes::{number, read};
use crate::layout::owner::Owner;
use crate::layout::raw::RawDinode;
use crate::layout::superblock::{Counts, FsBlock, Superblock};
use crate::log::{object, open_for_writing, stamp};
use crate::mkfs::{Features, MkfsOptions};
use crate::unit::Whose;
use crate::write::alloc::Run;
use crate::write::space::Space;
use crate::write::tx::Tx;
use ivers_block::{Budget, BufferCache, ByteOffset, Device, FileDevice, OpenMode, Unit};
use ivers_journal::{Costs, Journal, JournalOptions, LogFormat, LogObject, ObjectId, Patch};
use ivers_oracle::LoopMount;
use ivers_vfs::check::Memory;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::mem::{offset_of, size_of};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const REFLINK: u64 = 0x2;
const NREXT64: u64 = 0x10;

/// A random generator; the seed is printed if the test fails.
pub struct Seeded(pub StdRng, u64);

impl Seeded {
    pub fn new(what: &str) -> Self {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| rand::random_range(0..1 << 32));
        println!("{what}: SEED={seed}");
        Self(StdRng::seed_from_u64(seed), seed)
    }

    pub fn below(&mut self, end: u32) -> u32 {
        self.0.random_range(0..end.max(1))
    }

    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}

impl Drop for Seeded {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SEED={}", self.1);
        }
    }
}

/// An image with empty files.
pub struct Image {
    _dir: tempfile::TempDir,
    pub path: PathBuf,
    pub inos: Vec<u64>,
    pub directory: u64,
}

impl Image {
    pub fn new(args: &[&str], files: usize) -> Self {
        Self::filled(|path| mkfs(path, args, None), files)
    }

    /// An image that ivers makes, with features that mkfs.xfs 6.1 does not know.
    pub fn with_features(features: &str) -> Self {
        let make = |path: &Path| {
            std::fs::File::create(path).unwrap().set_len(common::IMAGE_BYTES).unwrap();
            let device = FileDevice::open(path, OpenMode::ReadWrite).unwrap();
            let features = Features::parse(features).unwrap();
            let options = MkfsOptions { features, uuid: [7; 16], zeroed: true, ..MkfsOptions::default() };
            crate::mkfs::mkfs(&device, &options).unwrap();
        };
        Self::filled(make, 0)
    }

    fn filled(make: impl FnOnce(&Path), files: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        make(&path);
        let mounted = LoopMount::new(&path, "").unwrap();
        let inside = mounted.path().join("d");
        std::fs::create_dir(&inside).unwrap();
        let directory = inside.metadata().unwrap().ino();
        let make = |number| {
            let file = inside.join(format!("f{number}"));
            std::fs::write(&file, "").unwrap();
            file.metadata().unwrap().ino()
        };
        let inos = (0..files).map(make).collect();
        mounted.unmount().unwrap();
        Self { _dir: dir, path, inos, directory }
    }

    pub fn open(&self) -> Space {
        open(Arc::new(FileDevice::open(&self.path, OpenMode::ReadWrite).unwrap()))
    }

    /// Everything that judges an image.
    pub fn judge(&self, what: &str) {
        self.check(what);
        let repaired = ivers_oracle::output("xfs_repair", ["-n".as_ref(), self.path.as_os_str()]).unwrap();
        assert!(repaired.status.success(), "{what}: {}", ivers_oracle::said(&repaired));
    }

    /// Our checker.
    pub fn check(&self, what: &str) {
        let device = FileDevice::open(&self.path, OpenMode::ReadOnly).unwrap();
        let found = check(Arc::new(device), Memory::unlimited(), "image").unwrap();
        let lines: Vec<_> = found.kept().iter().take(20).map(|found| format!("{found:?}")).collect();
        assert!(found.is_clean(), "{what}: {}", lines.join("\n"));
    }

    /// Frees all blocks of files. Linux uses the filesystem after that.
    pub fn empty(&self, files: &mut [TestFile], what: &str) {
        let space = self.open();
        TestFile::empty(&space, files);
        close(space);
        self.judge(&format!("{what}, emptied"));
        self.use_in_linux(what);
    }

    /// A copy in a file of its own.
    pub fn copy(&self, name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::copy(&self.path, &path).unwrap();
        Self { _dir: dir, path, inos: self.inos.clone(), directory: self.directory }
    }

    /// Linux mounts it for writing, and allocates and frees space and inodes.
    pub fn use_in_linux(&self, what: &str) {
        let mounted = LoopMount::new(&self.path, "").unwrap_or_else(|error| panic!("{what}: {error}"));
        common::fill::in_dir(
            mounted.path(),
            "set -e; mkdir linux; for i in $(seq 1 100); do echo $i > linux/$i; done; \
             head -c 300000 /dev/zero > linux/large; rm linux/*5; sync",
        );
        mounted.unmount().unwrap();
        self.judge(&format!("{what}, after Linux"));
    }
}

pub fn superblock(device: &dyn Device) -> Superblock {
    let mut head = vec![0; 32 << 10];
    device.read_at(ByteOffset(0), &mut head).unwrap();
    Superblock::parse(&head, device.size_bytes(), "image").unwrap()
}

pub fn open(device: Arc<dyn Device>) -> Space {
    let sb = superblock(&*device);
    let cache = Arc::new(BufferCache::new(device, sb.block_size, Arc::new(Budget::unlimited())));
    let of_hook = sb.clone();
    let hook = move |blocks: &[_], lsn, bytes: &mut [u8]| stamp(&of_hook, blocks, lsn, bytes);
    let journal = Journal::none_with(cache, JournalOptions::default().with_write_hook(hook));
    let counts = sb.counts;
    Space::new(sb, "image".into(), journal, Costs::WHOLE_BLOCKS, counts)
}

/// Opens the filesystem with its log, and finishes the intents in it.
pub fn open_with_log(device: Arc<dyn Device>) -> Space {
    open_with_log_counting(device).0
}

/// As [`open_with_log`], and returns how many intents there were.
pub fn open_with_log_counting(device: Arc<dyn Device>) -> (Space, usize) {
    let opened = open_for_writing(device.clone(), &superblock(&*device), "image").unwrap();
    // The superblock may have been in the log.
    let sb = superblock(&*device);
    let cache = Arc::new(BufferCache::new(device, sb.block_size, Arc::new(Budget::unlimited())));
    let of_hook = sb.clone();
    let hook = move |blocks: &[_], lsn, bytes: &mut [u8]| stamp(&of_hook, blocks, lsn, bytes);
    let options = JournalOptions::default().with_commit_interval(Duration::from_secs(3600));
    let costs = opened.log.costs();
    let journal = Journal::open(Box::new(opened.log), cache, options.with_write_hook(hook)).unwrap();
    let counts = sb.counts;
    let space = Space::new(sb, "image".into(), journal, costs, counts);
    let found = opened.intents.len();
    // Linux leaves no attribute intents without the feature.
    space.finish_intents(opened.intents, &|ino| panic!("inode {ino} is loaded")).unwrap();
    recount(&space);
    space.free_leftover_copies().unwrap();
    (space, found)
}

/// Adds up what the heads of all groups say, and keeps it: after a crash.
fn recount(space: &Space) -> Counts {
    let mut tx = space.begin(0).unwrap();
    let mut sum = Counts::default();
    for ag in 0..space.sb.ag_count {
        let (agf, agi) = (tx.agf(ag).unwrap(), tx.agi(ag).unwrap());
        sum.inodes += u64::from(agi.agi_count.get());
        sum.free_inodes += u64::from(agi.agi_freecount.get());
        sum.free_blocks += agf.all_free();
    }
    tx.groups().counts = sum;
    sum
}

/// Closes the filesystem as an unmount does.
pub fn close(space: Space) {
    let counts = space.counts();
    assert_eq!(recount(&space), counts, "the counters in memory");
    space.write_counters().unwrap();
    space.journal.shutdown().unwrap();
}

/// An inode as it is logged.
struct TestInode {
    ino: u64,
    unit: Unit,
    offset: usize,
    bytes: Vec<u8>,
}

impl LogObject for TestInode {
    fn id(&self) -> ObjectId {
        ObjectId { kind: object::INODE, number: self.ino }
    }

    fn record(&self) -> Arc<[u8]> {
        self.bytes.as_slice().into()
    }

    fn patch(&self) -> Option<Arc<Patch>> {
        let link = offset_of!(RawDinode, di_next_unlinked);
        let (at, link, end) = (self.offset as u32, link as u32, self.bytes.len() as u32);
        let pieces = [(at, 0..link), (at + link + 4, link + 4..end)].into();
        Some(Arc::new(Patch { unit: self.unit.clone(), bytes: self.record(), pieces }))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    pub file_block: u64,
    pub run: Run,
    pub unwritten: bool,
}

impl FileExtent {
    pub fn owner(&self, ino: u64) -> Owner {
        let owner = Owner::data(ino, self.file_block);
        if self.unwritten { owner.unwritten() } else { owner }
    }
}

/// A file of the model.
#[derive(Debug, Clone)]
pub struct TestFile {
    pub ino: u64,
    pub extents: Vec<FileExtent>,
    pub reflink: bool,
}

impl TestFile {
    pub fn all(image: &Image) -> Vec<Self> {
        image.inos.iter().map(|ino| Self { ino: *ino, extents: Vec::new(), reflink: false }).collect()
    }

    /// The most extents that fit in the inode.
    pub fn most_extents(sb: &Superblock) -> usize {
        (sb.inode_size as usize - size_of::<RawDinode>()) / 16
    }

    /// A file block after all others.
    pub fn next_block(&self) -> u64 {
        self.extents.last().map_or(0, |last| last.file_block + u64::from(last.run.len) + 3)
    }

    /// Logs the inode with the extents.
    pub fn store(&self, tx: &mut Tx<'_>) {
        let (sb, journal) = (&tx.space().sb, &tx.space().journal);
        let (cluster, offset) = sb.inode_cluster(self.ino).unwrap();
        let mut bytes = tx.read_unit(&cluster, None, Whose::Inode(self.ino)).unwrap().to_vec();
        if let Some(patch) = journal.newest_patch(ObjectId { kind: object::INODE, number: self.ino }) {
            patch.apply(&mut bytes);
        }
        let mut inode = bytes[offset..offset + sb.inode_size as usize].to_vec();
        let raw: RawDinode = read(&inode, 0).unwrap();
        assert_eq!((raw.di_ino.get(), raw.di_format), (self.ino, 2));
        let mut put = |at: usize, value: &[u8]| inode[at..at + value.len()].copy_from_slice(value);
        // The write in place computes it.
        put(offset_of!(RawDinode, di_crc), &[0; 4]);
        // Linux keeps space for attributes, of which there are none.
        put(offset_of!(RawDinode, di_forkoff), &[0]);
        let blocks: u64 = self.extents.iter().map(|extent| u64::from(extent.run.len)).sum();
        let size = self.next_block() * u64::from(sb.block_size);
        let count = self.extents.len() as u64;
        put(offset_of!(RawDinode, di_size), &size.to_be_bytes());
        put(offset_of!(RawDinode, di_nblocks), &blocks.to_be_bytes());
        let mut flags2 = raw.di_flags2.get();
        if flags2 & NREXT64 != 0 {
            put(offset_of!(RawDinode, di_pad), &count.to_be_bytes());
        } else {
            put(offset_of!(RawDinode, di_nextents), &(count as u32).to_be_bytes());
        }
        if self.reflink {
            flags2 |= REFLINK;
            put(offset_of!(RawDinode, di_flags2), &flags2.to_be_bytes());
        }
        let mut at = size_of::<RawDinode>();
        for extent in &self.extents {
            let start = extent.run.start.0;
            let l0 = u64::from(extent.unwritten) << 63 | extent.file_block << 9 | start >> 43;
            let l1 = start << 21 | u64::from(extent.run.len);
            put(at, &[l0.to_be_bytes(), l1.to_be_bytes()].concat());
            at += 16;
        }
        let unit = Unit::new(&cluster);
        tx.log_inode(Arc::new(TestInode { ino: self.ino, unit, offset, bytes: inode }));
    }

    /// Frees a part of an extent.
    pub fn punch(&mut self, tx: &mut Tx<'_>, index: usize, skip: u32, len: u32) {
        let extent = self.extents.remove(index);
        let part = |skip: u32, len: u32| FileExtent {
            file_block: extent.file_block + u64::from(skip),
            run: Run { start: FsBlock(extent.run.start.0 + u64::from(skip)), len },
            ..extent
        };
        let freed = part(skip, len);
        tx.free(freed.run, freed.owner(self.ino)).unwrap();
        let rest = [part(0, skip), part(skip + len, extent.run.len - skip - len)];
        self.extents.splice(index..index, rest.into_iter().filter(|extent| extent.run.len > 0));
    }

    /// Frees all blocks of files, each in a transaction of its own.
    pub fn empty(space: &Space, files: &mut [Self]) {
        for file in files {
            let mut tx = space.begin(space.credits_of_change()).unwrap();
            while !file.extents.is_empty() {
                let len = file.extents[0].run.len;
                file.punch(&mut tx, 0, 0, len);
            }
            file.store(&mut tx);
            tx.finish().unwrap();
        }
    }
}

/// Levels of the B-trees of a group's AGF: free space by block and by size, reverse map.
pub fn levels(path: &Path, ag: u32) -> [u32; 3] {
    let device = FileDevice::open(path, OpenMode::ReadOnly).unwrap();
    let sb = superblock(&device);
    let mut sector = vec![0; 512];
    let at = u64::from(ag) * u64::from(sb.ag_blocks) * u64::from(sb.block_size) + u64::from(sb.sector_size);
    device.read_at(ByteOffset(at), &mut sector).unwrap();
    [28, 32, 36].map(|at| number(&sector, at, 4).unwrap() as u32)
}
