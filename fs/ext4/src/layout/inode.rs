//! Inode slots: decoding and encoding.

use super::csum::crc32c;
use super::features::{Incompat, RoCompat};
use super::raw::RawInode;
use super::slot_body::SlotBody;
use super::superblock::Superblock;
use ivers_block::BlockNo;
use ivers_vfs::{Attr, Error, FileType, InodeFlags, Result, Timestamp};
use zerocopy::{FromZeros, IntoBytes};

/// The inode that owns damaged blocks.
pub const BAD_BLOCKS_INO: u32 = 1;
/// The inode of the root directory.
pub const ROOT_INO: u32 = 2;
/// The inode that maps the blocks reserved for descriptors.
pub const RESIZE_INO: u32 = 7;
/// The usual inode of the journal.
pub const JOURNAL_INO: u32 = 8;

/// `i_flags`: the directory has a hash tree.
pub const FL_INDEX: u32 = 0x1000;
/// `i_flags`: `i_blocks` counts filesystem blocks.
pub const FL_HUGE_FILE: u32 = 0x4_0000;
/// `i_flags`: mapped by extents.
pub const FL_EXTENTS: u32 = 0x8_0000;
/// `i_flags`: holds the value of an extended attribute; its version fields are a reference count.
pub const FL_EA_INODE: u32 = 0x20_0000;
/// `i_flags`: the data is stored in the slot.
pub const FL_INLINE_DATA: u32 = 0x1000_0000;
/// `i_flags`: encrypted.
pub const FL_ENCRYPT: u32 = 0x800;
/// `i_flags`: verity.
pub const FL_VERITY: u32 = 0x10_0000;
/// `i_flags`: names are case-insensitive.
pub const FL_CASEFOLD: u32 = 0x4000_0000;
/// `i_flags` that new inodes inherit from their directory.
pub const FL_INHERITED: u32 = 0x8 | 0x40 | 0x80 | 0x1_0000 | 0x2000_0000;

/// Offset of the extra fields.
pub const GOOD_OLD_SIZE: usize = 128;

/// Offsets of fields in a slot, for code that changes single fields of one.
pub(crate) mod offset {
    use crate::layout::raw::RawInode;
    use std::mem::offset_of;

    pub(crate) const I_ATIME: usize = offset_of!(RawInode, i_atime);
    pub(crate) const I_CTIME: usize = offset_of!(RawInode, i_ctime);
    pub(crate) const I_DTIME: usize = offset_of!(RawInode, i_dtime);
    pub(crate) const I_LINKS_COUNT: usize = offset_of!(RawInode, i_links_count);
    pub(crate) const I_BLOCKS_LO: usize = offset_of!(RawInode, i_blocks_lo);
    pub(crate) const I_FLAGS: usize = offset_of!(RawInode, i_flags);
    pub(crate) const I_DISK_VERSION: usize = offset_of!(RawInode, i_disk_version);
    pub(crate) const I_BLOCK: usize = offset_of!(RawInode, i_block);
    pub(crate) const I_GENERATION: usize = offset_of!(RawInode, i_generation);
    pub(crate) const I_BLOCKS_HIGH: usize = offset_of!(RawInode, i_blocks_high);
    pub(crate) const I_EXTRA_ISIZE: usize = offset_of!(RawInode, i_extra_isize);
    pub(crate) const I_VERSION_HI: usize = offset_of!(RawInode, i_version_hi);
}

/// The stored counter in the version fields of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredVersion {
    /// 64 bits in two halves.
    Wide(u64),
    /// 32 bits: the slot has no space for the upper half.
    Narrow(u32),
    /// The fields have another use (the Hurd's translator, an attribute inode's reference count).
    None,
}

/// A decoded slot.
#[derive(Debug, Clone)]
pub struct InodeImage {
    /// `i_generation`.
    pub generation: u32,
    /// The attributes.
    pub attr: Attr,
    /// The stored counter.
    pub version: StoredVersion,
    /// `i_flags`.
    pub flags: u32,
    /// `i_block`.
    pub i_block: [u8; 60],
    /// The block of extended attributes, or 0.
    pub file_acl: BlockNo,
    /// `i_extra_isize`.
    pub extra_isize: u16,
    /// The bytes after the extra fields.
    pub body: SlotBody,
    /// `i_dtime`: the time of deletion or the next orphan.
    pub dtime: u32,
}

/// Fields of a slot that may not hold a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotState {
    /// `i_mode`.
    pub mode: u16,
    /// `i_links_count`.
    pub links: u16,
    /// `i_generation`.
    pub generation: u32,
    /// `i_dtime`.
    pub dtime: u32,
}

fn raw_of(slot: &[u8]) -> RawInode {
    let mut raw = RawInode::new_zeroed();
    let len = slot.len().min(size_of::<RawInode>());
    raw.as_mut_bytes()[..len].copy_from_slice(&slot[..len]);
    raw
}

