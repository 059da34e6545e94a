//! Growing filesystems that others made: e2fsck finds nothing, files keep their contents, and a crash at any
//! write leaves the old size or the new one.

use crate::common::*;
use ivers_block::{ByteOffset, Device, FaultDevice, FileDevice, MemDevice, OpenMode};
use ivers_ext4::resize::{ResizeReport, grow, plan_grow};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn options() -> OpenOptions {
    OpenOptions::from(DriverOptions { place: "test image".into(), ..DriverOptions::default() })
}

/// Writes files of several sizes in two directories, so that several groups are in use.
fn fill(path: &Path) {
    let vfs = mount(path);
    let cred = Cred::root();
    let root = vfs.root().unwrap();
    for name in [b"a", b"b"] {
        let dir =
            vfs.create(&cred, &root, name, &CreateSpec::of(FileType::Directory, 0o755), false).unwrap().0;
        for (file, len) in [(&b"small"[..], 10_usize), (b"page", 5_000), (b"large", 700_000)] {
            let (inode, _) = vfs.create(&cred, &dir, file, &CreateSpec::file(0o644), false).unwrap();
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 / 3) as u8 ^ name[0]).collect();
            vfs.write(&cred, &inode, 0, &bytes, WriteFlags::empty()).unwrap();
        }
    }
    drop(root);
    vfs.unmount().unwrap();
}

/// A digest of the tree, as debugfs reads it.
fn contents(path: &Path) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().display();
    debugfs(path, &format!("rdump /a /b {out}"));
    let mut all = Vec::new();
    for name in ["a/small", "a/page", "a/large", "b/small", "b/page", "b/large"] {
        let bytes = std::fs::read(dir.path().join(name)).unwrap_or_default();
        all.push(format!("{name} {} {:08x}", bytes.len(), crc32(&bytes)));
    }
    all
}

fn crc32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(7, |sum: u32, &byte| sum.rotate_left(5).wrapping_mul(31).wrapping_add(byte.into()))
}

/// Grows an image file, as the command does.
fn grow_file(path: &Path, bytes: u64) -> Result<ResizeReport> {
    let before = std::fs::metadata(path).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes.max(before)).unwrap();
    let device: Arc<dyn Device> = device(path, OpenMode::ReadWrite);
    grow(&device, bytes, ByteOffset(before), options())
}

/// Variants, the size at first, and the sizes to grow to in turn.
const CASES: &[(&str, &[&str], u64, &[u64])] = &[
    ("default", &["-t", "ext4"], 20, &[21, 24, 25, 60, 200, 1000]),
    ("4k", &["-t", "ext4", "-b", "4096"], 50, &[51, 127, 128, 129, 300, 3000, 20_000]),
    ("small groups", &["-t", "ext4", "-b", "4096", "-g", "1024", "-N", "4096"], 30, &[31, 34, 100, 700]),
    ("ext2", &["-t", "ext2"], 20, &[21, 30, 300]),
    ("ext2 4k", &["-t", "ext2", "-b", "4096"], 20, &[300, 1000]),
    ("ext3", &["-t", "ext3"], 20, &[30, 300]),
    ("small inodes", &["-t", "ext4", "-I", "128"], 20, &[300]),
    ("no journal", &["-t", "ext4", "-O", "^has_journal"], 20, &[30, 300]),
    ("orphan file", &["-t", "ext4", "-O", "orphan_file"], 20, &[300]),
    ("uninit_bg", &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"], 20, &[30, 300]),
    ("32bit", &["-t", "ext4", "-O", "^64bit"], 20, &[30, 300]),
    ("csum seed", &["-t", "ext4", "-O", "metadata_csum_seed"], 20, &[300]),
    ("no flex_bg", &["-t", "ext4", "-O", "^flex_bg"], 20, &[30, 300]),
    ("inline", &["-t", "ext4", "-O", "inline_data"], 20, &[300]),
];

#[test]
fn grown_filesystems_are_clean_and_keep_their_files() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck", "debugfs"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (what, args, first, sizes) in CASES {
        mkfs(&image, args, first * MIB);
        fill(&image);
        let before = contents(&image);
        assert!(before.iter().all(|line| !line.contains(" 0 ")), "{before:?}");
        for &mib in *sizes {
            let what = format!("{what}, {mib} MiB");
            let report = grow_file(&image, mib * MIB).unwrap_or_else(|error| panic!("{what}: {error}"));
            fsck(&image, &what);
            let missing = mib * MIB - report.blocks * u64::from(report.block_size);
            // A last group that is too small for its metadata is left out.
            assert!(missing < 9 * MIB, "{what}: {missing} bytes are not used");
            assert_eq!(contents(&image), before, "{what}");
        }
        // The new space is usable.
        let vfs = mount(&image);
        let cred = Cred::root();
        let (file, _) =
            vfs.create(&cred, &vfs.root().unwrap(), b"new", &CreateSpec::file(0o644), false).unwrap();
        let bytes = vec![b'n'; 1 << 20];
        for at in 0..sizes.last().unwrap().min(&250) * 8 / 10 {
            vfs.write(&cred, &file, at << 20, &bytes, WriteFlags::empty()).unwrap();
        }
        drop(file);
        vfs.unmount().unwrap();
        fsck(&image, what);
    }
}

