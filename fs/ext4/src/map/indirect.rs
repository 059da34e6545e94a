//! Block maps: twelve direct pointers, then trees of one, two and three levels (format documentation,
//! "Direct/Indirect Block Addressing"). Pointers have 32 bits; 0 is a hole.

use crate::fs::{Ext4, Handle, InodeCore};
use crate::map::{HOLE, Mapping};
use ivers_block::{BlockNo, Buffer, FileBlock};
use ivers_vfs::{Inode, NameError, RangeKind, Result};
use std::sync::Arc;

const DIRECT: u64 = 12;
/// Longest run that one lookup joins, in blocks.
const MAX_RUN: u64 = 2048;

/// The path to a pointer: the slot in `i_block`, then one index a level.
struct Place {
    slot: usize,
    levels: Vec<usize>,
}

pub(super) fn pointer(bytes: &[u8], index: usize) -> BlockNo {
    let at = index * 4;
    BlockNo(u64::from(u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])))
}

pub(super) fn put(bytes: &mut [u8], index: usize, block: BlockNo) {
    bytes[index * 4..index * 4 + 4].copy_from_slice(&(block.0 as u32).to_le_bytes());
}

/// Refuses a block beyond the range of a pointer.
fn in_range(block: BlockNo) -> Result<()> {
    if block.0 > u64::from(u32::MAX) { Err(NameError::NoSpace.into()) } else { Ok(()) }
}

impl Ext4 {
    pub(super) fn pointers(&self) -> u64 {
        u64::from(self.sb.block_size / 4)
    }

    /// The first file block beyond the range of a block map.
    pub(super) fn indirect_limit(&self) -> FileBlock {
        let n = self.pointers();
        FileBlock((DIRECT + n + n * n + n * n * n).min(1 << 32))
    }

    fn place(&self, file_block: FileBlock) -> Result<Place> {
        let n = self.pointers();
        if file_block >= self.indirect_limit() {
            return Err(NameError::TooLarge.into());
        }
        if file_block.0 < DIRECT {
            return Ok(Place { slot: file_block.0 as usize, levels: Vec::new() });
        }
        let mut rest = file_block.0 - DIRECT;
        let mut span = n;
        for depth in 1..=3 {
            if rest < span {
                let mut levels = Vec::with_capacity(depth);
                let mut unit = span / n;
                for _ in 0..depth {
                    levels.push((rest / unit) as usize);
                    rest %= unit;
                    unit = (unit / n).max(1);
                }
                return Ok(Place { slot: 11 + depth, levels });
            }
            rest -= span;
            span *= n;
        }
        Err(NameError::TooLarge.into())
    }

    pub(super) fn checked(&self, inode: &Inode, block: BlockNo) -> Result<BlockNo> {
        if block != HOLE && !self.sb.is_valid_block(block) {
            return Err(self
                .corrupt_inode(format!("block map refers to block {block} outside the filesystem"), inode));
        }
        Ok(block)
    }

    /// Returns the mapping at a file block, with as much of the run as one lookup sees.
    pub(super) fn indirect_map(
        &self,
        inode: &Inode,
        core: &InodeCore,
        file_block: FileBlock,
    ) -> Result<Mapping> {
        if file_block >= self.indirect_limit() {
            return Ok(Mapping::hole(file_block, u64::MAX - file_block.0));
        }
        let place = self.place(file_block)?;
        let Some((&last, upper)) = place.levels.split_last() else {
            return self.run(inode, &core.i_block[..48], place.slot, file_block);
        };
        let mut block = self.checked(inode, pointer(&core.i_block, place.slot))?;
        // A hole in an inner node covers everything that the missing node would map.
        let mut unit = self.pointers().pow(place.levels.len() as u32);
        let mut offset_in_unit =
            place.levels.iter().fold(0, |sum, &index| sum * self.pointers() + index as u64);
        for &index in upper {
            if block == HOLE {
                break;
            }
            block = self.checked(inode, pointer(&self.block(block)?.read(), index))?;
            unit /= self.pointers();
            offset_in_unit %= unit;
        }
        if block == HOLE {
            return Ok(Mapping::hole(file_block, unit - offset_in_unit));
        }
        self.run(inode, &self.block(block)?.read(), last, file_block)
    }

