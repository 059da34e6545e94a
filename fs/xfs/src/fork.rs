//! Forks: where the contents, entries and attributes of an inode are.

use crate::btree::{MAX_LEVELS, TreeSource};
use crate::layout::bytes::{number, read};
use crate::layout::dinode::{FILE_BLOCKS_END, format};
use crate::layout::raw::{RawBmbtRec, RawBmdrBlock};
use crate::layout::superblock::{FsBlock, Superblock};
use crate::search::last_at_most;
use crate::source::Source;
use crate::unit::{UnitPlace, Whose};

pub(crate) use crate::unit::Which;
use ivers_block::{BlockNo, FileBlock, Unit};
use ivers_vfs::Result;
use smallvec::SmallVec;
use std::mem::size_of;

/// Bytes of a record of an extent.
pub(crate) const EXTENT_BYTES: usize = size_of::<RawBmbtRec>();
/// Bytes of the key and the pointer of a child.
const CHILD_BYTES: usize = 16;

/// What the blocks of a fork belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForkSpace {
    Data,
    Attributes,
    /// Blocks of the realtime device, which is not there: they are not checked.
    Realtime,
}

/// The contents of a fork.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fork {
    /// There is none.
    None,
    /// The number of a device, as it is stored.
    Device(u32),
    /// In the inode itself.
    Local(Box<[u8]>),
    /// Extents in ascending order.
    Extents(Vec<Extent>),
    /// A B-tree of extents.
    Btree(TreeRoot),
}

/// A run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub file_block: FileBlock,
    pub start: FsBlock,
    pub len: u64,
    /// Allocated, but it reads as zeros.
    pub unwritten: bool,
}

/// The root of an extent B-tree, in the inode.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TreeRoot {
    pub level: u32,
    /// Key and pointer of each child.
    pub children: Vec<(u64, u64)>,
}

/// What is at a file block, and for how many blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub len: u64,
    /// The device block; `None` in a hole.
    pub block: Option<BlockNo>,
    pub unwritten: bool,
}

/// The most children of a root in so many bytes of an inode.
pub(crate) fn root_room(space: usize) -> usize {
    space.saturating_sub(size_of::<RawBmdrBlock>()) / CHILD_BYTES
}

/// Bytes of a root with so many children.
pub(crate) fn root_bytes(children: usize) -> usize {
    size_of::<RawBmdrBlock>() + children * CHILD_BYTES
}

impl Extent {
    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let raw: RawBmbtRec = read(record, 0)?;
        Some(Self::from_words((raw.l0.get(), raw.l1.get())))
    }

    /// Decodes the two numbers of a record.
    pub(crate) fn from_words((l0, l1): (u64, u64)) -> Self {
        Self {
            unwritten: l0 >> 63 != 0,
            file_block: FileBlock(l0 >> 9 & (FILE_BLOCKS_END - 1)),
            start: FsBlock((l0 & 0x1FF) << 43 | l1 >> 21),
            len: l1 & 0x1F_FFFF,
        }
    }

    pub(crate) fn end(&self) -> FileBlock {
        self.file_block.saturating_add(self.len)
    }
}

