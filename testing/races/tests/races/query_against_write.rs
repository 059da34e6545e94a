//! Observers that query, read and query again while a file is written, also with direct I/O, and its
//! attributes are set. Each schedule draws its participants: with many threads rare orders get rarer.
//!
//! Promise: C6 (the contents read under a value include all completed changes), including C1 and C2; C3 when
//! all threads have ended; C5: an unqueried counter costs nothing.

use ivers_races::*;
use ivers_vfs::{Cred, SetAttr, WriteFlags};
use shuttle::thread::scope;

const ROUNDS: u64 = 2;

fn race() {
    let (lazytime, lazyversion, ticking) = (coin(), coin(), coin());
    let fixture = Fixture::new(1 << 20, |options| {
        options.lazytime = lazytime;
        options.lazyversion = Some(lazyversion);
    });
    let file = fixture.file(&fixture.root(), "file");
    put(&fixture.vfs, &file, 0, 0, WriteFlags::empty());
    put(&fixture.vfs, &file, 1, 0, WriteFlags::empty());
    let book: ObservationLog<4> = ObservationLog::default();
    let contents = || {
        // Attributes first: unlike the contents they can be read without waiting for a writer.
        let attr = fixture.vfs.stat(&file);
        let (first, second) = (value(&fixture.vfs, &file, 0), value(&fixture.vfs, &file, 1));
        [first, second, u64::from(attr.perm & 0o7), attr.size]
    };
    scope(|scope| {
        for page in (0..2).filter(|page| *page == 0 || coin()) {
            let flags = match draw(3) {
                0 if page == 1 => WriteFlags::DIRECT,
                1 if page == 1 => WriteFlags::CACHED_BY_CALLER,
                _ => WriteFlags::empty(),
            };
            let (fixture, file, book) = (&fixture, &file, &book);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    if ticking {
                        fixture.clock.tick();
                    }
                    put(&fixture.vfs, file, page, round, flags);
                    book.completed(page as usize, round);
                }
            });
        }
        if coin() {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    let set = SetAttr { perm: Some(0o640 + round as u32), ..SetAttr::default() };
                    fixture.vfs.set_attr(&Cred::root(), &file, &set).unwrap();
                    book.completed(2, round);
                }
            });
        }
        if coin() {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let size = fixture.vfs.stat(&file).size;
                    fixture.vfs.write(&Cred::root(), &file, 0, b"more", WriteFlags::APPEND).unwrap();
                    book.completed(3, size + 4);
                }
            });
        }
        // Pages are clean, dirty and in write-back in turn.
        if coin() {
            scope.spawn(|| fixture.vfs.fsync(&file, coin()).unwrap());
        }
        for _ in 0..1 + draw(2) {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    book.observe(&fixture.vfs, &file, contents);
                }
                book.query(&fixture.vfs, &file);
            });
        }
    });
    let version = book.query(&fixture.vfs, &file);
    fixture.vfs.sync().unwrap();
    assert_eq!(version, book.query(&fixture.vfs, &file), "C3: nothing changed but where the data lies");
    assert_eq!(contents()[..3], book.floor()[..3]);
    let stats = fixture.vfs.stats();
    assert!(stats.inode_updates_version <= stats.queries, "C5: {stats:?}");
    let deferred = stats.bumps_deferred;
    assert!(if lazyversion { deferred <= stats.queries } else { deferred == 0 }, "C5: {stats:?}");
    drop(file);
    fixture.end();
}

#[test]
fn query_against_write() {
    explore(race);
}
