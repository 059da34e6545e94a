//! Power cuts, with the log: Linux and we finish what our log promises.

use super::harness::*;
use super::space::change;
use crate::layout::owner::Owner;
use crate::layout::superblock::FsBlock;
use crate::log::recover;
use crate::write::alloc::{AllocRequest, Run};
use ivers_block::{Device, FaultDevice, FileDevice, OpenMode, Recorded};
use ivers_oracle::LoopMount;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Cuts that are looked at to find such that leave work.
const SAMPLES: usize = 60;

/// Writes what a crash leaves to a copy of the image. Of the writes that are not durable, all are kept (0),
/// some (1), or none (2).
fn crashed(image: &Image, record: &[Recorded], keep: u32, random: &mut Seeded) -> Image {
    let copy = image.copy("crashed");
    let device = FileDevice::open(&copy.path, OpenMode::ReadWrite).unwrap();
    let durable = record.iter().rposition(|op| *op == Recorded::Flush).map_or(0, |last| last + 1);
    for (at, op) in record.iter().enumerate() {
        if let Recorded::Write { offset, data, fua } = op
            && (at < durable || *fua || keep == 0 || (keep == 1 && random.one_in(2)))
        {
            device.write_at(*offset, data).unwrap();
        }
    }
    copy
}

#[test]
fn after_a_power_cut_the_work_of_intents_is_finished() {
    if !super::common::have_xfsprogs() || !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    let kinds: [(&str, &[&str]); 4] = [
        ("default", &[]),
        ("rmapbt", &["-m", "rmapbt=1"]),
        ("1 KiB, rmapbt", &["-m", "rmapbt=1", "-b", "size=1024"]),
        ("no reflink", &["-m", "reflink=0"]),
    ];
    let mut unfinished = 0;
    for (name, args) in kinds {
        let mut random = Seeded::new(name);
        let image = Image::new(args, 30);
        let base = Arc::new(FileDevice::open(&image.path, OpenMode::ReadOnly).unwrap());
        let device = Arc::new(FaultDevice::new(base));
        let space = open_with_log(device.clone());
        space.set_works_a_roll(1 + random.below(2));
        // Commits at all times, so that some come between two transactions of one change: a commit that waits
        // for the first one goes before the second.
        space.between_rolls.set(|| std::thread::sleep(Duration::from_millis(2))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (journal, stopped) = (space.journal.clone(), stop.clone());
        let committer = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                journal.commit_all().unwrap();
            }
        });
        let mut files = TestFile::all(&image);
        let mut copies: Vec<Run> = Vec::new();
        let has_shared = args != ["-m", "reflink=0"];
        for step in 0..250 {
            let mut tx = space.begin(space.credits_of_inode()).unwrap();
            let at = random.below(files.len() as u32) as usize;
            let before = files.clone();
            change(&mut random, &mut tx, &mut files[at], 40);
            let from = random.below(files.len() as u32) as usize;
            if has_shared && random.one_in(3) && from != at && files[from].extents.len() > 1 {
                let extent = files[from].extents[0];
                let file_block = files[at].next_block();
                let len = 1 + random.below(extent.run.len);
                let run = Run { start: FsBlock(extent.run.start.0), len };
                if !extent.unwritten && files[at].extents.len() + 2 < TestFile::most_extents(&space.sb) {
                    tx.share(run, Owner::data(files[at].ino, file_block)).unwrap();
                    files[at].extents.push(FileExtent { file_block, run, unwritten: false });
                    (files[from].reflink, files[at].reflink) = (true, true);
                }
            }
            if has_shared
                && random.one_in(6)
                && files[at].extents.len() + 2 < TestFile::most_extents(&space.sb)
            {
                let file_block = files[at].next_block();
                let owner = Owner::data(files[at].ino, file_block);
                let goal = space.sb.fs_block(2, random.below(1000));
                let request = AllocRequest { goal, min: 1, max: 9, alignment: 1, owner };
                copies.extend(tx.allocate_copy(request).unwrap());
                let run = copies.swap_remove(random.below(copies.len() as u32) as usize);
                match random.below(3) {
                    0 => copies.push(run),
                    1 => tx.free_copy(run).unwrap(),
                    _ => {
                        tx.take_copy(run, owner).unwrap();
                        files[at].extents.push(FileExtent { file_block, run, unwritten: false });
                        files[at].reflink = true;
                    }
                }
            }
            let changed = |(file, before): &(&TestFile, &TestFile)| {
                file.extents != before.extents || file.reflink != before.reflink
            };
            files.iter().zip(&before).filter(changed).for_each(|(file, _)| file.store(&mut tx));
            // New chunks; an inode in use would have no name.
            if step % 50 == 25 {
                let ino = tx.allocate_inode(image.directory, true).unwrap().unwrap();
                tx.free_inode(ino).unwrap();
            }
            tx.finish().unwrap();
            if random.one_in(20) {
                space.journal.checkpoint_all().unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        committer.join().unwrap();
        space.journal.commit_all().unwrap();
        let record = device.record();
        // Cuts that leave work are rare.
        let mut cuts = vec![(record.len(), 0)];
        for _ in 0..SAMPLES {
            let prefix = random.below(record.len() as u32) as usize;
            if cuts.len() == 5 {
                break;
            }
            let left = Arc::new(device.image(prefix).unwrap());
            if !recover(left, &space.sb, "image").unwrap().1.intents.is_empty() {
                cuts.push((prefix, 0));
            }
        }
        cuts.extend((0..3).map(|_| (random.below(record.len() as u32) as usize, random.below(3))));
        for (prefix, keep) in cuts {
            let what = format!("{name}, cut at {prefix} of {}", record.len());
            let ours = crashed(&image, &record[..prefix], keep, &mut random);
            let theirs = ours.copy("linux");
            let device = Arc::new(FileDevice::open(&ours.path, OpenMode::ReadWrite).unwrap());
            let (space, finished) = open_with_log_counting(device);
            unfinished += finished;
            close(space);
            ours.judge(&format!("{what}, ours"));
            LoopMount::new(&theirs.path, "").unwrap().unmount().unwrap();
            theirs.judge(&format!("{what}, Linux"));
            theirs.use_in_linux(&what);
        }
        close(space);
    }
    println!("{unfinished} intents were finished");
    assert!(unfinished > 0, "no cut left work");
}

