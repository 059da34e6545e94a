//! Quota files: their records, and the usage that they record.

use super::fork::{Which, place_in};
use super::state::{Checker, Slot, Usage, kind};
use crate::layout::bytes::number;
use crate::layout::checksum::checksum;
use ivers_vfs::Result;
use ivers_vfs::check::Place;

/// Bytes of a record with its checksum.
const RECORD_BYTES: usize = 136;
/// The blocks that are used; the inodes follow.
const BLOCKS_AT: usize = 40;
const CRC_AT: usize = 108;
const LSN_AT: usize = 112;
const UUID_AT: usize = 120;
const MAGIC: u64 = 0x4451;
/// The type of the limits that a record has: of users, projects, groups. A flag says that times are large.
const TYPES: [u64; 3] = [1, 2, 4];
const LARGE_TIMES: u64 = 0x80;

/// Bits of `sb_qflags`: the usage of users, projects and groups was counted.
const COUNTED: [u16; 3] = [0x4, 0x400, 0x100];

impl Checker {
    /// Whether the quota file of a type should have the usage.
    fn is_counted(&self, nth: usize) -> bool {
        self.sb.is_v5() && !self.stale_counts && self.raw.sb_qflags.get() & COUNTED[nth] != 0
    }

    /// Counts what an inode uses. Quota files count for nobody.
    pub(super) fn count_usage(&mut self, slot: &Slot) {
        let raw = &slot.raw;
        let quotas = [self.raw.sb_uquotino.get(), self.raw.sb_pquotino.get(), self.raw.sb_gquotino.get()];
        if quotas.contains(&slot.ino) {
            return;
        }
        let project = u32::from(raw.di_projid_hi.get()) << 16 | u32::from(raw.di_projid.get());
        for (nth, id) in [raw.di_uid.get(), project, raw.di_gid.get()].into_iter().enumerate() {
            if self.is_counted(nth) {
                let usage = self.usage[nth].entry(id).or_default();
                usage.blocks = usage.blocks.saturating_add(raw.di_nblocks.get());
                usage.inodes += 1;
            }
        }
    }

    pub(super) fn check_quotas(&mut self) -> Result<()> {
        let raw = &self.raw;
        let files = [raw.sb_uquotino.get(), raw.sb_pquotino.get(), raw.sb_gquotino.get()];
        for (nth, ino) in files.into_iter().enumerate() {
            let found = self.kind(ino);
            let is_file = found & kind::TYPE == kind::REGULAR && found & kind::UNSOUND == 0;
            if !self.hidden.contains(&ino) || !is_file {
                continue;
            }
            self.check_quota_file(ino, nth)?;
            // What is left has no record.
            for (id, usage) in std::mem::take(&mut self.usage[nth]) {
                if usage != Usage::default() {
                    self.compare_usage(&Place::inode(ino), id, Usage::default(), usage);
                }
            }
        }
        Ok(())
    }

    fn compare_usage(&mut self, place: &Place, id: u32, stored: Usage, counted: Usage) {
        // Damaged inodes are not counted.
        if stored == counted || self.maps_unsound {
            return;
        }
        let what = format!(
            "id {id} uses {} blocks and {} inodes, the quota file says {} and {}",
            counted.blocks, counted.inodes, stored.blocks, stored.inodes
        );
        self.bad("quota-usage-wrong", place.clone(), what);
    }

    fn check_quota_file(&mut self, ino: u64, nth: usize) -> Result<()> {
        let record_type = TYPES[nth];
        let Some(slot) = self.slot(ino)? else { return Ok(()) };
        let mapped = self.mapped(&slot, Which::Data)?;
        let per_block = self.sb.block_size as usize / RECORD_BYTES;
        for extent in mapped.extents.iter().filter(|extent| !extent.unwritten) {
            for at in extent.file_block.0..extent.file_block.0 + extent.len {
                let Some(blocks) = mapped.blocks(self, at, 1) else { continue };
                let bytes = self.blocks(&blocks)?;
                let place = place_in(ino, blocks[0]);
                for (index, record) in bytes.chunks_exact(RECORD_BYTES).enumerate() {
                    let id = at * per_block as u64 + index as u64;
                    let field = |at, len| number(record, at, len).unwrap_or(0);
                    let is_right = field(0, 2) == MAGIC
                        && field(2, 1) == 1
                        && field(3, 1) & !LARGE_TIMES == record_type
                        && field(4, 4) == id;
                    if !is_right {
                        let what = format!("the record of id {id} has a wrong magic, version, type or id");
                        self.bad("quota-record-invalid", place.clone(), what);
                    }
                    let stored = Usage { blocks: field(BLOCKS_AT, 8), inodes: field(BLOCKS_AT + 8, 8) };
                    if let (true, Ok(id)) = (is_right && self.is_counted(nth), u32::try_from(id)) {
                        let counted = self.usage[nth].remove(&id).unwrap_or_default();
                        self.compare_usage(&place, id, stored, counted);
                    }
                    if !self.sb.is_v5() {
                        continue;
                    }
                    if number(record, CRC_AT, 4).map(|crc| (crc as u32).swap_bytes())
                        != Some(checksum(record, CRC_AT))
                    {
                        self.bad(
                            "checksum-wrong",
                            place.clone(),
                            format!("the checksum of the record of id {id} is wrong"),
                        );
                    }
                    if record.get(UUID_AT..UUID_AT + 16) != Some(&self.sb.meta_uuid[..]) {
                        self.bad(
                            "identity-wrong",
                            place.clone(),
                            format!("the record of id {id} has another UUID"),
                        );
                    }
                    self.check_lsn(field(LSN_AT, 8), "a quota record", &place);
                }
            }
        }
        Ok(())
    }
}
