//! Reading what a check reads: fragments, and the pointers of inodes.

use crate::layout::Fields;
use crate::layout::dinode::Dinode;
use crate::layout::directory::{Entry, UNIT_BYTES, entry};
use crate::layout::superblock::{DIRECT, Superblock};
use ivers_block::{BlockNo, Device};
use ivers_vfs::Result;
use std::sync::Arc;

pub(super) struct Reader {
    pub device: Arc<dyn Device>,
    pub sb: Superblock,
}

/// A pointer to a block, in an inode or in an indirect block. A hole has none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pointer {
    /// 0: to contents; 1 to 3: to an indirect block.
    pub level: u32,
    /// The first file block that it leads to.
    pub block: u64,
    /// The fragment.
    pub start: u64,
}

impl Reader {
    /// Reads fragments. What is past the end of the filesystem is zeros.
    pub(super) fn read(&self, start: u64, frags: u64) -> Result<Vec<u8>> {
        let size = self.sb.fragment_size;
        let mut bytes = vec![0; (frags * u64::from(size)) as usize];
        let inside = self.sb.size.saturating_sub(start).min(frags) * u64::from(size);
        self.device.read_at(BlockNo(start).offset(size), &mut bytes[..inside as usize])?;
        Ok(bytes)
    }

    /// Reads a block.
    pub(super) fn read_block(&self, start: u64) -> Result<Vec<u8>> {
        self.read(start, self.sb.frags_per_block.into())
    }

    /// Calls `each` with all pointers of an inode. It says whether an indirect block may be followed: one
    /// that was followed before must not be, or damage could make the walk endless.
    pub(super) fn for_each_pointer(
        &self,
        inode: &Dinode,
        each: &mut dyn FnMut(Pointer) -> bool,
    ) -> Result<()> {
        let (direct, indirect) = inode.pointers.split_at(DIRECT as usize);
        for (block, &start) in (0..).zip(direct).filter(|(_, start)| **start != 0) {
            each(Pointer { level: 0, block, start });
        }
        let mut block = DIRECT;
        for (level, &start) in (1..).zip(indirect) {
            let pointer = Pointer { level, block, start };
            if start != 0 && each(pointer) {
                self.follow(pointer, each)?;
            }
            block += self.sb.pointers_per_block().pow(level);
        }
        Ok(())
    }

    fn follow(&self, indirect: Pointer, each: &mut dyn FnMut(Pointer) -> bool) -> Result<()> {
        let bytes = self.read_block(indirect.start)?;
        let fields = Fields::new(&bytes, self.sb.order);
        let level = indirect.level - 1;
        let step = self.sb.pointers_per_block().pow(level);
        for nth in 0..self.sb.pointers_per_block() {
            let start = match self.sb.pointer_size() {
                4 => fields.u32(nth as usize * 4).into(),
                _ => fields.u64(nth as usize * 8),
            };
            let pointer = Pointer { level, block: indirect.block + nth * step, start };
            if start != 0 && each(pointer) && level > 0 {
                self.follow(pointer, each)?;
            }
        }
        Ok(())
    }

    /// Calls `each` with the entries of a directory and the bytes at which they start, or with what is wrong
    /// with the rest of a unit. Returns the number of blocks that exist.
    pub(super) fn for_each_entry(
        &self,
        dir: &Dinode,
        each: &mut dyn FnMut(u64, std::result::Result<Entry<'_>, &'static str>),
    ) -> Result<u64> {
        let mut blocks = Vec::new();
        self.for_each_pointer(dir, &mut |pointer| {
            if pointer.level == 0 {
                blocks.push((pointer.block, pointer.start));
            }
            true
        })?;
        for &(block, start) in &blocks {
            let bytes = self.read(start, self.sb.frags_of_block(dir.size, block))?;
            let first = block * u64::from(self.sb.block_size);
            let inside = (dir.size - first).min(bytes.len() as u64) as usize;
            let units = bytes[..inside].chunks_exact(UNIT_BYTES);
            for (unit_at, unit) in (first..).step_by(UNIT_BYTES).zip(units) {
                let mut at = 0;
                while at < UNIT_BYTES {
                    let place = unit_at + at as u64;
                    match entry(unit, at, &self.sb) {
                        Ok((found, next)) => {
                            found.into_iter().for_each(|found| each(place, Ok(found)));
                            at = next;
                        }
                        Err(what) => {
                            each(place, Err(what));
                            break;
                        }
                    }
                }
            }
        }
        Ok(blocks.len() as u64)
    }
}
