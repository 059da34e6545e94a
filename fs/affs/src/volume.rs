//! The opened volume: its blocks, checked as they are read, and how they are changed.

use crate::dircache::Caches;
use crate::layout::{
    Block, Flavour, T_SHORT, get_block, get32, head, is_sealed, seal, tail, tail_block, tail32,
};
use crate::layout::{ST_FILE, ST_LINKDIR, ST_LINKFILE, ST_ROOT, ST_SOFTLINK, ST_USERDIR};
use crate::space::Space;
use ivers_block::{Buffer, BufferCache, BufferRead, Device};
use ivers_vfs::sync::atomic::AtomicU64;
use ivers_vfs::sync::{Mutex, RwLock};
use ivers_vfs::{Error, NameError, Result};
use ivers_write_ordering::{Change, Ordered, OrderedError, Stage, Ticket};
use std::collections::HashMap;
use std::sync::Arc;

/// An OFS or FFS volume.
pub struct Affs {
    pub(crate) shape: Shape,
    pub(crate) label: String,
    pub(crate) cache: Arc<BufferCache>,
    pub(crate) space: Arc<Space>,
    /// `None`: nothing may change.
    pub(crate) ordered: Option<Ordered>,
    pub(crate) read_only: Option<String>,
    /// Held shared by whoever follows or changes a hash chain. Exclusively by whoever changes one of a directory that the VFS has not
    /// locked: where an entry loses its own name and takes that of a hard link, which may be in any directory.
    pub(crate) links: RwLock<()>,
    /// The last change in which an entry went to another chain: what takes names away must come behind it (see [`crate::names`]).
    pub(crate) moved: Mutex<Ticket>,
    pub(crate) caches: Caches,
    /// Inodes that have lost their names and are still in use: closed now, the volume would keep their blocks and not know of it.
    pub(crate) orphans: AtomicU64,
    /// Headers that were deleted in this mount, and which life their block is in.
    pub(crate) lives: Mutex<HashMap<Block, Life>>,
}

/// See [`Affs::lives`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Life {
    pub generation: u32,
    pub dead: bool,
}

/// What does not change about a volume.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// For messages: the image, and the partition.
    pub place: String,
    pub flavour: Flavour,
    pub block_size: u32,
    /// All blocks, the reserved ones too.
    pub blocks: u32,
    pub reserved: u32,
    pub root: Block,
}

impl Shape {
    pub fn table_len(&self) -> usize {
        crate::layout::table_len(self.block_size)
    }

    /// Bytes of a file in one data block.
    pub fn data_len(&self) -> u64 {
        let own = if self.flavour.ffs { 0 } else { crate::layout::DATA_HEAD as u64 };
        u64::from(self.block_size) - own
    }

    /// Data blocks of a file of this size.
    pub fn data_blocks(&self, size: u64) -> u64 {
        size.div_ceil(self.data_len())
    }

    /// Extension blocks of a file with so many data blocks.
    pub fn extensions(&self, data_blocks: u64) -> u64 {
        let per = self.table_len() as u64;
        data_blocks.saturating_sub(per).div_ceil(per)
    }

    pub fn damaged(&self, block: Block, what: impl Into<String>) -> Error {
        Error::corrupt(what, format!("{}, block {block}", self.place))
    }
}

/// What a header is, by its secondary type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Root,
    Directory,
    File,
    SoftLink,
    /// Another name of a file.
    LinkFile,
    /// Another name of a directory.
    LinkDirectory,
}

impl Kind {
    pub fn is_dir(self) -> bool {
        matches!(self, Kind::Root | Kind::Directory)
    }
}

/// A header block, checked.
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

    /// What a hard link leads to.
    pub fn real(&self) -> Block {
        tail_block(&self.bytes, tail::REAL_ENTRY)
    }

    /// The first, or the next, hard link to the same thing.
    pub fn next_link(&self) -> Block {
        tail_block(&self.bytes, tail::NEXT_LINK)
    }

    pub fn size(&self) -> u64 {
        u64::from(tail32(&self.bytes, tail::BYTE_SIZE))
    }

    pub fn protect(&self) -> u32 {
        if self.kind == Kind::Root { 0 } else { tail32(&self.bytes, tail::PROTECT) }
    }

    /// The first entry of a chain of a directory.
    pub fn slot(&self, slot: usize) -> Block {
        get_block(&self.bytes, head::TABLE + slot * 4)
    }
}

/// Follows a list of blocks, and notices when it goes round (Brent's way: the steps are a small multiple of the loop's length).
pub(crate) struct Hops {
    seen: Block,
    taken: u64,
    limit: u64,
}

impl Hops {
    pub fn new() -> Self {
        Self { seen: Block::NONE, taken: 0, limit: 1 }
    }

    /// One more block. False: it was here before.
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

/// In the words of the VFS.
pub(crate) fn order_error(error: OrderedError) -> Error {
    Error::io(error)
}

impl Affs {
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        self.cache.device()
    }

    /// Whether a block may belong to a file or a directory.
    pub(crate) fn is_inside(&self, block: Block) -> bool {
        (self.shape.reserved..self.shape.blocks).contains(&block.0) && !self.space.is_own(block)
    }

