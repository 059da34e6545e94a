//! Observers who ask, read and ask again, while a file is written, past the cache too, and its attributes are set. Who takes part is
//! drawn for each schedule: in a crowd rare orders drown.
//!
//! Promised: C6 (what a value vouches for holds all that had completed), C1 and C2 with it; C3 once all is quiet; C5: a counter that nobody
//! looked at costs nothing.

use ivers_races::*;
use ivers_vfs::{Cred, SetAttr, WriteFlags};
use shuttle::thread::scope;

const ROUNDS: u64 = 2;

fn race() {
    let (lazytime, lazyversion, ticking) = (coin(), coin(), coin());
    let world = World::new(1 << 20, |options| {
        options.lazytime = lazytime;
        options.lazyversion = lazyversion;
    });
    let file = world.file(&world.root(), "file");
    put(&world.vfs, &file, 0, 0, WriteFlags::empty());
    put(&world.vfs, &file, 1, 0, WriteFlags::empty());
    let book: Book<4> = Book::default();
    let contents = || {
        // The attributes first: unlike the contents they are had without waiting for whoever is changing the file.
        let attr = world.vfs.stat(&file);
        let (first, second) = (value(&world.vfs, &file, 0), value(&world.vfs, &file, 1));
        [first, second, u64::from(attr.perm & 0o7), attr.size]
    };
    scope(|scope| {
        for page in (0..2).filter(|page| *page == 0 || coin()) {
            let flags = if page == 1 && coin() { WriteFlags::DIRECT } else { WriteFlags::empty() };
            let (world, file, book) = (&world, &file, &book);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    if ticking {
                        world.clock.tick();
                    }
                    put(&world.vfs, file, page, round, flags);
                    book.completed(page as usize, round);
                }
            });
        }
        if coin() {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    let set = SetAttr { perm: Some(0o640 + round as u32), ..SetAttr::default() };
                    world.vfs.set_attr(&Cred::root(), &file, &set).unwrap();
                    book.completed(2, round);
                }
            });
        }
        if coin() {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let size = world.vfs.stat(&file).size;
                    world.vfs.write(&Cred::root(), &file, 0, b"more", WriteFlags::APPEND).unwrap();
                    book.completed(3, size + 4);
                }
            });
        }
        // Pages are clean, dirty and on their way by turns.
        if coin() {
            scope.spawn(|| world.vfs.fsync(&file, coin()).unwrap());
        }
        for _ in 0..1 + draw(2) {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    book.observe(&world.vfs, &file, contents);
                }
                book.query(&world.vfs, &file);
            });
        }
    });
    let version = book.query(&world.vfs, &file);
    world.vfs.sync().unwrap();
    assert_eq!(version, book.query(&world.vfs, &file), "C3: nothing changed but where the data lies");
    assert_eq!(contents()[..3], book.floor()[..3]);
    let stats = world.vfs.stats();
    assert!(stats.inode_updates_version <= stats.queries, "C5: {stats:?}");
    let held_back = stats.bumps_put_off;
    assert!(if lazyversion { held_back <= stats.queries } else { held_back == 0 }, "C5: {stats:?}");
    drop(file);
    world.end();
}

#[test]
fn query_against_write() {
    explore(race);
}
