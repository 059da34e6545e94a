//! The positions of the structures of a valid image. The images are our own, so nothing is validated here.

use ivers_ext4::layout::inode::{FL_EA_INODE, FL_EXTENTS, FL_INDEX, FL_INLINE_DATA, slot_state};
use ivers_ext4::layout::{GroupDesc, Superblock};
use std::collections::HashMap;

/// A kind of structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The superblock.
    Superblock,
    /// A group descriptor.
    GroupDescriptor,
    /// A bitmap of blocks or inodes.
    Bitmap,
    /// A used inode slot.
    InodeSlot,
    /// `i_block` of an inode with a block map.
    SlotMap,
    /// The part of a slot after its fixed fields.
    SlotBody,
    /// A node of an extent tree, or a block of an indirect map.
    MapNode,
    /// A block of a directory.
    DirBlock,
    /// The slot of a directory with inline names or an index.
    DirSlot,
    /// A block of extended attributes.
    XattrBlock,
    /// The slot or the data of an inode that holds an attribute's value.
    EaInode,
    /// A used block of the journal.
    Journal,
    /// Data of a file.
    Data,
}

impl Class {
    /// Every class.
    pub const ALL: &[Self] = &[
        Class::Superblock,
        Class::GroupDescriptor,
        Class::Bitmap,
        Class::InodeSlot,
        Class::SlotMap,
        Class::SlotBody,
        Class::MapNode,
        Class::DirBlock,
        Class::DirSlot,
        Class::XattrBlock,
        Class::EaInode,
        Class::Journal,
        Class::Data,
    ];
}

/// A structure of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The offset of its first byte.
    pub at: u64,
    /// The length in bytes.
    pub len: usize,
    /// The inode (for slots, and for blocks of inodes) or the group; otherwise 0.
    pub owner: u32,
    /// The offset of the owner's slot; 0: none.
    pub slot: u64,
}

/// The journal's inode.
const JOURNAL_INO: u32 = 8;

pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

struct Finder<'a> {
    image: &'a [u8],
    block_size: usize,
    found: HashMap<Class, Vec<Place>>,
}

/// Returns the structures of an image by class, in the order of inodes.
pub fn places(image: &[u8], sb: &Superblock) -> HashMap<Class, Vec<Place>> {
    let block_size = sb.block_size as usize;
    let mut finder = Finder { image, block_size, found: HashMap::new() };
    finder.add(Class::Superblock, 1024, 1024, 0, 0);
    for group in 0..sb.groups() {
        let (block, byte) = sb.desc_place(group);
        let (at, len) = (block.offset(sb.block_size).0 as usize + byte, sb.desc_size as usize);
        finder.add(Class::GroupDescriptor, at as u64, len, group, 0);
        let desc =
            GroupDesc::decode(sb, group, &image[at..at + len]).expect("a base's descriptors are sound");
        finder.add(Class::Bitmap, desc.block_bitmap.offset(sb.block_size).0, block_size, group, 0);
        finder.add(Class::Bitmap, desc.inode_bitmap.offset(sb.block_size).0, block_size, group, 0);
        for index in 0..sb.inodes_per_group {
            let at = desc.inode_table.offset(sb.block_size).0 as usize + (index * sb.inode_size) as usize;
            finder.inode(
                group * sb.inodes_per_group + index + 1,
                &image[at..at + sb.inode_size as usize],
                at as u64,
            );
        }
    }
    finder.found
}

impl Finder<'_> {
    fn add(&mut self, class: Class, at: u64, len: usize, owner: u32, slot: u64) {
        self.found.entry(class).or_default().push(Place { at, len, owner, slot });
    }

    fn block(&mut self, class: Class, block: u64, owner: u32, slot: u64) {
        self.add(class, block * self.block_size as u64, self.block_size, owner, slot);
    }

    fn inode(&mut self, ino: u32, slot: &[u8], at: u64) {
        let state = slot_state(slot);
        let used = state.links != 0 || state.mode != 0;
        if !used {
            return;
        }
        let flags = le32(slot, 0x20);
        let kind = state.mode & 0xF000;
        self.add(Class::InodeSlot, at, slot.len(), ino, at);
        if slot.len() > 128 {
            self.add(Class::SlotBody, at + 128, slot.len() - 128, ino, at);
        }
        let acl = u64::from(le32(slot, 0x68));
        if acl != 0 {
            self.block(Class::XattrBlock, acl, ino, at);
        }
        if flags & FL_EA_INODE != 0 {
            self.add(Class::EaInode, at, slot.len(), ino, at);
        }
        if flags & (FL_INLINE_DATA | FL_INDEX) != 0 && kind == 0x4000 {
            self.add(Class::DirSlot, at, slot.len(), ino, at);
        }
        let has_map = matches!(kind, 0x4000 | 0x8000) && flags & FL_INLINE_DATA == 0;
        if !has_map {
            return;
        }
        self.add(Class::SlotMap, at + 0x28, 60, ino, at);
        let class = match (kind, flags & FL_EA_INODE) {
            _ if ino == JOURNAL_INO => Class::Journal,
            (0x4000, _) => Class::DirBlock,
            (_, 0) => Class::Data,
            _ => Class::EaInode,
        };
        let mut data = Vec::new();
        if flags & FL_EXTENTS != 0 {
            self.extents(&slot[0x28..0x64], ino, at, &mut data);
        } else {
            for index in 0..15 {
                let block = u64::from(le32(slot, 0x28 + index * 4));
                self.indirect(block, index.saturating_sub(11), ino, at, &mut data);
            }
        }
        let image = self.image;
        for block in data {
            let bytes = &image[block as usize * self.block_size..][..self.block_size];
            if class != Class::Journal || bytes.iter().any(|&byte| byte != 0) {
                self.block(class, block, ino, at);
            }
        }
    }

    fn extents(&mut self, node: &[u8], ino: u32, slot: u64, data: &mut Vec<u64>) {
        let image = self.image;
        for entry in (1..=usize::from(le16(node, 2))).map(|n| n * 12) {
            if le16(node, 6) == 0 {
                let first = u64::from(le32(node, entry + 8));
                // A length above 2^15 marks an unwritten extent.
                let len = le16(node, entry + 4);
                let len = if len > 0x8000 { len - 0x8000 } else { len };
                data.extend(first..first + u64::from(len));
            } else {
                let child = u64::from(le32(node, entry + 4));
                self.block(Class::MapNode, child, ino, slot);
                let at = child as usize * self.block_size;
                self.extents(&image[at..at + self.block_size], ino, slot, data);
            }
        }
    }

    fn indirect(&mut self, block: u64, depth: usize, ino: u32, slot: u64, data: &mut Vec<u64>) {
        if block == 0 {
            return;
        }
        if depth == 0 {
            data.push(block);
            return;
        }
        self.block(Class::MapNode, block, ino, slot);
        let at = block as usize * self.block_size;
        for index in 0..self.block_size / 4 {
            self.indirect(u64::from(le32(self.image, at + index * 4)), depth - 1, ino, slot, data);
        }
    }
}
