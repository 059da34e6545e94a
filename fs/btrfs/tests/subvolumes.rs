//! Subvolumes and snapshots that ivers makes and deletes. `btrfs check` finds nothing, and Linux sees an
//! equal tree. `IVERS_SEED` and `IVERS_STEPS` replay and lengthen a run, `IVERS_KIND` selects a kind.

mod common;

use common::fill::in_dir;
use common::*;
use ivers_block::{ByteOffset, Device, FaultDevice, MemDevice, OverlayDevice};
use ivers_btrfs::{OpenOptions, Subvolume};
use ivers_crash::env;
use ivers_crash::states::{State, States};
use ivers_oracle::btrfs_fields::{BtrfsImage, Item};
use ivers_vfs::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;

const WITH_SUBVOLUMES: &[&str] = &["default", "nodes of 4 KiB", "mixed groups", "old features", "RAID1"];

fn at(vfs: &Arc<Vfs>, path: &str) -> InodeRef {
    vfs.resolve(&Cred::root(), path, false).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn put(vfs: &Arc<Vfs>, dir: &str, name: &str, content: &[u8]) -> Result<()> {
    let (cred, dir) = (Cred::root(), at(vfs, dir));
    let file = match vfs.lookup(&cred, &dir, name.as_bytes()) {
        Ok(file) => file,
        Err(_) => vfs.create(&cred, &dir, name.as_bytes(), &CreateSpec::file(0o644), false)?.0,
    };
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    vfs.set_attr(&cred, &file, &set)?;
    vfs.write(&cred, &file, 0, content, WriteFlags::empty()).map(drop)
}

fn snapshot(vfs: &Arc<Vfs>, source: &str, name: &str, read_only: bool) -> Result<()> {
    let root = vfs.root().unwrap();
    vfs.snapshot_subvolume(&Cred::root(), &at(vfs, source), &root, name.as_bytes(), read_only)
}

fn create(vfs: &Arc<Vfs>, name: &str) -> Result<()> {
    let root = vfs.root().unwrap();
    vfs.create_subvolume(&Cred::root(), &root, name.as_bytes(), &CreateSpec::directory(0o755))
}

fn delete(vfs: &Arc<Vfs>, name: &str) -> Result<()> {
    vfs.delete_subvolume(&Cred::root(), &vfs.root().unwrap(), name.as_bytes())
}

/// Files of a subvolume, by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Makes, fills, snapshots and deletes subvolumes at random, with a model of what is in them.
struct Random {
    vfs: Option<Arc<Vfs>>,
    random: SmallRng,
    model: BTreeMap<String, (Files, bool)>,
    next: usize,
}

impl Random {
    fn vfs(&self) -> &Arc<Vfs> {
        self.vfs.as_ref().expect("it is mounted")
    }

    fn unmount(&mut self) {
        self.vfs().unmount().unwrap();
        self.vfs = None;
    }

    fn pick(&mut self) -> Option<String> {
        let names: Vec<_> = self.model.keys().cloned().collect();
        (!names.is_empty()).then(|| names[self.random.random_range(0..names.len())].clone())
    }

    fn step(&mut self) {
        self.next += 1;
        let new = format!("s{}", self.next);
        match self.random.random_range(0..20) {
            0 => {
                create(self.vfs(), &new).unwrap();
                self.model.insert(new, (Files::new(), false));
            }
            1..=3 => {
                let Some(source) = self.pick() else { return };
                let read_only = self.random.random_bool(0.4);
                snapshot(self.vfs(), &format!("/{source}"), &new, read_only).unwrap();
                let files = self.model[&source].0.clone();
                self.model.insert(new, (files, read_only));
            }
            4..=5 if self.model.len() > 3 => {
                let Some(gone) = self.pick() else { return };
                delete(self.vfs(), &gone).unwrap();
                self.model.remove(&gone);
            }
            // Many changes of one subvolume, so that some of its blocks become its own.
            _ => {
                let Some(name) = self.pick() else { return };
                let fixed = self.model[&name].1;
                for _ in 0..self.random.random_range(1..60) {
                    let file = format!("file-{}", self.random.random_range(0..400));
                    let len = self.random.random_range(1..9000);
                    let content = vec![self.random.random(); len];
                    let done = put(self.vfs(), &format!("/{name}"), &file, &content);
                    if fixed {
                        assert!(matches!(done, Err(Error::Name(NameError::ReadOnly))), "{done:?}");
                        return;
                    }
                    done.unwrap();
                    self.model.get_mut(&name).unwrap().0.insert(file, content);
                }
            }
        }
    }

    fn check(&self, what: &str) {
        for (name, (files, _)) in &self.model {
            let mut found = Vec::new();
            let dir = at(self.vfs(), &format!("/{name}"));
            self.vfs()
                .readdir(&Cred::root(), &dir, 0, &mut |entry| {
                    found.push(String::from_utf8(entry.name.to_vec()).unwrap());
                    std::ops::ControlFlow::Continue(())
                })
                .unwrap();
            found.retain(|name| name != "." && name != "..");
            found.sort();
            assert_eq!(found, files.keys().cloned().collect::<Vec<_>>(), "{what}: {name}");
            for (file, content) in files {
                let inode = at(self.vfs(), &format!("/{name}/{file}"));
                assert!(read_all(self.vfs(), &inode).unwrap() == *content, "{what}: {name}/{file}");
            }
        }
    }
}

#[test]
fn random_subvolumes_and_snapshots() {
    if !can_fill() {
        return;
    }
    let (seed, steps) = (env("IVERS_SEED").unwrap_or(1), env("IVERS_STEPS").unwrap_or(60));
    let dir = tempfile::tempdir().unwrap();
    for kind in kinds_named(WITH_SUBVOLUMES) {
        println!("{}: IVERS_SEED={seed} IVERS_STEPS={steps}", kind.name);
        let images = Images::make(dir.path(), kind);
        let random = SmallRng::seed_from_u64(seed);
        let mut run = Random { vfs: Some(mount_writable(&images)), random, model: BTreeMap::new(), next: 0 };
        for name in ["a", "b"] {
            create(run.vfs(), name).unwrap();
            run.model.insert(name.to_owned(), (Files::new(), false));
        }
        for round in 0..3 {
            let what = format!("{}, round {round}", kind.name);
            (0..steps).for_each(|_| run.step());
            run.check(&what);
            run.unmount();
            assert_clean(&images, &what);
            run.vfs = Some(mount_writable(&images));
            run.check(&format!("{what}, mounted again"));
        }
        run.unmount();
        let names: Vec<_> = run.model.keys().cloned().collect();
        drop(run);
        let ours = our_tree(&mount(&images), true).unwrap();
        assert_same(&ours, &images.with_kernel("ro", kernel_tree), kind.name);
        // Linux goes on: it deletes some, and makes snapshots of others.
        images.with_kernel("", |root| {
            let (first, second) = (&names[0], &names[1]);
            let script = format!(
                "btrfs -q subvolume snapshot {first} linux; echo x > linux/new; \
                 btrfs -q subvolume delete -c {second}; sync"
            );
            in_dir(root, &script);
        });
        assert_clean(&images, kind.name);
        // All of them are deleted, and their space is free again.
        let vfs = mount_writable(&images);
        for name in names.iter().filter(|name| *name != &names[1]).chain([&"linux".to_owned()]) {
            delete(&vfs, name).unwrap();
        }
        let left: Vec<_> = vfs.list_subvolumes().unwrap().into_iter().map(|one| one.id).collect();
        assert_eq!(left, [5], "{}", kind.name);
        vfs.unmount().unwrap();
        drop(vfs);
        assert_clean(&images, kind.name);
        let dump = |device: &str| ivers_oracle::run("btrfs", ["inspect-internal", "dump-tree", device]);
        let dump = match &images.paths[..] {
            [path] => dump(path.to_str().unwrap()).unwrap(),
            _ => images.with_loops(|loops| dump(&loops[0]).unwrap()),
        };
        let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
        assert!(!dump.contains("extent data backref") && !dump.contains("ORPHAN_ITEM"), "{}", kind.name);
    }
}

/// The words of `btrfs subvolume show` after some titles.
fn shown(root: &std::path::Path, path: &str) -> BTreeMap<String, String> {
    let place = root.join(path);
    let words = ["subvolume", "show", place.to_str().unwrap()];
    let output = ivers_oracle::run("btrfs", words).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(title, value)| (title.trim().to_owned(), value.trim().to_owned())).collect()
}