/// The new filesystem is the one that resize2fs makes, as far as dumpe2fs shows it.
#[test]
fn the_sizes_are_those_of_resize2fs() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "resize2fs", "dumpe2fs"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| dir.path().join(name));
    let shown = |path: &Path| {
        let output = ivers_oracle::run("dumpe2fs", ["-h".as_ref(), path.as_os_str()]).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let names = ["Filesystem features:", "Inode count:", "Block count:", "Reserved GDT blocks:"];
        let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for (args, first, mib) in [
        (&["-b", "1024"][..], 20, 300),
        (&["-b", "4096"], 50, 3000),
        (&["-t", "ext3", "-b", "4096"], 50, 9000),
    ] {
        mkfs(&ours, args, first * MIB);
        std::fs::copy(&ours, &theirs).unwrap();
        grow_file(&ours, mib * MIB).unwrap();
        std::fs::OpenOptions::new().write(true).open(&theirs).unwrap().set_len(mib * MIB).unwrap();
        ivers_oracle::run("resize2fs", ["-f".as_ref(), theirs.as_os_str()]).unwrap();
        assert_eq!(shown(&ours), shown(&theirs), "{args:?}");
    }
}

/// The copies of the superblock are usable.
#[test]
fn the_copies_have_the_new_size() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, &["-b", "4096"], 100 * MIB);
    grow_file(&image, 1000 * MIB).unwrap();
    for block in ["32768", "98304", "229376"] {
        let words = ["-fn", "-b", block, "-B", "4096", image.to_str().unwrap()];
        let output = ivers_oracle::output("e2fsck", words).unwrap();
        assert!(ivers_oracle::said(&output).contains("/256000 blocks"), "{}", ivers_oracle::said(&output));
    }
}

#[test]
fn what_cannot_grow_is_refused_by_name_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (args, mib, named) in [
        (&["-O", "meta_bg,^resize_inode"][..], 100, "meta_bg"),
        (&["-O", "sparse_super2"], 100, "sparse_super2"),
        (&["-O", "^resize_inode"], 4000, "resize_inode"),
        (&["-b", "1024"], 40_000, "resize_inode"),
        (&[], 10, "are 10240"),
    ] {
        mkfs(&image, args, 20 * MIB);
        let plan = plan_grow(&*device(&image, OpenMode::ReadOnly), mib * MIB, "test image");
        let error = plan.unwrap_err().to_string();
        assert!(error.contains(named), "{args:?}: {error}");
        assert!(matches!(grow_file(&image, mib * MIB), Err(Error::Incompatible(_))), "{args:?}");
        fsck(&image, named);
    }
}

/// Its map says which blocks become descriptors.
#[test]
fn a_damaged_resize_inode_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    // Its own inode table, a block past the end, none, and a free block of zeros.
    for block in [300, 30_000, 0, 9_000] {
        mkfs(&image, &["-b", "1024"], 20 * MIB);
        debugfs_write(&image, &format!("sif <7> block[DIND] {block}"));
        let error = grow_file(&image, 100 * MIB).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{block}: {error}");
        assert!(error.to_string().contains("inode 7"), "{block}: {error}");
        assert_eq!(open_blocks(&image), 20_480, "{block}");
    }
}

/// A crash after any write leaves a filesystem that opens with the old size or the new one, is clean after
/// its journal was replayed, and that a second run completes.
#[test]
fn a_crash_leaves_the_old_size_or_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let (before_mib, after_mib) = (12, 44);
    let variants =
        [(&["-b", "1024"][..], 1), (&["-b", "4096", "-g", "1024"], 3), (&["-t", "ext3", "-b", "1024"], 3)];
    for (args, step) in variants {
        mkfs(&image, args, before_mib * MIB);
        fill(&image);
        let before = contents(&image);
        let mut bytes = std::fs::read(&image).unwrap();
        bytes.resize((after_mib * MIB) as usize, 0);
        let faulty = Arc::new(FaultDevice::new(Arc::new(MemDevice::from_bytes(&bytes))));
        let shared: Arc<dyn Device> = faulty.clone();
        let report = grow(&shared, after_mib * MIB, ByteOffset(before_mib * MIB), options()).unwrap();
        assert!(faulty.len() > 10);
        let mut seen = [0; 2];
        for crash in (0..=faulty.len()).step_by(step) {
            let state = faulty.image(crash).unwrap();
            let mut bytes = vec![0; (after_mib * MIB) as usize];
            state.read_at(ByteOffset(0), &mut bytes).unwrap();
            std::fs::write(&image, &bytes).unwrap();
            let what = format!("{args:?}, crash after {crash} of {}", faulty.len());
            ivers_oracle::e2fsck_repair(&image).unwrap_or_else(|error| panic!("{what}: {error:#}"));
            fsck(&image, &what);
            assert_eq!(contents(&image), before, "{what}");
            // The second run starts from the crash, not from what e2fsck made of it.
            std::fs::write(&image, &bytes).unwrap();
            let blocks = open_blocks(&image);
            seen[usize::from(blocks == report.blocks)] += 1;
            assert!(blocks == report.blocks || blocks == report.old_blocks, "{what}: {blocks} blocks");
            let again = grow_file(&image, after_mib * MIB).unwrap();
            assert_eq!(again.blocks, report.blocks, "{what}");
            fsck(&image, &what);
            assert_eq!(contents(&image), before, "{what}");
        }
        assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
    }
}

/// The blocks of a filesystem after replay, without a write.
fn open_blocks(path: &Path) -> u64 {
    let options = OpenOptions::from(DriverOptions { read_only: true, ..DriverOptions::default() });
    Ext4::open(Arc::new(FileDevice::open(path, OpenMode::ReadOnly).unwrap()), options)
        .unwrap()
        .sb
        .blocks_count()
}
