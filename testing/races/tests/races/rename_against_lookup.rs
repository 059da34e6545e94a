//! Renames concurrent with lookups, listings and removals.
//!
//! Promise: a lookup finds the old or the new name; a replaced file exists until its replacement does; of
//! several callers that want one name one gets it; directories never move below themselves; `ChangeInfo` is
//! atomic; and everything ends, in whatever order the directories are locked.

use ivers_races::*;
use ivers_vfs::{ChangeInfo, CreateSpec, Cred, Error, InodeRef, NameError, RenameFlags, Result};
use shuttle::thread::scope;
use std::sync::Mutex;

type Infos = Option<(ChangeInfo, ChangeInfo)>;

fn rename(
    fixture: &Fixture,
    from: (&InodeRef, &str),
    to: (&InodeRef, &str),
    flags: RenameFlags,
) -> Result<Infos> {
    let (old, new) = (from.1.as_bytes(), to.1.as_bytes());
    fixture.vfs.rename(&Cred::root(), from.0, old, to.0, new, flags, true)
}

/// The change info of one directory: no two intervals overlap.
#[derive(Default)]
struct ChangeInfos(Mutex<Vec<ChangeInfo>>);

impl ChangeInfos {
    fn add(&self, info: ChangeInfo) {
        assert!(info.before < info.after, "a change that moved nothing: {info:?}");
        self.0.lock().unwrap().push(info);
    }

    fn check(self) {
        let mut all = self.0.into_inner().unwrap();
        all.sort_by_key(|info| info.before);
        for pair in all.windows(2) {
            assert!(pair[0].after <= pair[1].before, "changes within each other: {pair:?}");
        }
    }
}

/// One file moves, onto another or not, to another directory or not.
fn one_moves() {
    let fixture = Fixture::new(1 << 20, |_| ());
    let root = fixture.root();
    let from = fixture.dir(&root, "from");
    let to = if coin() { fixture.dir(&root, "to") } else { from.clone() };
    let crosses = from.ino != to.ino;
    let moved = fixture.file(&from, "old").ino;
    let replaced = coin().then(|| fixture.file(&to, "new").ino);
    let infos_of = [ChangeInfos::default(), ChangeInfos::default()];
    scope(|scope| {
        scope.spawn(|| {
            let infos = rename(&fixture, (&from, "old"), (&to, "new"), RenameFlags::empty());
            let (old, new) = infos.unwrap().expect("was requested");
            infos_of[0].add(old);
            if crosses {
                infos_of[1].add(new);
            }
        });
        scope.spawn(|| {
            let other = CreateSpec::file(0o644);
            let made = fixture.vfs.create(&Cred::root(), &to, b"other", &other, true).unwrap().1.unwrap();
            let gone = fixture.vfs.unlink(&Cred::root(), &to, b"other", true).unwrap().unwrap();
            infos_of[usize::from(crosses)].add(made);
            infos_of[usize::from(crosses)].add(gone);
        });
        // Twice, so that the second lookup uses the name cache that the first filled.
        scope.spawn(|| {
            let mut arrived = false;
            for _ in 0..2 {
                let new = find(&fixture.vfs, &to, "new").map(|inode| inode.ino);
                assert!(new == Some(moved) || (new == replaced && !arrived), "new is {new:?}");
                arrived |= new == Some(moved);
                let old = find(&fixture.vfs, &from, "old").map(|inode| inode.ino);
                assert!(old == Some(moved) || old.is_none(), "old is {old:?}");
                if old.is_none() {
                    let new = find(&fixture.vfs, &to, "new").map(|inode| inode.ino);
                    assert_eq!(new, Some(moved), "neither the old name nor the new one");
                    arrived = true;
                }
            }
        });
        scope.spawn(|| {
            let before = fixture.vfs.change(&to);
            let names = list(&fixture.vfs, &to);
            let shown = names.iter().filter(|(_, ino)| *ino == moved).count();
            let new = names.iter().filter(|(name, _)| name == "new").count();
            assert!(shown == 1 || (shown == 0 && crosses), "listed {shown} times: {names:?}");
            assert!(new == 1 || (new == 0 && replaced.is_none()), "new is {new} times in {names:?}");
            let after = fixture.vfs.change(&to);
            // Two names of one directory are listed together: the value stands for the listing.
            if before == after && shown == 1 && new == 1 && replaced.is_none() {
                assert_eq!(find(&fixture.vfs, &to, "new").map(|inode| inode.ino), Some(moved));
            }
        });
    });
    assert_eq!(find(&fixture.vfs, &to, "new").map(|inode| inode.ino), Some(moved));
    infos_of.into_iter().for_each(ChangeInfos::check);
    assert_eq!(fixture.blocks_in_use(), 0);
    drop((root, from, to));
    fixture.end();
}

