//! Shared blocks and copy on write.

use super::harness::*;
use crate::layout::features::RoCompat;
use crate::layout::owner::Owner;
use crate::layout::superblock::FsBlock;
use crate::write::alloc::{AllocRequest, Run};
use crate::write::find::GroupRequest;
use crate::write::tx::Tx;
use ivers_vfs::{Error, NameError};

#[test]
fn shared_blocks_are_counted_and_freed_with_their_last_owner() {
    if !super::common::have_xfsprogs() || !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    let kinds: [(&str, &[&str]); 4] = [
        ("default", &[]),
        ("rmapbt", &["-m", "rmapbt=1"]),
        ("1 KiB, rmapbt", &["-m", "rmapbt=1", "-b", "size=1024"]),
        ("16 KiB, rmapbt", &["-m", "rmapbt=1", "-b", "size=16384"]),
    ];
    for (name, args) in kinds {
        for works in [1, 32] {
            let mut random = Seeded::new(name);
            let image = Image::new(args, 60);
            let mut files = TestFile::all(&image);
            let space = image.open();
            assert!(space.sb.ro_compat.contains(RoCompat::REFLINK), "{name}");
            space.set_works_a_roll(works);
            let most = TestFile::most_extents(&space.sb) - 1;
            let mut copies: Vec<Run> = Vec::new();
            for _ in 0..2500 {
                let mut tx = space.begin(space.credits_of_change()).unwrap();
                let at = random.below(files.len() as u32) as usize;
                let has_space = files[at].extents.len() < most;
                let file_block = files[at].next_block();
                let owner = Owner::data(files[at].ino, file_block);
                let goal = FsBlock(u64::from(random.below(2000)));
                let max = 1 + random.below(30);
                let request = AllocRequest { goal, min: 1, max, alignment: 1, owner };
                let add = |file: &mut TestFile, run| {
                    file.extents.push(FileExtent { file_block, run, unwritten: false });
                };
                match random.below(10) {
                    0..=1 if has_space => {
                        let run = tx.allocate(request).unwrap().unwrap();
                        add(&mut files[at], run);
                    }
                    2..=5 if has_space => {
                        let from = random.below(files.len() as u32) as usize;
                        let count = files[from].extents.len() as u32;
                        if count > 0 && from != at {
                            let run = files[from].extents[random.below(count) as usize].run;
                            let skip = random.below(run.len);
                            let len = 1 + random.below(run.len - skip);
                            let run = Run { start: FsBlock(run.start.0 + u64::from(skip)), len };
                            tx.share(run, owner).unwrap();
                            add(&mut files[at], run);
                            (files[from].reflink, files[at].reflink) = (true, true);
                            files[from].store(&mut tx);
                        }
                    }
                    6 => {
                        let run = tx.allocate_copy(request).unwrap().unwrap();
                        copies.push(run);
                    }
                    7 if has_space && !copies.is_empty() => {
                        let run = copies.swap_remove(random.below(copies.len() as u32) as usize);
                        let len = 1 + random.below(run.len);
                        tx.take_copy(Run { len, ..run }, owner).unwrap();
                        add(&mut files[at], Run { len, ..run });
                        files[at].reflink = true;
                        let rest = Run { start: FsBlock(run.start.0 + u64::from(len)), len: run.len - len };
                        match random.below(2) {
                            _ if rest.len == 0 => {}
                            0 => tx.free_copy(rest).unwrap(),
                            _ => copies.push(rest),
                        }
                    }
                    _ if !files[at].extents.is_empty() => {
                        let index = random.below(files[at].extents.len() as u32) as usize;
                        let len = files[at].extents[index].run.len;
                        let skip = if has_space { random.below(len) } else { 0 };
                        let part = 1 + random.below(len - skip);
                        files[at].punch(&mut tx, index, skip, part);
                    }
                    _ => {}
                }
                files[at].store(&mut tx);
                tx.finish().unwrap();
            }
            let left: u64 = copies.iter().map(|run| u64::from(run.len)).sum();
            assert_eq!(space.free_leftover_copies().unwrap(), left, "{name}");
            close(space);
            image.judge(name);
            image.empty(&mut files, name);
        }
    }
}

#[test]
fn sharing_is_refused_while_the_reserve_of_a_group_is_in_use() {
    if !super::common::have_xfsprogs() || !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    let image = Image::new(&["-m", "rmapbt=1"], 2);
    let space = image.open();
    let mut tx = space.begin(space.journal.max_credits()).unwrap();
    let [first, second] = [0, 1].map(|nth| Owner::data(image.inos[nth], 0));
    let request = GroupRequest::new(first, 0, (1, 1), space.sb.ag_len(1));
    let found = tx.allocate_in(1, request).unwrap().unwrap();
    let run = Run { start: space.sb.fs_block(1, found.start), len: 1 };
    let above_reserve = |tx: &mut Tx<'_>| tx.unreserved(1).unwrap();
    // Files leave a bit more than the reserve. Then B-trees take blocks one by one.
    while let Some(rest) =
        above_reserve(&mut tx).and_then(|rest| rest.checked_sub(100)).filter(|rest| *rest > 0)
    {
        tx.allocate_in(1, GroupRequest { max: rest, ..request }).unwrap().unwrap();
    }
    let mut taken = 0;
    while above_reserve(&mut tx).is_some() {
        tx.share(run, second).unwrap();
        let block = GroupRequest { owner: Owner::INODE_TREE, reserve: true, ..request };
        tx.allocate_in(1, block).unwrap().unwrap();
        taken += 1;
    }
    assert!(taken >= 50, "{taken} blocks");
    assert!(matches!(tx.share(run, second), Err(Error::Name(NameError::NoSpace))));
}
