//! Names that move while others look them up, list them and take them away.
//!
//! Promised: a rename shows the old name or the new one and nobody finds neither; what is replaced is there until its replacement is; of
//! several who want one name one gets it; directories never move below themselves; `ChangeInfo` is atomic; and all of that ends,
//! whichever way round the directories are locked.

use ivers_races::*;
use ivers_vfs::{ChangeInfo, CreateSpec, Cred, Error, InodeRef, NameError, RenameFlags, Result};
use shuttle::thread::scope;
use std::sync::Mutex;

type Infos = Option<(ChangeInfo, ChangeInfo)>;

fn rename(
    world: &World,
    from: (&InodeRef, &str),
    to: (&InodeRef, &str),
    flags: RenameFlags,
) -> Result<Infos> {
    let (old, new) = (from.1.as_bytes(), to.1.as_bytes());
    world.vfs.rename(&Cred::root(), from.0, old, to.0, new, flags, true)
}

/// The changes of one directory as those who made them were told: none lies within another.
#[derive(Default)]
struct Told(Mutex<Vec<ChangeInfo>>);

impl Told {
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
    let world = World::new(1 << 20, |_| ());
    let root = world.root();
    let from = world.dir(&root, "from");
    let to = if coin() { world.dir(&root, "to") } else { from.clone() };
    let crosses = from.ino != to.ino;
    let moved = world.file(&from, "old").ino;
    let replaced = coin().then(|| world.file(&to, "new").ino);
    let told = [Told::default(), Told::default()];
    scope(|scope| {
        scope.spawn(|| {
            let infos = rename(&world, (&from, "old"), (&to, "new"), RenameFlags::empty());
            let (old, new) = infos.unwrap().expect("was asked for");
            told[0].add(old);
            if crosses {
                told[1].add(new);
            }
        });
        scope.spawn(|| {
            let other = CreateSpec::file(0o644);
            let made = world.vfs.create(&Cred::root(), &to, b"other", &other, true).unwrap().1.unwrap();
            let gone = world.vfs.unlink(&Cred::root(), &to, b"other", true).unwrap().unwrap();
            told[usize::from(crosses)].add(made);
            told[usize::from(crosses)].add(gone);
        });
        // Twice, so that the second finds what the first has put into the name cache.
        scope.spawn(|| {
            let mut arrived = false;
            for _ in 0..2 {
                let new = look(&world.vfs, &to, "new").map(|inode| inode.ino);
                assert!(new == Some(moved) || (new == replaced && !arrived), "new is {new:?}");
                arrived |= new == Some(moved);
                let old = look(&world.vfs, &from, "old").map(|inode| inode.ino);
                assert!(old == Some(moved) || old.is_none(), "old is {old:?}");
                if old.is_none() {
                    let new = look(&world.vfs, &to, "new").map(|inode| inode.ino);
                    assert_eq!(new, Some(moved), "neither the old name nor the new one");
                    arrived = true;
                }
            }
        });
        scope.spawn(|| {
            let before = world.vfs.change(&to);
            let names = list(&world.vfs, &to);
            let shown = names.iter().filter(|(_, ino)| *ino == moved).count();
            let new = names.iter().filter(|(name, _)| name == "new").count();
            assert!(shown == 1 || (shown == 0 && crosses), "listed {shown} times: {names:?}");
            assert!(new == 1 || (new == 0 && replaced.is_none()), "new is {new} times in {names:?}");
            let after = world.vfs.change(&to);
            // Two names of one directory, listed at once: the value vouches for what was listed.
            if before == after && shown == 1 && new == 1 && replaced.is_none() {
                assert_eq!(look(&world.vfs, &to, "new").map(|inode| inode.ino), Some(moved));
            }
        });
    });
    assert_eq!(look(&world.vfs, &to, "new").map(|inode| inode.ino), Some(moved));
    told.into_iter().for_each(Told::check);
    assert_eq!(world.blocks_in_use(), 0);
    drop((root, from, to));
    world.end();
}

