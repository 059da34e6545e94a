//! Files that lose their last name while others open them, use them and let them go, or give them a new name.
//!
//! Promised: who holds a file reads and writes it, named or not; with the last holder it is deleted, once, and its room is free again; what
//! has a name again by then stays.

use ivers_races::*;
use ivers_vfs::{ChangeKind, CreateSpec, Cred, Error, Ino, InodeRef, NameError, WriteFlags};
use shuttle::thread::scope;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const CONTENTS: u64 = 0x1357;

/// How often the inode has been deleted. Not shuttle's atomic: it belongs to the observer.
fn count_deletions(world: &World, of: Ino) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let counter = count.clone();
    world.vfs.subscribe(Box::new(move |event| {
        if event.ino == of && event.kind == ChangeKind::Deleted {
            counter.fetch_add(1, Relaxed);
        }
    }));
    count
}

/// By number, as a file handle does it.
fn by_number(world: &World, ino: Ino) -> Option<InodeRef> {
    match world.vfs.get(ino) {
        Ok(inode) => Some(inode),
        Err(Error::Name(NameError::Stale)) => None,
        Err(error) => panic!("{error}"),
    }
}

fn the_last_name_goes() {
    // Under pressure, inodes that nobody uses leave memory in between.
    let cache_bytes = if coin() { 4 << 10 } else { 1 << 20 };
    let world = World::new(cache_bytes, |_| ());
    let root = world.root();
    let file = world.file(&root, "name");
    put(&world.vfs, &file, 0, CONTENTS, WriteFlags::empty());
    let ino = file.ino;
    let deletions = count_deletions(&world, ino);
    drop(file);
    let check = |file: &InodeRef| {
        assert_eq!(value(&world.vfs, file, 0), CONTENTS, "the contents of an open file");
        assert_eq!(deletions.load(Relaxed), 0, "deleted while it was open");
    };
    scope(|scope| {
        scope.spawn(|| world.vfs.unlink(&Cred::root(), &root, b"name", false).unwrap());
        for page in 1..=2 {
            let (world, root, check) = (&world, &root, &check);
            scope.spawn(move || {
                if let Some(file) = look(&world.vfs, root, "name") {
                    put(&world.vfs, &file, page, page, WriteFlags::empty());
                    if page == 1 {
                        world.vfs.fsync(&file, false).unwrap();
                    }
                    assert_eq!(value(&world.vfs, &file, page), page);
                    check(&file);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..2 {
                if let Some(file) = by_number(&world, ino) {
                    check(&file);
                }
            }
        });
    });
    assert_eq!(deletions.load(Relaxed), 1, "how often it was deleted");
    assert!(by_number(&world, ino).is_none());
    assert_eq!(world.blocks_in_use(), 0, "room that nothing uses");
    assert_eq!(world.vfs.dirty_bytes(), 0);
    drop(root);
    world.end();
}

/// A file without a name gets one while its maker lets it go.
fn a_name_comes() {
    let world = World::new(1 << 20, |_| ());
    let root = world.root();
    // Numbers are given in order.
    let ino = Ino(world.file(&root, "before").ino.0 + 1);
    let deletions = count_deletions(&world, ino);
    let mut named = false;
    scope(|scope| {
        scope.spawn(|| {
            let file = world.vfs.create_unnamed(&Cred::root(), &root, &CreateSpec::file(0o644)).unwrap();
            assert_eq!(file.ino, ino);
            put(&world.vfs, &file, 0, CONTENTS, WriteFlags::empty());
        });
        scope.spawn(|| {
            if let Some(file) = by_number(&world, ino)
                && value(&world.vfs, &file, 0) == CONTENTS
            {
                world.vfs.link(&Cred::root(), &file, &root, b"name", false).unwrap();
                named = true;
            }
        });
    });
    assert_eq!(deletions.load(Relaxed), u64::from(!named), "how often it was deleted, named: {named}");
    assert_eq!(world.blocks_in_use(), u64::from(named));
    match look(&world.vfs, &root, "name") {
        Some(file) => assert_eq!(value(&world.vfs, &file, 0), CONTENTS),
        None => assert!(!named, "the name is gone"),
    }
    drop(root);
    world.end();
}

#[test]
fn unlink_against_open() {
    explore(the_last_name_goes);
}

#[test]
fn link_against_release() {
    explore(a_name_comes);
}
