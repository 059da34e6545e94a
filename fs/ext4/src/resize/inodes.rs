//! Moving inodes to other numbers.
//!
//! One transaction copies an inode to a free slot, changes every entry that refers to it, and frees the old
//! slot. The names are found before by reading all directories, for many inodes at once.
//!
//! Checksums of what an inode owns (nodes of its map, its directory blocks, the orphan file) start with its
//! number and its generation. The generation is chosen so that both together give the same start as before:
//! so these blocks need not be written, and a directory of any size moves in one small transaction.

use super::fits::{MOVE_CREDITS, each_used_inode};
use crate::dir::linear::{le16, le32, put16, put32};
use crate::fs::{Ext4, Handle, ROOT_INO};
use crate::ialloc::ClaimedSlot;
use crate::layout::csum::crc32c;
use crate::layout::features::Incompat;
use crate::layout::inode::offset::{
    I_DISK_VERSION, I_DTIME, I_EXTRA_ISIZE, I_FLAGS, I_GENERATION, I_VERSION_HI,
};
use crate::layout::inode::{FL_EA_INODE, GOOD_OLD_SIZE, StoredVersion, seal_slot, slot_state, slot_version};
use ivers_block::FileBlock;
use ivers_vfs::{Error, FileType, Inode, NameError, Result};
use std::collections::HashMap;

/// Names of the inodes that are looked for at once. They bound the memory.
const BATCH_NAMES: u64 = 1 << 19;

/// Something that refers to an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reference {
    /// Entries in a block of a directory.
    Entries { dir: u32, lblk: FileBlock },
    /// Attributes of an inode.
    Attributes { owner: u32 },
}

/// An inode that moves.
#[derive(Debug, Default)]
struct Moving {
    references: Vec<Reference>,
    new: Option<u32>,
}

type Batch = HashMap<u32, Moving>;

/// Moves every inode after the first `groups` groups into them.
pub(super) fn relocate(fs: &Ext4, groups: u32) -> Result<()> {
    let mut waiting: Vec<u32> = Vec::new();
    let mut names = 0;
    for group in groups..fs.sb.groups() {
        let mut in_group = Vec::new();
        each_used_inode(fs, group, &mut |ino| {
            in_group.push(ino);
            Ok(())
        })?;
        for ino in in_group {
            let state = slot_state(&raw_slot(fs, ino)?);
            waiting.push(ino);
            names += 2 + u64::from(state.links);
            if names >= BATCH_NAMES {
                move_batch(fs, groups, &std::mem::take(&mut waiting))?;
                names = 0;
            }
        }
    }
    move_batch(fs, groups, &waiting)
}

fn raw_slot(fs: &Ext4, ino: u32) -> Result<Vec<u8>> {
    let slot = fs.raw_inode_if_written(ino)?.filter(|slot| slot_state(slot).mode != 0);
    slot.ok_or_else(|| unused(fs, ino))
}

fn unused(fs: &Ext4, ino: u32) -> Error {
    Error::corrupt("it is marked as used and is not in use: run e2fsck", format!("{}, inode {ino}", fs.place))
}

fn move_batch(fs: &Ext4, groups: u32, inodes: &[u32]) -> Result<()> {
    if inodes.is_empty() {
        return Ok(());
    }
    let mut batch: Batch = inodes.iter().map(|&ino| (ino, Moving::default())).collect();
    for group in 0..fs.sb.groups() {
        each_used_inode(fs, group, &mut |ino| note_references(fs, ino, &mut batch))?;
    }
    for &ino in inodes {
        move_inode(fs, groups, ino, &mut batch)?;
    }
    Ok(())
}

/// Adds what an inode refers to.
fn note_references(fs: &Ext4, ino: u32, batch: &mut Batch) -> Result<()> {
    let Some(slot) = fs.raw_inode_if_written(ino)? else { return Ok(()) };
    let state = slot_state(&slot);
    let is_directory = state.mode & 0xF000 == 0x4000 && (ino == ROOT_INO || ino >= fs.sb.first_ino);
    let has_values = state.mode != 0 && fs.sb.incompat.contains(Incompat::EA_INODE);
    if !is_directory && !has_values {
        return Ok(());
    }
    let inode = Inode::detached(fs.load(ino, true)?);
    let mut note = |to: u32, reference: Reference| {
        if let Some(moving) = batch.get_mut(&to)
            && moving.references.last() != Some(&reference)
        {
            moving.references.push(reference);
        }
    };
    if is_directory {
        fs.each_entry(&inode, &mut |lblk, to| note(to, Reference::Entries { dir: ino, lblk }))?;
    }
    if has_values {
        for value in fs.attribute_inodes(&inode)? {
            note(value, Reference::Attributes { owner: ino });
        }
    }
    Ok(())
}

/// The generation with which inode `new` has the checksum seed that `old` has with `generation`. A CRC adds
/// the bytes that follow to its state: the same difference in both leaves the result the same.
fn generation_for(fs: &Ext4, old: u32, generation: u32, new: u32) -> u32 {
    let state = |ino: u32| crc32c(fs.sb.csum_seed, &ino.to_le_bytes());
    generation ^ state(old) ^ state(new)
}

