//! Targets of symbolic links.

use super::fork::{Which, place_in};
use super::state::{Checker, Slot};
use crate::layout::attribute::remote_header_bytes;
use crate::layout::bytes::read;
use crate::layout::checksum::{LINK_TARGET_MAGIC, REMOTE};
use crate::layout::dinode::{TARGET_MAX, format};
use crate::layout::raw::RawRemoteHeader;
use ivers_vfs::Result;

impl Checker {
    pub(super) fn check_link(&mut self, slot: &Slot) -> Result<()> {
        let size = slot.raw.di_size.get() as usize;
        let target = match slot.format(Which::Data) {
            format::LOCAL => slot.space(Which::Data).get(..size).map(<[u8]>::to_vec),
            _ => self.remote_target(slot, size.min(TARGET_MAX as usize))?,
        };
        if target.is_some_and(|target| target.contains(&0)) {
            self.bad("link-target-invalid", slot.place(), "the target of the link has a zero byte");
        }
        Ok(())
    }

    fn remote_target(&mut self, slot: &Slot, size: usize) -> Result<Option<Vec<u8>>> {
        let v5 = self.sb.is_v5();
        let header = remote_header_bytes(&self.sb);
        let mapped = self.mapped(slot, Which::Data)?;
        let mut target = Vec::new();
        for extent in &mapped.extents {
            if target.len() >= size {
                break;
            }
            let rest = size - target.len();
            let wanted = (rest + header).div_ceil(self.sb.block_size as usize) as u64;
            let count = extent.len.min(wanted);
            let Some(blocks) = mapped.blocks(self, extent.file_block.0, count) else { return Ok(None) };
            let bytes = self.blocks(&blocks)?;
            let room = bytes.len().saturating_sub(header).min(rest);
            if v5 {
                let place = place_in(slot.ino, blocks.first().copied().unwrap_or_default());
                let head: Option<RawRemoteHeader> = read(&bytes, 0);
                let fits = head.is_some_and(|head| {
                    head.rm_magic.get().to_be_bytes() == *LINK_TARGET_MAGIC
                        && head.rm_offset.get() as usize == target.len()
                        && head.rm_bytes.get() as usize == room
                });
                if !fits {
                    let what = "a block of the target has a wrong magic, offset or length";
                    self.bad("link-target-invalid", place, what);
                    return Ok(None);
                }
                self.check_identity(&bytes, &REMOTE, "a block of the target", &place, slot.ino);
            }
            target.extend_from_slice(&bytes[header..header + room]);
        }
        if target.len() < size && mapped.sound {
            let what = format!("the target has {size} bytes, and blocks for {}", target.len());
            self.bad("link-target-invalid", slot.place(), what);
            return Ok(None);
        }
        Ok(Some(target))
    }
}
