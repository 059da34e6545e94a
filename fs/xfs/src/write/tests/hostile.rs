//! Damaged images: no change panics, loops for ever, or takes much memory.

use super::harness::*;
use crate::layout::owner::Owner;
use crate::layout::raw::{RawAgf, RawAgi};
use crate::layout::superblock::FsBlock;
use crate::log::stamp;
use crate::write::alloc::AllocRequest;
use ivers_block::{BlockNo, ByteOffset, Device, FileDevice, OpenMode, OverlayDevice};
use std::mem::offset_of;
use std::sync::Arc;

#[test]
fn heads_of_groups_with_absurd_numbers_give_errors() {
    if !super::common::have_xfsprogs() || !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    let image = Image::new(&[], 0);
    let device = Arc::new(FileDevice::open(&image.path, OpenMode::ReadOnly).unwrap());
    let sb = superblock(&*device);
    let fields = [
        (1, offset_of!(RawAgf, agf_fllast), "free list"),
        (2, offset_of!(RawAgi, agi_count), "count of inodes"),
    ];
    for (sector, field, expected) in fields {
        let damaged = Arc::new(OverlayDevice::new(device.clone()));
        let mut bytes = vec![0; sb.block_size as usize];
        damaged.read_at(ByteOffset(0), &mut bytes).unwrap();
        bytes[sector * sb.sector_size as usize + field..][..4].fill(0xFF);
        stamp(&sb, &[BlockNo(0)], 0, &mut bytes);
        damaged.write_at(ByteOffset(0), &bytes).unwrap();
        let space = open(damaged);
        let mut tx = space.begin(space.credits_of_inode()).unwrap();
        let owner = Owner::data(image.directory, 0);
        let request = AllocRequest { goal: FsBlock(0), min: 1, max: 1, alignment: 1, owner };
        let error = match sector {
            1 => tx.allocate(request).map(|_| ()),
            _ => tx.allocate_inode(sb.root, false).map(|_| ()),
        };
        let error = error.expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn damaged_groups_give_errors() {
    if !super::common::have_xfsprogs() || !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    let kinds: [(&str, &[&str]); 3] = [
        ("rmapbt", &["-m", "rmapbt=1"]),
        ("1 KiB, rmapbt", &["-m", "rmapbt=1", "-b", "size=1024"]),
        ("no sparse inodes", &["-i", "sparse=0", "-b", "size=1024"]),
    ];
    for (name, args) in kinds {
        let mut random = Seeded::new(name);
        let image = Image::new(args, 20);
        let device = Arc::new(FileDevice::open(&image.path, OpenMode::ReadOnly).unwrap());
        let sb = superblock(&*device);
        let mut errors = 0;
        for _ in 0..400 {
            let damaged = Arc::new(OverlayDevice::new(device.clone()));
            // Bytes of a head, a root, the free list, or inodes, with a valid checksum.
            for _ in 0..1 + random.below(4) {
                let block = BlockNo(u64::from(random.below(40)));
                let offset = ByteOffset(block.0 * u64::from(sb.block_size));
                let mut bytes = vec![0; sb.block_size as usize];
                damaged.read_at(offset, &mut bytes).unwrap();
                let end = if random.one_in(2) { 256 } else { sb.block_size };
                let at = random.below(end) as usize;
                if block.0 == 0 && at < sb.sector_size as usize {
                    continue;
                }
                bytes[at] = match random.below(3) {
                    0 => 0xFF,
                    1 => bytes[at] ^ 1 << random.below(8),
                    _ => random.below(256) as u8,
                };
                stamp(&sb, &[block], 0, &mut bytes);
                damaged.write_at(offset, &bytes).unwrap();
            }
            let space = open(damaged);
            for step in 0..20 {
                let mut tx = space.begin(space.credits_of_inode()).unwrap();
                let owner = Owner::data(image.inos[0], step * 100);
                let goal = FsBlock(u64::from(random.below(100)));
                let max = 1 + random.below(100);
                let request = AllocRequest { goal, min: 1, max, alignment: 1, owner };
                let run = tx.allocate(request);
                let ino = tx.allocate_inode(image.directory, random.one_in(2));
                let linked = ino.clone().ok().flatten().map(|ino| tx.add_unlinked(ino));
                errors += u32::from(run.is_err()) + u32::from(ino.is_err());
                errors += u32::from(linked.is_some_and(|linked| linked.is_err()));
                if run.is_err() || ino.is_err() {
                    continue;
                }
                if let Some(run) = run.unwrap().filter(|_| random.one_in(2)) {
                    tx.free(run, owner).unwrap();
                }
                errors += u32::from(tx.finish().is_err());
            }
        }
        assert!(errors > 100, "{name}: {errors} errors");
    }
}
