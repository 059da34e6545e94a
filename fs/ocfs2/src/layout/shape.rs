//! What all structures of a block have: a signature, their own block number, a generation, and a checksum.

use super::blockcheck::INODE_CHECK_AT;
use super::bytes::{put_u32, put_u64, u32_at, u64_at};

/// Where a kind of structure has these fields.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Its name in errors.
    pub name: &'static str,
    signature: &'static [u8],
    /// The offset of its own block number.
    number_at: usize,
    /// The offset of the generation of the filesystem.
    generation_at: usize,
    /// The offset of its `struct ocfs2_block_check`.
    pub check_at: usize,
}

const fn shape(name: &'static str, signature: &'static [u8], fields: [usize; 3]) -> Shape {
    let [number_at, generation_at, check_at] = fields;
    Shape { name, signature, number_at, generation_at, check_at }
}

/// An inode.
pub const DINODE: Shape = shape("inode", b"INODE01", [0x50, 0x60, INODE_CHECK_AT]);
/// A node of an extent tree.
pub const EXTENT_BLOCK: Shape = shape("extent block", b"EXBLK01", [0x18, 0x14, 0x08]);
/// The descriptor of a group.
pub const GROUP: Shape = shape("group descriptor", b"GROUP01", [0x28, 0x10, 0x30]);
/// A block of extended attributes.
pub const XATTR_BLOCK: Shape = shape("xattr block", b"XATTR01", [0x10, 0x0C, 0x18]);
/// The root of a directory's index.
pub const DX_ROOT: Shape = shape("directory index root", b"DXDIR01", [0x18, 0x14, 0x08]);
/// A leaf of a directory's index.
pub const DX_LEAF: Shape = shape("directory index leaf", b"DXLEAF1", [0x10, 0x18, 0x08]);
/// A block of reference counts.
pub const REFCOUNT_BLOCK: Shape = shape("refcount block", b"REFCNT1", [0x10, 0x0C, 0x20]);

const ALL: &[Shape] = &[DINODE, EXTENT_BLOCK, GROUP, XATTR_BLOCK, DX_ROOT, DX_LEAF, REFCOUNT_BLOCK];

impl Shape {
    /// Returns the kind of a structure by its signature.
    pub fn of(bytes: &[u8]) -> Option<&'static Shape> {
        ALL.iter().find(|shape| bytes.starts_with(shape.signature))
    }

    /// Writes the signature, the number of the block and the generation of the filesystem.
    pub fn put(&self, bytes: &mut [u8], number: u64, generation: u32) {
        bytes[..8].fill(0);
        bytes[..self.signature.len()].copy_from_slice(self.signature);
        put_u64(bytes, self.number_at, number);
        put_u32(bytes, self.generation_at, generation);
    }

    /// Returns what is wrong with a structure of this kind in block `number`.
    pub fn check(&self, bytes: &[u8], number: u64, generation: u32) -> Result<(), String> {
        let name = self.name;
        if !bytes.starts_with(self.signature) {
            return Err(format!("this is no {name}: its signature is missing"));
        }
        let stored = u64_at(bytes, self.number_at);
        if stored != number {
            return Err(format!("the {name} says that it is in block {stored}"));
        }
        let stored = u32_at(bytes, self.generation_at);
        if stored != generation {
            return Err(format!("the {name} has generation {stored:#x}, the filesystem {generation:#x}"));
        }
        Ok(())
    }
}
