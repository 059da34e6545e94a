//! The open volume: checked blocks, and changes of them.

use crate::bitmap::Bitmap;
use crate::dircache::DirCaches;
use crate::layout::{
    Block, T_SHORT, Variant, checksum_is_valid, get_block, get32, head, set_checksum, tail, tail_block,
    tail32,
};
use crate::layout::{ST_FILE, ST_LINKDIR, ST_LINKFILE, ST_ROOT, ST_SOFTLINK, ST_USERDIR};
use ivers_block::{Buffer, BufferCache, BufferRead, Device};
use ivers_vfs::sync::atomic::AtomicU64;
use ivers_vfs::sync::{RankedMutex, RankedRwLock, rank};
use ivers_vfs::{Error, NameError, Result};
use ivers_write_ordering::{Change, Ordered, OrderedError, Stage, Ticket};
use std::collections::HashMap;
use std::sync::Arc;

/// An OFS or FFS volume.
pub struct Affs {
    pub(crate) geometry: Geometry,
    pub(crate) label: String,
    pub(crate) cache: Arc<BufferCache>,
    pub(crate) bitmap: Arc<Bitmap>,
    /// Write ordering. `None` if the volume is read-only.
    pub(crate) ordered: Option<Ordered>,
    pub(crate) read_only: Option<String>,
    /// Protects the hash chains. Shared: a thread follows or changes a chain of a directory that the VFS
    /// has locked. Exclusive: it changes a chain of any other directory. That happens when an entry loses
    /// its own name and takes over the name of a hard link, which may be in any directory.
    pub(crate) chain_lock: RankedRwLock<rank::Driver<0>, ()>,
    /// The batch of the last change that moved an entry to another chain. A change that removes a name
    /// settles it first (see [`crate::rename`]).
    pub(crate) last_move: RankedMutex<rank::Leaf, Ticket>,
    pub(crate) caches: DirCaches,
    /// Number of orphans. If the volume is closed with orphans, their blocks stay marked as used.
    pub(crate) orphans: AtomicU64,
    /// Generations of the blocks whose headers were deleted in this mount.
    pub(crate) generations: RankedMutex<rank::Leaf, HashMap<Block, HeaderGeneration>>,
}

/// An entry of [`Affs::generations`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeaderGeneration {
    pub generation: u32,
    pub is_free: bool,
}

/// Properties of a volume that do not change while it is open.
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    /// Image and partition, for messages.
    pub place: String,
    pub variant: Variant,
    pub block_size: u32,
    /// Number of blocks, including the reserved ones.
    pub blocks: u32,
    pub reserved: u32,
    pub root: Block,
}

impl Geometry {
    pub fn table_len(&self) -> usize {
        crate::layout::table_len(self.block_size)
    }

    /// Returns how many bytes of a file one data block holds.
    pub fn data_len(&self) -> u64 {
        let own = if self.variant.ffs { 0 } else { crate::layout::DATA_HEAD as u64 };
        u64::from(self.block_size) - own
    }

    /// Returns the number of data blocks of a file of `size` bytes.
    pub fn data_blocks(&self, size: u64) -> u64 {
        size.div_ceil(self.data_len())
    }

    /// Returns the number of extension blocks of a file with this many data blocks.
    pub fn extensions(&self, data_blocks: u64) -> u64 {
        let per = self.table_len() as u64;
        data_blocks.saturating_sub(per).div_ceil(per)
    }

    pub fn corrupt(&self, block: Block, what: impl Into<String>) -> Error {
        Error::corrupt(what, format!("{}, block {block}", self.place))
    }
}

/// The type of a header, from its secondary type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Root,
    Directory,
    File,
    SoftLink,
    /// A hard link to a file.
    LinkFile,
    /// A hard link to a directory.
    LinkDirectory,
}

impl Kind {
    pub fn is_dir(self) -> bool {
        matches!(self, Kind::Root | Kind::Directory)
    }
}

/// A checked header block.
pub(crate) struct Header {
    pub block: Block,
    pub kind: Kind,
    pub bytes: BufferRead,
}

impl Header {
    pub fn chain(&self) -> Block {
        tail_block(&self.bytes, tail::HASH_CHAIN)
    }

