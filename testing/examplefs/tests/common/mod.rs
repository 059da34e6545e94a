//! Images, mounts, and a checker that shares no code with the driver but the layout.
#![allow(dead_code)]

use anyhow::{Context, ensure};
use ivers_block::{BlockNo, Device, MemDevice};
use ivers_examplefs::layout::*;
use ivers_examplefs::{ExampleFs, format};
use ivers_journal::jbd2::{Jbd2Log, Jbd2Options, LogMap};
use ivers_vfs::epoch::EpochRecord;
use ivers_vfs::{DriverOptions, FileType, Ino, MountOptions, Timestamp, Vfs};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

pub const INODES: u32 = 128;

/// Returns an empty filesystem of `blocks` blocks. Blocks that `format` does not write hold 0xA6.
pub fn fresh(blocks: usize) -> MemDevice {
    let device = MemDevice::from_bytes(&vec![0xA6; blocks * BLOCK]);
    let now = Timestamp { sec: 1_600_000_000, nsec: 0 };
    format(&device, INODES, MIN_LOG_BLOCKS, [7; 16], now).unwrap();
    device
}

pub fn open(device: Arc<dyn Device>, read_only: bool) -> ivers_vfs::Result<Arc<ExampleFs>> {
    let options = DriverOptions { read_only, place: "test image".into(), ..DriverOptions::default() };
    Ok(Arc::new(ExampleFs::open(device, options)?))
}

pub fn mount(device: Arc<dyn Device>) -> ivers_vfs::Result<Arc<Vfs>> {
    Vfs::mount(open(device, false)?, MountOptions { background: false, ..MountOptions::default() })
}

pub fn superblock(bytes: &[u8]) -> RawSuper {
    RawSuper::read_from_prefix(bytes).unwrap().0
}

pub fn log(device: Arc<dyn Device>, sb: &RawSuper) -> anyhow::Result<Jbd2Log> {
    let (map, fs_blocks) = (LogMap::contiguous(BlockNo(1), sb.log_blocks.get()), sb.blocks.get().into());
    Ok(Jbd2Log::open(device, map, Jbd2Options { block_size: BLOCK as u32, fs_blocks, uuid: None })?)
}

pub fn block(bytes: &[u8], block: BlockNo) -> &[u8] {
    &bytes[block.0 as usize * BLOCK..][..BLOCK]
}

/// What the inodes and names of an image say.
#[derive(Default)]
struct Found {
    inodes: HashMap<u32, RawInode>,
    used: HashSet<BlockNo>,
    /// Names of each inode.
    names: HashMap<u32, u32>,
}

impl Found {
    fn walk(&mut self, bytes: &[u8], ino: u32) -> anyhow::Result<()> {
        let raw = self.inodes[&ino].clone();
        for at in 0..raw.size.get() as usize / BLOCK {
            for record in block(bytes, raw.block(at)).chunks_exact(size_of::<RawName>()) {
                let record = RawName::read_from_bytes(record).unwrap();
                let child = record.ino.get();
                if child == 0 {
                    continue;
                }
                ensure!(record.is_valid(), "directory {ino}: bad name {:?}", record.name());
                let names = self.names.entry(child).or_default();
                *names += 1;
                let inode = self.inodes.get(&child);
                let inode =
                    inode.with_context(|| format!("directory {ino}: names the free inode {child}"))?;
                if inode.kind() == Some(FileType::Directory) {
                    ensure!(*names == 1, "directory {child} has two names");
                    ensure!(inode.parent.get() == ino, "directory {child} has another parent than {ino}");
                    self.walk(bytes, child)?;
                }
            }
        }
        Ok(())
    }
}

