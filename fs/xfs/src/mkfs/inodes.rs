//! The first chunk of inodes: root directory, bitmap and summary of the realtime device, and free inodes.

use super::geometry::Plan;
use super::options::MkfsOptions;
use crate::layout::bytes::{MAGIC_INODE, NULL_AGINO};
use crate::layout::checksum::seal_inode;
use crate::layout::dinode::{BIGTIME_EPOCH_SEC, NS_PER_SEC, flags, flags2, format};
use crate::layout::features::Incompat;
use crate::layout::raw::RawDinode;
use zerocopy::{FromZeros, IntoBytes};

/// Inodes in use: root directory, bitmap, summary.
pub(super) const USED: u32 = 3;
const S_IFDIR: u16 = 0o040_000;
const S_IFREG: u16 = 0o100_000;

/// The blocks of the chunk. `first` is the number of its first inode, which is the root directory.
pub(super) fn chunk(plan: &Plan, options: &MkfsOptions, first: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((plan.chunk_blocks() * plan.block_size) as usize);
    for index in 0..plan.chunk_inodes() {
        let mut inode = inode(options, first, index);
        inode.resize(plan.inode_size as usize, 0);
        seal_inode(&mut inode);
        bytes.extend(inode);
    }
    bytes
}

fn inode(options: &MkfsOptions, root: u64, index: u32) -> Vec<u8> {
    let ino = root + u64::from(index);
    let mut raw = RawDinode::new_zeroed();
    raw.di_magic = MAGIC_INODE.into();
    raw.di_version = 3;
    // A file that gets a freed number must differ from its predecessor, also across filesystems.
    raw.di_gen = crc32c::crc32c_append(crc32c::crc32c(&options.uuid), &ino.to_be_bytes()).into();
    raw.di_next_unlinked = NULL_AGINO.into();
    raw.di_ino = ino.into();
    raw.di_uuid = options.uuid;
    let mut fork = Vec::new();
    if index < USED {
        let has = |flag| options.features.has_incompat(flag);
        let now = stored_time(options.timestamp, has(Incompat::BIGTIME)).into();
        (raw.di_atime, raw.di_mtime, raw.di_ctime, raw.di_crtime) = (now, now, now, now);
        let mut set = 0;
        if has(Incompat::BIGTIME) {
            set |= flags2::BIGTIME;
        }
        if has(Incompat::NREXT64) {
            set |= flags2::NREXT64;
        }
        raw.di_flags2 = set.into();
        raw.di_changecount = 1.into();
        raw.di_aformat = format::EXTENTS;
    }
    match index {
        0 => {
            raw.di_mode = (S_IFDIR | 0o755).into();
            raw.di_format = format::LOCAL;
            raw.di_nlink = 2.into();
            (raw.di_uid, raw.di_gid) = (options.root_owner.0.into(), options.root_owner.1.into());
            // No entries, none of them with a number of 64 bits; the parent is the directory itself.
            fork = [&[0, 0][..], &(ino as u32).to_be_bytes()].concat();
            raw.di_size = (fork.len() as u64).into();
        }
        1..USED => {
            raw.di_mode = S_IFREG.into();
            raw.di_format = format::EXTENTS;
            raw.di_nlink = 1.into();
        }
        _ => {}
    }
    if index == 1 {
        raw.di_flags = flags::REALTIME_BITMAP.into();
        // It counts changes of the bitmap.
        raw.di_atime = stored_time(0, options.features.has_incompat(Incompat::BIGTIME)).into();
    }
    [raw.as_bytes(), &fork].concat()
}

/// A time as stored: nanoseconds since 1901, or seconds and nanoseconds of 32 bits each.
fn stored_time(seconds: u32, bigtime: bool) -> u64 {
    match bigtime {
        true => (u64::from(seconds) + BIGTIME_EPOCH_SEC) * u64::from(NS_PER_SEC),
        false => u64::from(seconds) << 32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_stored_in_both_forms() {
        assert_eq!(stored_time(0, false), 0);
        assert_eq!(stored_time(7, false), 7 << 32);
        assert_eq!(stored_time(0, true), 2_147_483_648_000_000_000);
        assert_eq!(stored_time(u32::MAX, true), 6_442_450_943_000_000_000);
    }
}
