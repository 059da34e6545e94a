//! Moving the blocks of files below the new end.

use super::fits::each_used_inode;
use super::resize_inode;
use crate::dir::linear::le32;
use crate::fs::{Ext4, core_of};
use crate::layout::inode::offset::I_BLOCKS_LO;
use crate::layout::inode::{BAD_BLOCKS_INO, FL_EA_INODE, FL_EXTENTS, FL_INLINE_DATA, RESIZE_INO, slot_state};
use crate::map::Contents;
use ivers_block::BlockNo;
use ivers_vfs::{Error, FileType, Inode, Result};
use std::collections::HashMap;

/// Refuses a filesystem with damaged blocks: they cannot move.
pub(super) fn check_no_bad_blocks(fs: &Ext4) -> Result<()> {
    if fs.raw_inode_if_written(BAD_BLOCKS_INO)?.is_none_or(|slot| le32(&slot, I_BLOCKS_LO) == 0) {
        return Ok(());
    }
    Err(Error::Incompatible(format!(
        "{} cannot shrink: damaged blocks are recorded (inode {BAD_BLOCKS_INO}), which cannot move",
        fs.place
    )))
}

/// Moves the blocks of all inodes of the first `groups` groups that lie at `limit` or after it. The journal
/// has moved before.
pub(super) fn relocate(fs: &Ext4, groups: u32, limit: BlockNo) -> Result<()> {
    resize_inode::relocate(fs, limit)?;
    let mut shared = HashMap::new();
    for group in 0..groups {
        each_used_inode(fs, group, &mut |ino| relocate_inode(fs, ino, limit, &mut shared))?;
    }
    Ok(())
}

fn relocate_inode(fs: &Ext4, ino: u32, limit: BlockNo, shared: &mut HashMap<BlockNo, BlockNo>) -> Result<()> {
    let Some(slot) = fs.raw_inode_if_written(ino)? else { return Ok(()) };
    let is_journal = fs.has_journal() && ino == fs.sb.journal_inum;
    if slot_state(&slot).mode == 0 || [BAD_BLOCKS_INO, RESIZE_INO].contains(&ino) || is_journal {
        return Ok(());
    }
    let inode = Inode::detached(fs.load(ino, true)?);
    fs.relocate_attribute_block(&inode, limit, shared)?;
    let (flags, size) = {
        let core = core_of(&inode).read();
        (core.flags, core.disk_size)
    };
    let has_map = match inode.kind {
        FileType::Regular | FileType::Directory => true,
        FileType::Symlink => flags & FL_EXTENTS != 0 || size >= 60,
        _ => false,
    };
    if !has_map || flags & FL_INLINE_DATA != 0 {
        return Ok(());
    }
    let contents = if fs.has_orphan_file() && ino == fs.orphan_file_ino()? {
        Contents::OrphanFile
    } else if inode.kind != FileType::Regular || flags & FL_EA_INODE != 0 {
        Contents::Journalled
    } else {
        Contents::Data
    };
    fs.relocate_map(&inode, limit, contents)
}