/// Extra bytes that the slot declares and has; 0 in small slots.
fn extra_of(slot: &[u8], raw: &RawInode) -> Option<usize> {
    if slot.len() == GOOD_OLD_SIZE {
        return Some(0);
    }
    let extra = usize::from(raw.i_extra_isize.get());
    (extra % 4 == 0 && GOOD_OLD_SIZE + extra <= slot.len()).then_some(extra)
}

fn time_of(sec: u32, extra: Option<u32>) -> Timestamp {
    let low = i64::from(sec as i32);
    match extra {
        None => Timestamp { sec: low, nsec: 0 },
        Some(extra) => {
            Timestamp { sec: low + (i64::from(extra & 3) << 32), nsec: (extra >> 2).min(999_999_999) }
        }
    }
}

/// Seconds and extra field of a time, clamped to the format's range.
fn time_parts(time: Timestamp, wide: bool) -> (u32, u32) {
    let max = if wide { i64::from(i32::MAX) + (3 << 32) } else { i64::from(i32::MAX) };
    let sec = time.sec.clamp(i64::from(i32::MIN), max);
    let low = sec as i32;
    let epoch = ((sec - i64::from(low)) >> 32) as u32 & 3;
    (low as u32, epoch | time.nsec << 2)
}

/// The checksum seed of the structures that an inode owns.
pub fn inode_seed(sb: &Superblock, ino: u32, generation: u32) -> u32 {
    crc32c(crc32c(sb.csum_seed, &ino.to_le_bytes()), &generation.to_le_bytes())
}

/// Computes a slot's checksum, and whether the slot has space for its upper half.
fn slot_csum(sb: &Superblock, ino: u32, slot: &[u8]) -> (u32, bool) {
    let raw = raw_of(slot);
    let mut crc = inode_seed(sb, ino, raw.i_generation.get());
    crc = crc32c(crc, &slot[..0x7C]);
    crc = crc32c(crc, &[0, 0]);
    crc = crc32c(crc, &slot[0x7E..GOOD_OLD_SIZE]);
    let mut wide = false;
    if slot.len() > GOOD_OLD_SIZE {
        wide = raw.i_extra_isize.get() >= 4;
        crc = crc32c(crc, &slot[0x80..0x82]);
        crc = if wide { crc32c(crc, &[0, 0]) } else { crc32c(crc, &slot[0x82..0x84]) };
        crc = crc32c(crc, &slot[0x84..]);
    }
    (crc, wide)
}

/// Whether a slot's checksum is right (true without checksums).
pub fn verify_slot(sb: &Superblock, ino: u32, slot: &[u8]) -> bool {
    if !sb.has_csum() || sb.hurd {
        return true;
    }
    let raw = raw_of(slot);
    let (crc, wide) = slot_csum(sb, ino, slot);
    raw.i_checksum_lo.get() == crc as u16 && (!wide || raw.i_checksum_hi.get() == (crc >> 16) as u16)
}

/// Sets a slot's checksum after a change.
pub fn seal_slot(sb: &Superblock, ino: u32, slot: &mut [u8]) {
    if !sb.has_csum() || sb.hurd {
        return;
    }
    let (crc, wide) = slot_csum(sb, ino, slot);
    slot[0x7C..0x7E].copy_from_slice(&(crc as u16).to_le_bytes());
    if wide {
        slot[0x82..0x84].copy_from_slice(&((crc >> 16) as u16).to_le_bytes());
    }
}

/// Reads fields of a slot without checks.
pub fn slot_state(slot: &[u8]) -> SlotState {
    let raw = raw_of(slot);
    SlotState {
        mode: raw.i_mode.get(),
        links: raw.i_links_count.get(),
        generation: raw.i_generation.get(),
        dtime: raw.i_dtime.get(),
    }
}

/// The counter that a slot stores, whether or not it is in use.
pub fn slot_version(sb: &Superblock, slot: &[u8]) -> StoredVersion {
    let raw = raw_of(slot);
    if sb.hurd || raw.i_flags.get() & FL_EA_INODE != 0 {
        return StoredVersion::None;
    }
    let low = raw.i_disk_version.get();
    match extra_of(slot, &raw) {
        Some(extra) if extra >= 28 => {
            StoredVersion::Wide(u64::from(low) | u64::from(raw.i_version_hi.get()) << 32)
        }
        Some(0) if slot.len() > GOOD_OLD_SIZE => StoredVersion::Wide(u64::from(low)),
        _ => StoredVersion::Narrow(low),
    }
}

