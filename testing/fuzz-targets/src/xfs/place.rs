//! The positions of the structures of a valid XFS image. The images are our own, so nothing is validated.

use crate::place::Place;
use ivers_xfs::layout::checksum::{SelfDescription, has_valid_inode_crc};
use ivers_xfs::layout::superblock::Superblock;
use std::collections::HashMap;
use std::ops::Range;

pub(super) const SECTOR: usize = 512;
/// The end of an inode's core, where its data fork starts.
const CORE_BYTES: usize = 176;
/// The largest directory block.
const STRUCTURE_MAX: usize = 64 << 10;

/// A kind of structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// A superblock, an AGF, an AGI or a free list.
    Head,
    /// An inode, used or free.
    Inode,
    /// The forks of an inode.
    Forks,
    /// The data fork of a directory in its inode.
    ShortDirectory,
    /// The attribute fork, if it contains the attributes.
    ShortAttributes,
    /// The target of a symbolic link outside its inode.
    LinkTarget,
    /// A block of a B-tree: free space, inodes, reverse map, reference counts, extents.
    Tree,
    /// A data block, a leaf or a free index of a directory.
    Directory,
    /// A leaf of attributes, or a block of an attribute's value.
    Attributes,
    /// An inner node of a directory or of attributes.
    HashNode,
    /// The first sector of a log record that is replayed.
    LogHead,
    /// An operation in such a record.
    LogOperation,
}

impl Class {
    /// Every class.
    pub const ALL: &[Self] = &[
        Class::Head,
        Class::Inode,
        Class::Forks,
        Class::ShortDirectory,
        Class::ShortAttributes,
        Class::LinkTarget,
        Class::Tree,
        Class::Directory,
        Class::Attributes,
        Class::HashNode,
        Class::LogHead,
        Class::LogOperation,
    ];
}

pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn class_of(structure: &[u8]) -> Class {
    match &structure[..4] {
        b"XFSB" | b"XAGF" | b"XAGI" | b"XAFL" => Class::Head,
        b"XDB3" | b"XDD3" | b"XDF3" => Class::Directory,
        b"XSLM" => Class::LinkTarget,
        b"XARM" => Class::Attributes,
        _ => match be16(structure, 8) {
            0x3df1 | 0x3dff => Class::Directory,
            0x3bee => Class::Attributes,
            0x3ebe => Class::HashNode,
            _ => Class::Tree,
        },
    }
}

/// Returns where the log is.
pub(super) fn log(sb: &Superblock) -> Range<usize> {
    let start = sb.run(sb.log_start, sb.log_blocks.into()).expect("a base has a log").offset(sb.block_size).0;
    start as usize..start as usize + sb.log_blocks as usize * sb.block_size as usize
}

/// Returns the structures of an image by class, in their order on the device.
pub(super) fn places(image: &[u8], sb: &Superblock) -> HashMap<Class, Vec<Place>> {
    let mut found = HashMap::new();
    let log = log(sb);
    for at in (0..image.len()).step_by(SECTOR).filter(|at| !log.contains(at)) {
        let rest = &image[at..];
        if let Some(kind) = SelfDescription::of(&rest[..SECTOR]) {
            // Blocks of directories, targets of links and heads of groups have other sizes than most blocks.
            let sizes = (0..).map(|n| SECTOR << n).take_while(|size| *size <= rest.len().min(STRUCTURE_MAX));
            let sizes = sizes.chain((1..8).map(|blocks| blocks * sb.block_size as usize));
            if let Some(len) =
                sizes.filter(|len| *len <= rest.len()).find(|len| kind.has_valid_crc(&rest[..*len]))
            {
                add(&mut found, class_of(rest), at, len, 0);
            }
        } else if rest.starts_with(b"IN") && has_valid_inode_crc(&rest[..sb.inode_size as usize]) {
            inode(&mut found, &rest[..sb.inode_size as usize], at);
        }
    }
    for record in super::log::records(image, &log) {
        add(&mut found, Class::LogHead, record.at, SECTOR, record.at);
        for operation in record.operations {
            add(&mut found, Class::LogOperation, operation.start, operation.len(), record.at);
        }
    }
    found
}

fn add(found: &mut HashMap<Class, Vec<Place>>, class: Class, at: usize, len: usize, slot: usize) {
    found.entry(class).or_default().push(Place { at: at as u64, len, owner: 0, slot: slot as u64 });
}

fn inode(found: &mut HashMap<Class, Vec<Place>>, bytes: &[u8], at: usize) {
    const LOCAL: u8 = 1;
    let (mode, format) = (be16(bytes, 2), bytes[5]);
    let (forkoff, attr_format) = (usize::from(bytes[82]) * 8, bytes[83]);
    let end = bytes.len();
    add(found, Class::Inode, at, end, at);
    if mode == 0 {
        return;
    }
    add(found, Class::Forks, at + CORE_BYTES, end - CORE_BYTES, at);
    let attributes = if forkoff == 0 { end } else { CORE_BYTES + forkoff };
    if mode & 0xF000 == 0x4000 && format == LOCAL {
        add(found, Class::ShortDirectory, at + CORE_BYTES, attributes - CORE_BYTES, at);
    }
    if forkoff != 0 && attr_format == LOCAL {
        add(found, Class::ShortAttributes, at + attributes, end - attributes, at);
    }
}