#[test]
fn subvolumes_are_listed_as_on_linux() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make(dir.path(), &DEFAULT);
    images.with_kernel("", |root| {
        in_dir(root, "mkdir -p d/e; btrfs -q subvolume create d/e/linux; echo x > d/e/linux/file");
    });
    let vfs = mount_writable(&images);
    create(&vfs, "own").unwrap();
    put(&vfs, "/own", "file", b"content").unwrap();
    let before = vfs.change(&at(&vfs, "/own/file"));
    snapshot(&vfs, "/own", "fixed", true).unwrap();
    snapshot(&vfs, "/d/e/linux", "copy", false).unwrap();
    snapshot(&vfs, "/fixed", "again", true).unwrap();
    // The snapshot starts with the value of its source, and goes on alone.
    assert_eq!(vfs.change(&at(&vfs, "/fixed/file")), before);
    put(&vfs, "/own", "file", b"other").unwrap();
    assert!(vfs.change(&at(&vfs, "/own/file")) > before);
    assert_eq!(vfs.change(&at(&vfs, "/fixed/file")), before);
    for (path, name) in [("/own", "own"), ("/own/file", "x"), ("/d", "y")] {
        let refused = snapshot(&vfs, path, name, false);
        assert!(refused.is_err(), "{path}");
    }
    assert!(matches!(create(&vfs, "own"), Err(Error::Name(NameError::Exists))));
    assert!(matches!(delete(&vfs, "d"), Err(Error::Name(NameError::Invalid))));
    let own = at(&vfs, "/own");
    vfs.create_subvolume(&Cred::root(), &own, b"nested", &CreateSpec::directory(0o700)).unwrap();
    assert!(matches!(delete(&vfs, "own"), Err(Error::Name(NameError::NotEmpty))));
    let fixed = at(&vfs, "/fixed");
    let refused = vfs.create_subvolume(&Cred::root(), &fixed, b"nested", &CreateSpec::directory(0o700));
    assert!(matches!(refused, Err(Error::Name(NameError::ReadOnly))), "{refused:?}");
    let ours = vfs.list_subvolumes().unwrap();
    drop((own, fixed));
    vfs.unmount().unwrap();
    drop(vfs);
    assert_clean(&images, "listed");
    images.with_kernel("ro", |root| {
        assert_eq!(ours.len(), 7, "{ours:?}");
        for one in ours.iter().filter(|one| one.id != 5) {
            let path = String::from_utf8(one.path.clone().unwrap()).unwrap();
            let theirs = shown(root, &path);
            let uuid = |uuid: [u8; 16]| match uuid {
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => "-".to_owned(),
                uuid => {
                    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
                    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
                }
            };
            assert_eq!(theirs["Subvolume ID"], one.id.to_string(), "{path}");
            assert_eq!(theirs["Parent ID"], one.parent.unwrap().to_string(), "{path}");
            assert_eq!(theirs["UUID"], uuid(one.uuid), "{path}");
            assert_eq!(theirs["Parent UUID"], uuid(one.parent_uuid), "{path}");
            assert_eq!(theirs["Received UUID"], uuid(one.received_uuid), "{path}");
            assert_eq!(theirs["Flags"], if one.read_only { "readonly" } else { "-" }, "{path}");
            assert_eq!(theirs["Generation"], one.generation.to_string(), "{path}");
        }
    });
}

