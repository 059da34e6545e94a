//! A cache that is pressed all the time: inodes and pages leave and come back while they are written.
//!
//! Promised: what was written is read, from wherever it comes; no value of the change attribute that was handed out before an eviction
//! vouches for other contents after it (C1, C2, C6).

use ivers_races::*;
use ivers_vfs::{InodeRef, Touch, WriteFlags};
use shuttle::thread::scope;

const FILES: [&str; 2] = ["a", "b"];
const ROUNDS: u64 = 2;

fn open(world: &World, name: &str) -> InodeRef {
    look(&world.vfs, &world.root(), name).expect("nobody takes this name away")
}

fn race() {
    let (lazytime, lazyversion) = (coin(), coin());
    let world = World::new(1 << 20, |options| {
        options.lazytime = lazytime;
        options.lazyversion = lazyversion;
    });
    for name in FILES {
        let file = world.file(&world.root(), name);
        // Far above where the mount's counter stands: what is loaded too early starts below.
        for _ in 0..5 {
            world.vfs.force_change(&file, Touch::Nothing);
        }
    }
    let books: [Book<1>; 2] = Default::default();
    scope(|scope| {
        // Who takes part is drawn for each schedule: in a crowd rare orders drown.
        for (name, book) in FILES.iter().zip(&books).take(1 + draw(2)) {
            let world = &world;
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    put(&world.vfs, &open(world, name), 0, round, WriteFlags::empty());
                    book.completed(0, round);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                world.press();
                drop(look(&world.vfs, &world.root(), "nobody"));
            }
        });
        for _ in 0..1 + draw(2) {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let of = draw(FILES.len());
                    let file = open(&world, FILES[of]);
                    books[of].observe(&world.vfs, &file, || [value(&world.vfs, &file, 0)]);
                }
            });
        }
    });
    for (name, book) in FILES.iter().zip(&books) {
        let file = open(&world, name);
        book.observe(&world.vfs, &file, || [value(&world.vfs, &file, 0)]);
    }
    world.vfs.sync().unwrap();
    assert_eq!(world.vfs.dirty_bytes(), 0);
    let device = world.device();
    let mut written = 0;
    for (name, book) in FILES.iter().zip(&books) {
        let file = look(&device, &device.root().unwrap(), name).unwrap();
        written += u64::from(value(&device, &file, 0) > 0);
        assert_eq!([value(&device, &file, 0)], book.floor(), "{name} on the device");
    }
    assert_eq!(world.blocks_in_use(), written);
    world.end();
}

#[test]
fn eviction_against_write_back() {
    explore(race);
}
