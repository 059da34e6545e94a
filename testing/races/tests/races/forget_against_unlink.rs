//! A file that a front end remembers by number: it forgets it while the last name is removed, another request
//! recalls the number, and memory is short.
//!
//! Promise: while the number is remembered it belongs to this file, with this change attribute. Afterwards
//! the file is deleted, and its blocks are free.

use ivers_races::*;
use ivers_vfs::{Cred, WriteFlags};
use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
use shuttle::thread::scope;

const VALUE: u64 = 7;

fn race() {
    let fixture = Fixture::new(1 << 20, |_| ());
    let (vfs, root) = (&fixture.vfs, fixture.root());
    let file = fixture.file(&root, "file");
    put(vfs, &file, 0, VALUE, WriteFlags::DIRECT);
    let (ino, change) = (file.ino, vfs.change(&file));
    assert!(vfs.remember(&file, root.ino));
    drop(file);
    fixture.press();
    let forgets = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| vfs.unlink(&Cred::root(), &root, b"file", false).unwrap());
        scope.spawn(|| {
            let Ok(file) = vfs.recall(ino) else {
                assert!(forgets.load(SeqCst), "the number of a remembered file is stale");
                return;
            };
            assert_eq!(value(vfs, &file, 0), VALUE);
            assert!(vfs.change(&file) >= change, "an evicted inode came back with an older value");
        });
        scope.spawn(|| {
            // Memory is short: this evicts.
            find(vfs, &root, "absent");
            find(vfs, &root, "absent");
        });
        scope.spawn(|| {
            forgets.store(true, SeqCst);
            if vfs.forget(ino, 1) {
                vfs.release_forgotten(ino);
            }
        });
    });
    assert_eq!(fixture.blocks_in_use(), 0, "the file is forgotten and has no name, and was not deleted");
    assert!(vfs.recall(ino).is_err());
    drop(root);
    fixture.end();
}

#[test]
fn forget_against_unlink() {
    explore(race);
}