#[test]
fn the_default_and_the_open_subvolume_stay() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make(dir.path(), &DEFAULT);
    images.with_kernel("", |root| {
        in_dir(
            root,
            "btrfs -q subvolume create one; btrfs -q subvolume create two; btrfs subvolume set-default one",
        )
    });
    let top = OpenOptions { subvolume: Subvolume::Id(5), ..OpenOptions::default() };
    let vfs = mount_writable_with(&images, top);
    assert!(matches!(delete(&vfs, "one"), Err(Error::Name(NameError::Busy))));
    delete(&vfs, "two").unwrap();
    let listed = vfs.list_subvolumes().unwrap();
    assert_eq!(
        listed.iter().map(|one| (one.id, one.is_default)).collect::<Vec<_>>(),
        [(5, false), (256, true)]
    );
    vfs.unmount().unwrap();
    drop(vfs);
    assert_clean(&images, "default");
    // A received subvolume keeps its UUID in read-only snapshots only.
    let images = Images::make(dir.path(), &DEFAULT);
    images.with_kernel("", |root| {
        in_dir(
            root,
            "btrfs -q subvolume create s; echo x > s/f; btrfs -q subvolume snapshot -r s r; mkdir in; \
             btrfs -q send r -f stream; btrfs -q receive -f stream in",
        )
    });
    let vfs = mount_writable(&images);
    snapshot(&vfs, "/in/r", "kept", true).unwrap();
    snapshot(&vfs, "/in/r", "cleared", false).unwrap();
    let received = |path: &str| {
        let all = vfs.list_subvolumes().unwrap();
        all.into_iter().find(|one| one.path.as_deref() == Some(path.as_bytes())).unwrap().received_uuid
    };
    assert!(received("in/r") != [0; 16] && received("kept") == received("in/r"));
    assert_eq!(received("cleared"), [0; 16]);
    vfs.unmount().unwrap();
    assert_clean(&images, "received");
}

