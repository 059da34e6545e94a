//! The sessions of a resize on the filesystem, and the copies of superblock and descriptors.

use super::plan::Plan;
use crate::fs::Ext4;
use crate::layout::features::{Incompat, RoCompat};
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::{STATE_VALID, SUPERBLOCK_LEN, SUPERBLOCK_OFFSET, Superblock, decode, seal};
use crate::open::OpenOptions;
use ivers_block::Device;
use ivers_vfs::{Error, FileSystem, ResizeReport, Result};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The sizes before and after a change.
pub(super) fn report(old: &Superblock, new: &Superblock) -> ResizeReport {
    ResizeReport {
        block_size: new.block_size,
        old_blocks: old.blocks_count(),
        blocks: new.blocks_count(),
        inodes: new.inodes_count().into(),
        groups: new.groups(),
    }
}

/// Refuses a filesystem that can only be read.
pub(super) fn check_writable(fs: &Ext4) -> Result<()> {
    match &fs.read_only {
        Some(why) => Err(Error::Incompatible(format!("{} cannot be resized: {why}", fs.place))),
        None => Ok(()),
    }
}

/// Opens the filesystem, as a mount does, calls `f`, and closes it.
pub(super) fn session<T>(
    device: &Arc<dyn Device>,
    options: &OpenOptions,
    f: impl FnOnce(&Ext4) -> Result<T>,
) -> Result<T> {
    let fs = Ext4::open(device.clone(), options.clone())?;
    check_writable(&fs)?;
    let done = f(&fs);
    if let Err(error @ (Error::Io(_) | Error::FileData(_) | Error::Corrupt { .. })) = &done {
        // Part of a transaction may be in memory: it must not reach the device.
        fs.abort(error);
    }
    let closed = fs.unmount();
    let result = done?;
    closed?;
    Ok(result)
}

/// Reads the superblock of a closed filesystem.
pub(super) fn stored_super(device: &dyn Device) -> Result<RawSuperblock> {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    decode(&bytes, "superblock")
}

/// Writes the copies of superblock and descriptors. The filesystem is closed.
pub(super) fn write_copies(device: &dyn Device, plan: &Plan) -> Result<()> {
    let sb = &plan.new;
    let raw = stored_super(device)?;
    let first = sb.superblock_place().0 + 1;
    let mut table = vec![0; sb.desc_blocks() as usize * sb.block_size as usize];
    device.read_at(first.offset(sb.block_size), &mut table)?;
    put_copies(device, sb, raw, &table)
}

/// Writes the copies while the filesystem is in use. They show it as closed, as after mkfs.
pub(super) fn write_copies_in_use(fs: &Ext4) -> Result<()> {
    let sb = &fs.sb;
    let mut raw = fs.raw_super()?;
    raw.s_feature_incompat = (raw.s_feature_incompat.get() & !Incompat::RECOVER.bits()).into();
    raw.s_feature_ro_compat = (raw.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits()).into();
    raw.s_state = (raw.s_state.get() | STATE_VALID).into();
    raw.s_last_orphan = 0.into();
    let mut table = Vec::with_capacity(sb.desc_blocks() as usize * sb.block_size as usize);
    let first = sb.superblock_place().0 + 1;
    for block in first.run(sb.desc_blocks().into()) {
        table.extend_from_slice(&fs.cache.get(block)?.read());
    }
    put_copies(&*fs.dev, sb, raw, &table)
}

fn put_copies(device: &dyn Device, sb: &Superblock, mut raw: RawSuperblock, table: &[u8]) -> Result<()> {
    for group in sb.copies() {
        let block = sb.group_first_block(group);
        raw.s_block_group_nr = (group as u16).into();
        seal(&mut raw);
        device.write_at((block + 1).offset(sb.block_size), table)?;
        device.write_at(block.offset(sb.block_size), raw.as_bytes())?;
    }
    Ok(device.flush()?)
}
