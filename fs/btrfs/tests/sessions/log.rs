//! Log trees that Linux leaves: fsync, then a crash. Linux replays one copy of the image and ivers another.
//! Both must give one tree, and `btrfs check` must find nothing. `IVERS_SEED` and `IVERS_STEPS` replay and
//! lengthen a run. `IVERS_KIND` selects a kind, or all: the usual run has few of them.

use crate::common::fill::in_dir;
use crate::common::*;
use ivers_block::MemDevice;
use ivers_btrfs::{Btrfs, OpenOptions};
use ivers_crash::env;
use ivers_oracle::LoopMount;
use ivers_vfs::{Cred, FileSystem};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, ioctl_ficlone, renameat_with};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LOGGED: &[&str] =
    &["default", "nodes of 4 KiB", "mixed groups", "old features", "sha256", "zstd", "no checksums of data"];

/// The kinds of this run: usually some, and all of [`LOGGED`] if `IVERS_KIND` is set.
fn kinds(usual: &[&str]) -> Vec<&'static Kind> {
    kinds_named(if std::env::var_os("IVERS_KIND").is_some() { LOGGED } else { usual })
}

/// What all logs begin with.
const PREPARED: &str = "mkdir -p a/c b; btrfs -q subvolume create sub; mkdir sub/a; \
                        for i in 0 1 2 3 4 5; do seq 1 9000 > name-$i; seq 1 $i > a/name-$i; \
                        seq 1 5000 > sub/name-$i; done; ln name-1 b/old; ln a/name-1 a/other; \
                        setfattr -n user.old -v 1 name-1; setfattr -n user.kept -v 2 name-1; sync";

/// Changes that end with an fsync, by name.
const CHANGES: &[(&str, &str)] = &[
    ("a new file", "echo new > new; sync new"),
    ("a new file with data", "seq 1 100000 > new; sync new"),
    ("an append", "seq 1 3000 >> name-1; sync name-1"),
    ("an overwritten part", "dd if=/dev/urandom of=name-1 bs=5000 seek=3 count=2 conv=notrunc; sync name-1"),
    ("a truncation", "truncate -s 5000 name-1; sync name-1"),
    ("a truncation, then growth", "truncate -s 5000 name-1; truncate -s 30000 name-1; sync name-1"),
    ("a rename", "mv name-1 a/moved; sync a/moved"),
    ("a rename over a file", "mv name-1 name-2; sync name-2"),
    ("a file that replaces another", "echo new > tmp; sync tmp; mv tmp name-1; sync name-1; sync ."),
    ("a link", "ln name-1 b/link; sync b/link"),
    ("a removed link", "rm b/old; sync name-1"),
    ("a removed name, fsync of the directory", "rm a/name-2; sync a"),
    ("a removed link, fsync of the directory", "rm a/other; sync a"),
    ("a name that is used again", "rm a/name-3; echo new > a/name-3; sync a/name-3; sync a"),
    ("attributes", "setfattr -n user.new -v 3 name-1; setfattr -x user.old name-1; sync name-1"),
    ("a hole", "fallocate -p -o 8192 -l 16384 name-1; sync name-1"),
    ("preallocated space", "fallocate -n -o 90000 -l 200000 name-1; sync name-1; fallocate -l 1M p; sync p"),
    ("a symbolic link", "ln -s target b/symbolic; mkfifo b/pipe; sync b"),
    ("new directories", "mkdir -p x/y/z; echo 1 > x/y/z/file; sync x/y/z/file"),
    (
        "two subvolumes",
        "echo 1 > sub/new; echo 2 > new; seq 1 90000 >> sub/name-1; sync sub/new new sub/name-1",
    ),
    ("a clone", "cp --reflink=always name-1 clone; sync clone"),
    ("a mode and an owner", "chmod 600 name-1; chown 7:8 name-1; sync name-1"),
    (
        "many extents",
        "for i in $(seq 0 2 600); do
             dd if=/dev/urandom of=f bs=4096 count=1 seek=$i conv=notrunc; sync -d f
         done",
    ),
];

/// The bytes of an image that Linux has mounted. It may write in the background: then a copy would be torn.
fn bytes_at_rest(images: &Images) -> Vec<u8> {
    let mut bytes = images.bytes().remove(0);
    loop {
        let again = images.bytes().remove(0);
        if again == bytes {
            return bytes;
        }
        bytes = again;
    }
}