    pub fn parent(&self) -> Block {
        tail_block(&self.bytes, tail::PARENT)
    }

    /// Returns the block that a hard link refers to.
    pub fn real(&self) -> Block {
        tail_block(&self.bytes, tail::REAL_ENTRY)
    }

    /// Returns the next block in the chain of hard links: the first link of an entry, or the link after a
    /// link.
    pub fn next_link(&self) -> Block {
        tail_block(&self.bytes, tail::NEXT_LINK)
    }

    pub fn size(&self) -> u64 {
        u64::from(tail32(&self.bytes, tail::BYTE_SIZE))
    }

    pub fn protect(&self) -> u32 {
        if self.kind == Kind::Root { 0 } else { tail32(&self.bytes, tail::PROTECT) }
    }

    /// Returns the first entry of a hash chain of a directory.
    pub fn slot(&self, slot: usize) -> Block {
        get_block(&self.bytes, head::TABLE + slot * 4)
    }
}

/// Detects a cycle in a list of blocks, with Brent's algorithm. The number of steps is at most a small
/// multiple of the list's length.
pub(crate) struct CycleCheck {
    seen: Block,
    taken: u64,
    limit: u64,
}

impl CycleCheck {
    pub fn new() -> Self {
        Self { seen: Block::NONE, taken: 0, limit: 1 }
    }

    /// Visits one more block. Returns false if the list has a cycle.
    pub fn step(&mut self, block: Block) -> bool {
        if block == self.seen {
            return false;
        }
        self.taken += 1;
        if self.taken == self.limit {
            (self.seen, self.taken, self.limit) = (block, 0, self.limit * 2);
        }
        true
    }
}

/// Converts an error of write ordering to one of the VFS.
pub(crate) fn to_vfs_error(error: OrderedError) -> Error {
    Error::io(error)
}

