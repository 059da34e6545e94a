//! Damaged directories, attributes and maps: no operation panics, loops for ever, or takes much memory.

use super::common::V5;
use super::fixture::Fixture;
use super::harness::{Image, Seeded, close, open, superblock};
use crate::dir::DirSource;
use crate::fork::{Fork, ForkSource, Which};
use crate::inode::Dinode;
use crate::layout::checksum::seal_inode;
use crate::layout::dinode::FILE_BLOCKS_END;
use crate::layout::directory::dir_unit;
use crate::layout::superblock::{FsBlock, Superblock};
use crate::log::stamp;
use crate::unit::Whose;
use crate::write::dir::Target;
use crate::write::fork::MapRequest;
use crate::write::space::Space;
use crate::write::tx::Tx;
use ivers_block::{BlockNo, ByteOffset, Device, FileBlock, FileDevice, OpenMode, OverlayDevice};
use ivers_vfs::{FileType, Result, XattrMode};
use std::sync::Arc;

/// Structures of an inode, each with its blocks.
fn structures(fixture: &Fixture, ino: u64, units: &mut Vec<Vec<BlockNo>>) {
    let inode = &fixture.inodes[&ino];
    let sb = &fixture.space.sb;
    let (cluster, _) = sb.inode_cluster(ino).unwrap();
    units.push(cluster.to_vec());
    for which in [Which::Data, Which::Attributes] {
        let fork = inode.fork(which);
        if let Fork::Btree(root) = fork {
            let blocks = root.children.iter().map(|child| sb.run(FsBlock(child.1), 1).unwrap());
            units.extend(blocks.map(|block| vec![block]));
        }
        let is_file = inode.kind() == FileType::Regular && which == Which::Data;
        if is_file || matches!(fork, Fork::Local(_) | Fork::None | Fork::Device(_)) {
            continue;
        }
        let unit = if which == Which::Data { dir_unit(sb) } else { 1 };
        let mut at = FileBlock(0);
        fixture.change(|tx| {
            loop {
                let mapping = ForkSource::map(tx, fork, at, ino)?;
                if mapping.block.is_some() {
                    units.push(tx.mapped_blocks(fork, inode.unit(which, at, unit))?.to_vec());
                    at += unit;
                } else if at.0 + mapping.len >= FILE_BLOCKS_END {
                    return Ok(());
                } else {
                    at += mapping.len;
                }
            }
        });
    }
}

fn damage(random: &mut Seeded, sb: &Superblock, device: &dyn Device, blocks: &[BlockNo]) {
    let size = sb.block_size as usize;
    let offset = |block: BlockNo| ByteOffset(block.0 * size as u64);
    let mut bytes = vec![0; blocks.len() * size];
    for (block, part) in blocks.iter().zip(bytes.chunks_exact_mut(size)) {
        device.read_at(offset(*block), part).unwrap();
    }
    for _ in 0..1 + random.below(3) {
        let end = bytes.len() as u32;
        let at = match random.below(4) {
            0 => random.below(end.min(200)),
            1 => end - 1 - random.below(64),
            _ => random.below(end),
        };
        let byte = &mut bytes[at as usize];
        *byte = match random.below(3) {
            0 => 0xFF,
            1 => *byte ^ 1 << random.below(8),
            _ => random.below(256) as u8,
        };
    }
    if bytes.starts_with(b"IN") {
        bytes.chunks_exact_mut(sb.inode_size as usize).for_each(seal_inode);
    }
    stamp(sb, blocks, 0, &mut bytes);
    for (block, part) in blocks.iter().zip(bytes.chunks_exact(size)) {
        device.write_at(offset(*block), part).unwrap();
    }
}

