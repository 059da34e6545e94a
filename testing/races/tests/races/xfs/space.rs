//! Threads that want the same space.
//!
//! - A filesystem that is nearly full: threads that write in two groups take what the other one wants.
//!   Promise: what a write got is stored, also if nothing is free then; a write that got nothing leaves
//!   nothing; and all space comes back.
//! - Short new files, whose data is written before a transaction takes their blocks. Promise: no file has the
//!   data of another one, also after a crash.

use super::SLOWER;
use ivers_races::*;
use ivers_vfs::{CreateSpec, Cred, Error, FallocateMode, InodeRef, NameError, SetAttr, Vfs, WriteFlags};
use shuttle::thread::scope;
use std::sync::{Mutex, PoisonError};

/// Blocks that are left: less than the threads want.
const LEFT: u64 = 14;
const ROUNDS: u64 = 3;
const PIECE_PAGES: u64 = 3;

fn make(fixture: &XfsFixture, dir: &InodeRef, name: &str, spec: &CreateSpec) -> InodeRef {
    fixture.vfs.create(&Cred::root(), dir, name.as_bytes(), spec, false).unwrap().0
}

fn is_full<T>(result: ivers_vfs::Result<T>) -> bool {
    match result {
        Ok(_) => false,
        Err(Error::Name(NameError::NoSpace)) => true,
        Err(error) => panic!("{error}"),
    }
}

fn free(fixture: &XfsFixture) -> u64 {
    fixture.vfs.sync().unwrap();
    fixture.vfs.stat_fs().unwrap().blocks_available
}

/// Writes pieces until there is no space, and gives some back.
fn fill(fixture: &XfsFixture, file: &InodeRef, word: u64) {
    let vfs = &fixture.vfs;
    for round in 0..ROUNDS {
        let data = word.to_le_bytes().repeat((PIECE_PAGES * PAGE / 8) as usize);
        let flags = if coin() { WriteFlags::DIRECT } else { WriteFlags::empty() };
        let full = is_full(vfs.write(&Cred::root(), file, round * 2 * PIECE_PAGES * PAGE, &data, flags));
        if full || coin() {
            let set = SetAttr { size: Some(PAGE * draw(8) as u64), ..SetAttr::default() };
            assert!(full || !is_full(vfs.set_attr(&Cred::root(), file, &set)));
        }
        if coin() {
            vfs.fsync(file, false).unwrap();
        }
    }
}

/// Checks that a file has its own word and zeros.
fn check(vfs: &Vfs, file: &InodeRef, word: u64) {
    let mut bytes = vec![0; vfs.stat(file).size as usize];
    vfs.read(&Cred::root(), file, 0, &mut bytes).unwrap();
    let mut words = bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
    let other = words.find(|found| ![0, word].contains(found));
    assert!(other.is_none(), "the file of {word} has {other:?}");
}

fn nearly_full() {
    let fixture = XfsFixture::new(Log::Small);
    let (vfs, root) = (&fixture.vfs, fixture.vfs.root().unwrap());
    let dirs = ["d", "e"].map(|name| make(&fixture, &root, name, &CreateSpec::directory(0o755)));
    let file = CreateSpec::file(0o644);
    let files = dirs.each_ref().map(|dir| make(&fixture, dir, "file", &file));
    let filler = make(&fixture, &root, "filler", &file);
    let len = (free(&fixture) - LEFT) * PAGE;
    vfs.fallocate(&Cred::root(), &filler, FallocateMode::empty(), 0, len).unwrap();
    let before = free(&fixture);
    scope(|scope| {
        for (file, word) in files.iter().zip(1..) {
            let fixture = &fixture;
            scope.spawn(move || fill(fixture, file, word));
        }
        if coin() {
            // Space for a directory block, attributes or inodes.
            scope.spawn(|| {
                let name = [b'n'; 200];
                let _is_full = is_full(vfs.create(
                    &Cred::root(),
                    &dirs[draw(2)],
                    &name,
                    &CreateSpec::file(0o644),
                    false,
                ));
            });
        }
        if coin() {
            scope.spawn(|| vfs.sync().unwrap());
        }
        scope.spawn(|| {
            recover(fixture.crash(), |vfs| {
                let root = vfs.root().unwrap();
                for (dir, word) in ["d", "e"].into_iter().zip(1..) {
                    let file = find(vfs, &root, dir).and_then(|dir| find(vfs, &dir, "file"));
                    file.iter().for_each(|file| check(vfs, file, word));
                }
            });
        });
    });
    for (file, word) in files.iter().zip(1_u64..) {
        vfs.fsync(file, false).unwrap();
        check(vfs, file, word);
    }
    for (dir, file) in dirs.iter().zip(files) {
        vfs.unlink(&Cred::root(), dir, b"file", false).unwrap();
        drop(file);
    }
    let after = free(&fixture);
    assert!(after >= before, "{after} blocks are free, and {before} were");
    drop((dirs, filler, root));
    fixture.end();
}