impl Affs {
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        self.cache.device()
    }

    /// Returns whether a block may belong to a file or a directory.
    pub(crate) fn is_inside(&self, block: Block) -> bool {
        (self.geometry.reserved..self.geometry.blocks).contains(&block.0)
            && !self.bitmap.is_system_block(block)
    }

    /// Returns the buffer of a block after verifying its checksum. `what` names the block in errors.
    pub(crate) fn checked_buffer(&self, block: Block, what: &str) -> Result<Arc<Buffer>> {
        if !self.is_inside(block) && block != self.geometry.root {
            return Err(self.geometry.corrupt(
                block,
                format!("a pointer to {what} leads outside the volume or to a block that cannot hold it"),
            ));
        }
        let buffer = self.cache.get(block.no())?;
        if !buffer.is_verified() {
            if !checksum_is_valid(&buffer.read()) {
                return Err(self.geometry.corrupt(block, format!("{what} has a bad checksum")));
            }
            buffer.set_verified();
        }
        Ok(buffer)
    }

    /// Reads and checks a header.
    pub(crate) fn header(&self, block: Block) -> Result<Header> {
        let bytes = self.checked_buffer(block, "a header")?.read();
        let is_root = block == self.geometry.root;
        let kind = match tail32(&bytes, tail::SEC_TYPE) {
            ST_ROOT if is_root => Kind::Root,
            ST_USERDIR => Kind::Directory,
            ST_FILE => Kind::File,
            ST_SOFTLINK => Kind::SoftLink,
            ST_LINKFILE => Kind::LinkFile,
            ST_LINKDIR => Kind::LinkDirectory,
            other => {
                return Err(self
                    .geometry
                    .corrupt(block, format!("a header has the unknown type {}", other as i32)));
            }
        };
        let own_key = get_block(&bytes, head::OWN_KEY);
        if get32(&bytes, head::TYPE) != T_SHORT || is_root != (kind == Kind::Root) {
            return Err(self.geometry.corrupt(block, "not a header"));
        }
        if !is_root && own_key != block {
            return Err(self.geometry.corrupt(block, format!("a header names {own_key} as its own block")));
        }
        Ok(Header { block, kind, bytes })
    }

    /// Returns the name in a header, in Latin-1. A name that no path can contain is damage.
    pub(crate) fn name_of<'a>(&self, header: &'a Header) -> Result<&'a [u8]> {
        match self.geometry.variant.name_in(&header.bytes) {
            Some(name)
                if !name.is_empty()
                    && !name.contains(&b'/')
                    && !name.contains(&0)
                    && name != b"."
                    && name != b".." =>
            {
                Ok(name)
            }
            _ => Err(self.geometry.corrupt(header.block, "the name is invalid")),
        }
    }

    /// Returns the write ordering, or an error if the volume is read-only.
    pub(crate) fn ordered(&self) -> Result<&Ordered> {
        self.ordered.as_ref().ok_or_else(|| NameError::ReadOnly.into())
    }

    /// Opens a change. The caller holds no lock of this driver.
    pub(crate) fn change(&self) -> Result<Change<'_>> {
        let ordered = self.ordered()?;
        ordered.change().map_err(to_vfs_error)
    }

    /// Makes the batch of a change durable, if it is not.
    pub(crate) fn settle(&self, ticket: Ticket) -> Result<()> {
        self.wait_for_batch(|ordered| ordered.settle(ticket))
    }

    /// Runs `wait`, which may wait until no change is open. The caller holds no change and no lock of this
    /// driver.
    pub(crate) fn wait_for_batch<T>(
        &self,
        wait: impl FnOnce(&Ordered) -> ivers_write_ordering::Result<T>,
    ) -> Result<T> {
        let ordered = self.ordered()?;
        wait(ordered).map_err(to_vfs_error)
    }

    /// Changes bytes of a block whose checksum is at [`head::CHECKSUM`]. `edit` runs once for each version
    /// of the block that includes the stage, so it must set bytes without reading them.
    pub(crate) fn edit(
        &self,
        change: &Change<'_>,
        block: Block,
        stage: Stage,
        edit: impl Fn(&mut [u8]),
    ) -> Result<()> {
        let buffer = self.checked_buffer(block, "a block")?;
        change.put(&buffer, stage, |bytes| {
            edit(bytes);
            set_checksum(bytes, head::CHECKSUM);
        });
        Ok(())
    }

    /// Writes a block that nothing points to yet.
    pub(crate) fn write_fresh(
        &self,
        change: &Change<'_>,
        block: Block,
        write: impl Fn(&mut [u8]),
    ) -> Result<()> {
        let buffer = change.fresh(block.no()).map_err(to_vfs_error)?;
        change.put(&buffer, Stage::Fresh, |bytes| {
            write(bytes);
            set_checksum(bytes, head::CHECKSUM);
        });
        Ok(())
    }

    /// Returns the generation for a new header in a block.
    pub(crate) fn begin_generation(&self, block: Block) -> u32 {
        let mut generations = self.generations.lock();
        let Some(entry) = generations.get_mut(&block) else { return 1 };
        entry.is_free = false;
        entry.generation
    }

    /// Ends the generation of a header's block, which is freed. A file handle with the old generation
    /// becomes stale.
    pub(crate) fn end_generation(&self, block: Block) {
        self.forget_stale_record(block);
        let mut generations = self.generations.lock();
        let entry = generations.entry(block).or_insert(HeaderGeneration { generation: 1, is_free: false });
        (entry.generation, entry.is_free) = (entry.generation.wrapping_add(1).max(1), true);
    }

    /// Returns the generation of a header's block, or `None` if its header was deleted.
    pub(crate) fn generation_of(&self, block: Block) -> Option<u32> {
        match self.generations.lock().get(&block) {
            Some(entry) if entry.is_free => None,
            Some(entry) => Some(entry.generation),
            None => Some(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_detected_and_long_lists_are_not() {
        let mut cycle = CycleCheck::new();
        assert!((1..100_000).all(|block| cycle.step(Block(block))));
        for (lead, period) in [(1, 1), (1, 2), (5, 3), (100, 1000)] {
            let mut cycle = CycleCheck::new();
            let blocks = (1..=lead).chain((lead + 1..=lead + period).cycle());
            let steps = blocks.take(100_000).take_while(|&block| cycle.step(Block(block))).count() as u32;
            assert!(steps < 8 * (lead + period) + 8, "{lead} {period}: {steps}");
        }
    }
}