/// The VFS may still have inodes of a deleted subvolume, and programs its change attributes.
#[test]
fn a_number_is_not_used_again() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make(dir.path(), &DEFAULT);
    let vfs = mount_writable(&images);
    create(&vfs, "old").unwrap();
    put(&vfs, "/old", "file", b"old").unwrap();
    vfs.unmount().unwrap();
    drop(vfs);
    let vfs = mount_writable(&images);
    assert_eq!(read_all(&vfs, &at(&vfs, "/old/file")).unwrap(), b"old");
    let old = at(&vfs, "/old").ino;
    delete(&vfs, "old").unwrap();
    create(&vfs, "new").unwrap();
    assert_ne!(at(&vfs, "/new").ino, old);
    assert!(vfs.lookup(&Cred::root(), &at(&vfs, "/new"), b"file").is_err());
    put(&vfs, "/new", "file", b"new").unwrap();
    vfs.unmount().unwrap();
    drop(vfs);
    assert_clean(&images, "a new subvolume after a deleted one");
    let vfs = mount(&images);
    assert_eq!(read_all(&vfs, &at(&vfs, "/new/file")).unwrap(), b"new");
    drop(vfs);
    // Two snapshots of one file, of which the first is deleted before the second is made in a later session.
    let identity = |vfs: &Arc<Vfs>, path: &str| {
        let file = at(vfs, path);
        (file.ino, file.generation, vfs.change(&file))
    };
    let vfs = mount_writable(&images);
    snapshot(&vfs, "/new", "one", false).unwrap();
    identity(&vfs, "/one/file");
    put(&vfs, "/one", "file", b"of one").unwrap();
    let one = identity(&vfs, "/one/file");
    delete(&vfs, "one").unwrap();
    vfs.unmount().unwrap();
    drop(vfs);
    let vfs = mount_writable(&images);
    snapshot(&vfs, "/new", "two", false).unwrap();
    identity(&vfs, "/two/file");
    put(&vfs, "/two", "file", b"of two").unwrap();
    let two = identity(&vfs, "/two/file");
    assert!(one.1 == two.1 && one.2 == two.2, "the same changes of the same file: {one:?} {two:?}");
    assert_ne!(one.0, two.0);
    let listed = vfs.list_xattr(&Cred::root(), &vfs.root().unwrap()).unwrap();
    assert!(listed.is_empty(), "{listed:?}");
    vfs.unmount().unwrap();
    assert_clean(&images, "snapshots of several sessions");
}

#[test]
fn subvolumes_are_deleted_at_the_same_time() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make(dir.path(), kinds_named(&["nodes of 4 KiB"])[0]);
    let vfs = mount_writable(&images);
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    // The VFS locks the directory of the name: each has its own.
    let dirs: Vec<_> = (0..4).map(|nth| format!("dir-{nth}")).collect();
    for dir in &dirs {
        vfs.create(&cred, &root, dir.as_bytes(), &CreateSpec::directory(0o755), false).unwrap();
    }
    for round in 0..3 {
        for dir in &dirs {
            let at_dir = at(&vfs, &format!("/{dir}"));
            vfs.create_subvolume(&cred, &at_dir, b"s", &CreateSpec::directory(0o755)).unwrap();
            for nth in 0..300 {
                put(&vfs, &format!("/{dir}/s"), &format!("file-{nth}"), &[round; 5000]).unwrap();
            }
        }
        let together = std::sync::Barrier::new(dirs.len());
        std::thread::scope(|scope| {
            for dir in &dirs {
                let (vfs, together) = (&vfs, &together);
                scope.spawn(move || {
                    let at_dir = at(vfs, &format!("/{dir}"));
                    together.wait();
                    vfs.delete_subvolume(&Cred::root(), &at_dir, b"s").unwrap();
                });
            }
        });
        assert_eq!(vfs.list_subvolumes().unwrap().len(), 1);
    }
    drop(root);
    vfs.unmount().unwrap();
    assert_clean(&images, "deleted at the same time");
}

