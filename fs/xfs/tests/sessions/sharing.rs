//! Files that share blocks: clones of Linux and of ivers, copy on write, a full filesystem, killed logs.

use crate::common::storm::Storm;
use crate::common::*;
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::can_loop_mount;
use ivers_vfs::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;

/// Files that share all blocks, some blocks, and blocks twice; holes and unwritten blocks between.
const CLONES: &str = r#"
set -e
mkdir d
head -c 3000001 /dev/urandom > a
cp --reflink=always a b; cp --reflink=always b d/c
head -c 700 /dev/urandom > short; cp --reflink=always short d/short
xfs_io -f -c 'pwrite -q -S 7 0 1m' -c 'reflink a 65536 2m 1m' -c 'reflink a 131072 4m 65536' mixed
xfs_io -f -c 'truncate 2m' -c 'pwrite -q -S 8 0 65536' -c 'falloc 1m 512k' holes
cp --reflink=always holes d/holes
xfs_io -c 'reflink mixed 0 8m 1m' mixed
for i in 1 2 3 4 5 6 7 8 9; do cp --reflink=always a d/many-$i; done
for i in 0 2 4 6 8 10 12 14 16 18; do xfs_io -c "pwrite -q -S $i $((i * 131072)) 65536" d/many-3; done
sync
"#;

/// Makes an image with clones.
fn cloned(args: &[&str], image: &Path) {
    mkfs(image, args, None);
    let linux = LoopMount::new(image, "").unwrap();
    fill::in_dir(linux.path(), CLONES);
    linux.unmount().unwrap();
}

const KINDS: [Kind; 5] = [
    ("default", &[]),
    ("all features of 6.1", &["-m", "rmapbt=1", "-i", "nrext64=1"]),
    ("blocks of 1 KiB, rmapbt", &["-b", "size=1024", "-m", "rmapbt=1"]),
    ("blocks of 64 KiB", &["-b", "size=65536"]),
    ("blocks of 16 KiB, rmapbt", &["-b", "size=16384", "-m", "rmapbt=1"]),
];

#[test]
fn files_that_linux_cloned_change_alone() {
    if !have_xfsprogs() || !can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (name, args) in KINDS {
        cloned(args, &image);
        for seed in 1..4 {
            let what = format!("{name}, seed {seed}");
            let mut storm = Storm::of(mount_writable(&image), seed);
            for _ in 0..120 {
                storm.step_in_file();
            }
            storm.check(&what);
            storm.unmount();
            repair_finds_nothing(&image, &what);
            assert_clean(&image, &what);
            storm.mount(mount_writable(&image));
            storm.check(&format!("{what}, mounted again"));
            storm.unmount();
        }
        let vfs = mount(&image);
        let ours = our_tree(&vfs, true).unwrap();
        vfs.unmount().unwrap();
        drop(vfs);
        let linux = LoopMount::new(&image, "ro").unwrap();
        assert_same(&ours, &kernel_tree(linux.path()), name);
        linux.unmount().unwrap();
    }
}

fn create(vfs: &Arc<Vfs>, name: &str, data: &[u8]) -> InodeRef {
    let spec = CreateSpec::of(FileType::Regular, 0o644);
    let file = vfs.create(&Cred::root(), &vfs.root().unwrap(), name.as_bytes(), &spec, false).unwrap().0;
    write(vfs, &file, 0, data).unwrap();
    file
}

fn write(vfs: &Arc<Vfs>, file: &InodeRef, offset: u64, data: &[u8]) -> Result<usize> {
    vfs.write(&Cred::root(), file, offset, data, WriteFlags::empty())
}

fn clone(vfs: &Arc<Vfs>, from: &InodeRef, at: u64, to: &InodeRef, to_at: u64, len: u64) -> Result<()> {
    vfs.clone_range(&Cred::root(), from, at, to, to_at, len)
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 61) as u8 ^ seed | 1).collect()
}

