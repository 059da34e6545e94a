//! Conversions between what is logged of an inode and what is stored.

use crate::layout::bytes::{MAGIC_INODE, NULL_AGINO, read};
use crate::layout::dinode::flags2;
use crate::layout::raw::{RawBmdrBlock, RawDinode, RawLongBlock};
use crate::layout::tree::TreeKind;
use std::mem::{offset_of, size_of};
use zerocopy::{FromZeros, IntoBytes};

/// Offset and size of the numbers of an inode's core, which the log has in little-endian. Times without the
/// feature bigtime are two numbers of 4 bytes.
const CORE_NUMBERS: [(usize, usize); 23] = [
    (0, 2),
    (2, 2),
    (6, 2),
    (8, 4),
    (12, 4),
    (16, 4),
    (20, 2),
    (22, 2),
    (56, 8),
    (64, 8),
    (72, 4),
    (76, 4),
    (80, 2),
    (84, 4),
    (88, 2),
    (90, 2),
    (92, 4),
    (96, 4),
    (104, 8),
    (112, 8),
    (120, 8),
    (128, 4),
    (152, 8),
];
const CORE_TIMES: [usize; 4] = [32, 40, 48, 144];

/// The bytes of a core.
type Core = [u8; size_of::<RawDinode>()];

/// Converts the core of an inode from the byte order of the log. `None` if it is none of version 3.
pub(super) fn native_core(logged: &[u8]) -> Option<Core> {
    let mut core: Core = logged.get(..size_of::<RawDinode>())?.try_into().ok()?;
    reverse_numbers(&mut core);
    let raw: RawDinode = read(&core, 0)?;
    if raw.di_magic.get() != MAGIC_INODE || raw.di_version != 3 {
        return None;
    }
    reverse_other_numbers(&mut core, raw.di_flags2.get());
    Some(core)
}

/// Converts the core of an inode to the byte order of the log. `None` if it is none of version 3.
pub(super) fn logged_core(stored: &[u8]) -> Option<Core> {
    let raw: RawDinode = read(stored, 0)?;
    if raw.di_magic.get() != MAGIC_INODE || raw.di_version != 3 {
        return None;
    }
    let mut core: Core = stored.get(..size_of::<RawDinode>())?.try_into().ok()?;
    reverse_numbers(&mut core);
    reverse_other_numbers(&mut core, raw.di_flags2.get());
    // Recovery keeps the link of an unlinked inode, and computes the checksum.
    core[offset_of!(RawDinode, di_next_unlinked)..][..4].copy_from_slice(&NULL_AGINO.to_le_bytes());
    core[offset_of!(RawDinode, di_crc)..][..4].fill(0);
    Some(core)
}

fn reverse_numbers(core: &mut Core) {
    for (at, len) in CORE_NUMBERS {
        core[at..at + len].reverse();
    }
}

/// Reverses the numbers whose form depends on `di_flags2`.
fn reverse_other_numbers(core: &mut Core, set: u64) {
    if set & flags2::NREXT64 != 0 {
        core[offset_of!(RawDinode, di_pad)..][..8].reverse();
    }
    for at in CORE_TIMES {
        if set & flags2::BIGTIME != 0 {
            core[at..at + 8].reverse();
        } else {
            core[at..at + 4].reverse();
            core[at + 4..at + 8].reverse();
        }
    }
}

/// The root of an extent B-tree in the space of a fork, as the log has it: as a block. `None` if it does not
/// fit.
pub(super) fn logged_root(space: &[u8], uuid: &[u8; 16], owner: u64) -> Option<Vec<u8>> {
    let small = size_of::<RawBmdrBlock>();
    let root: RawBmdrBlock = read(space, 0)?;
    let records = usize::from(root.bb_numrecs.get());
    let most = space.len().checked_sub(small)? / 16;
    if records > most {
        return None;
    }
    let mut head = RawLongBlock::new_zeroed();
    head.bb_magic = u32::from_be_bytes(*TreeKind::Extents.magic(true)).into();
    head.bb_level = root.bb_level;
    head.bb_numrecs = root.bb_numrecs;
    head.bb_leftsib = u64::MAX.into();
    head.bb_rightsib = u64::MAX.into();
    head.bb_blkno = u64::MAX.into();
    head.bb_uuid = *uuid;
    head.bb_owner = owner.into();
    let (keys, pointers) = (&space[small..][..records * 8], &space[small + most * 8..][..records * 8]);
    Some([head.as_bytes(), keys, pointers].concat())
}