/// Of a damaged image, each of two subvolumes is in the other one.
#[test]
fn a_cycle_of_subvolumes_is_listed_without_paths() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make(dir.path(), &DEFAULT);
    let vfs = mount_writable(&images);
    create(&vfs, "outer").unwrap();
    let outer = at(&vfs, "/outer");
    vfs.create_subvolume(&Cred::root(), &outer, b"inner", &CreateSpec::directory(0o755)).unwrap();
    drop(outer);
    vfs.unmount().unwrap();
    drop(vfs);
    let mut image = BtrfsImage::parse(images.bytes().remove(0));
    let is_backref = |item: &&Item| item.tree == 1 && item.key == (256, 144, 5);
    let backref = image.items.iter().find(is_backref).unwrap().clone();
    // The last number of its key is the parent.
    let parent = backref.entry + 9..backref.entry + 17;
    image.change(Some(backref.leaf), |block| {
        block[parent.clone()].copy_from_slice(&257_u64.to_le_bytes());
    });
    let vfs = open(vec![memory(&image.bytes)], reading()).unwrap();
    let listed: Vec<_> =
        vfs.list_subvolumes().unwrap().into_iter().skip(1).map(|one| (one.id, one.path)).collect();
    assert_eq!(listed, [(256, None), (257, None)]);
}

/// The root item of the top level lacks the mark that its flags are valid. A snapshot must have this mark:
/// without it, Linux resets the flags of the snapshot.
#[test]
fn a_read_only_snapshot_of_the_top_level_is_read_only_on_linux() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make(dir.path(), &DEFAULT);
    let vfs = mount_writable(&images);
    put(&vfs, "/", "file", b"content").unwrap();
    snapshot(&vfs, "/", "fixed", true).unwrap();
    snapshot(&vfs, "/", "free", false).unwrap();
    vfs.unmount().unwrap();
    drop(vfs);
    assert_clean(&images, "snapshots of the top level");
    images.with_kernel("", |root| {
        let written = std::fs::write(root.join("fixed/new"), b"x").unwrap_err();
        assert_eq!(written.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
        std::fs::write(root.join("free/new"), b"x").unwrap();
        assert_eq!(std::fs::read(root.join("fixed/file")).unwrap(), b"content");
    });
    assert_clean(&images, "after Linux");
}

/// What the subvolumes of an image have.
fn contents(vfs: &Arc<Vfs>) -> BTreeMap<String, Files> {
    let mut found = BTreeMap::new();
    for one in vfs.list_subvolumes().unwrap().into_iter().filter(|one| one.id != 5) {
        let name = String::from_utf8(one.path.unwrap()).unwrap();
        let tree = files_of(vfs, &format!("/{name}"));
        found.insert(name, tree);
    }
    found
}

