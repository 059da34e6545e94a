//! Unnamed files whose last references are dropped while the filesystem is unmounted.
//!
//! Promise: a file that is not deleted when `unmount` returns stays for the next mount to delete. A driver
//! gets no call after its unmount.

use ivers_races::*;
use ivers_vfs::{CreateSpec, Cred, WriteFlags};
use shuttle::thread::scope;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const HOLDERS: usize = 2;

fn race() {
    let fixture = Fixture::new(1 << 20, |_| ());
    let root = fixture.root();
    let held = [(); HOLDERS].map(|()| {
        let file = fixture.vfs.create_unnamed(&Cred::root(), &root, &CreateSpec::file(0o600)).unwrap();
        put(&fixture.vfs, &file, 0, 1, WriteFlags::DIRECT);
        file
    });
    drop(root);
    // Not shuttle's atomic: it belongs to the observer.
    let left = AtomicU64::new(0);
    scope(|scope| {
        for file in held {
            scope.spawn(move || drop(file));
        }
        // Not in the scope's own thread: shuttle wakes that when the last of these ends, whatever it waits
        // for.
        scope.spawn(|| {
            fixture.vfs.unmount().unwrap();
            left.store(fixture.blocks_in_use(), Relaxed);
        });
    });
    assert_eq!(fixture.blocks_in_use(), left.load(Relaxed), "blocks were given back when all was closed");
    fixture.gone();
}

#[test]
fn closing_against_deletion() {
    explore(race);
}
