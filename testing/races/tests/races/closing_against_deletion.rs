//! Files without a name whose last holders let them go while the filesystem is closed.
//!
//! Promised: what is not deleted when `unmount` returns stays, for the next mount to delete. A driver that has written its last word is asked for
//! nothing more.

use ivers_races::*;
use ivers_vfs::{CreateSpec, Cred, WriteFlags};
use shuttle::thread::scope;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const HOLDERS: usize = 2;

fn race() {
    let world = World::new(1 << 20, |_| ());
    let root = world.root();
    let held = [(); HOLDERS].map(|()| {
        let file = world.vfs.create_unnamed(&Cred::root(), &root, &CreateSpec::file(0o600)).unwrap();
        put(&world.vfs, &file, 0, 1, WriteFlags::DIRECT);
        file
    });
    drop(root);
    // Not shuttle's atomic: it belongs to the observer.
    let left = AtomicU64::new(0);
    scope(|scope| {
        for file in held {
            scope.spawn(move || drop(file));
        }
        // Not in the scope's own thread: shuttle wakes that when the last of these ends, whatever it waits for.
        scope.spawn(|| {
            world.vfs.unmount().unwrap();
            left.store(world.blocks_in_use(), Relaxed);
        });
    });
    assert_eq!(world.blocks_in_use(), left.load(Relaxed), "blocks were given back when all was closed");
    world.gone();
}

#[test]
fn closing_against_deletion() {
    explore(race);
}
