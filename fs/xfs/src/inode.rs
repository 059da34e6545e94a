//! Inodes: decoding, and checks against the inode B-tree.

use crate::fork::{Fork, ForkSpace, Which};
use crate::layout::bytes::{MAGIC_INODE, number, read};
use crate::layout::checksum::has_valid_inode_crc;
use crate::layout::dinode::{BIGTIME_EPOCH_SEC, NS_PER_SEC, flags, flags2, format};
use crate::layout::features::Incompat;
use crate::layout::raw::{RawDinode, V2_INODE_BYTES};
use crate::layout::superblock::Superblock;
use crate::unit::{UnitPlace, Whose};
use ivers_block::FileBlock;
use ivers_vfs::*;
use std::mem::size_of;
use zerocopy::IntoBytes;

/// An inode: its core as it is stored, and its forks.
#[derive(Debug, Clone)]
pub(crate) struct Dinode {
    pub ino: u64,
    /// The core. Its formats are those of the forks.
    pub raw: RawDinode,
    /// Contents, entries or link target.
    pub data: Fork,
    /// Extended attributes.
    pub attrs: Fork,
}

/// Why an inode cannot be decoded.
pub(crate) enum Refused {
    Free,
    Damaged(String),
}

impl From<String> for Refused {
    fn from(what: String) -> Self {
        Self::Damaged(what)
    }
}

impl PartialEq for Dinode {
    fn eq(&self, other: &Self) -> bool {
        self.ino == other.ino
            && self.raw.as_bytes() == other.raw.as_bytes()
            && self.data == other.data
            && self.attrs == other.attrs
    }
}

