//! Names: several threads make, link, move and remove the same ones.

use super::SLOWER;
use ivers_races::*;
use ivers_vfs::{CreateSpec, Cred, Error, InodeRef, RenameFlags, Result};
use shuttle::thread::scope;

const STEPS: usize = 3;
const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];

/// Another thread was first.
fn tolerate(result: Result<impl Sized>) {
    match result {
        Ok(_) | Err(Error::Name(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

fn dirs(fixture: &XfsFixture) -> [InodeRef; 2] {
    let root = fixture.vfs.root().unwrap();
    ["d", "e"].map(|name| {
        let spec = CreateSpec::directory(0o755);
        fixture.vfs.create(&Cred::root(), &root, name.as_bytes(), &spec, false).unwrap().0
    })
}

/// Makes, links, moves or removes a name.
fn step(fixture: &XfsFixture, dirs: &[InodeRef; 2]) {
    let (vfs, root) = (&fixture.vfs, Cred::root());
    let [from, to] = [0, 1].map(|_| &dirs[draw(2)]);
    let [old, new] = [0, 1].map(|_| NAMES[draw(NAMES.len())]);
    match draw(6) {
        0 | 1 => {
            let spec = if coin() { CreateSpec::file(0o644) } else { CreateSpec::symlink(*b"target") };
            tolerate(vfs.create(&root, from, old, &spec, false));
        }
        2 => tolerate(vfs.unlink(&root, from, old, false)),
        3 => {
            if let Ok(inode) = vfs.lookup(&root, from, old) {
                tolerate(vfs.link(&root, &inode, to, new, false));
            }
        }
        how => {
            let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
            let flags = flags[if how == 4 { 0 } else { draw(3) }];
            tolerate(vfs.rename(&root, from, old, to, new, flags, false));
        }
    }
}

fn same_names() {
    let fixture = XfsFixture::new(Log::Small);
    let dirs = dirs(&fixture);
    scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..STEPS).for_each(|_| step(&fixture, &dirs)));
        }
        if coin() {
            scope.spawn(|| {
                fixture.press();
                fixture.drop_blocks();
                fixture.vfs.sync().unwrap();
            });
        }
        scope.spawn(|| recover(fixture.crash(), |_| ()));
    });
    drop(dirs);
    fixture.end();
}

#[test]
fn xfs_same_names() {
    explore_one_in(SLOWER, same_names);
}

/// Links and removed links of one file: its link count and the names, which its observers and those of the
/// directory see.
fn links() {
    let fixture = XfsFixture::new(Log::Small);
    let ([dir, other], root, vfs) = (dirs(&fixture), Cred::root(), &fixture.vfs);
    let (file, _) = vfs.create(&root, &other, b"file", &CreateSpec::file(0o644), false).unwrap();
    let (of_file, of_dir): (ObservationLog<1>, ObservationLog<1>) = Default::default();
    let count = || [u64::from(vfs.stat(&file).nlink)];
    let names = || [list(vfs, &dir).len() as u64];
    scope(|scope| {
        scope.spawn(|| {
            for nth in 1..=STEPS as u64 {
                vfs.link(&root, &file, &dir, format!("link{nth}").as_bytes(), false).unwrap();
                of_file.completed(0, nth + 1);
                of_dir.completed(0, nth);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..STEPS {
                    of_file.observe(vfs, &file, count);
                    of_dir.observe(vfs, &dir, names);
                }
            });
        }
        if coin() {
            scope.spawn(|| vfs.fsync(&file, coin()).unwrap());
        }
        scope.spawn(|| {
            let (seen_file, seen_dir, device) = (of_file.seen(), of_dir.seen(), fixture.crash());
            recover(device, |vfs| {
                let top = vfs.root().unwrap();
                let [dir, other] = ["d", "e"].map(|name| find(vfs, &top, name));
                // Neither is durable yet, maybe.
                let (Some(dir), Some(other)) = (dir, other) else { return };
                let names = list(vfs, &dir).len() as u64;
                let now = [vfs.change(&dir).unwrap()];
                for (old, contents) in seen_dir {
                    assert!(now[0] > old || (now[0], [names]) == (old, contents), "C4: of the directory");
                }
                let Some(file) = find(vfs, &other, "file") else { return };
                assert_eq!(u64::from(vfs.stat(&file).nlink), 1 + names);
                let now = vfs.change(&file).unwrap();
                for (old, contents) in seen_file {
                    assert!(now > old || (now, [1 + names]) == (old, contents), "C4: of the file");
                }
            });
        });
    });
    of_file.observe(vfs, &file, count);
    of_dir.observe(vfs, &dir, names);
    assert_eq!((count(), names()), ([1 + STEPS as u64], [STEPS as u64]));
    drop((dir, other, file));
    fixture.end();
}

#[test]
fn xfs_query_against_link() {
    explore_one_in(SLOWER, links);
}