#[test]
fn a_clone_takes_no_space_and_changes_alone() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (name, args) in KINDS {
        mkfs(&image, args, None);
        let vfs = mount_writable(&image);
        let free = || {
            vfs.sync().unwrap();
            vfs.stat_fs().unwrap().blocks_free
        };
        let block = u64::from(vfs.info().block_size);
        let len = 40 * block as usize + 77;
        let data = pattern(len, 1);
        let source = create(&vfs, "source", &data);
        let target = create(&vfs, "target", b"short");
        let (before, value) = (free(), vfs.change(&source));
        clone(&vfs, &source, 0, &target, 0, 0).unwrap();
        assert_eq!(vfs.change(&source), value, "{name}");
        assert!(before < free() + 8, "{name}: {before} blocks were free, now {}", free());
        assert!(read_all(&vfs, &target).unwrap() == data, "{name}");
        assert_eq!(vfs.stat(&target).blocks_512, 41 * (block >> 9), "{name}");
        // What cannot be shared.
        let refused = [
            (0, 1, 0),
            (1, 0, 0),
            // The last block of the source in the middle of the target, or a block after the end.
            (40 * block, 0, 0),
            (0, 0, 50 * block),
        ];
        for (at, to, len) in refused {
            let done = clone(&vfs, &source, at, &target, to, len);
            assert!(matches!(done, Err(Error::Name(NameError::Invalid))), "{name}: {at} {to} {len}");
        }
        let overlapping = clone(&vfs, &source, 0, &source, block, 2 * block);
        assert!(matches!(overlapping, Err(Error::Name(NameError::Invalid))), "{name}");
        // Each changes alone; the target grows past a shared last block.
        let (mut ours, mut theirs) = (data.clone(), data);
        write(&vfs, &source, 5 * block + 3, b"source").unwrap();
        ours[5 * block as usize + 3..][..6].copy_from_slice(b"source");
        let far = (len as u64).next_multiple_of(block) + 3 * block;
        write(&vfs, &target, far, b"far").unwrap();
        theirs.resize(far as usize, 0);
        theirs.extend(b"far");
        clone(&vfs, &target, 10 * block, &target, 20 * block, 5 * block).unwrap();
        let block = block as usize;
        theirs.copy_within(10 * block..15 * block, 20 * block);
        vfs.sync().unwrap();
        assert!(read_all(&vfs, &source).unwrap() == ours, "{name}");
        assert!(read_all(&vfs, &target).unwrap() == theirs, "{name}");
        drop((source, target));
        vfs.unmount().unwrap();
        drop(vfs);
        repair_finds_nothing(&image, name);
        assert_clean(&image, name);
        let vfs = mount(&image);
        for (path, data) in [("/source", ours), ("/target", theirs)] {
            let file = vfs.resolve(&Cred::root(), path, false).unwrap();
            assert!(read_all(&vfs, &file).unwrap() == data, "{name}: {path} after a remount");
        }
    }
}

/// A file may lose its part of shared blocks in a change that no commit made durable yet. Then a crash gives
/// it the blocks back, with what they had.
#[test]
fn a_crash_shows_no_bytes_of_another_file() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    for (name, args) in KINDS {
        mkfs(&image, args, None);
        let vfs = mount_writable(&image);
        let len = 8 * vfs.info().block_size as usize;
        let [old, theirs, ours] = [1, 2, 3].map(|seed| pattern(len, seed << 6));
        let direct = |file: &InodeRef, data: &[u8]| {
            assert_eq!(vfs.write(&Cred::root(), file, 0, data, WriteFlags::DIRECT).unwrap(), len);
        };
        for how in ["truncated", "rewritten", "removed"] {
            let source = create(&vfs, how, &old);
            let other = create(&vfs, &format!("clone of {how}"), b"");
            clone(&vfs, &source, 0, &other, 0, 0).unwrap();
            vfs.sync().unwrap();
            match how {
                "truncated" => {
                    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
                    vfs.set_attr(&Cred::root(), &source, &empty).unwrap();
                }
                "rewritten" => direct(&source, &ours),
                _ => {
                    drop(source);
                    vfs.unlink(&Cred::root(), &vfs.root().unwrap(), how.as_bytes(), false).unwrap();
                }
            }
            direct(&other, &theirs);
            copy_image(&image, &copy);
            let crashed = mount(&copy);
            let found = crashed
                .resolve(&Cred::root(), format!("/{how}"), false)
                .map_or(Vec::new(), |source| read_all(&crashed, &source).unwrap());
            assert!(found.is_empty() || found == old || found == ours, "{name}: {how}");
            crashed.unmount().unwrap();
        }
        vfs.unmount().unwrap();
        drop(vfs);
        repair_finds_nothing(&image, name);
        assert_clean(&image, name);
    }
}

