//! Inodes: decoding, and checks against the inode B-tree.

use crate::fork::{Fork, ForkSpace};
use crate::layout::bytes::{MAGIC_INODE, number, read};
use crate::layout::checksum;
use crate::layout::dinode::{BIGTIME_EPOCH_SEC, NS_PER_SEC, flags, flags2, format};
use crate::layout::features::Incompat;
use crate::layout::raw::{RawDinode, RawInobtRec, V2_INODE_BYTES};
use crate::layout::superblock::Superblock;
use crate::volume::{Whose, Xfs};
use ivers_vfs::*;
use std::mem::size_of;

/// An inode as it is stored.
#[derive(Debug)]
pub(crate) struct Dinode {
    pub ino: u64,
    pub generation: u32,
    pub attr: Attr,
    /// Contents, entries or link target.
    pub data: Fork,
    /// Extended attributes.
    pub attrs: Fork,
    /// The contents are on the realtime device.
    pub realtime: bool,
}

/// The driver's data of an inode.
pub(crate) fn private_of(inode: &Inode) -> &Dinode {
    inode.private()
}

/// Why an inode cannot be decoded.
enum Refused {
    Free,
    Damaged(String),
}

impl From<String> for Refused {
    fn from(what: String) -> Self {
        Self::Damaged(what)
    }
}

