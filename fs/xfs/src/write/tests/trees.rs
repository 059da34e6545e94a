//! B-trees of several levels.

use super::harness::*;
use crate::layout::owner::Owner;
use crate::layout::superblock::FsBlock;
use crate::write::alloc::AllocRequest;

#[test]
fn trees_grow_to_several_levels_and_shrink_again() {
    if !super::common::have_xfsprogs() || !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    let kinds: [(&str, &[&str], u32); 3] = [
        ("blocks of 1 KiB", &["-b", "size=1024"], 2),
        ("blocks of 1 KiB, reverse map", &["-b", "size=1024", "-m", "rmapbt=1"], 2),
        ("default", &[], 2),
    ];
    for (name, args, least) in kinds {
        let mut random = Seeded::new(name);
        let image = Image::new(args, 1200);
        let mut files = TestFile::all(&image);
        let space = image.open();
        let each = TestFile::most_extents(&space.sb) - 2;
        // Single blocks, one after another, in turn to all files.
        let mut goal = space.sb.fs_block(1, 100);
        for _ in 0..each {
            for file in &mut files {
                let mut tx = space.begin(space.credits_of_change()).unwrap();
                let file_block = file.next_block();
                let owner = Owner::data(file.ino, file_block);
                let request = AllocRequest { goal, min: 1, max: 1, alignment: 1, owner };
                let run = tx.allocate(request).unwrap().unwrap();
                goal = FsBlock(run.start.0 + 1);
                file.extents.push(FileExtent { file_block, run, unwritten: false });
                file.store(&mut tx);
                tx.finish().unwrap();
            }
        }
        // Every second block is freed.
        let mut order: Vec<usize> = (0..files.len()).collect();
        for step in (1..order.len()).rev() {
            order.swap(step, random.below(step as u32 + 1) as usize);
        }
        for at in order {
            let file = &mut files[at];
            let mut tx = space.begin(space.credits_of_change()).unwrap();
            for index in (0..file.extents.len()).rev() {
                if file.extents[index].run.start.0.is_multiple_of(2) {
                    file.punch(&mut tx, index, 0, 1);
                }
            }
            file.store(&mut tx);
            tx.finish().unwrap();
        }
        close(space);
        let grown = levels(&image.path, 1);
        assert!(grown[0] >= least && grown[1] >= least, "{name}: {grown:?}");
        assert!(!args.contains(&"rmapbt=1") || grown[2] >= least, "{name}: {grown:?}");
        image.judge(&format!("{name}, grown"));
        let space = image.open();
        TestFile::empty(&space, &mut files);
        close(space);
        let shrunk = levels(&image.path, 1);
        assert_eq!(shrunk[..2], [1, 1], "{name}");
        image.judge(&format!("{name}, shrunk"));
        image.use_in_linux(name);
    }
}
