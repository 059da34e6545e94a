//! The superblock's own fields, and its copies at the start of each group.

use super::state::Checker;
use crate::layout::bytes::{MAGIC_AGF, MAGIC_AGI, MAGIC_SUPERBLOCK, number, read};
use crate::layout::checksum::SUPERBLOCK;
use crate::layout::features::{Incompat, RoCompat, Version};
use crate::layout::raw::{RawAgf, RawSuperblock};
use crate::layout::superblock::Superblock;
use ivers_block::{ByteOffset, Device};
use ivers_vfs::Result;
use ivers_vfs::check::{Findings, Place};
use std::mem::size_of;

/// The end of the superblock's fields. The rest of its sector is zeros.
const FIELDS_END: usize = size_of::<RawSuperblock>();
/// Features that later formats added after these fields.
const LONGER: Incompat = Incompat::METADIR.union(Incompat::ZONED).union(Incompat::ZONE_GAPS);

/// Finds out whether the superblock of a device was destroyed: the heads of the first group are there.
pub(super) fn check_remains(device: &dyn Device) -> Result<Option<Findings>> {
    for sector_bits in 9..16 {
        let sector = 1u64 << sector_bits;
        let mut bytes = vec![0; 2 * 512];
        if device.size_bytes() < 4 * sector {
            break;
        }
        let (agf, agi) = bytes.split_at_mut(512);
        device.read_at(ByteOffset(sector), agf)?;
        device.read_at(ByteOffset(2 * sector), agi)?;
        let Some(raw) = read::<RawAgf>(agf, 0) else { continue };
        let is_first = raw.agf_magicnum.get() == MAGIC_AGF && raw.agf_seqno.get() == 0;
        if is_first && number(agi, 0, 4) == Some(MAGIC_AGI.into()) {
            let mut found = Findings::default();
            let what = "there is no superblock, but the heads of the first group: try xfs_repair on a copy \
                        of the image, which looks for a copy of the superblock";
            found.add("superblock-invalid", Place::filesystem(), what);
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns whether the first superblock asks for something that the copy in the second group does not.
pub(super) fn contradicts_copy(device: &dyn Device, head: &[u8]) -> Result<bool> {
    let Some(raw) = read::<RawSuperblock>(head, 0) else { return Ok(false) };
    let at = u64::from(raw.sb_agblocks.get()) * u64::from(raw.sb_blocksize.get());
    if at == 0 || device.size_bytes() < at + 512 {
        return Ok(false);
    }
    let mut bytes = vec![0; 512];
    device.read_at(ByteOffset(at), &mut bytes)?;
    let Some(copy) = read::<RawSuperblock>(&bytes, 0) else { return Ok(false) };
    let is_copy = copy.sb_magicnum.get() == MAGIC_SUPERBLOCK && copy.sb_uuid == raw.sb_uuid;
    Ok(is_copy
        && (copy.sb_features_incompat != raw.sb_features_incompat
            || copy.sb_versionnum.get() & 0xF != raw.sb_versionnum.get() & 0xF
            || copy.sb_logstart != raw.sb_logstart
            // mkfs.xfs leaves it set in the copies.
            || (raw.sb_inprogress != 0 && copy.sb_inprogress == 0)))
}

/// Fields that are equal in all copies.
fn geometry(raw: &RawSuperblock) -> Vec<(&'static str, u64)> {
    // Linux sets these in the first superblock alone.
    let changing = Version::ATTR | Version::QUOTA;
    vec![
        ("sb_blocksize", raw.sb_blocksize.get().into()),
        ("sb_dblocks", raw.sb_dblocks.get()),
        ("sb_rblocks", raw.sb_rblocks.get()),
        ("sb_rextents", raw.sb_rextents.get()),
        ("sb_logstart", raw.sb_logstart.get()),
        ("sb_rextsize", raw.sb_rextsize.get().into()),
        ("sb_agblocks", raw.sb_agblocks.get().into()),
        ("sb_agcount", raw.sb_agcount.get().into()),
        ("sb_rbmblocks", raw.sb_rbmblocks.get().into()),
        ("sb_logblocks", raw.sb_logblocks.get().into()),
        ("sb_versionnum", (raw.sb_versionnum.get() & !changing.bits()).into()),
        ("sb_sectsize", raw.sb_sectsize.get().into()),
        ("sb_inodesize", raw.sb_inodesize.get().into()),
        ("sb_inopblock", raw.sb_inopblock.get().into()),
        ("sb_inoalignmt", raw.sb_inoalignmt.get().into()),
        ("sb_blocklog", raw.sb_blocklog.into()),
        ("sb_sectlog", raw.sb_sectlog.into()),
        ("sb_inodelog", raw.sb_inodelog.into()),
        ("sb_inopblog", raw.sb_inopblog.into()),
        ("sb_agblklog", raw.sb_agblklog.into()),
        ("sb_rextslog", raw.sb_rextslog.into()),
        ("sb_dirblklog", raw.sb_dirblklog.into()),
        ("sb_logsectlog", raw.sb_logsectlog.into()),
        ("sb_logsectsize", raw.sb_logsectsize.get().into()),
        ("sb_logsunit", raw.sb_logsunit.get().into()),
        ("sb_features_incompat", (raw.sb_features_incompat.get() & !Incompat::NEEDSREPAIR.bits()).into()),
        ("sb_features_ro_compat", raw.sb_features_ro_compat.get().into()),
        ("sb_spino_align", raw.sb_spino_align.get().into()),
    ]
}

/// Fields of the first superblock or of a copy that are impossible, or contradict the geometry.
fn impossible_fields(raw: &RawSuperblock, sb: &Superblock) -> Vec<(&'static str, u64)> {
    let log_sector = u32::from(raw.sb_logsectsize.get());
    let (unit, width) = (raw.sb_unit.get(), raw.sb_width.get());
    let is_stripe = (unit, width) == (0, 0) || (unit > 0 && width > 0 && width.is_multiple_of(unit));
    let v5 = sb.is_v5();
    let sparse = sb.incompat.contains(Incompat::SPARSE);
    // With large blocks a chunk is a part of one, and nothing is aligned.
    let chunk_blocks = 64u32.checked_shr(sb.inopb_bits).unwrap_or(0);
    let (inode_align, part_align) = (raw.sb_inoalignmt.get(), raw.sb_spino_align.get());
    let (extents, free_extents) = (raw.sb_rextents.get(), raw.sb_frextents.get());
    let no_realtime = raw.sb_rblocks.get() == 0;
    let version = raw.sb_versionnum.get();
    let no_more_bits = v5 && version & Version::MOREBITS.bits() == 0;
    let foreign = !sb.incompat.contains(Incompat::META_UUID) && raw.sb_meta_uuid != [0; 16];
    let fields = [
        (raw.sb_inopblock.get() != 1 << sb.inopb_bits, "sb_inopblock", raw.sb_inopblock.get().into()),
        (raw.sb_rextsize.get() == 0, "sb_rextsize", raw.sb_rextsize.get().into()),
        (raw.sb_imax_pct > 100, "sb_imax_pct", raw.sb_imax_pct.into()),
        (!is_stripe, "sb_width", width.into()),
        (
            v5 && raw.sb_logsectlog > 0 && Some(log_sector) != 1u32.checked_shl(raw.sb_logsectlog.into()),
            "sb_logsectsize",
            log_sector.into(),
        ),
        (raw.sb_logsectlog == 0 && log_sector != 0, "sb_logsectsize", log_sector.into()),
        (no_realtime && extents != 0, "sb_rextents", extents),
        (no_realtime && free_extents != 0, "sb_frextents", free_extents),
        (no_realtime && raw.sb_rbmblocks.get() != 0, "sb_rbmblocks", raw.sb_rbmblocks.get().into()),
        (raw.sb_qflags.get() & !0x7FF != 0, "sb_qflags", raw.sb_qflags.get().into()),
        (raw.sb_flags != 0, "sb_flags", raw.sb_flags.into()),
        (raw.sb_shared_vn != 0, "sb_shared_vn", raw.sb_shared_vn.into()),
        (sparse && chunk_blocks > 0 && part_align == 0, "sb_spino_align", part_align.into()),
        (sparse && inode_align != chunk_blocks, "sb_inoalignmt", inode_align.into()),
        (!sparse && part_align != 0, "sb_spino_align", part_align.into()),
        (raw.sb_features2 != raw.sb_bad_features2, "sb_bad_features2", raw.sb_bad_features2.get().into()),
        (raw.sb_features_compat.get() != 0, "sb_features_compat", raw.sb_features_compat.get().into()),
        (no_more_bits, "sb_versionnum", version.into()),
        (foreign, "sb_meta_uuid", number(&raw.sb_meta_uuid, 0, 8).unwrap_or(0)),
    ];
    fields.into_iter().filter(|(is_wrong, ..)| *is_wrong).map(|(_, name, value)| (name, value)).collect()
}

impl Checker {
    /// Checks the fields that are not needed to read the rest.
    pub(super) fn check_superblock(&mut self) -> Result<()> {
        let (raw, sb) = (self.raw.clone(), self.sb.clone());
        let v5 = sb.is_v5();
        let mut wrong = impossible_fields(&raw, &sb);
        if raw.sb_ifree.get() > raw.sb_icount.get() && !self.stale_counts {
            wrong.push(("sb_ifree", raw.sb_ifree.get()));
        }
        for (name, value) in wrong {
            let what = format!("{name} is {value}, which is impossible or contradicts other fields");
            self.bad("superblock-field-wrong", Place::filesystem(), what);
        }
        if v5 {
            let (ro, incompat) = (sb.ro_compat, sb.incompat);
            let conflicts = [
                (
                    ro.contains(RoCompat::INOBTCNT) && !ro.contains(RoCompat::FINOBT),
                    "inobtcnt without finobt",
                ),
                (!incompat.contains(Incompat::FTYPE), "version 5 without ftype"),
            ];
            for (_, what) in conflicts.into_iter().filter(|(is_wrong, _)| *is_wrong) {
                self.bad("features-conflict", Place::filesystem(), what);
            }
            if incompat.contains(Incompat::NEEDSREPAIR) {
                let what = "the filesystem is marked as damaged (needsrepair)";
                self.bad("repair-required", Place::filesystem(), what);
            }
            self.check_lsn(raw.sb_lsn.get(), "the superblock", &Place::filesystem());
        }
        let (first, second) = (raw.sb_rbmino.get(), raw.sb_rsumino.get());
        for (ino, name, after) in [(first, "sb_rbmino", 1), (second, "sb_rsumino", 2)] {
            if ino != sb.root.wrapping_add(after) {
                let what = format!("{name} is {ino}, which is not the inode at its place after the root");
                self.bad("superblock-field-wrong", Place::filesystem(), what);
            }
        }
        Ok(())
    }

    /// Checks the copy of the superblock at the start of a group.
    pub(super) fn check_copy(&mut self, ag: u32, sector: &[u8]) {
        let place = Place::group(ag);
        let Some(copy) = read::<RawSuperblock>(sector, 0) else { return };
        let code = if ag == 0 { "superblock-field-wrong" } else { "superblock-copy-wrong" };
        if ag > 0 {
            if copy.sb_magicnum.get() != MAGIC_SUPERBLOCK {
                return self.bad(code, place, "there is no copy of the superblock");
            }
            if self.sb.is_v5() && !SUPERBLOCK.has_valid_crc(sector) {
                let what = "the checksum of a copy of the superblock is wrong";
                self.bad("checksum-wrong", place.clone(), what);
            }
            if copy.sb_inprogress != 0 && copy.sb_inprogress != 1 {
                self.bad(code, place.clone(), "sb_inprogress of a copy is impossible");
            }
            let quotas = |raw: &RawSuperblock| {
                let named = |ino: u64| if ino == u64::MAX { 0 } else { ino };
                let inos = [raw.sb_uquotino.get(), raw.sb_gquotino.get(), raw.sb_pquotino.get()];
                (inos.map(named), raw.sb_qflags.get())
            };
            // Growing copies the first superblock as it is then.
            if !matches!(quotas(&copy), ([0, 0, 0], 0)) && quotas(&copy) != quotas(&self.raw) {
                self.bad(code, place.clone(), "a copy of the superblock has other quota files");
            }
            if copy.sb_uuid != self.raw.sb_uuid {
                self.bad(code, place.clone(), "a copy of the superblock has another UUID");
            }
            for (name, value) in impossible_fields(&copy, &self.sb.clone()) {
                let what = format!("{name} of a copy of the superblock is {value}, which is impossible");
                self.bad(code, place.clone(), what);
            }
            let fields = geometry(&copy).into_iter().zip(geometry(&self.raw));
            let differing: Vec<_> = fields.filter(|(copy, first)| copy != first).collect();
            for ((name, copy), (_, first)) in differing {
                let what = format!("{name} is {copy} in a copy of the superblock, and {first} in the first");
                self.bad(code, place.clone(), what);
            }
        }
        let longer = self.sb.incompat.intersects(LONGER);
        if !longer && sector.get(FIELDS_END..).is_some_and(|rest| rest.iter().any(|byte| *byte != 0)) {
            self.bad(code, place, "the end of the superblock's sector is not zero");
        }
    }
}

/// Whether the superblock has the count of free blocks without those of B-trees and free lists.
pub(super) fn counts_lazily(sb: &Superblock) -> bool {
    sb.is_v5() || sb.features2.contains(crate::layout::features::Features2::LAZYSBCOUNT)
}