/// Several want the same name, which may come back for another file: each file is moved or taken away once, with its own name.
fn one_gets_it() {
    let world = World::new(1 << 20, |_| ());
    let root = world.root();
    let other = world.dir(&root, "other");
    let first = world.file(&root, "wanted");
    let second = Mutex::new(None);
    let winners = Mutex::new(0);
    let judge = |done: Result<()>| match done {
        Ok(()) => *winners.lock().unwrap() += 1,
        Err(Error::Name(NameError::NotFound)) => {}
        Err(error) => panic!("{error}"),
    };
    scope(|scope| {
        let (world, root, other, judge) = (&world, &root, &other, &judge);
        for (dir, name) in [(root, "mine"), (other, "yours")] {
            let wanted = (root, "wanted");
            scope.spawn(move || judge(rename(world, wanted, (dir, name), RenameFlags::empty()).map(drop)));
        }
        scope.spawn(move || judge(world.vfs.unlink(&Cred::root(), root, b"wanted", false).map(drop)));
        scope.spawn(|| {
            match world.vfs.create(&Cred::root(), root, b"wanted", &CreateSpec::file(0o644), false) {
                Ok((inode, _)) => *second.lock().unwrap() = Some(inode),
                Err(Error::Name(NameError::Exists)) => {}
                Err(error) => panic!("{error}"),
            }
        });
    });
    let files: Vec<InodeRef> = [Some(first), second.into_inner().unwrap()].into_iter().flatten().collect();
    let winners = winners.into_inner().unwrap();
    assert!((1..=files.len()).contains(&winners), "{winners} had a name of {} files", files.len());
    let names = [list(&world.vfs, &root), list(&world.vfs, &other)].concat();
    for file in &files {
        let count = names.iter().filter(|(_, ino)| *ino == file.ino).count();
        assert_eq!(count, world.vfs.stat(file).nlink as usize, "{file:?} in {names:?}");
    }
    drop((root, other, files));
    world.end();
}

/// Two directories move into each other, files cross both ways between them, and somebody walks up.
fn crossing() {
    let world = World::new(1 << 20, |_| ());
    let root = world.root();
    let (a, b) = (world.dir(&root, "a"), world.dir(&root, "b"));
    let (below_a, below_b) = (world.dir(&a, "below"), world.dir(&b, "below"));
    drop((world.file(&a, "x"), world.file(&b, "y")));
    let swaps = coin();
    let moved = Mutex::new(0);
    scope(|scope| {
        let (world, root, moved) = (&world, &root, &moved);
        for (name, into) in [("a", &below_b), ("b", &below_a)] {
            scope.spawn(move || match rename(world, (root, name), (into, name), RenameFlags::empty()) {
                Ok(_) => *moved.lock().unwrap() += 1,
                Err(Error::Name(NameError::Invalid)) => {}
                Err(error) => panic!("{error}"),
            });
        }
        for (from, to, name) in [(&a, &b, "x"), (&b, &a, "y")] {
            // Where both are swapped for each other it may happen twice, and once the other has none to swap with.
            let flags = if swaps { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
            let target = if swaps { if name == "x" { "y" } else { "x" } } else { name };
            scope.spawn(move || match rename(world, (from, name), (to, target), flags) {
                Ok(_) | Err(Error::Name(NameError::NotFound)) => {}
                Err(error) => panic!("{error}"),
            });
        }
        scope.spawn(|| {
            let mut at = below_a.clone();
            for _ in 0..3 {
                at = look(&world.vfs, &at, "..").expect("every directory has a parent");
            }
        });
    });
    assert_eq!(*moved.lock().unwrap(), 1, "two directories moved into each other");
    for dir in [&below_a, &below_b] {
        let mut at = dir.clone();
        for _ in 0..6 {
            at = look(&world.vfs, &at, "..").unwrap();
        }
        assert_eq!(at.ino, root.ino, "{dir:?} hangs below itself");
    }
    drop((root, a, b, below_a, below_b));
    world.end();
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