impl InodeImage {
    /// Decodes a slot in use whose checksum was verified. `place` names it in errors.
    pub fn decode(sb: &Superblock, slot: &[u8], place: &dyn Fn() -> String) -> Result<Self> {
        let raw = raw_of(slot);
        let bad = |what: String| Error::corrupt(what, place());
        let Some(extra) = extra_of(slot, &raw) else {
            return Err(bad(format!("i_extra_isize is {}", raw.i_extra_isize.get())));
        };
        // A large slot without extra fields has space for them: the next store adds them.
        let claimed =
            if extra == 0 && slot.len() > GOOD_OLD_SIZE { usize::from(sb.want_extra_isize) } else { extra };
        let mode = u32::from(raw.i_mode.get());
        let kind = FileType::from_mode(mode).ok_or_else(|| bad(format!("i_mode is {mode:#o}")))?;
        let flags = raw.i_flags.get();
        for (flag, feature, name) in [
            (FL_EXTENTS, Incompat::EXTENTS, "an extent tree"),
            (FL_INLINE_DATA, Incompat::INLINE_DATA, "inline data"),
        ] {
            if flags & flag != 0 && !sb.incompat.contains(feature) {
                return Err(bad(format!("{name} in a filesystem without that feature")));
            }
        }
        let large_size = kind == FileType::Regular
            || (kind == FileType::Directory && sb.incompat.contains(Incompat::LARGEDIR));
        let size = u64::from(raw.i_size_lo.get())
            | if large_size { u64::from(raw.i_size_high.get()) << 32 } else { 0 };
        if size > i64::MAX as u64 {
            return Err(bad(format!("the size is {size}")));
        }
        // Names are searched block by block, and a valid directory uses no block twice.
        if kind == FileType::Directory && size >> sb.block_bits > sb.blocks_count() {
            return Err(bad(format!("a directory of {size} bytes")));
        }
        let mut blocks = u64::from(raw.i_blocks_lo.get());
        if sb.ro_compat.contains(RoCompat::HUGE_FILE) {
            blocks |= u64::from(raw.i_blocks_high.get()) << 32;
            if flags & FL_HUGE_FILE != 0 {
                blocks <<= sb.block_bits - 9;
            }
        }
        let field = |end: usize, value: u32| (extra >= end).then_some(value);
        let i_block = raw.i_block;
        let rdev = match kind {
            FileType::CharDevice | FileType::BlockDevice => {
                let old = u32::from_le_bytes([i_block[0], i_block[1], i_block[2], i_block[3]]);
                let new = u32::from_le_bytes([i_block[4], i_block[5], i_block[6], i_block[7]]);
                if old != 0 { old & 0xFFFF } else { new }
            }
            _ => 0,
        };
        let acl_hi = if sb.incompat.contains(Incompat::BIT64) {
            u64::from(raw.i_file_acl_high.get()) << 32
        } else {
            0
        };
        let file_acl = BlockNo(u64::from(raw.i_file_acl_lo.get()) | acl_hi);
        if file_acl != BlockNo(0) && !sb.is_valid_block(file_acl) {
            return Err(bad(format!("i_file_acl is {file_acl}")));
        }
        let has_projects = sb.ro_compat.contains(RoCompat::PROJECT);
        let attr = Attr {
            kind,
            perm: mode & 0o7777,
            uid: u32::from(raw.i_uid.get()) | u32::from(raw.i_uid_high.get()) << 16,
            gid: u32::from(raw.i_gid.get()) | u32::from(raw.i_gid_high.get()) << 16,
            project: if has_projects { field(32, raw.i_projid.get()).unwrap_or(0) } else { 0 },
            nlink: u32::from(raw.i_links_count.get()),
            size,
            blocks_512: blocks,
            rdev,
            atime: time_of(raw.i_atime.get(), field(16, raw.i_atime_extra.get())),
            mtime: time_of(raw.i_mtime.get(), field(12, raw.i_mtime_extra.get())),
            ctime: time_of(raw.i_ctime.get(), field(8, raw.i_ctime_extra.get())),
            btime: (extra >= 20).then(|| time_of(raw.i_crtime.get(), field(24, raw.i_crtime_extra.get()))),
            flags: InodeFlags::from_bits_truncate(flags),
        };
        Ok(Self {
            generation: raw.i_generation.get(),
            attr,
            version: slot_version(sb, slot),
            flags,
            i_block,
            file_acl,
            extra_isize: claimed as u16,
            body: SlotBody::new(slot.get(GOOD_OLD_SIZE + claimed..).unwrap_or_default()),
            dtime: raw.i_dtime.get(),
        })
    }