impl Dinode {
    /// `verified`: its checksum was right when it was read, and may be out of date in memory.
    pub(crate) fn decode(
        sb: &Superblock,
        bytes: &[u8],
        ino: u64,
        verified: bool,
    ) -> std::result::Result<Self, Refused> {
        let raw: RawDinode = read(bytes, 0).ok_or_else(|| "the inode is too short".to_owned())?;
        let v3 = raw.di_version == 3;
        if raw.di_magic.get() != MAGIC_INODE {
            return Err(format!("the magic is {:#06x}", raw.di_magic.get()).into());
        }
        if v3 != sb.is_v5() || !(1..=3).contains(&raw.di_version) {
            return Err(format!("di_version is {}", raw.di_version).into());
        }
        if v3 {
            if !verified && !has_valid_inode_crc(bytes) {
                return Err("bad checksum of the inode; run xfs_repair".to_owned().into());
            }
            if raw.di_ino.get() != ino || raw.di_uuid != sb.meta_uuid {
                return Err(format!(
                    "the inode names {} as its number, or has another UUID",
                    raw.di_ino.get()
                )
                .into());
            }
        }
        let mode = u32::from(raw.di_mode.get());
        if mode == 0 {
            return Err(Refused::Free);
        }
        let kind = FileType::from_mode(mode).ok_or_else(|| format!("di_mode is {mode:o}"))?;
        let mut inode = Self { ino, raw, data: Fork::None, attrs: Fork::None };
        if inode.flags2() & flags2::METADATA != 0 {
            return Err("metadata inodes are not supported".to_owned().into());
        }
        if inode.flags2() & flags2::NREXT64 != 0 && !sb.incompat.contains(Incompat::NREXT64) {
            return Err("large extent counters without their feature".to_owned().into());
        }
        if inode.size() > i64::MAX as u64 {
            return Err(format!("di_size is {}", inode.size()).into());
        }
        let raw = &inode.raw;
        let literal = bytes.get(inode.core_bytes()..).unwrap_or_default();
        let split = usize::from(raw.di_forkoff) * 8;
        if split > literal.len() {
            return Err(format!("di_forkoff is {}", raw.di_forkoff).into());
        }
        let (data, attrs) = match split {
            0 => (literal, None),
            split => (&literal[..split], Some(&literal[split..])),
        };
        let has_blocks = matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink);
        let data_fork = match raw.di_format {
            format::DEVICE if !has_blocks => Fork::Device(number(data, 0, 4).unwrap_or(0) as u32),
            stored if has_blocks => {
                let local_bytes = (kind != FileType::Regular).then_some(inode.size());
                let space = if inode.is_realtime() { ForkSpace::Realtime } else { ForkSpace::Data };
                Fork::decode(sb, stored, data, inode.extents(Which::Data), local_bytes, space)?
            }
            other => return Err(format!("di_format is {other}").into()),
        };
        let attr_fork = match attrs {
            None => Fork::None,
            // The size of local attributes is in their header.
            Some(space) => Fork::decode(
                sb,
                raw.di_aformat,
                space,
                inode.extents(Which::Attributes),
                Some(space.len() as u64),
                ForkSpace::Attributes,
            )?,
        };
        (inode.data, inode.attrs) = (data_fork, attr_fork);
        // Where a core of version 3 has the time of creation, older ones have their forks.
        let created = inode.is_v3().then_some(inode.raw.di_crtime);
        let times = [inode.raw.di_atime, inode.raw.di_mtime, inode.raw.di_ctime];
        for time in times.into_iter().chain(created) {
            let nsec = time.get() as u32;
            if inode.flags2() & flags2::BIGTIME == 0 && nsec >= NS_PER_SEC {
                return Err(format!("a time has {nsec} nanoseconds").into());
            }
        }
        Ok(inode)
    }

    fn is_v3(&self) -> bool {
        self.raw.di_version == 3
    }

    /// Bytes before the forks.
    pub(crate) fn core_bytes(&self) -> usize {
        if self.is_v3() { size_of::<RawDinode>() } else { V2_INODE_BYTES }
    }

    pub(crate) fn flags2(&self) -> u64 {
        if self.is_v3() { self.raw.di_flags2.get() } else { 0 }
    }

    /// The size in bytes: on disk, which may be behind that in memory.
    pub(crate) fn size(&self) -> u64 {
        self.raw.di_size.get()
    }

    pub(crate) fn generation(&self) -> u32 {
        self.raw.di_gen.get()
    }

    /// The type: it was checked when the inode was decoded.
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_mode(self.raw.di_mode.get().into()).unwrap_or(FileType::Regular)
    }

    /// Where a unit of so many blocks is in a fork.
    pub(crate) fn unit(&self, which: Which, at: FileBlock, count: u64) -> UnitPlace {
        UnitPlace { ino: self.ino, which, at, count }
    }

    /// Whether a fork has blocks.
    pub(crate) fn has_blocks(&self) -> bool {
        self.data.has_blocks() || self.attrs.has_blocks()
    }

    /// Whether the contents are on the realtime device.
    pub(crate) fn is_realtime(&self) -> bool {
        self.raw.di_flags.get() & flags::REALTIME != 0 && self.kind() == FileType::Regular
    }

    /// The stored number of extents of a fork.
    pub(crate) fn extents(&self, which: Which) -> u64 {
        match (which, self.flags2() & flags2::NREXT64 != 0) {
            (Which::Data, true) => {
                // `di_big_nextents`.
                let high = self.raw.di_pad.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
                high << 16 | u64::from(self.raw.di_flushiter.get())
            }
            (Which::Data, false) | (Which::Attributes, true) => self.raw.di_nextents.get().into(),
            (Which::Attributes, false) => self.raw.di_anextents.get().into(),
        }
    }

    /// A stored time.
    pub(crate) fn time(&self, field: u64) -> Timestamp {
        if self.flags2() & flags2::BIGTIME != 0 {
            let sec = (field / u64::from(NS_PER_SEC)) as i64 - BIGTIME_EPOCH_SEC as i64;
            return Timestamp { sec, nsec: (field % u64::from(NS_PER_SEC)) as u32 };
        }
        let (sec, nsec) = ((field >> 32) as u32 as i32, field as u32);
        Timestamp { sec: sec.into(), nsec }
    }

    /// What the VFS knows of it.
    pub(crate) fn attr(&self, sb: &Superblock) -> Attr {
        let raw = &self.raw;
        let project_high = if sb.has_wide_projects() { u32::from(raw.di_projid_hi.get()) << 16 } else { 0 };
        let v1 = raw.di_version == 1;
        Attr {
            kind: self.kind(),
            perm: u32::from(raw.di_mode.get()) & 0o7777,
            uid: raw.di_uid.get(),
            gid: raw.di_gid.get(),
            project: if v1 { 0 } else { u32::from(raw.di_projid.get()) | project_high },
            nlink: if v1 { raw.di_onlink.get().into() } else { raw.di_nlink.get() },
            size: self.size(),
            blocks_512: raw.di_nblocks.get().saturating_mul(u64::from(sb.block_size / 512)),
            rdev: if let Fork::Device(stored) = self.data { device_number(stored) } else { 0 },
            atime: self.time(raw.di_atime.get()),
            mtime: self.time(raw.di_mtime.get()),
            ctime: self.time(raw.di_ctime.get()),
            btime: self.is_v3().then(|| self.time(raw.di_crtime.get())),
            flags: inode_flags(raw.di_flags.get()),
        }
    }

    /// For errors.
    pub(crate) fn whose(&self) -> Whose {
        Whose::Inode(self.ino)
    }
}

/// Converts a device number of 14 and 18 bits to the kernel's encoding of 12 and 20 bits.
fn device_number(stored: u32) -> u32 {
    let (major, minor) = (stored >> 18 & 0xFFF, stored & 0x3_FFFF);
    (minor & 0xFF) | major << 8 | (minor & !0xFF) << 12
}

/// Flags that users set, as they are stored.
const FLAGS: [(u16, InodeFlags); 6] = [
    (flags::IMMUTABLE, InodeFlags::IMMUTABLE),
    (flags::APPEND, InodeFlags::APPEND),
    (flags::SYNC, InodeFlags::SYNC),
    (flags::NOATIME, InodeFlags::NOATIME),
    (flags::NODUMP, InodeFlags::NODUMP),
    (flags::PROJINHERIT, InodeFlags::PROJINHERIT),
];

pub(crate) fn inode_flags(stored: u16) -> InodeFlags {
    FLAGS.into_iter().filter(|(bit, _)| stored & bit != 0).map(|(_, flag)| flag).collect()
}

/// Stored flags with those that users set.
pub(crate) fn stored_flags(stored: u16, set: InodeFlags) -> u16 {
    let change = |stored: u16, (bit, flag): (u16, InodeFlags)| {
        if set.contains(flag) { stored | bit } else { stored & !bit }
    };
    FLAGS.into_iter().fold(stored, change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_convert() {
        assert_eq!(device_number(1 << 18 | 3), 0x103);
        assert_eq!(device_number(8 << 18 | 0x12345), 0x1230_0845);
    }
}
