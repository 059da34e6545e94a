//! Log trees that ivers writes at an fsync. Linux and ivers replay copies of the image after a crash: both
//! must show the file, and equal trees. `IVERS_SEED` and `IVERS_STEPS` replay and lengthen a run.

use crate::common::*;
use ivers_block::{ByteOffset, CountedDevice, Device, IoCounts, MemDevice};
use ivers_btrfs::{CompressWith, OpenOptions};
use ivers_crash::env;
use ivers_vfs::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// Kinds of images, and how data is compressed.
const LOGGED: &[(&str, &str)] = &[
    ("default", "none"),
    ("nodes of 4 KiB", "none"),
    ("mixed groups", "none"),
    ("old features", "none"),
    ("sha256", "none"),
    ("default", "zstd"),
    ("nodes of 4 KiB", "lzo"),
    ("old features", "zlib"),
];

/// Nothing commits after some time.
fn without_timer() -> OpenOptions {
    let commit_interval = std::time::Duration::from_secs(3600);
    let common = DriverOptions { commit_interval, ..DriverOptions::default() };
    OpenOptions { common, ..OpenOptions::default() }
}

/// Changes files of one directory at random.
struct Changes {
    vfs: Arc<Vfs>,
    random: SmallRng,
}

impl Changes {
    fn name(&mut self) -> String {
        format!("{}name-{}", ["", "dir/"][self.random.random_range(0..2)], self.random.random_range(0..6))
    }

    fn parent(&self, name: &str) -> (InodeRef, Vec<u8>) {
        let (dir, last) = name.rsplit_once('/').unwrap_or(("", name));
        let dir = self.vfs.resolve(&Cred::root(), format!("/{dir}"), false).unwrap();
        (dir, last.as_bytes().to_vec())
    }

    fn file(&self, name: &str) -> Result<InodeRef> {
        self.vfs.resolve(&Cred::root(), format!("/{name}"), false)
    }

    /// A change. It may fail, as with names that are not there. Four of five can be logged.
    fn step(&mut self) -> Result<()> {
        let (cred, vfs) = (Cred::root(), self.vfs.clone());
        let (name, other) = (self.name(), self.name());
        let ((dir, last), (to, new)) = (self.parent(&name), self.parent(&other));
        let offset = self.random.random_range(0..200_000);
        let bytes = vec![self.random.random(); self.random.random_range(1..20_000)];
        match self.random.random_range(0..25) {
            0..=4 => vfs.create(&cred, &dir, &last, &CreateSpec::file(0o644), false).map(drop),
            5..=12 => vfs.write(&cred, &self.file(&name)?, offset, &bytes, WriteFlags::empty()).map(drop),
            13..=14 => {
                let file = self.file(&name)?;
                vfs.write(&cred, &file, file.size(), &bytes, WriteFlags::empty()).map(drop)
            }
            15..=16 => {
                let value = &bytes[..bytes.len().min(500)];
                vfs.set_xattr(&cred, &self.file(&name)?, b"user.name", value, XattrMode::Any)
            }
            17 => vfs.remove_xattr(&cred, &self.file(&name)?, b"user.name"),
            18 => {
                let set = SetAttr { perm: Some(0o600 + offset as u32 % 64), ..SetAttr::default() };
                vfs.set_attr(&cred, &self.file(&name)?, &set).map(drop)
            }
            19 => {
                let file = self.file(&name)?;
                let size = Some(file.size() + offset);
                vfs.set_attr(&cred, &file, &SetAttr { size, ..SetAttr::default() }).map(drop)
            }
            20 => vfs
                .set_attr(&cred, &self.file(&name)?, &SetAttr { size: Some(offset), ..SetAttr::default() })
                .map(drop),
            21 => vfs.unlink(&cred, &dir, &last, false).map(drop),
            22 => vfs.rename(&cred, &dir, &last, &to, &new, RenameFlags::empty(), false).map(drop),
            23 => vfs.link(&cred, &self.file(&name)?, &to, &new, false).map(drop),
            _ => {
                let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                vfs.fallocate(&cred, &self.file(&name)?, mode, offset, 20_000)
            }
        }
    }
}

/// Compares what Linux and ivers make of a crashed image, and finds the file that was synced.
fn recover(dir: &std::path::Path, bytes: &[u8], synced: (&str, &[u8]), what: &str) {
    let (name, content) = synced;
    let theirs = write_image(dir, "theirs", bytes);
    let expected = without_times(theirs.with_kernel("", kernel_tree));
    assert_clean(&theirs, &format!("{what}, replayed by Linux"));
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let vfs = mount_devices(vec![device.clone()], OpenOptions::default());
    assert_same(&our_tree(&vfs, false).unwrap(), &expected, what);
    let file = vfs.resolve(&Cred::root(), format!("/{name}"), false).unwrap();
    assert!(read_all(&vfs, &file).unwrap() == content, "{what}: {name} has lost bytes");
    vfs.unmount().unwrap();
    drop((file, vfs));
    assert_clean(&write_image(dir, "ours", &device.to_bytes()), what);
}