impl Dinode {
    fn decode(sb: &Superblock, bytes: &[u8], ino: u64) -> std::result::Result<Self, Refused> {
        let raw: RawDinode = read(bytes, 0).ok_or_else(|| "the inode is too short".to_owned())?;
        let v3 = raw.di_version == 3;
        if raw.di_magic.get() != MAGIC_INODE {
            return Err(format!("the magic is {:#06x}", raw.di_magic.get()).into());
        }
        if v3 != sb.is_v5() || !(1..=3).contains(&raw.di_version) {
            return Err(format!("di_version is {}", raw.di_version).into());
        }
        if v3 {
            let crc = std::mem::offset_of!(RawDinode, di_crc);
            if raw.di_crc.get() != checksum::checksum(bytes, crc) {
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
        let flags2 = if v3 { raw.di_flags2.get() } else { 0 };
        if flags2 & flags2::METADATA != 0 {
            return Err("metadata inodes are not supported".to_owned().into());
        }
        let large_counts = flags2 & flags2::NREXT64 != 0;
        if large_counts && !sb.incompat.contains(Incompat::NREXT64) {
            return Err("large extent counters without their feature".to_owned().into());
        }
        let (extents, attr_extents) = if large_counts {
            let large = std::mem::offset_of!(RawDinode, di_pad);
            (number(bytes, large, 8).unwrap_or(0), u64::from(raw.di_nextents.get()))
        } else {
            (u64::from(raw.di_nextents.get()), u64::from(raw.di_anextents.get()))
        };
        let size = raw.di_size.get();
        if size > i64::MAX as u64 {
            return Err(format!("di_size is {size}").into());
        }
        let core = if v3 { size_of::<RawDinode>() } else { V2_INODE_BYTES };
        let literal = &bytes[core..];
        let split = usize::from(raw.di_forkoff) * 8;
        if split > literal.len() {
            return Err(format!("di_forkoff is {}", raw.di_forkoff).into());
        }
        let (data, attrs) = match split {
            0 => (literal, None),
            split => (&literal[..split], Some(&literal[split..])),
        };
        let has_blocks = matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink);
        let realtime = raw.di_flags.get() & flags::REALTIME != 0 && kind == FileType::Regular;
        let mut rdev = 0;
        let data = match raw.di_format {
            format::DEVICE if !has_blocks => {
                rdev = device_number(number(data, 0, 4).unwrap_or(0) as u32);
                Fork::None
            }
            stored if has_blocks => {
                let local_bytes = (kind != FileType::Regular).then_some(size);
                let space = if realtime { ForkSpace::Realtime } else { ForkSpace::Data };
                Fork::decode(sb, stored, data, extents, local_bytes, space)?
            }
            other => return Err(format!("di_format is {other}").into()),
        };
        let attrs = match attrs {
            None => Fork::None,
            // The size of local attributes is in their header.
            Some(space) => Fork::decode(
                sb,
                raw.di_aformat,
                space,
                attr_extents,
                Some(space.len() as u64),
                ForkSpace::Attributes,
            )?,
        };
        let time = |field: u64| -> std::result::Result<Timestamp, String> {
            if flags2 & flags2::BIGTIME != 0 {
                let sec = (field / u64::from(NS_PER_SEC)) as i64 - BIGTIME_EPOCH_SEC as i64;
                return Ok(Timestamp { sec, nsec: (field % u64::from(NS_PER_SEC)) as u32 });
            }
            let (sec, nsec) = ((field >> 32) as u32 as i32, field as u32);
            if nsec >= NS_PER_SEC {
                return Err(format!("a time has {nsec} nanoseconds"));
            }
            Ok(Timestamp { sec: sec.into(), nsec })
        };
        let project_high = if sb.has_wide_projects() { u32::from(raw.di_projid_hi.get()) << 16 } else { 0 };
        let v1 = raw.di_version == 1;
        let attr = Attr {
            kind,
            perm: mode & 0o7777,
            uid: raw.di_uid.get(),
            gid: raw.di_gid.get(),
            project: if v1 { 0 } else { u32::from(raw.di_projid.get()) | project_high },
            nlink: if v1 { raw.di_onlink.get().into() } else { raw.di_nlink.get() },
            size,
            blocks_512: raw.di_nblocks.get().saturating_mul(u64::from(sb.block_size / 512)),
            rdev,
            atime: time(raw.di_atime.get())?,
            mtime: time(raw.di_mtime.get())?,
            ctime: time(raw.di_ctime.get())?,
            btime: if v3 { Some(time(raw.di_crtime.get())?) } else { None },
            flags: inode_flags(raw.di_flags.get()),
        };
        Ok(Self { ino, generation: raw.di_gen.get(), attr, data, attrs, realtime })
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

fn inode_flags(stored: u16) -> InodeFlags {
    [
        (flags::IMMUTABLE, InodeFlags::IMMUTABLE),
        (flags::APPEND, InodeFlags::APPEND),
        (flags::SYNC, InodeFlags::SYNC),
        (flags::NOATIME, InodeFlags::NOATIME),
        (flags::NODUMP, InodeFlags::NODUMP),
        (flags::PROJINHERIT, InodeFlags::PROJINHERIT),
    ]
    .into_iter()
    .filter(|(bit, _)| stored & bit != 0)
    .map(|(_, flag)| flag)
    .collect()
}

/// The chunk of an inode B-tree record.
struct Chunk {
    /// The first inode, within the group.
    first: u32,
    free: u64,
    /// Which groups of four inodes do not exist.
    holes: u16,
}

impl Chunk {
    fn decode(sb: &Superblock, record: &RawInobtRec) -> Self {
        let sparse = sb.incompat.contains(Incompat::SPARSE);
        Self {
            first: record.ir_startino.get(),
            free: record.ir_free.get(),
            holes: if sparse { (record.ir_freecount.get() >> 16) as u16 } else { 0 },
        }
    }

    fn has(&self, agino: u32) -> bool {
        let Some(index) = agino.checked_sub(self.first).filter(|index| *index < 64) else { return false };
        self.free >> index & 1 == 0 && self.holes >> (index / 4) & 1 == 0
    }
}

impl Xfs {
    /// Returns whether the inode B-tree says that an inode is in use.
    fn is_allocated(&self, ino: u64) -> Result<bool> {
        let Some((ag, agino)) = self.sb.agino(ino) else { return Ok(false) };
        if self.sb.inode_place(ino).is_none() {
            return Ok(false);
        }
        let agi = self.agi(ag)?;
        let record = self.inode_chunk(ag, agi.root, agi.level, agino)?;
        Ok(record.is_some_and(|record| Chunk::decode(&self.sb, &record).has(agino)))
    }

    /// Decodes an inode. `Stale` if it is free or does not exist.
    pub(crate) fn dinode(&self, ino: u64) -> Result<Dinode> {
        if !self.is_allocated(ino)? {
            return Err(NameError::Stale.into());
        }
        let (block, at) = self.sb.inode_place(ino).ok_or(NameError::Stale)?;
        let bytes = self.block(block)?;
        let bytes = &bytes[at..at + self.sb.inode_size as usize];
        Dinode::decode(&self.sb, bytes, ino).map_err(|refused| match refused {
            Refused::Free => NameError::Stale.into(),
            Refused::Damaged(what) => self.corrupt_block(what, Whose::Inode(ino), block),
        })
    }

    /// Returns the next inode of a list of unlinked inodes.
    pub(crate) fn next_unlinked(&self, ino: u64) -> Result<u32> {
        let (block, at) = self
            .sb
            .inode_place(ino)
            .ok_or_else(|| self.corrupt("an unlinked inode lies outside its group", Whose::Inode(ino)))?;
        let bytes = self.block(block)?;
        let raw = read::<RawDinode>(&bytes, at).filter(|raw| raw.di_magic.get() == MAGIC_INODE);
        raw.map(|raw| raw.di_next_unlinked.get())
            .ok_or_else(|| self.corrupt_block("an unlinked inode has no magic", Whose::Inode(ino), block))
    }

    /// Loads an inode for the VFS.
    pub(crate) fn load(&self, ino: u64) -> Result<LoadedInode> {
        if self.sb.hidden_inos.contains(&ino) {
            return Err(NameError::Stale.into());
        }
        let inode = self.dinode(ino)?;
        Ok(LoadedInode {
            ino: Ino(ino),
            generation: inode.generation,
            attr: inode.attr.clone(),
            // See docs/xfs.md: without an epoch record the stored counter proves nothing across mounts.
            counter: InitialCounter::NotStored,
            private: Box::new(inode),
        })
    }
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
