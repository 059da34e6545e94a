//! `sync` and `fsync` while other threads write, sync, and write back the same pages.
//!
//! Promise: everything that completed before the call is on the device when it returns (contents, size and
//! times), whichever thread wrote it; and none of this is a change.

use ivers_races::*;
use ivers_vfs::{CreateSpec, Cred, InodeRef, WriteFlags};
use shuttle::thread::scope;
use std::time::Duration;

const ROUNDS: u64 = 2;
const FILES: [&str; 2] = ["a", "b"];

/// The contents of the two files, the times of their last changes, and the number of other names.
const NUMBERS: usize = 6;

fn contents(vfs: &ivers_vfs::Vfs) -> [u64; NUMBERS] {
    let root = vfs.root().unwrap();
    let mut numbers = [0; NUMBERS];
    for (nth, name) in FILES.iter().enumerate() {
        let file = find(vfs, &root, name).unwrap();
        numbers[nth] = value(vfs, &file, 0);
        numbers[2 + nth] = vfs.stat(&file).mtime.sec as u64;
    }
    numbers[4] = vfs.stat(&root).mtime.sec as u64;
    numbers[5] = list(vfs, &root).len() as u64;
    numbers
}

fn check_device(fixture: &Fixture, floor: [u64; NUMBERS], of: &[usize]) {
    let held = contents(&fixture.device());
    for &of in of {
        assert!(held[of] >= floor[of], "number {of}: the device holds {held:?} of {floor:?}");
    }
}

fn race() {
    let (lazytime, lazyversion, background) = (coin(), coin(), coin());
    let fixture = Fixture::new(1 << 20, |options| {
        options.lazytime = lazytime;
        options.lazyversion = Some(lazyversion);
        options.background = background;
        options.dirty_expire = Duration::ZERO;
    });
    let root = fixture.root();
    let files = FILES.map(|name| fixture.file(&root, name));
    let book: ObservationLog<NUMBERS> = ObservationLog::default();
    let writer = |nth: usize, file: &InodeRef| {
        for round in 1..=ROUNDS {
            // The clock advances meanwhile, so the time of the change is this or a later one.
            let now = fixture.clock.tick().sec as u64;
            let flags = match draw(4) {
                0 => WriteFlags::DIRECT,
                1 => WriteFlags::CACHED_BY_CALLER,
                2 if nth == 1 => WriteFlags::SYNC,
                _ => WriteFlags::empty(),
            };
            put(&fixture.vfs, file, 0, round, flags);
            book.completed(nth, round);
            book.completed(2 + nth, now);
        }
    };
    scope(|scope| {
        let (fixture, book, root, writer) = (&fixture, &book, &root, &writer);
        for (nth, file) in files.iter().enumerate() {
            scope.spawn(move || writer(nth, file));
        }
        scope.spawn(move || {
            let now = fixture.clock.tick().sec as u64;
            let other = CreateSpec::file(0o644);
            drop(fixture.vfs.create(&Cred::root(), root, b"other", &other, false).unwrap());
            book.completed(4, now);
            book.completed(5, 3);
        });
        for _ in 0..2 {
            scope.spawn(move || {
                let floor = book.floor();
                fixture.vfs.sync().unwrap();
                check_device(fixture, floor, &[0, 1, 2, 3, 4, 5]);
            });
        }
        for (inode, of) in [(&files[0], &[0, 2][..]), (root, &[4, 5][..])] {
            scope.spawn(move || {
                let floor = book.floor();
                fixture.vfs.fsync(inode, false).unwrap();
                check_device(fixture, floor, of);
            });
        }
    });
    let versions = || files.each_ref().map(|file| fixture.vfs.change(file));
    let before = versions();
    fixture.vfs.sync().unwrap();
    check_device(&fixture, book.floor(), &[0, 1, 2, 3, 4, 5]);
    let written = fixture.vfs.stats().written_back_bytes;
    assert_eq!(fixture.vfs.dirty_bytes(), 0);
    fixture.vfs.sync().unwrap();
    assert_eq!(fixture.vfs.stats().written_back_bytes, written, "a sync of nothing wrote something");
    assert_eq!(before, versions(), "C3: nothing changed but where the data lies");
    drop((files, root));
    fixture.end();
}

#[test]
fn sync_against_writers() {
    explore(race);
}
