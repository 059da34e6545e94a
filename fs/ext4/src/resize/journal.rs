//! Moving the journal.
//!
//! A journal cannot log the change of its own position: the program that replays it would go on using the
//! old one. So the filesystem is closed while the position changes.
//!
//! | step | what is written | a crash after it leaves |
//! |---|---|---|
//! | 1 | a session: new blocks are used, the filesystem is not cleanly unmounted | blocks that nothing uses |
//! | 2 | an empty log in the new blocks; the copy of the map in the superblock | the same |
//! | 3 | the map of the journal's inode, within one sector | the old blocks instead of the new ones |
//! | 4 | a session: the old blocks are free | nothing to repair |
//!
//! Because of the mark, e2fsck looks for such blocks and frees them.

use super::session::{session, stored_super};
use crate::dir::linear::{le32, put16, put32};
use crate::fs::{Ext4, core_of};
use crate::layout::inode::offset::{I_BLOCK, I_BLOCKS_HIGH, I_BLOCKS_LO};
use crate::layout::inode::{FL_EXTENTS, seal_slot};
use crate::layout::superblock::{STATE_VALID, SUPERBLOCK_OFFSET, Superblock, seal};
use crate::map::node::MAX_LEN;
use crate::map::{Extent, MAP_CREDITS, empty_root};
use crate::open::OpenOptions;
use ivers_block::{BlockNo, Device, FileBlock};
use ivers_vfs::{Error, Inode, RangeKind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// `s_jnl_backup_type`: the map and the size of the journal's inode are in `s_jnl_blocks`.
const BACKUP_BLOCKS: u8 = 1;

/// The new position, not yet in effect.
struct Moved {
    sb: Superblock,
    /// The journal's slot: block and first byte.
    slot: (BlockNo, usize),
    i_block: [u8; 60],
    blocks_512: u64,
    size: u64,
    /// The block that holds the log's superblock.
    first: BlockNo,
    new: Vec<Extent>,
    old: Vec<Extent>,
    old_nodes: Vec<BlockNo>,
    was_unclean: bool,
}

/// Moves the blocks of the journal that lie at `limit` or after it.
pub(super) fn relocate(device: &Arc<dyn Device>, limit: BlockNo, options: &OpenOptions) -> Result<()> {
    if !is_beyond(device, limit, options)? {
        return Ok(());
    }
    let moved = session(device, options, |fs| {
        fs.groups.limit.store(limit.0, Ordering::Relaxed);
        allocate(fs, limit)
    })?;
    switch(&**device, &moved)?;
    let options = OpenOptions { own_mark: true, ..options.clone() };
    session(device, &options, |fs| {
        fs.groups.limit.store(limit.0, Ordering::Relaxed);
        fs.stays_unclean.store(moved.was_unclean, Ordering::Relaxed);
        let mut h = fs.begin(8)?;
        for run in &moved.old {
            h.ensure(8)?;
            fs.free_blocks(&mut h, run.start, run.len, false)?;
        }
        for &node in &moved.old_nodes {
            h.ensure(8)?;
            fs.free_blocks(&mut h, node, 1, true)?;
        }
        Ok(())
    })
}

/// Whether any block of the journal or of its map lies at `limit` or after it. Writes nothing.
fn is_beyond(device: &Arc<dyn Device>, limit: BlockNo, options: &OpenOptions) -> Result<bool> {
    let mut options = options.clone();
    options.common.read_only = true;
    let fs = Ext4::open(device.clone(), options)?;
    if !fs.has_journal() {
        return Ok(false);
    }
    let inode = Inode::detached(fs.load(fs.sb.journal_inum, true)?);
    let far = |block: BlockNo| block >= limit;
    Ok(runs(&fs, &inode, limit)?.iter().any(|run| far(run.start))
        || fs.map_nodes(&inode)?.into_iter().any(far))
}

/// Runs of the journal's map, none of which crosses `limit` or is too long for an extent.
fn runs(fs: &Ext4, inode: &Inode, limit: BlockNo) -> Result<Vec<Extent>> {
    let core = core_of(inode).read();
    let end = FileBlock(inode.attr().size >> fs.sb.block_bits);
    let (mut at, mut found) = (FileBlock(0), Vec::new());
    while at < end {
        let mapping = fs.map_unchecked(inode, &core, at)?;
        if mapping.kind != RangeKind::Data {
            break;
        }
        let mut len = mapping.len.min(end - at).min(MAX_LEN.into());
        if mapping.block < limit {
            len = len.min(limit - mapping.block);
        }
        found.push(Extent { file_block: at, len: len as u32, start: mapping.block, unwritten: false });
        at += len;
    }
    Ok(found)
}

fn allocate(fs: &Ext4, limit: BlockNo) -> Result<Moved> {
    let ino = fs.sb.journal_inum;
    let inode = Inode::detached(fs.load(ino, true)?);
    let all = runs(fs, &inode, limit)?;
    let old_nodes = fs.map_nodes(&inode)?;
    let is_far = |block: BlockNo| block >= limit;
    let Some(first) = all.first().map(|run| run.start) else {
        return Err(Error::corrupt("its map is empty", format!("{}, inode {ino}", fs.place)));
    };
    // The same inode with an empty map. It is never logged.
    let new_inode = Inode::detached(fs.load(ino, true)?);
    {
        let mut core = core_of(&new_inode).write();
        core.i_block = if core.flags & FL_EXTENTS != 0 { empty_root() } else { [0; 60] };
        core.blocks_512 = 0;
    }
    // In memory only: a lack of space changes nothing.
    let mut pieces = Vec::new();
    let mut goal = fs.sb.first_data_block + 1;
    for run in &all {
        let mut done = 0;
        while done < run.len {
            let at = FileBlock(run.file_block.0 + u64::from(done));
            let mut piece = Extent { file_block: at, len: run.len - done, ..*run };
            piece.start = run.start + u64::from(done);
            let mut reserved = None;
            if is_far(run.start) {
                let blocks = fs.reserve_blocks(&inode, goal, piece.len)?;
                (piece.start, piece.len) = (blocks.start, blocks.len);
                goal = piece.start + u64::from(piece.len);
                reserved = Some(blocks);
            }
            done += piece.len;
            pieces.push((piece, reserved));
        }
    }
    let was_unclean = fs.stays_unclean.swap(true, Ordering::Relaxed);
    let mut new = Vec::new();
    let mut h = fs.begin(MAP_CREDITS + 16)?;
    fs.modify_super(&mut h, |raw| raw.s_state = (raw.s_state.get() & !STATE_VALID).into())?;
    for (piece, reserved) in pieces {
        h.ensure(MAP_CREDITS + 16 + piece.len.div_ceil(fs.sb.block_size / 4))?;
        if let Some(reserved) = reserved {
            fs.commit_reserved(&mut h, reserved)?;
            new.push(piece);
        }
        let mut core = core_of(&new_inode).write();
        fs.map_run(&mut h, &new_inode, &mut core, piece)?;
        fs.charge_blocks(&new_inode, &mut core, piece.len.into());
    }
    let (Some(buffer), byte) = fs.slot_place(ino)? else {
        return Err(Error::corrupt("it is not in use", format!("{}, inode {ino}", fs.place)));
    };
    let core = core_of(&new_inode).read();
    Ok(Moved {
        sb: fs.sb.clone(),
        slot: (buffer.block(), byte),
        i_block: core.i_block,
        blocks_512: core.blocks_512,
        size: inode.attr().size,
        first,
        new,
        old: all.into_iter().filter(|run| is_far(run.start)).collect(),
        old_nodes,
        was_unclean,
    })
}

/// Makes the new position the journal's. The filesystem is closed, and the log is empty.
fn switch(device: &dyn Device, moved: &Moved) -> Result<()> {
    let sb = &moved.sb;
    let size = sb.block_size;
    let mut log_super = vec![0; size as usize];
    device.read_at(moved.first.offset(size), &mut log_super)?;
    let zeros = vec![0; (1 << 20).max(size as usize)];
    for run in &moved.new {
        let end = (run.start + u64::from(run.len)).offset(size);
        let mut at = run.start.offset(size);
        while at < end {
            let len = (end - at).min(zeros.len() as u64);
            device.write_at(at, &zeros[..len as usize])?;
            at += len;
        }
        if run.file_block == FileBlock(0) {
            device.write_at(run.start.offset(size), &log_super)?;
        }
    }
    device.flush()?;
    let mut raw = stored_super(device)?;
    if raw.s_jnl_backup_type == BACKUP_BLOCKS {
        for (word, bytes) in raw.s_jnl_blocks.iter_mut().zip(moved.i_block.chunks_exact(4)) {
            *word = le32(bytes, 0).into();
        }
        raw.s_jnl_blocks[15] = ((moved.size >> 32) as u32).into();
        raw.s_jnl_blocks[16] = (moved.size as u32).into();
    }
    seal(&mut raw);
    device.write_at(SUPERBLOCK_OFFSET, raw.as_bytes())?;
    device.flush()?;
    let (block, byte) = moved.slot;
    let mut table = vec![0; size as usize];
    device.read_at(block.offset(size), &mut table)?;
    let slot = &mut table[byte..byte + sb.inode_size as usize];
    slot[I_BLOCK..I_BLOCK + 60].copy_from_slice(&moved.i_block);
    put32(slot, I_BLOCKS_LO, moved.blocks_512 as u32);
    put16(slot, I_BLOCKS_HIGH, (moved.blocks_512 >> 32) as u16);
    seal_slot(sb, sb.journal_inum, slot);
    device.write_at(block.offset(size), &table)?;
    Ok(device.flush()?)
}