impl Fork {
    /// Decodes a fork from its space in the inode. `local_bytes` is the size of local contents, if the fork
    /// may be local.
    pub(crate) fn decode(
        sb: &Superblock,
        stored_format: u8,
        space: &[u8],
        extents: u64,
        local_bytes: Option<u64>,
        kind: ForkSpace,
    ) -> std::result::Result<Self, String> {
        match stored_format {
            format::LOCAL => {
                let len = local_bytes.and_then(|len| usize::try_from(len).ok());
                let local = len.and_then(|len| space.get(..len)).ok_or("local contents do not fit")?;
                Ok(Self::Local(local.into()))
            }
            format::EXTENTS => {
                let bytes = usize::try_from(extents).ok().and_then(|count| count.checked_mul(EXTENT_BYTES));
                let records = bytes
                    .and_then(|bytes| space.get(..bytes))
                    .ok_or_else(|| format!("{extents} extents do not fit in the inode"))?;
                let mut list: Vec<Extent> = Vec::with_capacity(records.len() / EXTENT_BYTES);
                for record in records.chunks_exact(EXTENT_BYTES) {
                    let extent = Extent::decode(record).ok_or("an extent is too short")?;
                    check_extent(sb, &extent, kind)?;
                    if list.last().is_some_and(|last| last.end() > extent.file_block) {
                        return Err("extents overlap".into());
                    }
                    list.push(extent);
                }
                Ok(Self::Extents(list))
            }
            format::BTREE => {
                let raw: RawBmdrBlock = read(space, 0).ok_or("the extent B-tree's root does not fit")?;
                let (level, records) = (u32::from(raw.bb_level.get()), usize::from(raw.bb_numrecs.get()));
                let header = size_of::<RawBmdrBlock>();
                let most = (space.len() - header) / 16;
                if !(1..MAX_LEVELS).contains(&level) || records == 0 || records > most {
                    return Err(format!("the extent B-tree's root has level {level} and {records} records"));
                }
                let field = |at| number(space, header + at * 8, 8).unwrap_or(0);
                let children = (0..records).map(|index| (field(index), field(most + index))).collect();
                Ok(Self::Btree(TreeRoot { level, children }))
            }
            other => Err(format!("a fork has format {other}")),
        }
    }

    /// Returns whether blocks of the device belong to it.
    pub(crate) fn has_blocks(&self) -> bool {
        matches!(self, Self::Extents(_) | Self::Btree(_)) && !self.is_empty()
    }

    /// Returns whether nothing is stored.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::None | Self::Device(_) => true,
            Self::Local(bytes) => bytes.is_empty(),
            Self::Extents(list) => list.is_empty(),
            Self::Btree(_) => false,
        }
    }
}

fn check_extent(sb: &Superblock, extent: &Extent, kind: ForkSpace) -> std::result::Result<(), String> {
    if extent.len == 0 || extent.end().0 > FILE_BLOCKS_END {
        return Err(format!("an extent at file block {} has {} blocks", extent.file_block, extent.len));
    }
    if kind != ForkSpace::Realtime && sb.run(extent.start, extent.len).is_none() {
        return Err(format!("an extent refers to {} blocks at {}", extent.len, extent.start.0));
    }
    Ok(())
}

/// Returns the last of `count` extents that starts at or before a file block, and where the next one starts.
fn find_extent(
    count: usize,
    at: FileBlock,
    extent: impl Fn(usize) -> Option<Extent>,
) -> (Option<Extent>, Option<FileBlock>) {
    let start = |index| extent(index).map_or(u64::MAX, |extent| extent.file_block.0);
    let index = last_at_most(count, at.0, start);
    let next = index.map_or(0, |index| index + 1);
    let next = (next < count).then(|| FileBlock(start(next)));
    (index.and_then(extent), next)
}

/// Reading of maps of forks.
pub(crate) trait ForkSource: Source {
    /// Returns what is at a file block of a fork of blocks.
    fn map(&self, fork: &Fork, at: FileBlock, ino: u64) -> Result<Mapping> {
        let whose = Whose::Inode(ino);
        let (extent, next) = self.find_extent(fork, at, ino)?;
        let end = next.unwrap_or(FileBlock(FILE_BLOCKS_END).max(at.saturating_add(1)));
        let inside = extent.filter(|extent| extent.end() > at);
        let hole = Mapping { len: end - at, block: None, unwritten: false };
        let Some(extent) = inside else { return Ok(hole) };
        let skipped = at - extent.file_block;
        let first = self.sb().run(extent.start, extent.len).ok_or_else(|| {
            let what = format!("an extent refers to {} blocks at {}", extent.len, extent.start.0);
            self.corrupt(what, whose)
        })?;
        Ok(Mapping { len: extent.len - skipped, block: Some(first + skipped), unwritten: extent.unwritten })
    }

