//! Files that lose their last name while other threads open, use and release them, or give them a new name.
//!
//! Promise: an open file can be read and written, with or without a name; after the last release it is
//! deleted once and its space is free; a file that has a name again by then stays.

use ivers_races::*;
use ivers_vfs::{ChangeKind, CreateSpec, Cred, Error, Ino, InodeRef, NameError, WriteFlags};
use shuttle::thread::scope;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const CONTENTS: u64 = 0x1357;

/// Counts the deletions of the inode. Not shuttle's atomic: it belongs to the observer.
fn count_deletions(fixture: &Fixture, of: Ino) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let counter = count.clone();
    fixture.vfs.subscribe(Box::new(move |event| {
        if event.ino == of && event.kind == ChangeKind::Deleted {
            counter.fetch_add(1, Relaxed);
        }
    }));
    count
}

/// Opens an inode by number, as a file handle does.
fn by_number(fixture: &Fixture, ino: Ino) -> Option<InodeRef> {
    match fixture.vfs.get(ino) {
        Ok(inode) => Some(inode),
        Err(Error::Name(NameError::Stale)) => None,
        Err(error) => panic!("{error}"),
    }
}

fn the_last_name_goes() {
    // Under memory pressure, unused inodes are evicted in between.
    let cache_bytes = if coin() { 4 << 10 } else { 1 << 20 };
    let fixture = Fixture::new(cache_bytes, |_| ());
    let root = fixture.root();
    let file = fixture.file(&root, "name");
    put(&fixture.vfs, &file, 0, CONTENTS, WriteFlags::empty());
    let ino = file.ino;
    let deletions = count_deletions(&fixture, ino);
    drop(file);
    let check = |file: &InodeRef| {
        assert_eq!(value(&fixture.vfs, file, 0), CONTENTS, "the contents of an open file");
        assert_eq!(deletions.load(Relaxed), 0, "deleted while it was open");
    };
    scope(|scope| {
        scope.spawn(|| fixture.vfs.unlink(&Cred::root(), &root, b"name", false).unwrap());
        for page in 1..=2 {
            let (fixture, root, check) = (&fixture, &root, &check);
            scope.spawn(move || {
                if let Some(file) = find(&fixture.vfs, root, "name") {
                    put(&fixture.vfs, &file, page, page, WriteFlags::empty());
                    if page == 1 {
                        fixture.vfs.fsync(&file, false).unwrap();
                    }
                    assert_eq!(value(&fixture.vfs, &file, page), page);
                    check(&file);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..2 {
                if let Some(file) = by_number(&fixture, ino) {
                    check(&file);
                }
            }
        });
    });
    assert_eq!(deletions.load(Relaxed), 1, "how often it was deleted");
    assert!(by_number(&fixture, ino).is_none());
    assert_eq!(fixture.blocks_in_use(), 0, "room that nothing uses");
    assert_eq!(fixture.vfs.dirty_bytes(), 0);
    drop(root);
    fixture.end();
}

/// An unnamed file gets a name while its creator releases it.
fn a_name_comes() {
    let fixture = Fixture::new(1 << 20, |_| ());
    let root = fixture.root();
    // Inode numbers are allocated in order.
    let ino = Ino(fixture.file(&root, "before").ino.0 + 1);
    let deletions = count_deletions(&fixture, ino);
    let mut named = false;
    scope(|scope| {
        scope.spawn(|| {
            let file = fixture.vfs.create_unnamed(&Cred::root(), &root, &CreateSpec::file(0o644)).unwrap();
            assert_eq!(file.ino, ino);
            put(&fixture.vfs, &file, 0, CONTENTS, WriteFlags::empty());
        });
        scope.spawn(|| {
            if let Some(file) = by_number(&fixture, ino)
                && value(&fixture.vfs, &file, 0) == CONTENTS
            {
                fixture.vfs.link(&Cred::root(), &file, &root, b"name", false).unwrap();
                named = true;
            }
        });
    });
    assert_eq!(deletions.load(Relaxed), u64::from(!named), "how often it was deleted, named: {named}");
    assert_eq!(fixture.blocks_in_use(), u64::from(named));
    match find(&fixture.vfs, &root, "name") {
        Some(file) => assert_eq!(value(&fixture.vfs, &file, 0), CONTENTS),
        None => assert!(!named, "the name is gone"),
    }
    drop(root);
    fixture.end();
}

#[test]
fn unlink_against_open() {
    explore(the_last_name_goes);
}

#[test]
fn link_against_release() {
    explore(a_name_comes);
}
