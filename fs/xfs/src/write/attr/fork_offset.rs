//! How the space of an inode is divided between the forks (`di_forkoff`, in units of 8 bytes).

use crate::fork::{Fork, root_bytes};
use crate::inode::Dinode;
use crate::layout::superblock::Superblock;

const UNIT: usize = 8;
/// A device number has 8 bytes, always.
const DEVICE_OFFSET: u8 = 1;
/// The fewest children for which the root of an extent B-tree has space: of data, and of attributes.
const LEAST_CHILDREN: [usize; 2] = [3, 2];
/// The usual space for data: a root with 12 children.
const USUAL_DATA_BYTES: usize = 192;
const EXTENT_BYTES: usize = 16;

/// Removes the attribute fork.
pub(super) fn drop_attributes(inode: &mut Dinode) {
    inode.attrs = Fork::None;
    inode.raw.di_forkoff = 0;
}

/// Bytes that the data fork needs.
fn data_bytes(inode: &Dinode) -> usize {
    let needed = match &inode.data {
        Fork::None | Fork::Device(_) => 0,
        Fork::Local(bytes) => bytes.len(),
        Fork::Extents(list) => list.len() * EXTENT_BYTES,
        Fork::Btree(root) => root_bytes(root.children.len()),
    };
    needed.max(root_bytes(LEAST_CHILDREN[0])).next_multiple_of(UNIT)
}

/// The largest offset.
fn most(inode: &Dinode, sb: &Superblock) -> usize {
    (inode.literal_bytes(sb) - root_bytes(LEAST_CHILDREN[1])) / UNIT * UNIT
}

/// The offset with which so many bytes of attributes fit in the inode: as much space for data as possible.
pub(super) fn for_local(inode: &Dinode, sb: &Superblock, bytes: usize) -> Option<u8> {
    let literal = inode.literal_bytes(sb);
    if let Fork::Device(_) = inode.data {
        return (bytes <= literal - UNIT).then_some(DEVICE_OFFSET);
    }
    let offset = (literal.checked_sub(bytes)? / UNIT * UNIT).min(most(inode, sb));
    (offset >= data_bytes(inode)).then_some((offset / UNIT) as u8)
}

/// The offset for attributes outside the inode. `None` if the data needs too much space as it is.
pub(super) fn for_blocks(inode: &Dinode, sb: &Superblock) -> Option<u8> {
    if let Fork::Device(_) = inode.data {
        return Some(DEVICE_OFFSET);
    }
    let (needed, most) = (data_bytes(inode), most(inode, sb));
    (needed <= most).then_some((needed.max(USUAL_DATA_BYTES).min(most) / UNIT) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Dinode;
    use crate::write::inode::NewDinode;
    use crate::write::tests::samples::superblock;
    use ivers_vfs::{FileType, Timestamp};

    #[test]
    fn data_keeps_its_space() {
        let sb = superblock();
        let new = |kind| NewDinode {
            kind,
            perm: 0,
            uid: 0,
            gid: 0,
            project: 0,
            flags: 0,
            rdev: 0,
            now: Timestamp { sec: 0, nsec: 0 },
            generation: 0,
            change_count: 0,
        };
        let mut inode = Dinode::new(&sb, 130, &new(FileType::Directory));
        inode.data = Fork::Local(vec![0; 100].into());
        // 336 bytes: 40 for attributes at least, 56 for data at least.
        assert_eq!(for_local(&inode, &sb, 10), Some(37));
        assert_eq!(for_local(&inode, &sb, 100), Some(29));
        assert_eq!((for_local(&inode, &sb, 232), for_local(&inode, &sb, 233)), (Some(13), None));
        assert_eq!(for_blocks(&inode, &sb), Some(24));
        inode.data = Fork::Local(vec![0; 290].into());
        assert_eq!((for_blocks(&inode, &sb), for_local(&inode, &sb, 40)), (Some(37), Some(37)));
        inode.data = Fork::Local(vec![0; 330].into());
        assert_eq!(for_blocks(&inode, &sb), None);
        let device = Dinode::new(&sb, 130, &new(FileType::Fifo));
        assert_eq!((for_local(&device, &sb, 328), for_local(&device, &sb, 329)), (Some(1), None));
    }
}