fn move_inode(fs: &Ext4, groups: u32, old: u32, batch: &mut Batch) -> Result<()> {
    let references = std::mem::take(&mut batch.entry(old).or_default().references);
    let credits = MOVE_CREDITS + 2 * references.len() as u32;
    if credits > fs.journal.max_credits() {
        return Err(Error::Incompatible(format!(
            "{}, inode {old}: too many entries refer to it ({}) to move it in one transaction",
            fs.place,
            references.len()
        )));
    }
    let old_slot = raw_slot(fs, old)?;
    let state = slot_state(&old_slot);
    let kind = FileType::from_mode(state.mode.into()).ok_or_else(|| unused(fs, old))?;
    let mut h = fs.begin(credits)?;
    let claimed = claim(fs, &mut h, groups, kind)?;
    let new = claimed.ino;
    write_moved(fs, &mut h, old, &old_slot, &claimed)?;
    change_super(fs, &mut h, old, new)?;
    batch.entry(old).or_default().new = Some(new);
    let mut h = settle(fs, h, credits)?;
    for reference in references {
        // The directory may have moved before, or be the one that moves: its entry `.`.
        let now = |ino: u32| batch.get(&ino).and_then(|moving| moving.new).unwrap_or(ino);
        let (Reference::Entries { dir: owner, .. } | Reference::Attributes { owner }) = reference;
        let owner = Inode::detached(fs.load(now(owner), true)?);
        match reference {
            Reference::Entries { lblk, .. } => {
                fs.renumber_entries(&mut h, &owner, lblk, old, new)?;
                // Its listing has changed.
                owner.counter.inc();
            }
            Reference::Attributes { .. } => fs.renumber_attribute_inode(&mut h, &owner, old, new)?,
        }
        fs.log(&mut h, &owner)?;
    }
    let mut h = settle(fs, h, credits)?;
    clear_slot(fs, &mut h, old, &old_slot)?;
    fs.release_slot(&mut h, old, kind)
}

/// Without a journal, makes what was written so far durable: after a crash, either number has the file.
fn settle(fs: &Ext4, h: Handle, credits: u32) -> Result<Handle> {
    if fs.journal.is_atomic() {
        return Ok(h);
    }
    drop(h);
    fs.journal.commit()?;
    fs.begin(credits)
}

fn claim(fs: &Ext4, h: &mut Handle, groups: u32, kind: FileType) -> Result<ClaimedSlot> {
    for group in 0..groups {
        if let Some(claimed) = fs.claim_slot(h, group, kind)? {
            return Ok(claimed);
        }
    }
    Err(NameError::NoSpace.into())
}

/// Writes the inode to its new slot. Its counter goes on above every value that either slot has shown.
fn write_moved(fs: &Ext4, h: &mut Handle, old: u32, slot: &[u8], claimed: &ClaimedSlot) -> Result<()> {
    let new = claimed.ino;
    let mut slot = slot.to_vec();
    let generation = generation_for(fs, old, slot_state(&slot).generation, new);
    put32(&mut slot, I_GENERATION, generation);
    let mut high = 0;
    if !fs.sb.hurd && le32(&slot, I_FLAGS) & FL_EA_INODE == 0 {
        let above = if claimed.ever_used { fs.fresh_version(new, &claimed.old) } else { 1 };
        let version = fs.fresh_version(old, &slot).max(above);
        high = put_version(fs, &mut slot, version);
    }
    seal_slot(&fs.sb, new, &mut slot);
    h.modify(&claimed.buffer, |bytes| bytes[claimed.byte..claimed.byte + slot.len()].copy_from_slice(&slot))?;
    fs.note_overflow(h, new, high)
}

/// Stores a counter. Returns what does not fit the slot.
fn put_version(fs: &Ext4, slot: &mut [u8], version: u64) -> u64 {
    let (low, high) = (version as u32, (version >> 32) as u32);
    put32(slot, I_DISK_VERSION, low);
    let has_extra = slot.len() > GOOD_OLD_SIZE
        && le16(slot, I_EXTRA_ISIZE) >= 28
        && slot_version(&fs.sb, slot) != StoredVersion::None;
    if has_extra {
        put32(slot, I_VERSION_HI, high);
        return 0;
    }
    high.into()
}

/// Fields of the superblock that refer to inodes.
fn change_super(fs: &Ext4, h: &mut Handle, old: u32, new: u32) -> Result<()> {
    let raw = fs.raw_super()?;
    let (lost_found, orphan_file) = (raw.s_lpf_ino.get() == old, raw.s_orphan_file_inum.get() == old);
    if !lost_found && !orphan_file {
        return Ok(());
    }
    fs.modify_super(h, |raw| {
        if lost_found {
            raw.s_lpf_ino = new.into();
        }
        if orphan_file {
            raw.s_orphan_file_inum = new.into();
        }
    })
}

/// Empties a slot. Keeps what the next inode in it must differ from.
fn clear_slot(fs: &Ext4, h: &mut Handle, old: u32, slot: &[u8]) -> Result<()> {
    let version = fs.fresh_version(old, slot);
    // A small number would be read as the next orphan.
    let now = fs.now().sec.max(i64::from(fs.sb.inodes_count()) + 1) as u32;
    fs.modify_slot(h, old, |bytes| {
        bytes.fill(0);
        put32(bytes, I_GENERATION, le32(slot, I_GENERATION));
        put32(bytes, I_DTIME, now);
        if bytes.len() > GOOD_OLD_SIZE {
            put16(bytes, I_EXTRA_ISIZE, le16(slot, I_EXTRA_ISIZE));
        }
        put_version(fs, bytes, version);
    })
}
