//! The tail of a small log is pushed while changes go on, and blocks and inodes leave memory.
//!
//! Promise: a read shows what was written last, wherever it is: in memory, in the log, or in place.

use super::SLOWER;
use ivers_races::*;
use ivers_vfs::{CreateSpec, Cred, InodeRef, SetAttr, Vfs, XattrMode};
use shuttle::thread::scope;

const ROUNDS: u64 = 3;
/// A value with blocks of its own, all of which are logged.
const VALUE_BYTES: usize = 60 << 10;
const FILES: [&str; 2] = ["a", "b"];

fn make(vfs: &Vfs, name: &str) -> InodeRef {
    vfs.create(&Cred::root(), &vfs.root().unwrap(), name.as_bytes(), &CreateSpec::file(0o644), false)
        .unwrap()
        .0
}

fn open(vfs: &Vfs, name: &str) -> InodeRef {
    find(vfs, &vfs.root().unwrap(), name).expect("this name is never removed")
}

/// Stores a number as an attribute.
fn put_attribute(vfs: &Vfs, file: &InodeRef, round: u64, bytes: usize) {
    let value = round.to_le_bytes().repeat(bytes / 8);
    vfs.set_xattr(&Cred::root(), file, ATTRIBUTE, &value, XattrMode::Any).unwrap();
}

/// Returns the number in the attribute of a file, and the permissions of the file.
fn numbers(vfs: &Vfs, file: &InodeRef) -> [u64; 2] {
    let value = vfs.get_xattr(&Cred::root(), file, ATTRIBUTE).unwrap();
    let mut numbers = value.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
    let first = numbers.next().expect("a number");
    assert!(numbers.all(|number| number == first), "a value is one of the values that were set");
    [first, u64::from(vfs.stat(file).perm & 0o7)]
}

/// Writes so many bytes to the log: with a half of its 1 MiB a push begins.
fn fill_log(fixture: &XfsFixture, bytes: u64) {
    let vfs = &fixture.vfs;
    let written = || vfs.fs().journal().expect("there is a log").written().1;
    let end = written() + bytes;
    for nth in 0.. {
        let left = end.saturating_sub(written()) as usize;
        if left < 8 {
            return;
        }
        put_attribute(vfs, &open(vfs, FILES[nth % 2]), 0, left.min(VALUE_BYTES));
        vfs.sync().unwrap();
    }
}

/// Fills so much of the log, and races with attributes of so many bytes.
fn race(filled: u64, bytes: usize) {
    let fixture = XfsFixture::new(Log::Tiny);
    let vfs = &fixture.vfs;
    FILES.iter().for_each(|name| put_attribute(vfs, &make(vfs, name), 0, bytes));
    fill_log(&fixture, filled);
    let logs: [ObservationLog<2>; 2] = Default::default();
    scope(|scope| {
        for (name, log) in FILES.iter().zip(&logs).take(1 + draw(2)) {
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    put_attribute(vfs, &open(vfs, name), round, bytes);
                    log.completed(0, round);
                    let set = SetAttr { perm: Some(0o640 + round as u32), ..SetAttr::default() };
                    vfs.set_attr(&Cred::root(), &open(vfs, name), &set).unwrap();
                    log.completed(1, round);
                    if coin() {
                        vfs.fsync(&open(vfs, name), false).unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                fixture.press();
                fixture.drop_blocks();
                drop(find(vfs, &vfs.root().unwrap(), "nobody"));
            }
        });
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let of = draw(FILES.len());
                let file = open(vfs, FILES[of]);
                logs[of].observe(vfs, &file, || numbers(vfs, &file));
            }
        });
        if coin() {
            scope.spawn(|| {
                let file = make(vfs, "new");
                put_attribute(vfs, &file, 7, VALUE_BYTES);
                vfs.unlink(&Cred::root(), &vfs.root().unwrap(), b"new", false).unwrap();
            });
        }
        scope.spawn(|| {
            recover(fixture.crash(), |vfs| {
                for name in FILES {
                    // A number is there in whole, whichever.
                    let file = find(vfs, &vfs.root().unwrap(), name);
                    if let Some(file) =
                        file.filter(|file| vfs.get_xattr(&Cred::root(), file, ATTRIBUTE).is_ok())
                    {
                        let _ = numbers(vfs, &file);
                    }
                }
            });
        });
    });
    for (name, log) in FILES.iter().zip(&logs) {
        let file = open(vfs, name);
        log.observe(vfs, &file, || numbers(vfs, &file));
    }
    fixture.end();
}

#[test]
fn xfs_tail_of_a_small_log() {
    explore_one_in(SLOWER * 4, || race(350 << 10, VALUE_BYTES));
}

/// Inodes leave memory with a version that is only in the log, and are looked up.
#[test]
fn xfs_eviction_against_lookup() {
    explore_one_in(SLOWER * 2, || race(490 << 10, 16));
}