#[test]
fn files_get_freed_blocks_only_after_a_commit() {
    if !super::common::have_xfsprogs() || !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    let image = Image::new(&[], 1);
    let space = open_with_log(Arc::new(FileDevice::open(&image.path, OpenMode::ReadWrite).unwrap()));
    let owner = Owner::data(image.inos[0], 0);
    let all = space.sb.ag_len(1);
    let request = |goal| AllocRequest { goal, min: 1, max: all, alignment: 1, owner };
    // One group is full.
    let goal = space.sb.fs_block(1, 0);
    let mut tx = space.begin(space.credits_of_change()).unwrap();
    let run = tx.allocate(request(goal)).unwrap().unwrap();
    assert_eq!(space.sb.ag_of(run.start).0, 1);
    tx.finish().unwrap();
    let part = Run { start: FsBlock(run.start.0 + 100), len: run.len - 100 };
    let mut tx = space.begin(space.credits_of_change()).unwrap();
    tx.free(part, owner).unwrap();
    tx.finish().unwrap();
    assert_eq!(space.busy_blocks(), part.len.into());
    let overlaps_freed = || {
        let mut tx = space.begin(space.credits_of_change()).unwrap();
        let found = tx.allocate(request(part.start)).unwrap().unwrap();
        let end = |run: Run| run.start.0 + u64::from(run.len);
        found.start.0 < end(part) && part.start.0 < end(found)
    };
    assert!(!overlaps_freed());
    space.journal.commit_all().unwrap();
    assert!(space.busy_blocks() == 0 && overlaps_freed());
}

#[test]
fn more_work_than_the_log_can_promise_is_refused() {
    if !super::common::have_xfsprogs() || !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    let image = Image::new(&[], 1);
    let space = open_with_log(Arc::new(FileDevice::open(&image.path, OpenMode::ReadWrite).unwrap()));
    space.set_works_a_roll(1);
    let owner = Owner::data(image.inos[0], 0);
    let request = AllocRequest { goal: space.sb.fs_block(1, 0), min: 2000, max: 2000, alignment: 1, owner };
    let mut tx = space.begin(space.credits_of_change()).unwrap();
    let run = tx.allocate(request).unwrap().unwrap();
    tx.finish().unwrap();
    let free_single_blocks = |count: u64| {
        let mut tx = space.begin(space.credits_of_change()).unwrap();
        for nth in 0..count {
            tx.free(Run { start: FsBlock(run.start.0 + 2 * nth), len: 1 }, owner).unwrap();
        }
        tx.finish()
    };
    let most = space.journal.max_intents(space.credits_of_change());
    assert!((1..400).contains(&most), "{most}");
    // It would wait for ever for space in the log.
    let refused = free_single_blocks(2 * most + 2).unwrap_err();
    assert!(matches!(refused, ivers_vfs::Error::Io(_)), "{refused}");
    // Nothing has changed.
    free_single_blocks(most).unwrap();
    space.journal.commit_all().unwrap();
}