/// The bytes of a file that has the word in the first byte of its name.
fn words(name: &str, pages: u64) -> Vec<u8> {
    u64::from(name.as_bytes()[0]).to_le_bytes().repeat((pages * PAGE / 8) as usize)
}

fn short_files() {
    let fixture = XfsFixture::new(Log::Small);
    let (vfs, root) = (&fixture.vfs, fixture.vfs.root().unwrap());
    let dir = make(&fixture, &root, "d", &CreateSpec::directory(0o755));
    // Each durable file, with its pages.
    let durable = Mutex::new(Vec::new());
    let write = |name: String, pages: u64| {
        let file = make(&fixture, &dir, &name, &CreateSpec::file(0o644));
        vfs.write(&Cred::root(), &file, 0, &words(&name, pages), WriteFlags::empty()).unwrap();
        if coin() {
            vfs.fsync(&file, false).unwrap();
            durable.lock().unwrap_or_else(PoisonError::into_inner).push((name, pages));
        }
    };
    // The first one fills the pool of its group.
    write("first".to_owned(), 1);
    scope(|scope| {
        for letter in ["a", "b"] {
            let write = &write;
            scope.spawn(move || (0..ROUNDS).for_each(|round| write(format!("{letter}{round}"), 1 + round)));
        }
        scope.spawn(|| {
            let large = make(&fixture, &dir, "large", &CreateSpec::file(0o644));
            let len = (1 + draw(600)) as u64 * PAGE;
            vfs.fallocate(&Cred::root(), &large, FallocateMode::empty(), 0, len).unwrap();
        });
        if coin() {
            scope.spawn(|| vfs.sync().unwrap());
        }
        scope.spawn(|| {
            let durable = durable.lock().unwrap_or_else(PoisonError::into_inner).clone();
            recover(fixture.crash(), |vfs| {
                let Some(dir) = find(vfs, &vfs.root().unwrap(), "d") else {
                    return assert!(durable.is_empty(), "the directory of {durable:?} is gone");
                };
                for (name, pages) in durable {
                    let file = find(vfs, &dir, &name).unwrap_or_else(|| panic!("{name} is gone"));
                    let mut bytes = vec![0; vfs.stat(&file).size as usize];
                    vfs.read(&Cred::root(), &file, 0, &mut bytes).unwrap();
                    assert!(bytes == words(&name, pages), "{name} has other contents");
                }
                for name in ["a0", "a1", "a2", "b0", "b1", "b2"] {
                    let file = find(vfs, &dir, name);
                    file.iter().for_each(|file| check(vfs, file, name.as_bytes()[0].into()));
                }
            });
        });
    });
    drop((dir, root));
    fixture.end();
}

#[test]
fn xfs_nearly_full() {
    explore_one_in(SLOWER, nearly_full);
}

#[test]
fn xfs_short_files() {
    explore_one_in(SLOWER, short_files);
}
