//! Checksums of the heads of allocation groups.

use crate::layout::checksum::{AGF, AGFL, AGI, SelfDescription};
use crate::layout::superblock::Superblock;
use ivers_block::Buffer;

/// Checks the checksums of the heads in a block, once after it was read from the device: a change in memory
/// has no checksum until it is written.
pub(crate) fn check_heads(sb: &Superblock, buffer: &Buffer) -> std::result::Result<(), String> {
    if buffer.is_verified() {
        return Ok(());
    }
    for sector in buffer.read().chunks_exact(sb.sector_size as usize) {
        let head = SelfDescription::of(sector).filter(|kind| [&AGF, &AGI, &AGFL].contains(kind));
        if head.is_some_and(|kind| !kind.has_valid_crc(sector)) {
            return Err("bad checksum of a group header; run xfs_repair".into());
        }
    }
    buffer.set_verified();
    Ok(())
}
