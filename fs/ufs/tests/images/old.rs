//! Images as systems before 4.4BSD, and Solaris, made them. No available program makes them, so the tests
//! change images of makefs to these formats.

use crate::common::*;
use ivers_oracle::have_programs;
use ivers_ufs::check::check;
use ivers_ufs::layout::dinode::Dinode;
use ivers_ufs::layout::superblock::{ROOT, Superblock, at};
use ivers_ufs::layout::{Fields, FieldsMut};
use ivers_vfs::check::Memory;
use ivers_vfs::*;
use std::ops::Range;

/// A format: the `ufstype=` of Linux, the kind of image that it is made of, the bytes of a unit of a
/// directory, and whether owners can have more than 16 bits. To ivers and Linux, images of HP-UX are like
/// those of 4.2BSD, and images of Solaris x86 are like those of Solaris with another byte order.
pub const OLD: [(&str, usize, usize, bool); 3] =
    [("old", 0, 512, false), ("nextstep", 8, 1024, false), ("sun", 2, 512, true)];

/// The sum of `fs_state` and the time on Solaris, if the filesystem is clean.
const FSOKAY: u32 = 0x7c26_9d38;

/// The bytes of each used inode of an image, and the inode.
fn inodes(image: &[u8], sb: &Superblock) -> Vec<(Range<usize>, Dinode)> {
    let slot = |ino| {
        let (fragment, at) = sb.inode_place(ino);
        let start = fragment as usize * sb.fragment_size as usize + at;
        start..start + 128
    };
    let read = |ino| Some((slot(ino), Dinode::parse(&image[slot(ino)], sb, ino).unwrap()?));
    (ROOT..sb.inodes()).filter_map(read).collect()
}

/// The owner that an inode gets. Some do not fit into 16 bits.
fn owner(ino: u32, is_wide: bool) -> u32 {
    if is_wide && ino.is_multiple_of(3) { 100_000 + ino } else { 1000 + ino % 50 }
}

/// Gives the inodes of an image of makefs owners.
fn with_owners(image: &mut [u8], is_wide: bool) {
    let sb = superblock(image);
    for (slot, inode) in inodes(image, &sb) {
        let mut fields = FieldsMut::new(&mut image[slot], sb.order);
        fields.u32(112, owner(inode.ino, is_wide));
        fields.u32(116, owner(inode.ino + 1, is_wide));
    }
}

/// Packs the entries in the first bytes of a unit from its start on, in the format of older systems.
fn old_unit(unit: &[u8], used: usize, sb: &Superblock) -> Vec<u8> {
    let fields = Fields::new(unit, sb.order);
    let (mut at, mut found) = (0, Vec::new());
    while at < used {
        let (ino, name_len) = (fields.u32(at), usize::from(fields.u8(at + 7)));
        found.extend((ino != 0).then(|| (ino, &unit[at + 8..at + 8 + name_len])));
        at += usize::from(fields.u16(at + 4));
    }
    let mut packed = vec![0; unit.len()];
    at = 0;
    for (nth, (ino, name)) in found.iter().enumerate() {
        let needed = (8 + name.len() + 1).next_multiple_of(4);
        let len = if nth + 1 == found.len() { unit.len() - at } else { needed };
        packed[at + 8..at + 8 + name.len()].copy_from_slice(name);
        let mut fields = FieldsMut::new(&mut packed[at..], sb.order);
        fields.u32(0, *ino);
        fields.u16(4, len as u16);
        fields.u16(6, name.len() as u16);
        at += len;
    }
    packed
}

