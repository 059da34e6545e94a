//! Callers that say what a name led them to, while names come and go.
//!
//! Promised: what is taken away is what was meant, or nothing is; a value that vouched for a name does not outlive it; nobody finds a file before
//! whoever made it has claimed it; and each entry of a list leads to what the directory said.

use ivers_races::*;
use ivers_vfs::{CreateSpec, Cred, Error, Ino, InodeRef, Meant, NameError, RenameFlags, Result};
use shuttle::thread::scope;
use std::collections::HashSet;
use std::sync::Mutex;

/// False: the name meant something else by then.
fn went(done: Result<impl Sized>) -> bool {
    match done {
        Ok(_) => true,
        Err(Error::Name(NameError::Changed)) => false,
        Err(error) => panic!("{error}"),
    }
}

fn takes_what_it_means(world: &World, root: &InodeRef) -> Option<Ino> {
    let found = look(&world.vfs, root, "name")?;
    went(world.vfs.remove(&Cred::root(), root, b"name", &found, true)).then_some(found.ino)
}

fn moves_what_it_means(world: &World, root: &InodeRef) {
    let Some(found) = look(&world.vfs, root, "name") else { return };
    let replaced = look(&world.vfs, root, "mine");
    let meant = Meant { moved: &found, replaced: replaced.as_ref() };
    if went(world.vfs.rename_meant(&Cred::root(), (root, b"name"), (root, b"mine"), meant, true)) {
        let there = look(&world.vfs, root, "mine").expect("nobody else takes it away");
        assert_eq!(there.ino, found.ino, "another file moved");
    }
}

fn what_is_confirmed_is_there(world: &World, root: &InodeRef) {
    for _ in 0..2 {
        let Some(found) = look(&world.vfs, root, "name") else { continue };
        let value = match world.vfs.confirm(&Cred::root(), root, b"name", &found) {
            Err(Error::Name(NameError::Changed)) => continue,
            confirmed => confirmed.unwrap().expect("a value").after,
        };
        let now = look(&world.vfs, root, "name").map(|inode| inode.ino);
        // Asked behind the look: with the value of before, the look was as good.
        if world.vfs.change(root) == Some(value) {
            assert_eq!(now, Some(found.ino), "{value} vouches for a name that means something else");
        }
    }
}

fn names_come_and_go() {
    let world = World::new(1 << 20, |_| ());
    let root = world.root();
    drop(world.file(&root, "name"));
    let next = world.file(&root, "next");
    let taken = Mutex::new(None);
    scope(|scope| {
        let (world, root) = (&world, &root);
        if coin() {
            scope.spawn(|| *taken.lock().unwrap() = takes_what_it_means(world, root));
        } else {
            scope.spawn(|| moves_what_it_means(world, root));
        }
        scope.spawn(|| {
            let flags = RenameFlags::empty();
            world.vfs.rename(&Cred::root(), root, b"next", root, b"name", flags, false).unwrap();
        });
        scope.spawn(|| what_is_confirmed_is_there(world, root));
    });
    let names = u32::from(taken.into_inner().unwrap() != Some(next.ino));
    assert_eq!(world.vfs.stat(&next).nlink, names, "a file that nobody meant lost its name");
    drop((root, next));
    world.end();
}

fn makers_and_finders() {
    let world = World::new(1 << 20, |_| ());
    let root = world.root();
    drop(world.file(&root, "old"));
    // Not shuttle's: what the front end keeps is no part of the race.
    let claimed = Mutex::new(HashSet::<Ino>::new());
    scope(|scope| {
        let (world, root, claimed) = (&world, &root, &claimed);
        scope.spawn(move || {
            let mut claim = |inode: &InodeRef| {
                claimed.lock().unwrap().insert(inode.ino);
            };
            let spec = CreateSpec::file(0o600);
            world.vfs.create_claimed(&Cred::root(), root, b"new", &spec, true, &mut claim).unwrap();
        });
        scope.spawn(|| world.vfs.unlink(&Cred::root(), root, b"old", false).unwrap());
        scope.spawn(move || {
            if let Some(found) = look(&world.vfs, root, "new") {
                assert!(claimed.lock().unwrap().contains(&found.ino), "found before it was claimed");
            }
        });
        scope.spawn(move || {
            for entry in world.vfs.list(root, 0, 8).unwrap() {
                let inode = entry.inode.expect("a name under the lock leads to a file");
                let new = entry.name == b"new";
                assert!(!new || claimed.lock().unwrap().contains(&inode.ino), "listed before it was claimed");
            }
        });
    });
    drop(root);
    world.end();
}

#[test]
fn meant_against_names() {
    explore(names_come_and_go);
}

#[test]
fn claim_against_look() {
    explore(makers_and_finders);
}
