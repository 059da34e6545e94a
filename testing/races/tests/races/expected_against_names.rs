//! Callers that state which file they expect under a name, while names change.
//!
//! Promise: a removal removes the expected file or nothing; a value of a directory that stood for a name does
//! not outlive the name; no other caller finds a new file before its creator has claimed it; and each entry
//! of a listing refers to the directory's file.

use ivers_races::*;
use ivers_vfs::{CreateSpec, Cred, Error, Expected, Ino, InodeRef, NameError, RenameFlags, Result};
use shuttle::thread::scope;
use std::collections::HashSet;
use std::sync::Mutex;

/// Returns false if the name changed concurrently.
fn went(done: Result<impl Sized>) -> bool {
    match done {
        Ok(_) => true,
        Err(Error::Name(NameError::Changed)) => false,
        Err(error) => panic!("{error}"),
    }
}

fn takes_what_it_means(fixture: &Fixture, root: &InodeRef) -> Option<Ino> {
    let found = find(&fixture.vfs, root, "name")?;
    went(fixture.vfs.remove(&Cred::root(), root, b"name", &found, true)).then_some(found.ino)
}

fn moves_what_it_means(fixture: &Fixture, root: &InodeRef) {
    let Some(found) = find(&fixture.vfs, root, "name") else { return };
    let replaced = find(&fixture.vfs, root, "mine");
    let meant = Expected { moved: &found, replaced: replaced.as_ref() };
    if went(fixture.vfs.rename_expected(&Cred::root(), (root, b"name"), (root, b"mine"), meant, true)) {
        let there = find(&fixture.vfs, root, "mine").expect("nobody else takes it away");
        assert_eq!(there.ino, found.ino, "another file moved");
    }
}

fn what_is_confirmed_is_there(fixture: &Fixture, root: &InodeRef) {
    for _ in 0..2 {
        let Some(found) = find(&fixture.vfs, root, "name") else { continue };
        let value = match fixture.vfs.revalidate_name(&Cred::root(), root, b"name", &found) {
            Err(Error::Name(NameError::Changed)) => continue,
            confirmed => confirmed.unwrap().expect("a value").after,
        };
        let now = find(&fixture.vfs, root, "name").map(|inode| inode.ino);
        // Queried after the lookup: with an unchanged value the lookup was valid.
        if fixture.vfs.change(root) == Some(value) {
            assert_eq!(now, Some(found.ino), "{value} vouches for a name that means something else");
        }
    }
}

fn names_come_and_go() {
    let fixture = Fixture::new(1 << 20, |_| ());
    let root = fixture.root();
    drop(fixture.file(&root, "name"));
    let next = fixture.file(&root, "next");
    let taken = Mutex::new(None);
    scope(|scope| {
        let (fixture, root) = (&fixture, &root);
        if coin() {
            scope.spawn(|| *taken.lock().unwrap() = takes_what_it_means(fixture, root));
        } else {
            scope.spawn(|| moves_what_it_means(fixture, root));
        }
        scope.spawn(|| {
            let flags = RenameFlags::empty();
            fixture.vfs.rename(&Cred::root(), root, b"next", root, b"name", flags, false).unwrap();
        });
        scope.spawn(|| what_is_confirmed_is_there(fixture, root));
    });
    let names = u32::from(taken.into_inner().unwrap() != Some(next.ino));
    assert_eq!(fixture.vfs.stat(&next).nlink, names, "a file that nobody meant lost its name");
    drop((root, next));
    fixture.end();
}

fn makers_and_finders() {
    let fixture = Fixture::new(1 << 20, |_| ());
    let root = fixture.root();
    drop(fixture.file(&root, "old"));
    // Not shuttle's lock: the state of the front end takes no part in the race.
    let claimed = Mutex::new(HashSet::<Ino>::new());
    scope(|scope| {
        let (fixture, root, claimed) = (&fixture, &root, &claimed);
        scope.spawn(move || {
            let mut claim = |inode: &InodeRef| {
                claimed.lock().unwrap().insert(inode.ino);
            };
            let spec = CreateSpec::file(0o600);
            fixture.vfs.create_with(&Cred::root(), root, b"new", &spec, true, &mut claim).unwrap();
        });
        scope.spawn(|| fixture.vfs.unlink(&Cred::root(), root, b"old", false).unwrap());
        scope.spawn(move || {
            if let Some(found) = find(&fixture.vfs, root, "new") {
                assert!(claimed.lock().unwrap().contains(&found.ino), "found before it was claimed");
            }
        });
        scope.spawn(move || {
            for entry in fixture.vfs.list(&Cred::root(), root, 0, 8).unwrap() {
                let inode = entry.inode.expect("a name under the lock leads to a file");
                let new = entry.name == b"new";
                assert!(!new || claimed.lock().unwrap().contains(&inode.ino), "listed before it was claimed");
            }
        });
    });
    drop(root);
    fixture.end();
}

#[test]
fn expected_against_names() {
    explore(names_come_and_go);
}

#[test]
fn claim_against_lookup() {
    explore(makers_and_finders);
}