/// Overwrites what follows some text in its block on an image that is not mounted.
fn spoil_after(image: &Path, text: &[u8], block: usize) {
    let mut bytes = std::fs::read(image).unwrap();
    let places: Vec<usize> = bytes
        .chunks(block)
        .enumerate()
        .filter(|(_, bytes)| bytes.starts_with(text))
        .map(|(nth, _)| nth * block)
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at + text.len()..at + block].fill(0xEE);
    }
    std::fs::write(image, bytes).unwrap();
}

/// Bytes past the end of a file are arbitrary on the device. No clone and no growth shows them.
#[test]
fn stale_bytes_past_the_end_never_show() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let text = pattern(900, 5);
    for (name, args) in KINDS {
        mkfs(&image, args, None);
        let vfs = mount_writable(&image);
        let block = vfs.info().block_size as usize;
        let source = create(&vfs, "source", &text);
        for other in ["grows", "is written", "is set"] {
            clone(&vfs, &source, 0, &create(&vfs, other, b""), 0, 0).unwrap();
        }
        drop(source);
        create(&vfs, "alone", &text);
        vfs.unmount().unwrap();
        drop(vfs);
        spoil_after(&image, &text, block);
        let vfs = mount_writable(&image);
        let open = |name: &str| vfs.resolve(&Cred::root(), format!("/{name}"), false).unwrap();
        let far = 3 * block as u64;
        let mut expected = text.clone();
        expected.resize(2 * block, 0);
        // The source has a dirty page far after its end on the device, and none in between.
        for (source, target) in [("source", "first"), ("alone", "second")] {
            write(&vfs, &open(source), far, b"far").unwrap();
            let target = create(&vfs, target, b"");
            clone(&vfs, &open(source), 0, &target, 0, 2 * block as u64).unwrap();
        }
        write(&vfs, &open("is written"), far, b"far").unwrap();
        let sized = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        vfs.set_attr(&Cred::root(), &open("is set"), &sized(2 * block as u64)).unwrap();
        // The target of a clone past its end.
        let other = create(&vfs, "other", &text);
        clone(&vfs, &other, 0, &open("grows"), 2 * block as u64, 0).unwrap();
        drop(other);
        vfs.unmount().unwrap();
        drop(vfs);
        let vfs = mount(&image);
        for path in ["source", "alone", "first", "second", "is written", "is set", "grows"] {
            let file = vfs.resolve(&Cred::root(), format!("/{path}"), false).unwrap();
            let found = read_all(&vfs, &file).unwrap();
            let differs = (0..2 * block).find(|at| found[*at] != expected[*at]);
            assert_eq!(differs, None, "{name}: {path}");
        }
        drop(vfs);
        repair_finds_nothing(&image, name);
        assert_clean(&image, name);
    }
}

