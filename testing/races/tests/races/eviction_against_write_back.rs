//! A cache under permanent pressure: inodes and pages are evicted and reloaded while they are written.
//!
//! Promise: reads return what was written, from wherever it comes; no change attribute from before an
//! eviction stands for other contents after it (C1, C2, C6).

use ivers_races::*;
use ivers_vfs::{InodeRef, Touch, WriteFlags};
use shuttle::thread::scope;

const FILES: [&str; 2] = ["a", "b"];
const ROUNDS: u64 = 2;

fn open(fixture: &Fixture, name: &str) -> InodeRef {
    find(&fixture.vfs, &fixture.root(), name).expect("this name is never removed")
}

fn race() {
    let (lazytime, lazyversion) = (coin(), coin());
    let fixture = Fixture::new(1 << 20, |options| {
        options.lazytime = lazytime;
        options.lazyversion = Some(lazyversion);
    });
    for name in FILES {
        let file = fixture.file(&fixture.root(), name);
        // Far above the mount's counter: an inode that is loaded too early starts below.
        for _ in 0..5 {
            fixture.vfs.force_change(&file, Touch::Nothing);
        }
    }
    let books: [ObservationLog<1>; 2] = Default::default();
    scope(|scope| {
        // Each schedule draws its participants: with many threads rare orders get rarer.
        for (name, book) in FILES.iter().zip(&books).take(1 + draw(2)) {
            let fixture = &fixture;
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    put(&fixture.vfs, &open(fixture, name), 0, round, WriteFlags::empty());
                    book.completed(0, round);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                fixture.press();
                drop(find(&fixture.vfs, &fixture.root(), "nobody"));
            }
        });
        for _ in 0..1 + draw(2) {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let of = draw(FILES.len());
                    let file = open(&fixture, FILES[of]);
                    books[of].observe(&fixture.vfs, &file, || [value(&fixture.vfs, &file, 0)]);
                }
            });
        }
    });
    for (name, book) in FILES.iter().zip(&books) {
        let file = open(&fixture, name);
        book.observe(&fixture.vfs, &file, || [value(&fixture.vfs, &file, 0)]);
    }
    fixture.vfs.sync().unwrap();
    assert_eq!(fixture.vfs.dirty_bytes(), 0);
    let device = fixture.device();
    let mut written = 0;
    for (name, book) in FILES.iter().zip(&books) {
        let file = find(&device, &device.root().unwrap(), name).unwrap();
        written += u64::from(value(&device, &file, 0) > 0);
        assert_eq!([value(&device, &file, 0)], book.floor(), "{name} on the device");
    }
    assert_eq!(fixture.blocks_in_use(), written);
    fixture.end();
}

#[test]
fn eviction_against_write_back() {
    explore(race);
}