#[test]
fn linux_replays_logs_of_ivers() {
    if !can_fill() {
        return;
    }
    let (seed, steps) = (env("IVERS_SEED").unwrap_or(1), env("IVERS_STEPS").unwrap_or(16));
    let dir = tempfile::tempdir().unwrap();
    let (mut logs, mut all) = (0, 0);
    let kinds =
        LOGGED.iter().flat_map(|(name, how)| kinds_named(&[name]).into_iter().map(move |kind| (kind, how)));
    for (kind, how) in kinds {
        println!("{}, {how}: IVERS_SEED={seed} IVERS_STEPS={steps}", kind.name);
        let images = Images::make_of(dir.path(), kind, 128 << 20);
        let device = Arc::new(MemDevice::from_bytes(&images.bytes()[0]));
        let options = OpenOptions { compress: CompressWith::parse(how), ..without_timer() };
        let vfs = mount_devices(vec![device.clone()], options);
        let mut changes = Changes { vfs: vfs.clone(), random: SmallRng::seed_from_u64(seed) };
        let spec = CreateSpec::directory(0o755);
        vfs.create(&Cred::root(), &vfs.root().unwrap(), b"dir", &spec, false).unwrap();
        (0..20).for_each(|_| drop(changes.step()));
        vfs.sync().unwrap();
        for step in 0..steps {
            for _ in 0..changes.random.random_range(1..6) {
                let _ = changes.step();
            }
            if changes.random.random_bool(0.1) {
                vfs.sync().unwrap();
            }
            let name = changes.name();
            let Ok(file) = changes.file(&name) else { continue };
            vfs.fsync(&file, false).unwrap();
            let (bytes, content) = (device.to_bytes(), read_all(&vfs, &file).unwrap());
            all += 1;
            logs += u64::from(has_log(&bytes));
            if has_log(&bytes) {
                let what = format!("{}, {how}, seed {seed}, step {step}", kind.name);
                recover(dir.path(), &bytes, (&name, &content), &what);
            }
        }
        drop(changes);
        vfs.unmount().unwrap();
        assert!(!has_log(&device.to_bytes()), "{}", kind.name);
        drop(vfs);
        assert_clean(&write_image(dir.path(), "end", &device.to_bytes()), kind.name);
    }
    assert!(logs * 5 > all, "{logs} of {all} fsyncs were logged");
}

/// Many files in one transaction fill several leaves, and then need a commit.
#[test]
fn a_log_grows_until_a_commit() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let kind = Kind { name: "nodes of 4 KiB", mkfs: &["-n", "4096"], mount: "", devices: 1 };
    let images = Images::make_of(dir.path(), &kind, 128 << 20);
    let device = Arc::new(MemDevice::from_bytes(&images.bytes()[0]));
    let vfs = mount_devices(vec![device.clone()], without_timer());
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let mut commits = 0;
    for number in 0..900 {
        let name = format!("a-file-{number}");
        let spec = CreateSpec::file(0o644);
        let (file, _) = vfs.create(&cred, &root, name.as_bytes(), &spec, false).unwrap();
        vfs.write(&cred, &file, 0, name.as_bytes(), WriteFlags::empty()).unwrap();
        vfs.fsync(&file, false).unwrap();
        let mut log_root = [0; 8];
        device.read_at(ByteOffset((64 << 10) + 0x60), &mut log_root).unwrap();
        commits += u64::from(log_root == [0; 8]);
        if [10, 300].contains(&number) {
            let bytes = device.to_bytes();
            recover(dir.path(), &bytes, (&name, name.as_bytes()), &format!("{number} files"));
        }
    }
    assert!((1..20).contains(&commits), "{commits} commits");
    drop(root);
    vfs.unmount().unwrap();
    drop(vfs);
    assert_clean(&write_image(dir.path(), "end", &device.to_bytes()), "900 files");
}