/// Puts the root of an extent B-tree, which is logged as a block, into the space of a fork.
pub(super) fn put_root(space: &mut [u8], block: &[u8]) -> Option<()> {
    let header = size_of::<RawLongBlock>();
    let small = size_of::<RawBmdrBlock>();
    let records = usize::from(read::<RawLongBlock>(block, 0)?.bb_numrecs.get());
    let (from, to) = ((block.len() - header) / 16, space.len().checked_sub(small)? / 16);
    if records > from || records > to {
        return None;
    }
    space[..small].copy_from_slice(&block[4..4 + small]);
    let mut copy = |to: usize, from: usize| {
        space[to..to + records * 8].copy_from_slice(&block[from..from + records * 8]);
    };
    copy(small, header);
    copy(small + to * 8, header + from * 8);
    Some(())
}

impl RawDinode {
    /// A free inode.
    pub(super) fn new_free(generation: u32, ino: u64) -> Self {
        let mut inode: Self = zerocopy::FromZeros::new_zeroed();
        inode.di_magic = MAGIC_INODE.into();
        inode.di_version = 3;
        inode.di_gen = generation.into();
        inode.di_next_unlinked = NULL_AGINO.into();
        inode.di_ino = ino.into();
        inode
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn cores_convert() {
        let mut inode = RawDinode::new_free(0x0102_0304, 131);
        inode.di_atime = 0x0000_0001_0000_0002.into();
        inode.di_changecount = 7.into();
        let mut logged: Vec<u8> = inode.as_bytes().to_vec();
        CORE_NUMBERS.iter().for_each(|(at, len)| logged[*at..at + len].reverse());
        logged[32..36].reverse();
        logged[36..40].reverse();
        assert_eq!(native_core(&logged).unwrap()[..], *inode.as_bytes());
        assert_eq!(logged_core(inode.as_bytes()).unwrap()[..], logged);
        for set in [0, flags2::BIGTIME, flags2::NREXT64, flags2::BIGTIME | flags2::NREXT64] {
            inode.di_flags2 = set.into();
            inode.di_pad = [0, 0, 0, 0, 0, 1];
            inode.di_flushiter = 0x0203.into();
            let logged = logged_core(inode.as_bytes()).unwrap();
            assert_eq!(native_core(&logged).unwrap()[..], *inode.as_bytes(), "{set:#x}");
        }
        logged[4] = 2;
        assert_eq!(native_core(&logged), None);
        assert_eq!(native_core(&logged[1..]), None);
    }

    #[test]
    fn roots_move_to_the_inode() {
        let mut block = vec![0u8; 72 + 16 * 16];
        block[4..8].copy_from_slice(&[0, 1, 0, 2]);
        block[72..88].copy_from_slice(&[1; 16]);
        block[72 + 16 * 8..72 + 16 * 8 + 16].copy_from_slice(&[2; 16]);
        let mut space = vec![0u8; 100];
        put_root(&mut space, &block).unwrap();
        assert_eq!(space[..4], [0, 1, 0, 2]);
        assert_eq!((&space[4..20], &space[4 + 48..4 + 64]), (&[1u8; 16][..], &[2u8; 16][..]));
        let logged = logged_root(&space, &[7; 16], 9).unwrap();
        let mut again = vec![0u8; 100];
        put_root(&mut again, &logged).unwrap();
        assert_eq!((again, logged.len()), (space.clone(), 72 + 2 * 16));
        assert_eq!(logged_root(&[0, 1, 0, 9, 0, 0, 0, 0], &[7; 16], 9), None);
        assert_eq!(put_root(&mut space[..30], &block), None);
        block[7] = 17;
        assert_eq!(put_root(&mut space, &block), None);
        assert_eq!(put_root(&mut space, &block[..50]), None);
    }
}