/// Changes an image of UFS1 to the format of an older system.
fn make_old(image: &mut [u8], unit: usize, is_wide: bool) {
    let sb = superblock(image);
    for (slot, inode) in inodes(image, &sb) {
        let mut fields = FieldsMut::new(&mut image[slot], sb.order);
        fields.u32(100, 0);
        (112..128).step_by(4).for_each(|at| fields.u32(at, 0));
        for (nth, id) in [owner(inode.ino, is_wide), owner(inode.ino + 1, is_wide)].into_iter().enumerate() {
            fields.u16(4 + 2 * nth, u16::try_from(id).unwrap_or(u16::MAX));
            if id > u16::MAX.into() {
                fields.u32(116 + 4 * nth, id);
            }
        }
        if inode.kind() != Some(FileType::Directory) {
            continue;
        }
        // All units are whole. Fragments have space for that.
        let (block, size) = (sb.block_size as usize, inode.size as usize);
        fields.u64(8, size.next_multiple_of(unit) as u64);
        for start in (0..size).step_by(unit) {
            let at = inode.pointers[start / block] as usize * sb.fragment_size as usize + start % block;
            let packed = old_unit(&image[at..at + unit], unit.min(size - start), &sb);
            image[at..at + unit].copy_from_slice(&packed);
        }
    }
    let time = Fields::new(&image[sb.at as usize..], sb.order).u32(at::FS_OLD_TIME);
    let start = sb.at as usize;
    image[start + at::FS_OLD_FLAGS] = 0;
    let mut fields = FieldsMut::new(&mut image[start..], sb.order);
    // What 4.4BSD has there was free, or had another meaning.
    fields.u32(at::FS_MAXSYMLINKLEN, 0);
    // It is 2 on 4.4BSD. All other values mean older inodes.
    fields.u32(at::FS_OLD_INODEFMT, if unit == 512 { 0 } else { u32::MAX });
    fields.u32(1336, FSOKAY.wrapping_sub(time));
}

/// Makes an image of a format, and one of 4.4BSD with the same files.
pub fn old_and_new((_, kind, unit, is_wide): (&str, usize, usize, bool)) -> (Vec<u8>, Vec<u8>) {
    let mut new = small_image_of(&KINDS[kind]);
    with_owners(&mut new, is_wide);
    let mut old = new.clone();
    make_old(&mut old, unit, is_wide);
    (old, new)
}

/// Leaves out the sizes of directories, which depend on the size of a unit.
fn without_sizes_of_directories(mut tree: Tree) -> Tree {
    for line in tree.values_mut().filter(|line| line.starts_with("40")) {
        *line = line.split_whitespace().filter(|word| !word.starts_with("size=")).collect();
    }
    tree
}

#[test]
fn images_of_older_systems_are_read() {
    if !have_programs(&["makefs"]) {
        return;
    }
    for format in OLD {
        let (old, new) = old_and_new(format);
        let fs = open(memory(&old)).unwrap();
        let why = fs.health().read_only.unwrap();
        assert!(why.contains("before 4.4BSD"), "{}: {why}", format.0);
        let trees = [&old, &new].map(|image| our_tree(&mount_device(memory(image)).unwrap(), false).unwrap());
        let trees = trees.map(|tree| without_sizes_of_directories(crate::read::comparable(&tree)));
        assert!(trees[0].len() > 400, "{}", format.0);
        assert_same(&trees[0], &trees[1], format.0);
        let refused = check(memory(&old), Memory::unlimited(), "image").unwrap_err().to_string();
        assert!(refused.contains("before 4.4BSD"), "{}: {refused}", format.0);
    }
}

#[test]
fn inodes_of_4_4bsd_with_groups_of_4_2bsd_are_refused() {
    if !have_programs(&["makefs"]) {
        return;
    }
    let mut image = small_image(&["-s", "16m", "-o", "version=1"]);
    let sb = superblock(&image);
    FieldsMut::new(&mut image[sb.at as usize..], sb.order).u32(at::FS_OLD_POSTBLFORMAT, u32::MAX);
    let error = open(memory(&image)).err().unwrap();
    assert!(matches!(error, Error::Incompatible(_)), "{error}");
    assert!(error.to_string().contains("groups of 4.2BSD"), "{error}");
}
