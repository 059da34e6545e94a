//! Inode numbers: a subvolume and an inode in it, in 64 bits.
//!
//! Inodes of the top-level subvolume have the number that other tools print. All others have that of their
//! subvolume in the upper 24 bits.

use crate::layout::key::object;
use ivers_vfs::{Error, Ino, Result};

const OBJECT_BITS: u32 = 40;
const SUBVOLUMES: u64 = 1 << (64 - OBJECT_BITS);
/// The object that a snapshot shows in place of a subvolume in it has the subvolume's number, and this bit.
const PLACEHOLDER: u64 = 1 << (OBJECT_BITS - 1);

/// An inode: its subvolume and its number there.
pub(crate) type FileId = (u64, u64);

/// What an inode number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Object {
    /// An inode.
    Inode(u64),
    /// An empty directory in place of this subvolume, which the snapshot does not contain.
    Placeholder(u64),
}

/// Returns the number of an object of a subvolume.
pub(crate) fn pack(subvolume: u64, object: Object) -> Result<Ino> {
    let upper = if subvolume == object::FS_TREE { 0 } else { subvolume };
    let (lower, flag) = match object {
        Object::Inode(objectid) => (objectid, 0),
        Object::Placeholder(nested) => (nested, PLACEHOLDER),
    };
    if upper >= SUBVOLUMES || lower >= PLACEHOLDER {
        let what = format!("inode {lower} of subvolume {subvolume} is too large to have a number");
        return Err(Error::Incompatible(what));
    }
    Ok(Ino(upper << OBJECT_BITS | flag | lower))
}

/// Returns the subvolume and the object that a number means.
pub(crate) fn unpack(ino: Ino) -> (u64, Object) {
    let (upper, lower) = (ino.0 >> OBJECT_BITS, ino.0 & ((1 << OBJECT_BITS) - 1));
    let subvolume = if upper == 0 { object::FS_TREE } else { upper };
    let object = match lower & PLACEHOLDER {
        0 => Object::Inode(lower),
        flag => Object::Placeholder(lower & !flag),
    };
    (subvolume, object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_pack_and_unpack() {
        assert_eq!(pack(5, Object::Inode(257)).unwrap(), Ino(257));
        for (subvolume, object) in [
            (5, Object::Inode(256)),
            (256, Object::Inode(300)),
            (SUBVOLUMES - 1, Object::Inode(PLACEHOLDER - 1)),
            (300, Object::Placeholder(256)),
        ] {
            assert_eq!(unpack(pack(subvolume, object).unwrap()), (subvolume, object));
        }
        assert!(
            pack(SUBVOLUMES, Object::Inode(256)).is_err() && pack(5, Object::Inode(PLACEHOLDER)).is_err()
        );
    }
}
