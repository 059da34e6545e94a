//! The superblock's fields, and its copies.

use super::state::Checker;
use crate::layout::csum::crc32c;
use crate::layout::features::{Compat, Incompat, RoCompat};
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::{MAGIC, SUPERBLOCK_LEN};
use ivers_block::{ByteOffset, Device};
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use zerocopy::FromBytes;

/// Where a copy of the superblock is looked for if it is missing: the block size, and the first block of
/// group 1.
const COPIES: [(u64, u64); 4] = [(1024, 8193), (2048, 16384), (4096, 32768), (65536, 65528)];

/// Returns where a copy of a superblock is on a device without a superblock.
pub(super) fn find_copy(device: &dyn Device) -> Result<Option<(u64, u64)>> {
    for (block_bytes, block) in COPIES {
        let at = block_bytes * block;
        if device.size_bytes() < at + SUPERBLOCK_LEN as u64 {
            continue;
        }
        let mut bytes = vec![0; SUPERBLOCK_LEN];
        device.read_at(ByteOffset(at), &mut bytes)?;
        let Ok(copy) = RawSuperblock::read_from_bytes(&bytes) else { continue };
        let first = u64::from(copy.s_first_data_block.get()) + u64::from(copy.s_blocks_per_group.get());
        let fits = copy.s_magic.get() == MAGIC
            // Revision 0 has no such field.
            && (copy.s_block_group_nr.get() == 1 || copy.s_rev_level.get() == 0)
            && copy.s_log_block_size.get() == block_bytes.trailing_zeros() - 10
            && first == block;
        if fits {
            return Ok(Some((block_bytes, block)));
        }
    }
    Ok(None)
}

impl Checker {
    /// Checks what [`crate::layout::Superblock::parse`] accepts although it is wrong.
    pub(super) fn check_superblock(&mut self) {
        let sb = self.sb();
        let mut bad = |code, what: String| self.found.add(code, Place::filesystem(), what);
        if sb.torn {
            bad("superblock-checksum-wrong", "the checksum of the superblock is wrong".into());
        }
        let reserved = u64::from(self.raw.s_r_blocks_count_lo.get());
        if reserved > sb.blocks_count() / 2 {
            bad("superblock-field-wrong", format!("s_r_blocks_count is {reserved}"));
        }
        let extra = u64::from(sb.inode_size) - 128;
        for (name, value) in [
            ("s_min_extra_isize", self.raw.s_min_extra_isize.get()),
            ("s_want_extra_isize", self.raw.s_want_extra_isize.get()),
        ] {
            if value != 0 && extra > 0 && (u64::from(value) > extra || value % 4 != 0 || value < 4) {
                bad("superblock-field-wrong", format!("{name} is {value}"));
            }
        }
        let journal = sb.compat.contains(Compat::HAS_JOURNAL);
        if !journal && (self.raw.s_journal_inum.get() != 0 || self.raw.s_journal_dev.get() != 0) {
            bad("journal-without-feature", "the superblock names a journal, but its feature is off".into());
        }
        if !journal && sb.incompat.contains(Incompat::RECOVER) {
            bad("features-conflict", "needs_recovery is set, but there is no journal".into());
        }
        if sb.ro_compat.contains(RoCompat::METADATA_CSUM) && sb.ro_compat.contains(RoCompat::GDT_CSUM) {
            bad("features-conflict", "uninit_bg and metadata_csum are both set".into());
        }
        if sb.compat.contains(Compat::RESIZE_INODE) && sb.incompat.contains(Incompat::META_BG) {
            bad("features-conflict", "resize_inode and meta_bg are both set".into());
        }
        if !sb.compat.contains(Compat::RESIZE_INODE) && sb.reserved_gdt_blocks() != 0 {
            bad("features-conflict", "descriptor blocks are reserved without resize_inode".into());
        }
        if sb.incompat.contains(Incompat::CSUM_SEED) && !sb.has_csum() {
            bad("features-conflict", "metadata_csum_seed is set without metadata_csum".into());
        }
        if sb.compat.contains(Compat::ORPHAN_FILE) && sb.orphan_file_inum == 0 {
            bad("orphan-file-invalid", "the superblock names no orphan file".into());
        }
        if sb.hurd && sb.incompat.contains(Incompat::FILETYPE) {
            bad("features-conflict", "the Hurd, which made this filesystem, has no filetype".into());
        }
    }

    /// Compares the geometry in the copies. Their counts and some features may be old.
    pub(super) fn check_backups(&mut self) -> Result<()> {
        let sb = self.sb();
        for group in sb.copies() {
            let block = sb.group_first_block(group).0;
            let mut bytes = vec![0; SUPERBLOCK_LEN];
            self.reader.dev.read_at(ByteOffset(block * u64::from(sb.block_size)), &mut bytes)?;
            let Ok(copy) = RawSuperblock::read_from_bytes(&bytes) else { continue };
            let fixed = |raw: &RawSuperblock| {
                [
                    raw.s_magic.get().into(),
                    raw.s_log_block_size.get(),
                    raw.s_blocks_count_lo.get(),
                    raw.s_blocks_per_group.get(),
                    raw.s_inodes_per_group.get(),
                    u32::from(raw.s_inode_size.get()),
                    raw.s_feature_incompat.get() & !(Incompat::RECOVER | Incompat::EXTENTS).bits(),
                ]
            };
            let place = Place::group(group).at(block);
            if copy.s_magic.get() != MAGIC {
                self.bad("backup-superblock-wrong", place, "the copy of the superblock has no magic number");
            } else if fixed(&copy) != fixed(&self.raw) {
                self.bad("backup-superblock-wrong", place, "the copy of the superblock has another geometry");
            } else if sb.has_csum()
                && copy.s_feature_ro_compat.get() & RoCompat::METADATA_CSUM.bits() != 0
                && crc32c(!0, &bytes[..SUPERBLOCK_LEN - 4]) != copy.s_checksum.get()
            {
                let what = "the checksum of the copy of the superblock is wrong";
                self.bad("backup-superblock-wrong", place, what);
            }
        }
        Ok(())
    }
}
