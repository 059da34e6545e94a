//! Inodes, their chunks, and lists of unlinked inodes.

use super::common::V5;
use super::harness::*;
use crate::layout::owner::Owner;
use crate::layout::superblock::FsBlock;
use crate::write::alloc::AllocRequest;
use std::collections::BTreeSet;

fn have_tools() -> bool {
    super::common::have_xfsprogs() && ivers_oracle::kernel::can_loop_mount()
}

#[test]
fn inodes_are_allocated_unlinked_and_freed() {
    if !have_tools() {
        return;
    }
    for (name, args) in V5 {
        let mut random = Seeded::new(name);
        let image = Image::new(args, 3);
        let space = image.open();
        let before = space.counts();
        let (mut used, mut listed) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..3000 {
            let mut tx = space.begin(space.credits_of_inode()).unwrap();
            let pick = |random: &mut Seeded, set: &BTreeSet<u64>| {
                set.iter().nth(random.below(set.len() as u32) as usize).copied()
            };
            let near = pick(&mut random, &used).unwrap_or(image.directory);
            match random.below(8) {
                0..=4 => {
                    let ino = tx.allocate_inode(near, random.one_in(8)).unwrap().unwrap();
                    assert!(tx.is_inode_in_use(ino).unwrap() && space.sb.inode_cluster(ino).is_some());
                    if random.one_in(20) {
                        continue;
                    }
                    assert!(used.insert(ino), "inode {ino} is allocated twice");
                }
                5 => {
                    if let Some(ino) = pick(&mut random, &used).filter(|ino| !listed.contains(ino)) {
                        tx.add_unlinked(ino).unwrap();
                        listed.insert(ino);
                    }
                }
                6 => {
                    if let Some(ino) = pick(&mut random, &listed) {
                        tx.remove_unlinked(ino).unwrap();
                        listed.remove(&ino);
                    }
                }
                _ => {
                    if let Some(ino) = pick(&mut random, &used).filter(|ino| !listed.contains(ino)) {
                        tx.free_inode(ino).unwrap();
                        assert!(tx.free_inode(ino).is_err());
                        used.remove(&ino);
                    }
                }
            }
            tx.finish().unwrap();
        }
        let counts = space.counts();
        assert_eq!(
            counts.inodes - counts.free_inodes,
            before.inodes - before.free_inodes + used.len() as u64
        );
        for ino in used {
            let mut tx = space.begin(space.credits_of_inode()).unwrap();
            if listed.contains(&ino) {
                tx.remove_unlinked(ino).unwrap();
            }
            tx.free_inode(ino).unwrap();
            tx.finish().unwrap();
        }
        close(space);
        image.judge(name);
        image.use_in_linux(name);
    }
}

#[test]
fn a_fragmented_filesystem_has_parts_of_chunks() {
    if !have_tools() {
        return;
    }
    for (name, args) in
        [("default", &[][..]), ("rmapbt", &["-m", "rmapbt=1"]), ("1 KiB", &["-b", "size=1024"])]
    {
        let _random = Seeded::new(name);
        let image = Image::new(args, 60);
        let mut files = TestFile::all(&image);
        let space = image.open();
        let part = space.sb.geometry.sparse_alignment;
        assert!(part > 0, "{name}");
        // All space is in use, but for parts of chunks.
        let mut full = false;
        for file in &mut files[..30] {
            for _ in 0..10 {
                let mut tx = space.begin(space.credits_of_change()).unwrap();
                let file_block = file.next_block();
                let owner = Owner::data(file.ino, file_block);
                let request = AllocRequest { goal: FsBlock(0), min: 1, max: 1 << 20, alignment: 1, owner };
                match tx.allocate(request).unwrap() {
                    Some(run) => file.extents.push(FileExtent { file_block, run, unwritten: false }),
                    None => full = true,
                }
                file.store(&mut tx);
                tx.finish().unwrap();
            }
        }
        assert!(full, "{name}");
        let mut holes = 0;
        for file in &mut files[..30] {
            let largest = (0..file.extents.len()).max_by_key(|at| file.extents[*at].run.len);
            let Some(at) = largest.filter(|at| file.extents[*at].run.len > 2000) else { continue };
            for nth in 0..6 {
                // The hole is in the last extent of those that the first one was cut into.
                let at = at + nth;
                let (_, start) = space.sb.ag_of(file.extents[at].run.start);
                let skip = (start + 1).next_multiple_of(4 * part) + part - start;
                let mut tx = space.begin(space.credits_of_change()).unwrap();
                file.punch(&mut tx, at, skip, part);
                file.store(&mut tx);
                tx.finish().unwrap();
                holes += 1;
            }
        }
        assert!(holes >= 6, "{name}: {holes} holes");
        let mut used = Vec::new();
        loop {
            let mut tx = space.begin(space.credits_of_inode()).unwrap();
            let Some(ino) = tx.allocate_inode(image.directory, false).unwrap() else { break };
            used.push(ino);
            tx.finish().unwrap();
        }
        let inodes = part << space.sb.inopb_bits;
        assert!(used.len() as u32 > inodes, "{name}: {} inodes", used.len());
        for ino in used {
            let mut tx = space.begin(space.credits_of_inode()).unwrap();
            tx.free_inode(ino).unwrap();
            tx.finish().unwrap();
        }
        close(space);
        image.judge(name);
        let space = image.open();
        TestFile::empty(&space, &mut files);
        // The other halves of the chunks are free now.
        let before = space.counts().inodes;
        let mut used = Vec::new();
        while space.counts().inodes < before + 300 {
            let mut tx = space.begin(space.credits_of_inode()).unwrap();
            used.push(tx.allocate_inode(image.directory, false).unwrap().unwrap());
            tx.finish().unwrap();
        }
        for ino in used {
            let mut tx = space.begin(space.credits_of_inode()).unwrap();
            tx.free_inode(ino).unwrap();
            tx.finish().unwrap();
        }
        close(space);
        image.judge(&format!("{name}, emptied"));
        image.use_in_linux(name);
    }
}