    /// Returns the last extent that starts at or before a file block, and where the next one starts.
    fn find_extent(
        &self,
        fork: &Fork,
        at: FileBlock,
        ino: u64,
    ) -> Result<(Option<Extent>, Option<FileBlock>)> {
        let whose = Whose::Inode(ino);
        match fork {
            Fork::None | Fork::Device(_) => Ok((None, None)),
            Fork::Local(_) => Err(self.corrupt("contents in the inode have no blocks", whose)),
            Fork::Extents(list) => Ok(find_extent(list.len(), at, |index| list.get(index).copied())),
            Fork::Btree(root) => {
                let (extent, next) = self.find_in_tree(root, at, ino)?;
                if next.is_some_and(|next| next <= at) {
                    return Err(self.corrupt("the keys of the extent B-tree are out of order", whose));
                }
                Ok((extent, next))
            }
        }
    }

    /// Searches an extent B-tree.
    fn find_in_tree(
        &self,
        root: &TreeRoot,
        at: FileBlock,
        ino: u64,
    ) -> Result<(Option<Extent>, Option<FileBlock>)> {
        let children = &root.children;
        let mut next = None;
        let index = last_at_most(children.len(), at.0, |index| children[index].0);
        let mut follow = |index: Option<usize>, count: usize, key: &dyn Fn(usize) -> u64| {
            let after = index.map_or(0, |index| index + 1);
            if after < count {
                next = Some(FileBlock(key(after)));
            }
        };
        follow(index, children.len(), &|index| children[index].0);
        let Some(index) = index else { return Ok((None, next)) };
        let mut pointer = children[index].1;
        for level in (1..root.level).rev() {
            let node = self.extent_tree_block(pointer, level, ino)?;
            let key = |index| node.extent_node_entry(index).0;
            let index = last_at_most(node.records, at.0, key);
            follow(index, node.records, &key);
            let Some(index) = index else { return Ok((None, next)) };
            pointer = node.extent_node_entry(index).1;
        }
        let leaf = self.extent_tree_block(pointer, 0, ino)?;
        let (extent, after) = find_extent(leaf.records, at, |index| Extent::decode(leaf.record(index)));
        if let Some(extent) = &extent {
            check_extent(self.sb(), extent, ForkSpace::Data)
                .map_err(|what| self.corrupt(what, Whose::Inode(ino)))?;
        }
        Ok((extent, after.or(next)))
    }

    /// Returns the device blocks of file blocks that must all be mapped. There is at least one.
    fn mapped_blocks(&self, fork: &Fork, place: UnitPlace) -> Result<Unit> {
        if let Some(blocks) = self.noted_unit(&place) {
            return Ok(blocks);
        }
        let UnitPlace { ino, at: first, count, .. } = place;
        if count == 0 {
            return Err(self.corrupt("a structure without blocks", Whose::Inode(ino)));
        }
        let mut blocks = SmallVec::<[BlockNo; 4]>::new();
        while (blocks.len() as u64) < count {
            let at = first.saturating_add(blocks.len() as u64);
            let mapping = self.map(fork, at, ino)?;
            let start = mapping.block.ok_or_else(|| {
                self.corrupt(format!("file block {at} should have a block and is a hole"), Whose::Inode(ino))
            })?;
            blocks.extend(start.run(mapping.len.min(count - blocks.len() as u64)));
        }
        let blocks = Unit::new(&blocks);
        self.note_unit(place, &blocks);
        Ok(blocks)
    }
}

impl<S: Source> ForkSource for S {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_decode() {
        let (file_block, start, len) = (0x12_3456_789A_BCDE_u64, 0x8_7654_3210_FEDC_u64, 0x1F_FFFF_u64);
        let l0 = 1u64 << 63 | file_block << 9 | start >> 43;
        let l1 = start << 21 | len;
        let bytes = [l0.to_be_bytes(), l1.to_be_bytes()].concat();
        let extent = Extent::decode(&bytes).unwrap();
        assert_eq!(
            extent,
            Extent { file_block: FileBlock(file_block), start: FsBlock(start), len, unwritten: true }
        );
        assert_eq!(Extent::decode(&bytes[1..]), None);
    }
}
