//! File data. It bypasses the buffer cache, because the page cache of the VFS has it. A driver that is made
//! for speed passes contiguous blocks to the device in one call.

use crate::*;
use std::ops::Range;

/// The file blocks that contain a byte range.
fn file_blocks(offset: u64, len: u64) -> Range<usize> {
    offset as usize / BLOCK..(offset.saturating_add(len) as usize).div_ceil(BLOCK)
}

fn remove_range(taken: &mut BTreeMap<usize, BlockNo>, range: Range<usize>) -> BTreeMap<usize, BlockNo> {
    let mut removed = taken.split_off(&range.start);
    taken.append(&mut removed.split_off(&range.end));
    removed
}

impl ExampleFs {
    fn write_data(&self, block: BlockNo, byte: usize, data: &[u8]) -> Result<()> {
        self.device.write_at(block.offset(BLOCK as u32) + byte as u64, data).map_err(Error::file_data)
    }

    /// Zeroes the block in which the file ends on disk from there on, before the file grows past that block:
    /// those bytes may be from before a truncation.
    fn zero_tail(&self, inode: &Inode) -> Result<()> {
        let raw = core(inode).read().raw.clone();
        let size = raw.size.get() as usize;
        let block = raw.block(size / BLOCK);
        if block == HOLE { Ok(()) } else { self.write_data(block, size % BLOCK, &[0; BLOCK][size % BLOCK..]) }
    }
}

/// `_IOWR('E', 1, u32)`: from the number of a block in a file to that on the device; 0 for a hole.
pub const BLOCK_ON_DEVICE: u32 = 0xc004_4501;

impl IoctlOps for ExampleFs {
    fn has_ioctl(&self, number: u32) -> bool {
        number == BLOCK_ON_DEVICE
    }

    fn ioctl(&self, _caller: &Cred, inode: &Inode, _number: u32, input: &[u8]) -> Result<Vec<u8>> {
        let at = u32::from_ne_bytes(input.try_into().map_err(|_| NameError::Invalid)?);
        let block = core(inode).read().raw.block(at as usize);
        Ok((block.0 as u32).to_ne_bytes().to_vec())
    }
}

impl FileOps for ExampleFs {
    fn read(&self, _caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let raw = core(inode).read().raw.clone();
        for (at, part) in (offset as usize / BLOCK..).zip(buf.chunks_mut(BLOCK)) {
            match raw.block(at) {
                HOLE => part.fill(0),
                block => self.device.read_at(block.offset(BLOCK as u32), part).map_err(Error::file_data)?,
            }
        }
        let on_disk = raw.size.get().saturating_sub(offset).min(buf.len() as u64);
        buf[on_disk as usize..].fill(0);
        Ok(())
    }

    /// Takes the blocks, in memory.
    fn reserve(&self, inode: &Inode, offset: u64, len: u64, _pool: BlockPool) -> Result<()> {
        let (core, range) = (&mut *core(inode).write(), file_blocks(offset, len));
        if range.end > MAX_BLOCKS {
            return Err(NameError::TooLarge.into());
        }
        let has_none = |at: &usize| core.raw.block(*at) == HOLE && !core.taken.contains_key(at);
        let missing: Vec<usize> = range.filter(has_none).collect();
        core.taken.extend(missing.iter().copied().zip(self.space.take(missing.len())?));
        Ok(())
    }

    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        let removed = remove_range(&mut core(inode).write().taken, file_blocks(offset, len));
        self.space.release(removed.into_values());
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        let range = file_blocks(offset, data.len() as u64);
        // A dirty page has its block already, unless a write of it failed before.
        self.reserve(inode, offset, data.len() as u64, BlockPool::All)?;
        let (raw, new) = {
            let core = &mut *core(inode).write();
            // Out of reach of `unreserve` while the device writes them.
            (core.raw.clone(), remove_range(&mut core.taken, range.clone()))
        };
        let write = || {
            if range.start as u64 > raw.size.get() / BLOCK as u64 {
                self.zero_tail(inode)?;
            }
            range.clone().zip(data.chunks(BLOCK)).try_for_each(|(at, part)| {
                let mut bytes = [0; BLOCK];
                bytes[..part.len()].copy_from_slice(part);
                self.write_data(new.get(&at).copied().unwrap_or(raw.block(at)), 0, &bytes)
            })
        };
        if let Err(error) = write() {
            self.space.release(new.into_values());
            return Err(error);
        }
        let size = inode.size().min(offset + data.len() as u64).max(raw.size.get());
        if new.is_empty() && size == raw.size.get() {
            return Ok(Written::Durable);
        }
        self.change(CREDITS, |h| {
            self.mark(h, &new.values().copied().collect::<Vec<_>>(), true)?;
            {
                let core = &mut *core(inode).write();
                for (at, block) in new {
                    core.raw.set_block(at, block);
                    // Taken once more by a writer that changed the page meanwhile.
                    self.space.release(core.taken.remove(&at));
                }
                core.raw.size = size.into();
            }
            inode.logged_in_background();
            self.log(h, inode)
        })?;
        Ok(Written::Durable)
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        let core = core(inode).read();
        ((core.raw.blocks() + core.taken.len()) * BLOCK / 512) as u64
    }

    fn truncate(&self, _caller: &Cred, inode: &Inode, size: u64) -> Result<()> {
        if size > core(inode).read().raw.size.get() {
            self.zero_tail(inode)?;
        }
        self.change(CREDITS, |h| {
            {
                let raw = &mut core(inode).write().raw;
                self.cut(h, raw, file_blocks(0, size).end, false)?;
                raw.size = size.into();
            }
            self.changed(h, inode, Touch::Data, Logged::Anyway)
        })
    }
}
