//! The sessions of a resize on the filesystem, and the copies of superblock and descriptors.

use super::plan::{Plan, decode};
use crate::fs::Ext4;
use crate::layout::features::{Incompat, RoCompat};
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::{STATE_VALID, SUPERBLOCK_LEN, SUPERBLOCK_OFFSET, Superblock, seal};
use crate::open::OpenOptions;
use ivers_block::Device;
use ivers_vfs::{Error, FileSystem, Result};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The sizes of a filesystem that was resized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeReport {
    /// Block size in bytes.
    pub block_size: u32,
    /// Number of blocks before.
    pub old_blocks: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of inodes.
    pub inodes: u32,
    /// Number of block groups.
    pub groups: u32,
}

impl ResizeReport {
    pub(super) fn unchanged(sb: &Superblock) -> Self {
        Self {
            block_size: sb.block_size,
            old_blocks: sb.blocks_count(),
            blocks: sb.blocks_count(),
            inodes: sb.inodes_count(),
            groups: sb.groups(),
        }
    }

    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            block_size: plan.new.block_size,
            old_blocks: plan.old.blocks_count(),
            blocks: plan.new.blocks_count(),
            inodes: plan.new.inodes_count(),
            groups: plan.new.groups(),
        }
    }
}

/// Opens the filesystem, as a mount does, calls `f`, and closes it.
pub(super) fn session<T>(
    device: &Arc<dyn Device>,
    options: &OpenOptions,
    f: impl FnOnce(&Ext4) -> Result<T>,
) -> Result<T> {
    let fs = Ext4::open(device.clone(), options.clone())?;
    if let Some(why) = &fs.read_only {
        return Err(Error::Incompatible(format!("{} cannot be resized: {why}", fs.place)));
    }
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

/// Writes the copies of superblock and descriptors. The filesystem is closed.
pub(super) fn write_copies(device: &dyn Device, plan: &Plan) -> Result<()> {
    let sb = &plan.new;
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    let raw = decode(&bytes, "superblock")?;
    let first = sb.superblock_place().0 + 1;
    let mut table = vec![0; sb.desc_blocks() as usize * sb.block_size as usize];
    device.read_at(first.offset(sb.block_size), &mut table)?;
    put_copies(device, sb, raw, &table)
}

/// Writes the copies while the filesystem is in use. They show it as closed, as after mkfs.
pub(super) fn write_copies_in_use(fs: &Ext4) -> Result<()> {
    let sb = &fs.sb;
    let (block, byte) = sb.superblock_place();
    let mut raw = decode(&fs.cache.get(block)?.read()[byte..], &fs.place)?;
    raw.s_feature_incompat = (raw.s_feature_incompat.get() & !Incompat::RECOVER.bits()).into();
    raw.s_feature_ro_compat = (raw.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits()).into();
    raw.s_state = (raw.s_state.get() | STATE_VALID).into();
    raw.s_last_orphan = 0.into();
    let mut table = Vec::with_capacity(sb.desc_blocks() as usize * sb.block_size as usize);
    for block in (block + 1).run(sb.desc_blocks().into()) {
        table.extend_from_slice(&fs.cache.get(block)?.read());
    }
    put_copies(&*fs.dev, sb, raw, &table)
}

fn put_copies(device: &dyn Device, sb: &Superblock, mut raw: RawSuperblock, table: &[u8]) -> Result<()> {
    for group in (1..sb.groups()).filter(|&group| sb.has_super(group)) {
        let block = sb.group_first_block(group);
        raw.s_block_group_nr = (group as u16).into();
        seal(&mut raw);
        device.write_at((block + 1).offset(sb.block_size), table)?;
        device.write_at(block.offset(sb.block_size), raw.as_bytes())?;
    }
    Ok(device.flush()?)
}