/// Checks a filesystem that was closed cleanly: every block is used once and marked as used, and nothing else
/// is; every inode in use has as many names as it says.
pub fn check(bytes: &[u8]) -> anyhow::Result<()> {
    let sb = superblock(bytes);
    sb.check(bytes.len() as u64).map_err(anyhow::Error::msg)?;
    let record = EpochRecord::decode(&sb.epoch_record).map_err(anyhow::Error::msg)?;
    ensure!(!record.open, "the epoch record is OPEN");
    ensure!(!log(Arc::new(MemDevice::from_bytes(bytes)), &sb)?.needs_recovery(), "the log is in use");
    let mut found = Found { used: (0..sb.data().0).map(BlockNo).collect(), ..Found::default() };
    for ino in 1..=sb.inodes.get() {
        let place = sb.inode_block(Ino(ino.into())).context("a number below the count")?;
        let raw = RawInode::read_from_bytes(block(bytes, place)).unwrap();
        ensure!(raw.checksum(Ino(ino.into())) == raw.crc32c.get(), "inode {ino}: bad checksum");
        if raw.mode.get() == 0 {
            continue;
        }
        ensure!(raw.nlink.get() > 0, "inode {ino} is an orphan");
        let kind = raw.kind().with_context(|| format!("inode {ino}: unknown type"))?;
        let blocks = raw.size.get().div_ceil(BLOCK as u64) as usize;
        let most = match kind {
            FileType::Regular => MAX_BLOCKS * BLOCK,
            FileType::Directory => MAX_DIR_BLOCKS * BLOCK,
            FileType::Symlink => MAX_BLOCKS * 4,
            _ => 0,
        };
        ensure!(raw.size.get() <= most as u64, "inode {ino}: bad size {}", raw.size.get());
        let has_blocks = matches!(kind, FileType::Regular | FileType::Directory);
        for at in (0..MAX_BLOCKS).filter(|_| has_blocks) {
            let block = raw.block(at);
            if block == HOLE {
                ensure!(kind == FileType::Regular || at >= blocks, "directory {ino}: a hole at {at}");
                continue;
            }
            ensure!(at < blocks, "inode {ino}: block {block} is past its end");
            ensure!(block.0 < u64::from(sb.blocks.get()), "inode {ino}: block {block} is outside");
            ensure!(found.used.insert(block), "inode {ino}: block {block} is used twice");
        }
        found.inodes.insert(ino, raw);
    }
    let root = ROOT.0 as u32;
    ensure!(found.inodes.contains_key(&root), "there is no root");
    found.names.insert(root, 1);
    found.walk(bytes, root)?;
    for (ino, raw) in &found.inodes {
        let names = found.names.get(ino).copied().unwrap_or(0);
        ensure!(names > 0, "inode {ino} is in use and has no name");
        ensure!(raw.nlink.get() == names, "inode {ino}: {} links, not {names}", raw.nlink.get());
    }
    let bitmap = block(bytes, sb.bitmap());
    for block in 0..u64::from(sb.blocks.get()) {
        let bit = bitmap[block as usize / 8] >> (block % 8) & 1 == 1;
        ensure!(bit == found.used.contains(&BlockNo(block)), "block {block}: marked {bit}");
    }
    Ok(())
}

/// Makes the checksums of superblock and inodes right again. `sb` is the superblock before the damage.
pub fn seal(bytes: &mut [u8], sb: &RawSuper, inodes: impl IntoIterator<Item = u32>) {
    let damaged = superblock(bytes);
    let crc = crc32c::crc32c(&damaged.as_bytes()[..size_of::<RawSuper>() - 4]);
    let sealed = RawSuper { crc32c: crc.into(), ..damaged };
    bytes[..size_of::<RawSuper>()].copy_from_slice(sealed.as_bytes());
    for ino in inodes.into_iter().map(|ino| Ino(ino.into())) {
        let place = sb.inode_block(ino).unwrap().0 as usize * BLOCK;
        let bytes = &mut bytes[place..place + BLOCK];
        let raw = RawInode::read_from_bytes(bytes).unwrap().sealed(ino);
        bytes.copy_from_slice(raw.as_bytes());
    }
}
