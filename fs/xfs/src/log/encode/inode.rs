//! Inodes: the core in the byte order of the machine, and the forks.

use crate::layout::bytes::read;
use crate::layout::dinode::{flags2, format};
use crate::layout::raw::{RawDinode, RawInodeItem};
use crate::layout::superblock::Superblock;
use crate::log::convert::{logged_core, logged_root};
use crate::log::wire::{Regions, fields, kind};
use ivers_block::Unit;
use std::mem::size_of;
use zerocopy::{FromZeros, IntoBytes};

/// Bits of the forms of a fork in an inode item.
struct ForkBits {
    bytes: u32,
    extents: u32,
    root: u32,
}

const DATA: ForkBits =
    ForkBits { bytes: fields::DATA_BYTES, extents: fields::DATA_EXTENTS, root: fields::DATA_ROOT };
const ATTR: ForkBits =
    ForkBits { bytes: fields::ATTR_BYTES, extents: fields::ATTR_EXTENTS, root: fields::ATTR_ROOT };

/// A fork to log.
struct Fork<'a> {
    space: &'a [u8],
    format: u8,
    /// Bytes if it is in the inode, and extents if it has a list.
    local: u64,
    extents: u64,
}

impl Fork<'_> {
    /// What is logged: the field and the bytes. `None` if the fork is empty.
    fn region(&self, sb: &Superblock, ino: u64, bits: &ForkBits) -> Option<(u32, Vec<u8>)> {
        let part = |len: u64| self.space.get(..usize::try_from(len).ok()?).filter(|part| !part.is_empty());
        match self.format {
            format::LOCAL => Some((bits.bytes, part(self.local)?.to_vec())),
            format::EXTENTS => Some((bits.extents, part(self.extents.checked_mul(16)?)?.to_vec())),
            format::BTREE => Some((bits.root, logged_root(self.space, &sb.meta_uuid, ino)?)),
            _ => None,
        }
    }
}

/// The item of an inode that lies in `unit`. `record` is the inode as it is stored, up to the last byte in
/// use.
///
/// The item always has the core and each fork in use: it replaces earlier ones, which may be lost when the
/// tail passes them.
pub(super) fn item(sb: &Superblock, ino: u64, unit: &Unit, record: &[u8]) -> Option<Regions> {
    let core: RawDinode = read(record, 0)?;
    let literal = &record[size_of::<RawDinode>()..];
    let split = usize::from(core.di_forkoff) * 8;
    let (data, attributes) = literal.split_at_checked(if split == 0 { literal.len() } else { split })?;
    let has_wide_counts = core.di_flags2.get() & flags2::NREXT64 != 0;
    let counts = match has_wide_counts {
        // The wide counts are where others are in inodes with narrow ones.
        true => {
            let [a, b, c, d, e, f] = core.di_pad;
            let [g, h] = core.di_flushiter.get().to_be_bytes();
            (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u64::from(core.di_nextents.get()))
        }
        false => (u64::from(core.di_nextents.get()), u64::from(core.di_anextents.get())),
    };
    let mut raw = RawInodeItem::new_zeroed();
    let mut fields = fields::CORE;
    let mut forks = Vec::new();
    // A free inode has no forks.
    if core.di_mode.get() != 0 {
        let fork = Fork { space: data, format: core.di_format, local: core.di_size.get(), extents: counts.0 };
        if core.di_format == format::DEVICE {
            fields |= fields::DEVICE;
            raw.ilf_rdev = u32::from_be_bytes(data.get(..4)?.try_into().ok()?).into();
        } else if let Some((field, bytes)) = fork.region(sb, ino, &DATA) {
            fields |= field;
            raw.ilf_dsize = (bytes.len() as u16).into();
            forks.push(bytes);
        }
        // A short form starts with its length.
        let local = attributes.get(..2).map_or(0, |len| u64::from(u16::from_be_bytes([len[0], len[1]])));
        let fork = Fork { space: attributes, format: core.di_aformat, local, extents: counts.1 };
        if let Some((field, bytes)) = fork.region(sb, ino, &ATTR).filter(|_| split != 0) {
            fields |= field;
            raw.ilf_asize = (bytes.len() as u16).into();
            forks.push(bytes);
        }
    }
    let (block, offset) = sb.inode_place(ino)?;
    let index = unit.iter().position(|own| *own == block)?;
    raw.ilf_type = kind::INODE.into();
    raw.ilf_size = (2 + forks.len() as u16).into();
    raw.ilf_fields = fields.into();
    raw.ilf_ino = ino.into();
    raw.ilf_blkno = sb.sector_of(unit.first()).into();
    raw.ilf_len = ((unit.len() as u32) << (sb.block_bits - 9)).into();
    raw.ilf_boffset = ((index * sb.block_size as usize + offset) as u32).into();
    let mut regions = vec![raw.as_bytes().to_vec(), logged_core(record)?.to_vec()];
    for mut bytes in forks {
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        regions.push(bytes);
    }
    Some(regions)
}
