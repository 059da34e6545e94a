//! A driver that changes times of inodes and unused or self-contained bytes of structures.

use ivers_block::{BlockNo, Budget, BufferCache, ByteOffset, Device, FileDevice, OpenMode, Unit};
use ivers_journal::{Handle, Journal, JournalOptions, LogObject, ObjectId, Patch};
use ivers_xfs::layout::checksum::SelfDescription;
use ivers_xfs::layout::superblock::Superblock;
use ivers_xfs::log::{Opened, XfsLog, open_for_writing, stamp};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The kind of objects that are inodes.
pub const INODE: u32 = 1;
/// Where `di_next_unlinked` is, which is no part of the object.
const LINK: std::ops::Range<usize> = 96..100;
const SECTOR: usize = 512;

pub fn superblock(device: &dyn Device) -> Superblock {
    let mut head = vec![0; 32768];
    device.read_at(ByteOffset(0), &mut head).unwrap();
    Superblock::parse(&head, device.size_bytes(), "image").unwrap()
}

pub fn writable(path: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path, OpenMode::ReadWrite).unwrap())
}

/// A filesystem whose log is open for writing.
pub struct Volume {
    pub sb: Superblock,
    pub cache: Arc<BufferCache>,
    pub journal: Journal,
}

/// An inode as it is stored.
pub struct Inode {
    ino: u64,
    unit: Unit,
    offset: usize,
    pub bytes: Vec<u8>,
}

impl LogObject for Inode {
    fn id(&self) -> ObjectId {
        ObjectId { kind: INODE, number: self.ino }
    }

    fn record(&self) -> Arc<[u8]> {
        self.bytes.as_slice().into()
    }

    fn patch(&self) -> Option<Arc<Patch>> {
        let (at, link, end) = (self.offset as u32, LINK.end as u32, self.bytes.len() as u32);
        let pieces = [(at, 0..LINK.start as u32), (at + link, link..end)].into();
        Some(Arc::new(Patch { unit: self.unit.clone(), bytes: self.record(), pieces }))
    }
}

impl Inode {
    /// Sets the time of the last modification, in seconds since 1970.
    pub fn set_mtime(&mut self, sec: u64) {
        let has_bigtime = self.bytes[127] & 8 != 0;
        let time = if has_bigtime { (sec + (1 << 31)) * 1_000_000_000 } else { sec << 32 };
        self.bytes[40..48].copy_from_slice(&time.to_be_bytes());
    }

    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Volume {
    /// Replays the log in place and opens it. The options keep the tests in control of commits.
    pub fn open(device: Arc<dyn Device>) -> (Self, Option<u64>) {
        let opened = open_for_writing(device.clone(), &superblock(&*device), "image").unwrap();
        opened.check_finished("image").unwrap();
        let Opened { log, transactions, .. } = opened;
        (Self::with_log(device, log), transactions)
    }

    pub fn with_log(device: Arc<dyn Device>, log: XfsLog) -> Self {
        // The superblock may have been in the log.
        let sb = superblock(&*device);
        let cache = Arc::new(BufferCache::new(device, sb.block_size, Arc::new(Budget::unlimited())));
        let mut options = JournalOptions::default().with_commit_interval(Duration::from_secs(3600));
        options.checkpoint_percent = 1000;
        let stamped = sb.clone();
        let options = options.with_write_hook(move |blocks, lsn, bytes| stamp(&stamped, blocks, lsn, bytes));
        let journal = Journal::open(Box::new(log), cache.clone(), options).unwrap();
        Self { sb, cache, journal }
    }

    pub fn begin(&self) -> Handle {
        self.journal.begin(self.journal.max_credits() / 4).unwrap()
    }

    /// The unit of the cluster of an inode, and the offset in it. Clusters have 32 inodes, or one block.
    pub fn place(&self, ino: u64) -> (Unit, usize) {
        let sb = &self.sb;
        let blocks = (32 * sb.inode_size / sb.block_size).max(1);
        let (ag, agino) = sb.agino(ino).unwrap();
        let block = agino >> sb.inopb_bits;
        let first = sb.ag_block(ag, block - block % blocks).unwrap();
        let unit: Vec<BlockNo> = first.run(blocks.into()).collect();
        let (block, offset) = sb.inode_place(ino).unwrap();
        (Unit::new(&unit), ((block - first) as usize) * sb.block_size as usize + offset)
    }

    /// The newest version of an inode.
    pub fn inode(&self, ino: u64) -> Inode {
        let (unit, offset) = self.place(ino);
        let mut bytes = self.cache.get_unit(&unit).unwrap().read().to_vec();
        if let Some(patch) = self.journal.newest_patch(ObjectId { kind: INODE, number: ino }) {
            patch.apply(&mut bytes);
        }
        let bytes = bytes[offset..offset + self.sb.inode_size as usize].to_vec();
        assert!(bytes.starts_with(b"IN"), "inode {ino}");
        Inode { ino, unit, offset, bytes }
    }

    pub fn change(&self, handle: &Handle, ino: u64, change: impl FnOnce(&mut Inode)) {
        let mut inode = self.inode(ino);
        change(&mut inode);
        // The write in place computes the checksum.
        inode.put(100, &[0; 4]);
        let object: Arc<dyn LogObject> = Arc::new(inode);
        handle.log_object(&object).unwrap();
    }

    /// Puts the right counts into the superblock, as an unmount does: Linux logs them then only.
    pub fn store_counts(&self, inodes: u64, free_inodes: u64, free_blocks: u64) {
        let handle = self.begin();
        let buffer = self.cache.get(BlockNo(0)).unwrap();
        handle.modify_range(&buffer, 128..152, |bytes| {
            let counts = [inodes, free_inodes, free_blocks];
            bytes.copy_from_slice(&counts.map(u64::to_be_bytes).concat());
        });
    }

    /// The units of all structures with one of these magics, in ascending order.
    pub fn structures(&self, magics: &[&[u8; 4]]) -> Vec<Unit> {
        let (sb, device) = (&self.sb, self.cache.device());
        let mut units = Vec::new();
        let mut bytes = vec![0; sb.dir_block_size as usize];
        for block in BlockNo(0).run(sb.blocks) {
            let left = ((sb.blocks - block.0) * u64::from(sb.block_size)).min(bytes.len() as u64) as usize;
            device.read_at(block.offset(sb.block_size), &mut bytes[..SECTOR]).unwrap();
            if !magics.iter().any(|magic| bytes.starts_with(&magic[..])) {
                continue;
            }
            device.read_at(block.offset(sb.block_size), &mut bytes[..left]).unwrap();
            let kind = SelfDescription::of(&bytes).unwrap();
            let is_valid = |len: &u32| kind.has_valid_crc(&bytes[..(*len as usize).min(left)]);
            // Directory blocks and targets of links may be larger than blocks.
            let sizes = (0..).map(|bits| sb.block_size << bits).take_while(|len| *len <= sb.dir_block_size);
            if let Some(len) = sizes.into_iter().find(is_valid) {
                let blocks: Vec<BlockNo> = block.run((len / sb.block_size).into()).collect();
                units.push(Unit::new(&blocks));
            }
        }
        units
    }
}
