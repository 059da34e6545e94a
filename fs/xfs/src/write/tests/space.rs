//! Allocation and freeing.

use super::common::V5;
use super::harness::*;
use crate::layout::features::RoCompat;
use crate::layout::owner::Owner;
use crate::layout::superblock::FsBlock;
use crate::log::object;
use crate::write::alloc::{AllocRequest, Run};
use crate::write::tx::Tx;
use ivers_journal::ObjectId;

pub fn have_tools() -> bool {
    super::common::have_xfsprogs() && ivers_oracle::kernel::can_loop_mount()
}

/// Changes one file at random.
pub fn change(random: &mut Seeded, tx: &mut Tx<'_>, file: &mut TestFile, longest: u32) {
    let sb = &tx.space().sb;
    let full = file.extents.len() + 1 >= TestFile::most_extents(sb);
    if !full && (file.extents.is_empty() || random.below(5) < 3) {
        let max = 1 + random.below(longest);
        let ag = random.below(sb.ag_count);
        let goal = match file.extents.last() {
            Some(last) if random.one_in(2) => FsBlock(last.run.start.0 + u64::from(last.run.len)),
            _ => sb.fs_block(ag, random.below(sb.ag_len(ag))),
        };
        let alignment = if random.one_in(4) { 1 << random.below(6) } else { 1 };
        let mut extent = FileExtent {
            file_block: file.next_block(),
            run: Run { start: FsBlock(0), len: 0 },
            unwritten: random.one_in(3),
        };
        let owner = extent.owner(file.ino);
        let min = 1 + random.below(max);
        let request = AllocRequest { goal, min, max, alignment, owner };
        if let Some(run) = tx.allocate(request).unwrap() {
            assert!(run.len >= min && run.len <= max, "{run:?} for {request:?}");
            assert_eq!(sb.ag_of(run.start).1 % alignment, 0, "{run:?} for {request:?}");
            assert!(sb.run(run.start, run.len.into()).is_some(), "{run:?}");
            extent.run = run;
            file.extents.push(extent);
        }
    } else {
        let index = random.below(file.extents.len() as u32) as usize;
        let extent = file.extents[index];
        let skip = if full { 0 } else { random.below(extent.run.len) };
        let len = 1 + random.below(extent.run.len - skip);
        if random.one_in(4) && extent.unwritten && skip == 0 {
            // Written now.
            let written = FileExtent { unwritten: false, ..extent };
            tx.change_owner(extent.run, extent.owner(file.ino), written.owner(file.ino)).unwrap();
            file.extents[index] = written;
        } else {
            file.punch(tx, index, skip, len);
        }
    }
}

#[test]
fn random_changes_of_space_leave_sound_filesystems() {
    if !have_tools() {
        return;
    }
    for (name, args) in V5 {
        let mut random = Seeded::new(name);
        let image = Image::new(args, 40);
        let mut files = TestFile::all(&image);
        let space = image.open();
        if random.one_in(2) {
            space.set_works_a_roll(1 + random.below(3));
        }
        for _ in 0..1200 {
            let mut tx = space.begin(space.credits_of_change()).unwrap();
            let longest = if random.one_in(20) { 5000 } else { 40 };
            let before = files.clone();
            for _ in 0..1 + random.below(3) {
                let at = random.below(files.len() as u32) as usize;
                change(&mut random, &mut tx, &mut files[at], longest);
            }
            if random.one_in(10) {
                // As after an error: nothing happened.
                files = before;
                continue;
            }
            files
                .iter()
                .zip(&before)
                .filter(|(a, b)| a.extents != b.extents)
                .for_each(|(a, _)| a.store(&mut tx));
            tx.finish().unwrap();
        }
        close(space);
        image.judge(name);
        image.empty(&mut files, name);
    }
}

#[test]
fn a_full_filesystem_has_no_space_and_stays_sound() {
    if !have_tools() {
        return;
    }
    for (name, args) in V5.iter().take(6) {
        let mut random = Seeded::new(name);
        let image = Image::new(args, 100);
        let mut files = TestFile::all(&image);
        let space = image.open();
        let most = TestFile::most_extents(&space.sb);
        let mut refused = 0;
        for at in 0..files.len() * (most - 2) {
            let file = &mut files[at / (most - 2)];
            let mut tx = space.begin(space.credits_of_change()).unwrap();
            let file_block = file.next_block();
            let owner = Owner::data(file.ino, file_block);
            let (min, max) = if random.one_in(2) { (1, 1 << random.below(14)) } else { (500, 5000) };
            let request = AllocRequest { goal: FsBlock(0), min, max: max.max(min), alignment: 1, owner };
            match tx.allocate(request).unwrap() {
                Some(run) => file.extents.push(FileExtent { file_block, run, unwritten: false }),
                None => refused += 1,
            }
            file.store(&mut tx);
            tx.finish().unwrap();
        }
        assert!(refused > 10, "{name}: refused {refused} times");
        close(space);
        image.judge(&format!("{name}, full"));
        image.empty(&mut files, name);
    }
}

#[test]
fn the_work_of_intents_is_finished() {
    if !have_tools() {
        return;
    }
    let args = ["-m", "rmapbt=1", "-b", "size=1024"];
    let image = Image::new(&args, 3);
    let mut files = TestFile::all(&image);
    let space = image.open();
    assert!(space.sb.ro_compat.contains(RoCompat::RMAPBT));
    let mut tx = space.begin(space.credits_of_change()).unwrap();
    let file = &mut files[0];
    for _ in 0..3 {
        let file_block = file.next_block();
        let owner = Owner::data(file.ino, file_block);
        let request = AllocRequest { goal: FsBlock(900), min: 10, max: 10, alignment: 1, owner };
        let run = tx.allocate(request).unwrap().unwrap();
        file.extents.push(FileExtent { file_block, run, unwritten: false });
    }
    let extents = std::mem::take(&mut file.extents);
    file.extents.push(extents[2]);
    file.store(&mut tx);
    tx.finish().unwrap();
    // Linux unmapped the second extent and stopped before the reverse map was changed; of the first one it
    // had not freed the blocks either.
    let head =
        |count: u32, id: u64| [&1u16.to_le_bytes()[..], &count.to_le_bytes(), &id.to_le_bytes()].concat();
    let free = |record: &mut Vec<u8>, extent: &FileExtent| {
        record.extend(extent.run.start.0.to_le_bytes());
        record.extend(u64::from(extent.run.len).to_le_bytes());
    };
    let mut record = head(1, 7);
    record.extend(files[0].ino.to_le_bytes());
    record.extend(extents[1].run.start.0.to_le_bytes());
    record.extend(extents[1].file_block.to_le_bytes());
    record.extend(extents[1].run.len.to_le_bytes());
    record.extend(3u32.to_le_bytes());
    let id = |kind, number| ObjectId { kind, number };
    space.begin_finishing(id(object::REVERSE_MAP, 7), &record).unwrap().finish().unwrap();
    let mut record = head(2, 8);
    free(&mut record, &extents[1]);
    free(&mut record, &extents[0]);
    space.begin_finishing(id(object::FREE, 8), &record).unwrap().finish().unwrap();
    // Damage.
    for cut in 0..record.len() {
        assert!(space.begin_finishing(id(object::FREE, 9), &record[..cut]).is_err() || cut < 14);
    }
    record[14..22].fill(0xFF);
    assert!(space.begin_finishing(id(object::FREE, 9), &record).is_err());
    close(space);
    image.judge("intents");
}
