//! Contents of files.

use crate::layout::dinode::Dinode;
use crate::volume::Ufs;
use ivers_block::{BlockNo, FileBlock};
use ivers_vfs::{Error, MappedRange, RangeKind, Result};

/// Longest target of a symbolic link. The BSDs allow 1023 bytes, makefs on Linux more.
const LINK_TARGET_MAX: u64 = 4095;

impl Ufs {
    /// Fills `buf` from a byte of a file on. What is past the end is zeros.
    pub(crate) fn read_file(&self, file: &Dinode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let inside = file.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (buf, past_end) = buf.split_at_mut(inside);
        past_end.fill(0);
        let size = u64::from(self.sb.block_size);
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let run = self.map(file, FileBlock(at / size))?;
            let mapped = run.blocks.saturating_mul(size).saturating_sub(at % size);
            let len = mapped.min((buf.len() - done) as u64);
            let part = &mut buf[done..done + len as usize];
            match run.start {
                None => part.fill(0),
                Some(start) => {
                    let frags = (at % size + len).div_ceil(self.sb.fragment_size.into());
                    self.check_frags(file.ino, start, frags)?;
                    let byte = BlockNo(start).offset(self.sb.fragment_size) + at % size;
                    self.cache.device().read_at(byte, part).map_err(Error::file_data)?;
                }
            }
            done += len as usize;
        }
        Ok(())
    }

    /// Returns what is at a byte of a file, and how far.
    pub(crate) fn map_file(&self, file: &Dinode, offset: u64) -> Result<MappedRange> {
        let size = u64::from(self.sb.block_size);
        let (block, blocks) = (offset / size, file.size.div_ceil(size));
        let start = block * size;
        if block >= blocks {
            return Ok(MappedRange { start, len: u64::MAX - start, kind: RangeKind::Hole });
        }
        let run = self.map(file, FileBlock(block))?;
        let kind = if run.start.is_some() { RangeKind::Data } else { RangeKind::Hole };
        Ok(MappedRange { start, len: run.blocks.min(blocks - block) * size, kind })
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn link_target(&self, link: &Dinode) -> Result<Vec<u8>> {
        if let Some(target) = &link.short_link {
            return Ok(target.clone());
        }
        if link.size > LINK_TARGET_MAX {
            let what = format!("its target has {} bytes, more than {LINK_TARGET_MAX}", link.size);
            return Err(self.corrupt(link.ino, what));
        }
        let mut target = vec![0; link.size as usize];
        self.read_file(link, 0, &mut target)?;
        Ok(target)
    }
}
