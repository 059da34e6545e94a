//! The label of a filesystem that nobody has open: in the superblock and its copies.

use crate::layout::bytes::{MAGIC_SUPERBLOCK, read};
use crate::layout::checksum::SUPERBLOCK;
use crate::layout::features::RoCompat;
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::Superblock;
use crate::log;
use crate::open::read_super;
use ivers_block::{ByteOffset, Device};
use ivers_vfs::{Error, Result};
use std::mem::offset_of;

const LABEL_BYTES: usize = offset_of!(RawSuperblock, sb_blocklog) - offset_of!(RawSuperblock, sb_fname);

/// Sets the label durably; an empty one removes it. The log must be clean. `place` names a damaged image in
/// errors. After a crash the superblock, which counts, has the old label or the new one.
pub fn set_label(device: &dyn Device, label: &str, place: &str) -> Result<()> {
    let stored = stored_label(label)?;
    let sb = read_super(device, place)?;
    let refuse = |why: String| Err(Error::Incompatible(why));
    let unknown = sb.ro_compat.difference(RoCompat::KNOWN).feature_names();
    if !sb.is_v5() {
        return refuse("XFS of version 4 is only read; set the label with xfs_admin -L".into());
    }
    if !unknown.is_empty() {
        return refuse(format!("this driver cannot write the feature {}", unknown.join(", ")));
    }
    if !log::is_clean(device, &sb, place)? {
        // The superblock in the log would replace this one.
        return refuse("the log is dirty; mount and unmount the image with Linux first".into());
    }
    for group in (1..sb.ag_count).rev() {
        let Some(block) = sb.ag_block(group, 0) else { continue };
        let at = block.offset(sb.block_size);
        let sector = read_sector(device, &sb, at)?;
        // A damaged copy is not made valid.
        if is_valid(&sector, &sb) {
            device.write_at(at, &with_label(sector, stored))?;
        }
    }
    device.flush()?;
    let sector = read_sector(device, &sb, ByteOffset(0))?;
    device.write_at(ByteOffset(0), &with_label(sector, stored))?;
    Ok(device.flush()?)
}

/// Returns a label as it is stored.
pub(crate) fn stored_label(label: &str) -> Result<[u8; LABEL_BYTES]> {
    let mut stored = [0; LABEL_BYTES];
    if label.len() > LABEL_BYTES {
        let why = format!("a label has at most {LABEL_BYTES} bytes, not {}", label.len());
        return Err(Error::Incompatible(why));
    }
    if label.contains('\0') {
        return Err(Error::Incompatible("a label cannot contain NUL".into()));
    }
    stored[..label.len()].copy_from_slice(label.as_bytes());
    Ok(stored)
}

fn read_sector(device: &dyn Device, sb: &Superblock, at: ByteOffset) -> Result<Vec<u8>> {
    let mut sector = vec![0; sb.sector_size as usize];
    device.read_at(at, &mut sector)?;
    Ok(sector)
}

fn is_valid(sector: &[u8], sb: &Superblock) -> bool {
    let same = |raw: RawSuperblock| raw.sb_magicnum.get() == MAGIC_SUPERBLOCK && raw.sb_uuid == sb.uuid;
    SUPERBLOCK.has_valid_crc(sector) && read(sector, 0).is_some_and(same)
}

fn with_label(mut sector: Vec<u8>, label: [u8; LABEL_BYTES]) -> Vec<u8> {
    let at = offset_of!(RawSuperblock, sb_fname);
    sector[at..at + LABEL_BYTES].copy_from_slice(&label);
    let lsn = SUPERBLOCK.lsn(&sector).unwrap_or(0);
    SUPERBLOCK.seal(&mut sector, lsn);
    sector
}