/// Runs one operation; returns the inode after it, or `None` if it failed.
fn attempt(
    space: &Space,
    inode: &Dinode,
    operation: impl FnOnce(&mut Tx<'_>, &mut Dinode) -> Result<()>,
) -> Option<Dinode> {
    let mut tx = space.begin(space.journal.max_credits()).unwrap();
    let mut clone = inode.clone();
    operation(&mut tx, &mut clone).and_then(|()| clone.log(&mut tx)).ok()?;
    tx.finish().ok()?;
    Some(clone)
}

fn decoded(space: &Space, ino: u64) -> Option<Dinode> {
    let tx = space.begin(1).unwrap();
    let (cluster, at) = space.sb.inode_cluster(ino)?;
    let bytes = tx.read_unit(&cluster, None, Whose::Inode(ino)).ok()?;
    Dinode::decode(&space.sb, &bytes[at..at + space.sb.inode_size as usize], ino, true).ok()
}

fn operate(random: &mut Seeded, space: &Space, mut inode: Dinode) -> u32 {
    let mut errors = 0;
    let is_dir = inode.kind() == FileType::Directory;
    for step in 0..12 {
        let number = random.below(3000);
        let choice = random.below(8);
        let len = random.below(3000) as usize;
        let next = attempt(space, &inode, |tx, inode| {
            let name = format!("name-{number}").into_bytes();
            match choice {
                0 | 1 if is_dir => tx.remove_entry(inode, &name).map(drop),
                2 | 3 if is_dir => {
                    if tx.find_entry(inode, &name)?.is_none() {
                        tx.add_entry(inode, &name, Target { ino: 131, ftype: 1 })?;
                    }
                    Ok(())
                }
                4 if is_dir => tx.replace_entry(inode, &name, Target { ino: 133, ftype: 2 }),
                0 => {
                    tx.unmap_range(inode, Which::Data, FileBlock(0), FileBlock(FILE_BLOCKS_END), 9).map(drop)
                }
                1 => {
                    let at = FileBlock(1 + 2 * u64::from(number % 400));
                    let request = MapRequest { at, min: 1, max: 1, goal: None, unwritten: true, ahead: 0 };
                    tx.map_extent(inode, Which::Data, request).map(drop)
                }
                2 => tx.convert_range(inode, FileBlock(0), FileBlock(90), false),
                3 if step > 9 => tx.release_inode(inode, 1000).map(drop),
                4 | 5 => {
                    let name = format!("user.{}", number % 300);
                    tx.set_attribute(inode, name.as_bytes(), None, XattrMode::Any)
                }
                _ => {
                    let name = format!("user.{}", number % 300);
                    tx.set_attribute(inode, name.as_bytes(), Some(&vec![1; len]), XattrMode::Any)
                }
            }
        });
        match next {
            Some(next) => inode = next,
            None => errors += 1,
        }
    }
    errors
}

#[test]
fn damaged_structures_give_errors() {
    if !super::common::have_xfsprogs() || !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    for kind in ["default", "1 KiB and directory blocks of 8 KiB", "all features of 6.1"] {
        let (_, args) = V5.iter().find(|(name, _)| *name == kind).unwrap();
        let image = Image::new(args, 0);
        let mut random = Seeded::new(kind);
        let mut fixture = Fixture::open(&image);
        let mut inos = Vec::new();
        for (nth, names) in [3, 60, 300, 3000].into_iter().enumerate() {
            let dir = fixture.create(fixture.root, format!("dir{nth}").as_bytes(), FileType::Directory, b"");
            let file = fixture.create(dir, b"name-0", FileType::Regular, b"");
            (1..names).for_each(|nth| fixture.link(dir, format!("name-{nth}").as_bytes(), file));
            (0..200).for_each(|nth| fixture.write(file, nth * 2, 1, 1, nth % 3 == 0));
            for nth in 0..[3, 20, 300, 5][nth] {
                let len = if nth % 9 == 0 { 5000 } else { (nth % 60) as usize };
                fixture.set_xattr(file, &format!("user.{nth}"), Some(&vec![3; len]));
            }
            inos.extend([dir, file]);
        }
        let mut units = Vec::new();
        inos.iter().for_each(|ino| structures(&fixture, *ino, &mut units));
        close(fixture.space);
        let device = Arc::new(FileDevice::open(&image.path, OpenMode::ReadOnly).unwrap());
        let sb = superblock(&*device);
        let mut errors = 0;
        for _ in 0..500 {
            let damaged = Arc::new(OverlayDevice::new(device.clone()));
            for _ in 0..1 + random.below(12) {
                let unit = units[random.below(units.len() as u32) as usize].clone();
                damage(&mut random, &sb, &*damaged, &unit);
            }
            let space = open(damaged);
            for ino in &inos {
                match decoded(&space, *ino) {
                    Some(inode) => errors += operate(&mut random, &space, inode),
                    None => errors += 1,
                }
            }
        }
        assert!(errors > 1000, "{kind}: {errors} errors");
    }
}