/// Several callers want the same name, which may later refer to another file: each file is moved or removed
/// once, under its own name.
fn one_gets_it() {
    let fixture = Fixture::new(1 << 20, |_| ());
    let root = fixture.root();
    let other = fixture.dir(&root, "other");
    let first = fixture.file(&root, "wanted");
    let second = Mutex::new(None);
    let winners = Mutex::new(0);
    let judge = |done: Result<()>| match done {
        Ok(()) => *winners.lock().unwrap() += 1,
        Err(Error::Name(NameError::NotFound)) => {}
        Err(error) => panic!("{error}"),
    };
    scope(|scope| {
        let (fixture, root, other, judge) = (&fixture, &root, &other, &judge);
        for (dir, name) in [(root, "mine"), (other, "yours")] {
            let wanted = (root, "wanted");
            scope.spawn(move || judge(rename(fixture, wanted, (dir, name), RenameFlags::empty()).map(drop)));
        }
        scope.spawn(move || judge(fixture.vfs.unlink(&Cred::root(), root, b"wanted", false).map(drop)));
        scope.spawn(|| {
            match fixture.vfs.create(&Cred::root(), root, b"wanted", &CreateSpec::file(0o644), false) {
                Ok((inode, _)) => *second.lock().unwrap() = Some(inode),
                Err(Error::Name(NameError::Exists)) => {}
                Err(error) => panic!("{error}"),
            }
        });
    });
    let files: Vec<InodeRef> = [Some(first), second.into_inner().unwrap()].into_iter().flatten().collect();
    let winners = winners.into_inner().unwrap();
    assert!((1..=files.len()).contains(&winners), "{winners} had a name of {} files", files.len());
    let names = [list(&fixture.vfs, &root), list(&fixture.vfs, &other)].concat();
    for file in &files {
        let count = names.iter().filter(|(_, ino)| *ino == file.ino).count();
        assert_eq!(count, fixture.vfs.stat(file).nlink as usize, "{file:?} in {names:?}");
    }
    drop((root, other, files));
    fixture.end();
}

/// Two directories move into each other, files move between them in both directions, and a thread walks up.
fn crossing() {
    let fixture = Fixture::new(1 << 20, |_| ());
    let root = fixture.root();
    let (a, b) = (fixture.dir(&root, "a"), fixture.dir(&root, "b"));
    let (below_a, below_b) = (fixture.dir(&a, "below"), fixture.dir(&b, "below"));
    drop((fixture.file(&a, "x"), fixture.file(&b, "y")));
    let swaps = coin();
    let moved = Mutex::new(0);
    scope(|scope| {
        let (fixture, root, moved) = (&fixture, &root, &moved);
        for (name, into) in [("a", &below_b), ("b", &below_a)] {
            scope.spawn(move || match rename(fixture, (root, name), (into, name), RenameFlags::empty()) {
                Ok(_) => *moved.lock().unwrap() += 1,
                Err(Error::Name(NameError::Invalid)) => {}
                Err(error) => panic!("{error}"),
            });
        }
        for (from, to, name) in [(&a, &b, "x"), (&b, &a, "y")] {
            // An exchange may succeed twice; the rename fails once the other has no directory to exchange.
            let flags = if swaps { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
            let target = if swaps { if name == "x" { "y" } else { "x" } } else { name };
            scope.spawn(move || match rename(fixture, (from, name), (to, target), flags) {
                Ok(_) | Err(Error::Name(NameError::NotFound)) => {}
                Err(error) => panic!("{error}"),
            });
        }
        scope.spawn(|| {
            let mut at = below_a.clone();
            for _ in 0..3 {
                at = find(&fixture.vfs, &at, "..").expect("every directory has a parent");
            }
        });
    });
    assert_eq!(*moved.lock().unwrap(), 1, "two directories moved into each other");
    for dir in [&below_a, &below_b] {
        let mut at = dir.clone();
        for _ in 0..6 {
            at = find(&fixture.vfs, &at, "..").unwrap();
        }
        assert_eq!(at.ino, root.ino, "{dir:?} hangs below itself");
    }
    drop((root, a, b, below_a, below_b));
    fixture.end();
}

#[test]
fn rename_against_lookup() {
    explore(one_moves);
}

#[test]
fn rename_against_rename() {
    explore(one_gets_it);
}

#[test]
fn rename_across_directories() {
    explore(crossing);
}