fn files_of(vfs: &Arc<Vfs>, dir: &str) -> Files {
    let mut names = Vec::new();
    vfs.readdir(&Cred::root(), &at(vfs, dir), 0, &mut |entry| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    let files = names.into_iter().filter(|name| name != "." && name != "..");
    files.map(|name| (name.clone(), read_all(vfs, &at(vfs, &format!("{dir}/{name}"))).unwrap())).collect()
}

/// At each crash point, each subvolume has all its files or is gone, and a deletion is completed.
#[test]
fn no_crash_point_breaks_subvolumes() {
    if !can_fill() {
        return;
    }
    const STATES: u64 = 60;
    let (seed, states) = (env("IVERS_SEED").unwrap_or(1), env("IVERS_CRASH_STATES").unwrap_or(STATES));
    let dir = tempfile::tempdir().unwrap();
    let kind = Kind { name: "crash", mkfs: &["-n", "4096", "-m", "single"], mount: "", devices: 1 };
    let images = Images::make_of(dir.path(), &kind, 48 << 20);
    let vfs = mount_writable(&images);
    create(&vfs, "s").unwrap();
    let fill = |vfs: &Arc<Vfs>, dir: &str, step: usize, byte: u8| {
        (0..300).step_by(step).for_each(|n| put(vfs, dir, &format!("file-{n}"), &[byte; 3000]).unwrap());
    };
    fill(&vfs, "/s", 1, 1);
    snapshot(&vfs, "/s", "old", false).unwrap();
    fill(&vfs, "/s", 20, 2);
    vfs.unmount().unwrap();
    drop(vfs);
    let base = Arc::new(MemDevice::from_bytes(&images.bytes()[0]));
    let device = Arc::new(FaultDevice::new(base.clone()));
    let interval = std::time::Duration::from_secs(3600);
    let common = DriverOptions { commit_interval: interval, ..DriverOptions::default() };
    let options = || OpenOptions { common: common.clone(), ..OpenOptions::default() };
    let vfs = mount_devices(vec![device.clone()], options());
    let mut history = vec![(device.len(), contents(&vfs))];
    let steps: [&dyn Fn() -> Result<()>; 7] = [
        &|| snapshot(&vfs, "/s", "new", true),
        &|| delete(&vfs, "s"),
        &|| create(&vfs, "empty"),
        &|| snapshot(&vfs, "/old", "third", false),
        &|| delete(&vfs, "old"),
        &|| delete(&vfs, "new"),
        &|| delete(&vfs, "third"),
    ];
    for step in steps {
        step().unwrap_or_else(|error| panic!("the contract was broken: {error}"));
        history.push((device.len(), contents(&vfs)));
    }
    let record = device.record();
    vfs.unmount().unwrap();
    drop(vfs);
    let done_at = |len: usize| history.partition_point(|(end, _)| *end <= len).max(1);
    let mut all = 0;
    let count = |_: &State, _| {
        all += 1;
        Ok(())
    };
    States::new(base.clone(), &record, seed).each(|len| done_at(len) as u64, count).unwrap();
    let each = (all / states).max(1);
    let mut seen = 0u64;
    let visit = |state: &State, device: OverlayDevice| {
        if !state.digest().is_multiple_of(each) {
            return Ok(());
        }
        seen += 1;
        let what = format!("the contract was broken: IVERS_SEED={seed}, {state:?}");
        let mut bytes = vec![0; device.size_bytes() as usize];
        device.read_at(ByteOffset(0), &mut bytes)?;
        if seen.is_multiple_of(4) {
            assert_clean(&write_image(dir.path(), "state", &bytes), &format!("{what}, as it is"));
        }
        let device = Arc::new(MemDevice::from_bytes(&bytes));
        let vfs = mount_devices(vec![device.clone()], options());
        let (found, done) = (contents(&vfs), done_at(state.durable_len()));
        let is_known = history[done - 1..].iter().take(2).any(|(_, expected)| *expected == found);
        assert!(is_known, "{what}: {:?} after {done} steps", found.keys());
        vfs.unmount().unwrap();
        drop(vfs);
        let ours = write_image(dir.path(), "ours", &device.to_bytes());
        assert_clean(&ours, &what);
        let words = ["inspect-internal", "dump-tree", "-t", "root", ours.paths[0].to_str().unwrap()];
        let roots = ivers_oracle::run("btrfs", words)?;
        assert!(!String::from_utf8_lossy(&roots.stdout).contains("ORPHAN_ITEM"), "{what}: a tree is left");
        if seen.is_multiple_of(16) {
            // Linux completes a deletion, too.
            let theirs = write_image(dir.path(), "theirs", &bytes);
            let tree = theirs.with_kernel("", kernel_tree);
            assert_clean(&theirs, &format!("{what}, after Linux"));
            assert_same(&without_times(tree), &without_times(ours.with_kernel("ro", kernel_tree)), &what);
        }
        Ok(())
    };
    States::new(base, &record, seed).each(|len| done_at(len) as u64, visit).unwrap();
    println!("{seen} distinct crash states, of {all}");
    assert!(seen > 20, "{seen} of {all} states");
}