fn mount_options(kind: &Kind) -> String {
    ["commit=3600", kind.mount].join(if kind.mount.is_empty() { "" } else { "," })
}

/// Changes a few names at random.
struct Changes {
    root: PathBuf,
    random: SmallRng,
}

impl Changes {
    fn path(&mut self) -> PathBuf {
        let dir = ["", "a", "b", "a/c", "sub", "sub/a"][self.random.random_range(0..6)];
        self.root.join(dir).join(format!("name-{}", self.random.random_range(0..6)))
    }

    /// A random change. It may fail, as with names that are not there.
    fn step(&mut self) -> io::Result<()> {
        let (path, other) = (self.path(), self.path());
        let offset = self.random.random_range(0..300_000u64);
        let sector = offset / 4096 * 4096;
        let bytes = vec![self.random.random(); self.random.random_range(1..40_000)];
        let open = |path: &Path| File::options().write(true).create(true).truncate(false).open(path);
        match self.random.random_range(0..22) {
            0..=4 => open(&path)?.write_all_at(&bytes, offset),
            5 => fs::write(&path, &bytes[..bytes.len().min(1500)]),
            6 => open(&path)?.set_len(offset / 2),
            7 => Ok(fallocate(
                open(&path)?,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                sector,
                16_384,
            )?),
            8 => Ok(fallocate(open(&path)?, FallocateFlags::KEEP_SIZE, offset, 50_000)?),
            9..=10 => fs::rename(path, other),
            11 => Ok(renameat_with(CWD, path, CWD, other, RenameFlags::EXCHANGE)?),
            12..=13 => fs::hard_link(path, other),
            14..=15 => fs::remove_file(path),
            16 => std::os::unix::fs::symlink("target", path),
            17 => fs::create_dir(path),
            18 => fs::remove_dir(path),
            19 => {
                let (source, target) = (File::open(path)?, open(&other)?);
                Ok(ioctl_ficlone(&target, &source)?)
            }
            _ => {
                let name = format!("user.{}", self.random.random_range(0..3));
                match self.random.random_bool(0.6) {
                    true => xattr::set(path, name, &bytes[..bytes.len().min(900)]),
                    false => xattr::remove(path, name),
                }
            }
        }
    }

    /// Makes a file or a directory durable. Returns whether it did.
    fn fsync(&mut self) -> bool {
        let path = match self.random.random_range(0..4) {
            0 => self.path().parent().unwrap().to_owned(),
            _ => self.path(),
        };
        // Opening a link would sync what it leads to.
        let is_file = path.symlink_metadata().is_ok_and(|meta| meta.is_file() || meta.is_dir());
        is_file && File::open(&path).and_then(|file| file.sync_all()).is_ok()
    }
}

/// Replays copies of an image: with Linux, for reading, and for writing.
fn replay(dir: &Path, bytes: &[u8], kind: &Kind, what: &str) {
    let theirs = write_image(dir, "theirs", bytes);
    let expected = without_times(theirs.with_kernel(kind.mount, kernel_tree));
    // A reader replays in memory.
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let vfs = open(vec![device.clone()], reading()).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_same(&our_tree(&vfs, false).unwrap(), &expected, &format!("{what}, read-only"));
    drop(vfs);
    assert!(device.to_bytes() == bytes, "{what}: a reader wrote");
    let vfs = mount_devices(vec![device.clone()], OpenOptions::default());
    assert_same(&our_tree(&vfs, false).unwrap(), &expected, what);
    vfs.unmount().unwrap();
    drop(vfs);
    assert!(!has_log(&device.to_bytes()), "{what}");
    let ours = write_image(dir, "ours", &device.to_bytes());
    assert_clean(&ours, what);
    let after = without_times(ours.with_kernel(kind.mount, kernel_tree));
    assert_same(&after, &expected, &format!("{what}, Linux after ivers"));
}