    fn run(&self, inode: &Inode, pointers: &[u8], index: usize, file_block: FileBlock) -> Result<Mapping> {
        let first = self.checked(inode, pointer(pointers, index))?;
        let most = ((pointers.len() / 4 - index) as u64).min(MAX_RUN);
        let mut len = 1;
        while len < most {
            let next = pointer(pointers, index + len as usize);
            let follows = if first == HOLE { next == HOLE } else { next == first + len };
            if !follows {
                break;
            }
            len += 1;
        }
        if first != HOLE && !self.sb.is_valid_run(first, len) {
            return Err(self.corrupt_inode("block map refers to blocks outside the filesystem", inode));
        }
        let kind = if first == HOLE { RangeKind::Hole } else { RangeKind::Data };
        Ok(Mapping { start: file_block, len, kind, block: first })
    }

    /// Maps one file block that is a hole. Changes at most one block a level.
    pub(super) fn indirect_set(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        file_block: FileBlock,
        target: BlockNo,
    ) -> Result<()> {
        in_range(target)?;
        let place = self.place(file_block)?;
        let Some((&last, upper)) = place.levels.split_last() else {
            put(&mut core.i_block, place.slot, target);
            return Ok(());
        };
        let root = self.checked(inode, pointer(&core.i_block, place.slot))?;
        let mut node = if root == HOLE {
            let buffer = self.new_indirect(h, inode, core)?;
            put(&mut core.i_block, place.slot, buffer.block());
            buffer
        } else {
            self.block(root)?
        };
        for &index in upper {
            let next = self.checked(inode, pointer(&node.read(), index))?;
            node = if next == HOLE {
                let buffer = self.new_indirect(h, inode, core)?;
                h.modify(&node, |bytes| put(bytes, index, buffer.block()))?;
                buffer
            } else {
                self.block(next)?
            };
        }
        h.modify(&node, |bytes| put(bytes, last, target))
    }

    fn new_indirect(&self, h: &mut Handle, inode: &Inode, core: &mut InodeCore) -> Result<Arc<Buffer>> {
        let block = self.alloc_meta_block(h, inode, self.goal_for(inode))?;
        if let Err(error) = in_range(block) {
            self.free_blocks(h, block, 1, true)?;
            return Err(error);
        }
        let buffer = self.new_block(block)?;
        // An all-zero node maps nothing; log it even if nothing is stored in it.
        h.modify(&buffer, |bytes| bytes.fill(0))?;
        self.charge_blocks(inode, core, 1);
        Ok(buffer)
    }

    /// Unmaps the first run inside `from..to` and returns its first block and length, and its first file
    /// block. Frees nodes that become empty. `None` if nothing is mapped there.
    pub(super) fn indirect_take(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        from: FileBlock,
        to: FileBlock,
    ) -> Result<Option<Mapping>> {
        let to = to.min(self.indirect_limit());
        let mut at = from;
        while at < to {
            let found = self.indirect_map(inode, core, at)?;
            if found.kind == RangeKind::Hole {
                at = at.saturating_add(found.len);
                continue;
            }
            let len = found.len.min(to - at);
            self.clear(h, inode, core, at, len)?;
            return Ok(Some(Mapping { len, ..found }));
        }
        Ok(None)
    }

    /// Zeroes the pointers of a run that lies in one node, then frees the nodes that become empty.
    fn clear(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        at: FileBlock,
        len: u64,
    ) -> Result<()> {
        let place = self.place(at)?;
        let Some((&last, upper)) = place.levels.split_last() else {
            core.i_block[place.slot * 4..(place.slot + len as usize) * 4].fill(0);
            return Ok(());
        };
        let mut nodes = vec![self.block(pointer(&core.i_block, place.slot))?];
        for &index in upper {
            let next = self.checked(inode, pointer(&nodes[nodes.len() - 1].read(), index))?;
            nodes.push(self.block(next)?);
        }
        h.modify(&nodes[nodes.len() - 1], |bytes| bytes[last * 4..(last + len as usize) * 4].fill(0))?;
        while let Some(node) = nodes.pop() {
            if node.read().iter().any(|&byte| byte != 0) {
                break;
            }
            self.free_blocks(h, node.block(), 1, true)?;
            self.charge_blocks(inode, core, -1);
            match nodes.last() {
                Some(parent) => h.modify(parent, |bytes| put(bytes, place.levels[nodes.len() - 1], HOLE))?,
                None => put(&mut core.i_block, place.slot, HOLE),
            }
        }
        Ok(())
    }
}