    /// Encodes into a slot and sets its checksum. Keeps bytes that this driver does not own. `attr.size` and
    /// `attr.blocks_512` are the values for the device; a version of `None` keeps those fields.
    pub fn encode(&self, sb: &Superblock, ino: u32, slot: &mut [u8]) {
        let mut raw = raw_of(slot);
        let extra = usize::from(self.extra_isize);
        let attr = &self.attr;
        raw.i_mode = (attr.mode() as u16).into();
        raw.i_uid = (attr.uid as u16).into();
        raw.i_gid = (attr.gid as u16).into();
        raw.i_uid_high = ((attr.uid >> 16) as u16).into();
        raw.i_gid_high = ((attr.gid >> 16) as u16).into();
        raw.i_links_count = (attr.nlink.min(u32::from(u16::MAX)) as u16).into();
        raw.i_size_lo = (attr.size as u32).into();
        if attr.kind == FileType::Regular
            || (attr.kind == FileType::Directory && sb.incompat.contains(Incompat::LARGEDIR))
        {
            raw.i_size_high = ((attr.size >> 32) as u32).into();
        }
        let own = InodeFlags::all().bits();
        let mut flags = self.flags & !own & !FL_HUGE_FILE | attr.flags.bits();
        let mut blocks = attr.blocks_512;
        if blocks > 0xFFFF_FFFF_FFFF {
            blocks >>= sb.block_bits - 9;
            flags |= FL_HUGE_FILE;
        }
        raw.i_blocks_lo = (blocks as u32).into();
        if sb.ro_compat.contains(RoCompat::HUGE_FILE) {
            raw.i_blocks_high = ((blocks >> 32) as u16).into();
        }
        raw.i_flags = flags.into();
        raw.i_dtime = self.dtime.into();
        raw.i_block = self.i_block;
        if matches!(attr.kind, FileType::CharDevice | FileType::BlockDevice) {
            let (old, new) = if attr.rdev <= 0xFFFF { (attr.rdev, 0) } else { (0, attr.rdev) };
            raw.i_block[..4].copy_from_slice(&old.to_le_bytes());
            raw.i_block[4..8].copy_from_slice(&new.to_le_bytes());
        }
        raw.i_generation = self.generation.into();
        raw.i_file_acl_lo = (self.file_acl.0 as u32).into();
        if sb.incompat.contains(Incompat::BIT64) {
            raw.i_file_acl_high = ((self.file_acl.0 >> 32) as u16).into();
        }
        let large = slot.len() > GOOD_OLD_SIZE;
        let time = |time, end| time_parts(time, extra >= end);
        let stamp = |seconds: &mut zerocopy::little_endian::U32,
                     nanos: &mut zerocopy::little_endian::U32,
                     at: Timestamp,
                     end: usize| {
            let (sec, nsec) = time(at, end);
            *seconds = sec.into();
            if extra >= end {
                *nanos = nsec.into();
            }
        };
        stamp(&mut raw.i_ctime, &mut raw.i_ctime_extra, attr.ctime, 8);
        stamp(&mut raw.i_mtime, &mut raw.i_mtime_extra, attr.mtime, 12);
        stamp(&mut raw.i_atime, &mut raw.i_atime_extra, attr.atime, 16);
        if let (true, Some(btime)) = (extra >= 20, attr.btime) {
            stamp(&mut raw.i_crtime, &mut raw.i_crtime_extra, btime, 24);
        }
        match self.version {
            StoredVersion::Wide(version) => {
                raw.i_disk_version = (version as u32).into();
                if extra >= 28 {
                    raw.i_version_hi = ((version >> 32) as u32).into();
                }
            }
            StoredVersion::Narrow(version) => raw.i_disk_version = version.into(),
            StoredVersion::None => {}
        }
        if extra >= 32 && sb.ro_compat.contains(RoCompat::PROJECT) {
            raw.i_projid = attr.project.into();
        }
        raw.i_extra_isize = if large { self.extra_isize.into() } else { raw.i_extra_isize };
        if large {
            // Only the fields inside i_extra_isize are ours: the bytes after them hold attributes.
            let fixed = (GOOD_OLD_SIZE + extra.max(4)).min(size_of::<RawInode>());
            slot[..fixed].copy_from_slice(&raw.as_bytes()[..fixed]);
            let body = GOOD_OLD_SIZE + extra;
            let len = self.body.len().min(slot.len() - body);
            slot[body..body + len].copy_from_slice(&self.body[..len]);
        } else {
            slot.copy_from_slice(&raw.as_bytes()[..GOOD_OLD_SIZE]);
        }
        seal_slot(sb, ino, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_both_ends_of_their_range() {
        for sec in
            [i64::from(i32::MIN), -1, 0, 1, i64::from(i32::MAX), i64::from(i32::MAX) + 1, (3 << 32) + 5]
        {
            let time = Timestamp { sec, nsec: 123_456_789 };
            let (low, extra) = time_parts(time, true);
            assert_eq!(time_of(low, Some(extra)), time, "{sec}");
        }
    }

    #[test]
    fn small_slots_clamp_times() {
        let (low, _) = time_parts(Timestamp { sec: 1 << 33, nsec: 0 }, false);
        assert_eq!(low as i32, i32::MAX);
    }
}