#[test]
fn logs_are_replayed_as_linux_does() {
    if !can_fill() {
        return;
    }
    let (seed, steps) = (env("IVERS_SEED").unwrap_or(1), env("IVERS_STEPS").unwrap_or(16));
    let dir = tempfile::tempdir().unwrap();
    for kind in kinds(&["default", "zstd"]) {
        println!("{}: IVERS_SEED={seed} IVERS_STEPS={steps}", kind.name);
        let images = Images::make_of(dir.path(), kind, 128 << 20);
        let mut crashed = Vec::new();
        let mounted = LoopMount::new(&images.paths[0], &mount_options(kind)).unwrap();
        in_dir(mounted.path(), PREPARED);
        let mut changes = Changes { root: mounted.path().to_owned(), random: SmallRng::seed_from_u64(seed) };
        // A sync(2) of any program commits, so that no log is left. Then more steps are needed.
        let enough = steps / 8 + 1;
        let mut step = 0;
        while step < steps || (crashed.len() as u64) < enough && step < 20 * steps {
            step += 1;
            for _ in 0..changes.random.random_range(1..8) {
                let _ = changes.step();
            }
            if changes.random.random_bool(0.1) {
                rustix::fs::syncfs(File::open(&changes.root).unwrap()).unwrap();
                continue;
            }
            if !changes.fsync() {
                continue;
            }
            let bytes = bytes_at_rest(&images);
            if has_log(&bytes) {
                // The kernel knows the filesystem by its UUID: it mounts copies after this mount has ended.
                crashed.push((step, write_image(dir.path(), &format!("log-{step}"), &bytes)));
            }
        }
        mounted.unmount().unwrap();
        assert!(crashed.len() as u64 >= enough, "{}: {} logs", kind.name, crashed.len());
        for (step, image) in crashed {
            let bytes = image.bytes().remove(0);
            fs::remove_file(&image.paths[0]).unwrap();
            replay(dir.path(), &bytes, kind, &format!("{}, seed {seed}, step {step}", kind.name));
        }
    }
}

#[test]
fn a_log_of_each_change_is_replayed() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for kind in kinds(&["default"]) {
        let mut missing: Vec<_> = CHANGES.iter().collect();
        // Linux commits instead of some of them. A sync(2) of any program commits, too: then try again.
        for _ in 0..20 {
            missing.retain(|(name, script)| {
                let images = Images::make_of(dir.path(), kind, 128 << 20);
                let bytes = images.with_kernel(&mount_options(kind), |root| {
                    in_dir(root, PREPARED);
                    in_dir(root, script);
                    bytes_at_rest(&images)
                });
                if has_log(&bytes) {
                    replay(dir.path(), &bytes, kind, &format!("{}, {name}", kind.name));
                }
                !has_log(&bytes)
            });
            if missing.len() < 6 {
                break;
            }
        }
        let missing: Vec<_> = missing.iter().map(|(name, _)| name).collect();
        assert!(missing.len() < 6, "{}: there are no logs of {missing:?}", kind.name);
    }
}

#[test]
fn a_log_can_be_left_out() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Another program's sync may commit the new contents, too.
    let found = (0..20).find_map(|_| {
        let images = Images::make_of(dir.path(), &DEFAULT, 128 << 20);
        let bytes = images.with_kernel("commit=3600", |root| {
            in_dir(root, "echo old > file; sync; echo new > file; sync file");
            bytes_at_rest(&images)
        });
        if !has_log(&bytes) {
            return None;
        }
        let old = open(vec![memory(&bytes)], OpenOptions { no_replay: true, ..reading() }).unwrap();
        let file = old.resolve(&Cred::root(), "/file", false).unwrap();
        (read_all(&old, &file).unwrap() == b"old\n").then_some((bytes, old))
    });
    let (bytes, old) = found.expect("each commit has the new contents");
    assert!(fact(&old, "note").contains("not shown"));
    let new = open(vec![memory(&bytes)], reading()).unwrap();
    for (vfs, content) in [(old, "old\n"), (new, "new\n")] {
        let file = vfs.resolve(&Cred::root(), "/file", false).unwrap();
        assert_eq!(read_all(&vfs, &file).unwrap(), content.as_bytes());
    }
    let options = OpenOptions { no_replay: true, ..OpenOptions::default() };
    let fs = Btrfs::open(vec![memory(&bytes)], options).unwrap();
    assert!(fs.health().read_only.is_some_and(|why| why.contains("log tree")));
}