/// What one fsync of a small file writes, beside a commit.
#[test]
fn an_fsync_writes_less_than_a_commit() {
    if !ivers_oracle::have_programs(&["mkfs.btrfs"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make_of(dir.path(), &DEFAULT, 128 << 20);
    let counts = Arc::new(IoCounts::default());
    let device = CountedDevice::new(MemDevice::from_bytes(&images.bytes()[0]), counts.clone());
    let vfs = mount_devices(vec![Arc::new(device) as Arc<dyn Device>], OpenOptions::default());
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let (file, _) = vfs.create(&cred, &root, b"file", &CreateSpec::file(0o644), false).unwrap();
    vfs.sync().unwrap();
    let written = |by_commit: bool| {
        vfs.write(&cred, &file, 0, b"some bytes", WriteFlags::empty()).unwrap();
        let before = counts.fields();
        if by_commit {
            vfs.sync().unwrap()
        } else {
            vfs.fsync(&file, false).unwrap()
        }
        let after = counts.fields();
        let of = |name: &str| {
            let place = before.iter().position(|(found, _)| *found == name).unwrap();
            after[place].1 - before[place].1
        };
        (of("device_writes"), of("device_written_bytes"), of("device_flushes"))
    };
    let (first, second, commit) = (written(false), written(false), written(true));
    println!("writes, bytes, flushes: first fsync {first:?}, second {second:?}, commit {commit:?}");
    // The data; two blocks of the log, in two copies; the superblock.
    assert_eq!(first, (1 + 2 * 2 + 1, 4096 + 4 * 16384 + 4096, 1));
    assert_eq!(second, first);
    assert!(commit.1 > 2 * first.1, "{commit:?}");
}

/// Makes a file and logs it.
fn make_and_log(vfs: &Arc<Vfs>, name: &str) -> InodeRef {
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let (file, _) = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap();
    vfs.write(&cred, &file, 0, name.as_bytes(), WriteFlags::empty()).unwrap();
    vfs.fsync(&file, false).unwrap();
    file
}

fn content(vfs: &Arc<Vfs>, name: &str) -> Vec<u8> {
    let file = vfs.resolve(&Cred::root(), format!("/{name}"), false).unwrap();
    read_all(vfs, &file).unwrap()
}

/// A replay drops what a file has after its end.
#[test]
fn an_fsync_keeps_preallocated_space() {
    if !ivers_oracle::have_programs(&["mkfs.btrfs"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make_of(dir.path(), &DEFAULT, 128 << 20);
    let device = Arc::new(MemDevice::from_bytes(&images.bytes()[0]));
    let vfs = mount_devices(vec![device.clone()], without_timer());
    let file = make_and_log(&vfs, "file");
    vfs.fallocate(&Cred::root(), &file, FallocateMode::KEEP_SIZE, 0, 1 << 20).unwrap();
    vfs.sync().unwrap();
    vfs.write(&Cred::root(), &file, 0, &[7; 4096], WriteFlags::empty()).unwrap();
    vfs.fsync(&file, false).unwrap();
    let crashed = mount_devices(vec![memory(&device.to_bytes())], without_timer());
    let found = crashed.resolve(&Cred::root(), "/file", false).unwrap();
    assert!(found.attr().blocks_512 >= (1 << 20) / 512, "{} sectors are left", found.attr().blocks_512);
    assert_eq!(content(&crashed, "file"), [7; 4096]);
}

/// Without an epoch record to store, nothing but the replay changes the filesystem when it is opened.
#[test]
fn a_replay_is_durable_before_the_next_log() {
    if !can_fill() || !ivers_oracle::have_programs(&["setfattr"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make_of(dir.path(), &DEFAULT, 128 << 20);
    images.with_kernel("", |root| {
        let args = ["-n", "trusted.ivers.epoch", "-v", "no record", root.to_str().unwrap()];
        assert!(std::process::Command::new("setfattr").args(args).status().unwrap().success());
    });
    let mut bytes = images.bytes().remove(0);
    for name in ["first", "second"] {
        let device = Arc::new(MemDevice::from_bytes(&bytes));
        let vfs = mount_devices(vec![device.clone()], without_timer());
        make_and_log(&vfs, name);
        bytes = device.to_bytes();
        assert!(has_log(&bytes));
    }
    let vfs = mount_devices(vec![memory(&bytes)], without_timer());
    assert_eq!((content(&vfs, "first"), content(&vfs, "second")), (b"first".to_vec(), b"second".to_vec()));
}

/// An fsync leaves the copies of the superblocks as they are.
#[test]
fn a_log_counts_if_a_superblock_of_another_device_is_damaged() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let kind = Kind { name: "RAID1", mkfs: &["-d", "raid1", "-m", "raid1"], mount: "", devices: 2 };
    let images = Images::make_of(dir.path(), &kind, 256 << 20);
    let devices: Vec<_> = images.bytes().iter().map(|bytes| Arc::new(MemDevice::from_bytes(bytes))).collect();
    let open = |devices: &[Arc<MemDevice>]| {
        let devices = devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
        mount_devices(devices, without_timer())
    };
    let vfs = open(&devices);
    make_and_log(&vfs, "file");
    for damaged in 0..2 {
        let crashed: Vec<_> =
            devices.iter().map(|device| Arc::new(MemDevice::from_bytes(&device.to_bytes()))).collect();
        crashed[damaged].write_at(ByteOffset((64 << 10) + 0x48), &[0]).unwrap();
        assert_eq!(content(&open(&crashed), "file"), b"file", "device {damaged}");
    }
}