    /// A block with a checksum, checked.
    pub(crate) fn sealed(&self, block: Block, what: &str) -> Result<Arc<Buffer>> {
        if !self.is_inside(block) && block != self.shape.root {
            return Err(self.shape.damaged(block, format!("{what} cannot be there")));
        }
        let buffer = self.cache.get(block.no())?;
        if !buffer.is_verified() {
            if !is_sealed(&buffer.read()) {
                return Err(self.shape.damaged(block, format!("the checksum of {what} is wrong")));
            }
            buffer.set_verified();
        }
        Ok(buffer)
    }

    /// A header, checked.
    pub(crate) fn header(&self, block: Block) -> Result<Header> {
        let bytes = self.sealed(block, "a header")?.read();
        let is_root = block == self.shape.root;
        let kind = match tail32(&bytes, tail::SEC_TYPE) {
            ST_ROOT if is_root => Kind::Root,
            ST_USERDIR => Kind::Directory,
            ST_FILE => Kind::File,
            ST_SOFTLINK => Kind::SoftLink,
            ST_LINKFILE => Kind::LinkFile,
            ST_LINKDIR => Kind::LinkDirectory,
            other => return Err(self.shape.damaged(block, format!("a header of type {}", other as i32))),
        };
        let own_key = get_block(&bytes, head::OWN_KEY);
        if get32(&bytes, head::TYPE) != T_SHORT || is_root != (kind == Kind::Root) {
            return Err(self.shape.damaged(block, "no header where one should be"));
        }
        if !is_root && own_key != block {
            return Err(self.shape.damaged(block, format!("the header says that it is block {own_key}")));
        }
        Ok(Header { block, kind, bytes })
    }

    /// The name in a header, in Latin-1. What no path could name is damage.
    pub(crate) fn name_of<'a>(&self, header: &'a Header) -> Result<&'a [u8]> {
        match self.shape.flavour.name_in(&header.bytes) {
            Some(name)
                if !name.is_empty()
                    && !name.contains(&b'/')
                    && !name.contains(&0)
                    && name != b"."
                    && name != b".." =>
            {
                Ok(name)
            }
            _ => Err(self.shape.damaged(header.block, "the name is impossible")),
        }
    }

    /// What changes go through.
    pub(crate) fn ordered(&self) -> Result<&Ordered> {
        self.ordered.as_ref().ok_or_else(|| NameError::ReadOnly.into())
    }

    /// Opens a change. Under no lock of this driver.
    pub(crate) fn change(&self) -> Result<Change<'_>> {
        self.ordered()?.change().map_err(order_error)
    }

    /// Makes a change durable, if it is not.
    pub(crate) fn settle(&self, ticket: Ticket) -> Result<()> {
        self.ordered()?.settle(ticket).map_err(order_error)
    }

    /// Sets bytes in a block that has its checksum where headers have it. Called on versions of the block for several stages: depends on nothing in it.
    pub(crate) fn edit(
        &self,
        change: &Change<'_>,
        block: Block,
        stage: Stage,
        edit: impl Fn(&mut [u8]),
    ) -> Result<()> {
        let buffer = self.sealed(block, "a block")?;
        change.put(&buffer, stage, |bytes| {
            edit(bytes);
            seal(bytes, head::CHECKSUM);
        });
        Ok(())
    }

    /// A block that nothing points to yet.
    pub(crate) fn write_fresh(
        &self,
        change: &Change<'_>,
        block: Block,
        write: impl Fn(&mut [u8]),
    ) -> Result<()> {
        let buffer = change.fresh(block.no()).map_err(order_error)?;
        change.put(&buffer, Stage::Fresh, |bytes| {
            write(bytes);
            seal(bytes, head::CHECKSUM);
        });
        Ok(())
    }

    /// Begins a new life of a header's block.
    pub(crate) fn is_born(&self, block: Block) -> u32 {
        let mut lives = self.lives.lock();
        let Some(life) = lives.get_mut(&block) else { return 1 };
        life.dead = false;
        life.generation
    }

    /// A header's block is free: who comes with its number must not find what was there.
    pub(crate) fn has_died(&self, block: Block) {
        self.is_not_stale(block);
        let mut lives = self.lives.lock();
        let life = lives.entry(block).or_insert(Life { generation: 1, dead: false });
        (life.generation, life.dead) = (life.generation.wrapping_add(1).max(1), true);
    }

    /// The generation of a header's block. `None`: it is dead.
    pub(crate) fn life(&self, block: Block) -> Option<u32> {
        match self.lives.lock().get(&block) {
            Some(life) if life.dead => None,
            Some(life) => Some(life.generation),
            None => Some(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_noticed_and_lists_are_not() {
        let mut hops = Hops::new();
        assert!((1..100_000).all(|block| hops.step(Block(block))));
        for (lead, period) in [(1, 1), (1, 2), (5, 3), (100, 1000)] {
            let mut hops = Hops::new();
            let blocks = (1..=lead).chain((lead + 1..=lead + period).cycle());
            let steps = blocks.take(100_000).take_while(|&block| hops.step(Block(block))).count() as u32;
            assert!(steps < 8 * (lead + period) + 8, "{lead} {period}: {steps}");
        }
    }
}