/// Every write that succeeds is there after write-back, and what does not fit is refused at the write.
#[test]
fn a_full_filesystem_refuses_writes_to_shared_blocks() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (name, args) in &KINDS[..3] {
        mkfs(&image, args, None);
        let vfs = mount_writable(&image);
        const LEN: usize = 40 << 20;
        let data = pattern(LEN, 9);
        let source = create(&vfs, "source", &data);
        let mut clones: Vec<_> =
            (0..3).map(|nth| (create(&vfs, &nth.to_string(), b""), data.clone())).collect();
        for (file, _) in &clones {
            clone(&vfs, &source, 0, file, 0, 0).unwrap();
        }
        let filler = create(&vfs, "filler", b"");
        let available = |vfs: &Arc<Vfs>| {
            let found = vfs.stat_fs().unwrap();
            found.blocks_available * u64::from(found.block_size)
        };
        while available(&vfs) > 30 << 20 {
            write(&vfs, &filler, vfs.stat(&filler).size, &data[..1 << 20]).unwrap();
        }
        // Scattered writes, so that the maps and the reference counts grow as much as possible.
        let mut random = StdRng::seed_from_u64(3);
        let mut refused = 0;
        for nth in 0..200_000 {
            if refused == 50 {
                break;
            }
            let (file, model) = &mut clones[nth % 3];
            let at = random.random_range(0..LEN - 3000);
            let bytes = pattern(random.random_range(1..3000), nth as u8);
            match write(&vfs, file, at as u64, &bytes) {
                Err(Error::Name(NameError::NoSpace)) => refused += 1,
                written => {
                    let written = written.unwrap();
                    model[at..at + written].copy_from_slice(&bytes[..written]);
                }
            }
            if nth % 500 == 0 {
                vfs.sync().unwrap_or_else(|error| panic!("{name}: write-back after step {nth}: {error}"));
            }
        }
        assert_eq!(refused, 50, "{name}: the filesystem became full");
        vfs.sync().unwrap_or_else(|error| panic!("{name}: write-back: {error}"));
        for (file, model) in &clones {
            assert!(read_all(&vfs, file).unwrap() == *model, "{name}");
        }
        // A truncation inside a shared block needs no space.
        let cut = 7 * (1 << 20) + 100;
        let set = SetAttr { size: Some(cut as u64), ..SetAttr::default() };
        vfs.set_attr(&Cred::root(), &clones[0].0, &set).unwrap();
        clones[0].1.truncate(cut);
        let models: Vec<_> = clones.into_iter().map(|(_, model)| model).collect();
        drop((source, filler));
        vfs.unmount().unwrap();
        drop(vfs);
        repair_finds_nothing(&image, name);
        assert_clean(&image, name);
        let vfs = mount_writable(&image);
        let files = (0..3).map(|nth| vfs.resolve(&Cred::root(), format!("/{nth}"), false).unwrap());
        for (file, model) in files.zip(&models) {
            assert!(read_all(&vfs, &file).unwrap() == *model, "{name}, mounted again");
        }
        for path in ["0", "1", "2", "source", "filler"] {
            vfs.unlink(&Cred::root(), &vfs.root().unwrap(), path.as_bytes(), false).unwrap();
        }
        vfs.sync().unwrap();
        assert!(available(&vfs) > 200 << 20, "{name}: all is free again: {}", available(&vfs));
        vfs.unmount().unwrap();
        drop(vfs);
        repair_finds_nothing(&image, name);
    }
}

/// Linux stops while it writes shared files: ivers replays its log, and frees what copy on write left.
#[test]
fn a_killed_linux_leaves_nothing() {
    if !have_xfsprogs() || !can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    for (name, args) in KINDS {
        cloned(args, &image);
        let linux = LoopMount::new(&image, "").unwrap();
        // With the hint, blocks for copies are allocated 1 MiB at a time: most of them stay unused.
        let script = r#"
            for i in 1 2 4 5; do
                xfs_io -c 'cowextsize 1m' -c "pwrite -q -S $i $((i * 300000)) 5000" -c fsync d/many-$i
            done
            xfs_io -c 'fpunch 100000 1500000' a; rm d/c; cp --reflink=always mixed d/new
            xfs_io -c 'pwrite -q -S 99 400000 300000' d/new; sync d/many-1"#;
        fill::in_dir(linux.path(), script);
        copy_image(&image, &copy);
        linux.unmount().unwrap();
        let vfs = mount_writable(&copy);
        let ours = our_tree(&vfs, false).unwrap();
        let mut storm = Storm::of(vfs, 5);
        for _ in 0..60 {
            storm.step_in_file();
        }
        storm.check(name);
        storm.unmount();
        assert!(ours.contains_key("/d/many-5"), "{name}");
        repair_finds_nothing(&copy, name);
        assert_clean(&copy, name);
    }
}

/// A killed mount of ivers with shared files: Linux replays the log and sees the same files.
#[test]
fn linux_replays_what_a_killed_mount_left() {
    if !have_xfsprogs() || !can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    for (name, args) in KINDS {
        cloned(args, &image);
        let mut storm = Storm::of(mount_writable(&image), 11);
        for round in 0..3 {
            for _ in 0..80 {
                storm.step_in_file();
            }
            storm.vfs().sync().unwrap();
            let ours = our_tree(storm.vfs(), true).unwrap();
            copy_image(&image, &copy);
            let what = format!("{name}, round {round}");
            let linux = LoopMount::new(&copy, "").unwrap();
            assert_same(&ours, &kernel_tree(linux.path()), &what);
            linux.unmount().unwrap();
            repair_finds_nothing(&copy, &what);
            assert_clean(&copy, &what);
        }
        storm.unmount();
    }
}
