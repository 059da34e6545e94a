//! Shrinking filesystems that others made: e2fsck finds nothing, the tree stays the same, the kernel reads
//! it, and a crash at any write leaves the old size or the new one with all contents.

use crate::common::tree::{Tree, tree};
use crate::common::*;
use ivers_block::{ByteOffset, Device, FaultDevice, MemDevice, OpenMode};
use ivers_ext4::OpenOptions;
use ivers_ext4::resize::{ResizeReport, Smaller, shrink};
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::may_loop_mount;
use ivers_vfs::*;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn options() -> OpenOptions {
    OpenOptions::from(DriverOptions { place: "test image".into(), ..DriverOptions::default() })
}

fn bytes_of(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 3 * 7 + at / 1024 * 13 + seed * 31) as u8).collect()
}

fn has_xattrs(vfs: &Arc<Vfs>, inode: &InodeRef, value: &[u8]) -> bool {
    vfs.set_xattr(&Cred::root(), inode, "user.large", value, XattrMode::Any).is_ok()
}

/// Fills the whole filesystem with files of all sorts, then removes most of the data, so that what is left
/// lies everywhere. `scale` bounds the number of directories.
fn fill(path: &Path, scale: usize) {
    let vfs = mount(path);
    let cred = Cred::root();
    let root = vfs.root().unwrap();
    let file = |dir: &InodeRef, name: &str, bytes: &[u8]| -> Result<InodeRef> {
        let (inode, _) = vfs.create(&cred, dir, name.as_bytes(), &CreateSpec::file(0o640), false)?;
        vfs.write(&cred, &inode, 0, bytes, WriteFlags::empty())?;
        Ok(inode)
    };
    let mut links = Vec::new();
    for nth in 0..scale {
        let spec = CreateSpec::of(FileType::Directory, 0o755);
        let dir = vfs.create(&cred, &root, format!("dir{nth}").as_bytes(), &spec, false).unwrap().0;
        let (sub, _) = vfs.create(&cred, &dir, b"sub", &spec, false).unwrap();
        vfs.create(&cred, &sub, b"deeper", &spec, false).unwrap();
        for (number, len) in [10, 700, 1500, 5_000, 30_000].into_iter().enumerate() {
            let inode = file(&dir, &format!("file{number}"), &bytes_of(len, nth)).unwrap();
            let owner = SetAttr { uid: Some(nth as u32), gid: Some(70_000), ..SetAttr::default() };
            vfs.set_attr(&cred, &inode, &owner).unwrap();
            if number == 1 {
                has_xattrs(&vfs, &inode, &bytes_of(500, nth));
            }
            if number == 3 {
                // In an attribute inode, where there are any.
                has_xattrs(&vfs, &inode, &bytes_of(3_000, nth));
            }
            if number == 2 {
                let _ = vfs.set_xattr(&cred, &inode, "user.a", b"b", XattrMode::Any);
            }
        }
        for (name, target) in [(&b"short"[..], "x".repeat(20)), (b"long", "y".repeat(200))] {
            vfs.create(&cred, &sub, name, &CreateSpec::symlink(target), false).unwrap();
        }
        let device = CreateSpec { rdev: 0x103, ..CreateSpec::of(FileType::CharDevice, 0o600) };
        vfs.create(&cred, &sub, b"null", &device, false).unwrap();
        let linked = file(&sub, "linked", &bytes_of(3_000, nth)).unwrap();
        vfs.link(&cred, &linked, &root, format!("link{nth}").as_bytes(), false).unwrap();
        links.push(linked);
        if nth > 0 {
            vfs.link(&cred, &links[nth - 1], &dir, b"of-the-one-before", false).unwrap();
        }
        // Two files in turn: both are fragmented.
        let pair = [file(&sub, "one", b"").unwrap(), file(&sub, "two", b"").unwrap()];
        for at in 0..12_u64 {
            for inode in &pair {
                let at = at * 8192;
                vfs.write(&cred, inode, at, &bytes_of(4096, nth + at as usize), WriteFlags::empty()).unwrap();
            }
            vfs.sync().unwrap();
        }
    }
    links.clear();
    let (many, _) =
        vfs.create(&cred, &root, b"many", &CreateSpec::of(FileType::Directory, 0o777), false).unwrap();
    for nth in 0..scale * 30 {
        let name = format!("a-name-that-is-not-short-{nth}");
        vfs.create(&cred, &many, name.as_bytes(), &CreateSpec::file(0o600), false).unwrap();
    }
    // Fill the disk, so that later files are at its end; then remove what filled it.
    let chunk = bytes_of(300_000, 1);
    let mut fillers = 0_usize;
    while file(&root, &format!("filler{fillers}"), &chunk).is_ok() && vfs.sync().is_ok() {
        fillers += 1;
    }
    for nth in (fillers / 3..fillers).step_by(9).chain(fillers.saturating_sub(3)..fillers) {
        let _ = vfs.unlink(&cred, &root, format!("filler{nth}").as_bytes(), false);
    }
    vfs.sync().unwrap();
    file(&root, "late", &bytes_of(150_000, 5)).unwrap();
    vfs.sync().unwrap();
    for nth in 0..=fillers {
        let keep = nth + 5 == fillers || nth == fillers / 2;
        if !keep {
            let _ = vfs.unlink(&cred, &root, format!("filler{nth}").as_bytes(), false);
        }
    }
    drop(many);
    drop(root);
    vfs.unmount().unwrap();
}

fn contents(path: &Path) -> Tree {
    let options = DriverOptions { read_only: true, ..DriverOptions::default() };
    let fs = ivers_ext4::Ext4::open(device(path, OpenMode::ReadOnly), OpenOptions::from(options)).unwrap();
    let vfs = Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap();
    tree(&vfs)
}

fn assert_same(tree: &Tree, before: &Tree, what: &str) {
    for (path, line) in before {
        assert_eq!(tree.get(path), Some(line), "{what}: {path}");
    }
    assert_eq!(tree.len(), before.len(), "{what}");
}

/// Shrinks an image file and truncates it, as the command does.
fn shrink_file(path: &Path, to: Smaller) -> Result<ResizeReport> {
    let device: Arc<dyn Device> = device(path, OpenMode::ReadWrite);
    let report = shrink(&device, to, &options())?;
    drop(device);
    let len = report.blocks * u64::from(report.block_size);
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
    Ok(report)
}

/// The smallest size that resize2fs estimates, in blocks.
fn estimate(path: &Path) -> u64 {
    let output = ivers_oracle::run("resize2fs", ["-P".as_ref(), path.as_os_str()]).unwrap();
    let said = ivers_oracle::said(&output);
    let line = said.lines().find(|line| line.starts_with("Estimated minimum size")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// `writes`: also creates a file. At the minimum the kernel finds no space for one.
fn kernel_reads(path: &Path, what: &str, writes: bool) {
    if !may_loop_mount() {
        return;
    }
    let mounted = LoopMount::new(path, "").unwrap();
    let script = if writes {
        "tar cf - . > /dev/null && echo more > more && sync && rm more"
    } else {
        "tar cf - . > /dev/null"
    };
    let done = Command::new("sh").args(["-c", script]).current_dir(mounted.path()).output().unwrap();
    assert!(done.status.success(), "{what}: {}", String::from_utf8_lossy(&done.stderr));
    mounted.unmount().unwrap();
}

/// Its name, the arguments of mkfs, the size in MiB at first, the directories in it, and the sizes to shrink
/// to in turn.
type Case = (&'static str, &'static [&'static str], u64, usize, &'static [u64]);

const CASES: &[Case] = &[
    ("default", &["-t", "ext4"], 100, 12, &[90, 61, 40]),
    ("4k", &["-t", "ext4", "-b", "4096"], 300, 12, &[200, 100]),
    ("small groups", &["-t", "ext4", "-b", "4096", "-g", "1024", "-N", "4096"], 100, 20, &[63, 31]),
    ("ext2", &["-t", "ext2"], 60, 10, &[40, 17]),
    ("ext2 4k", &["-t", "ext2", "-b", "4096", "-g", "2048"], 100, 10, &[40, 20]),
    ("ext3", &["-t", "ext3"], 80, 10, &[30]),
    ("ext3 4k", &["-t", "ext3", "-b", "4096", "-g", "2048"], 100, 10, &[40]),
    ("small inodes", &["-t", "ext4", "-I", "128"], 60, 10, &[30]),
    ("no journal", &["-t", "ext4", "-O", "^has_journal"], 60, 10, &[30, 17]),
    ("orphan file", &["-t", "ext4", "-O", "orphan_file"], 60, 10, &[40, 25]),
    ("uninit_bg", &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"], 60, 10, &[40, 25]),
    ("no checksums", &["-t", "ext4", "-O", "^metadata_csum"], 60, 10, &[40, 25]),
    ("32bit", &["-t", "ext4", "-O", "^64bit"], 60, 10, &[40, 25]),
    ("csum seed", &["-t", "ext4", "-O", "metadata_csum_seed"], 60, 10, &[40, 25]),
    ("no flex_bg", &["-t", "ext4", "-O", "^flex_bg"], 60, 10, &[40, 25]),
    ("no extents", &["-t", "ext4", "-O", "^extents,^64bit"], 60, 10, &[40, 25]),
    ("no resize_inode", &["-t", "ext4", "-O", "^resize_inode"], 700, 10, &[400, 100]),
    ("inline", &["-t", "ext4", "-O", "inline_data"], 60, 10, &[40, 25]),
    ("ea_inode", &["-t", "ext4", "-O", "ea_inode"], 60, 10, &[40, 25]),
    ("large_dir", &["-t", "ext4", "-O", "large_dir"], 60, 10, &[40, 25]),
];

#[test]
fn shrunk_filesystems_are_clean_and_keep_everything() {
    let programs = ["mkfs.ext4", "e2fsck", "resize2fs", "tar"];
    if !ivers_oracle::have_programs(&programs) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (what, args, first, scale, sizes) in CASES {
        mkfs(&image, args, first * MIB);
        fill(&image, *scale);
        fsck(&image, what);
        let mut before = contents(&image);
        assert!(before.len() > scale * 40, "{what}: {}", before.len());
        for &mib in *sizes {
            let what = format!("{what}, {mib} MiB");
            let report = shrink_file(&image, Smaller::Bytes(mib * MIB))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            fsck(&image, &what);
            assert_same(&contents(&image), &before, &what);
            assert!(report.blocks * u64::from(report.block_size) <= mib * MIB, "{what}");
            assert_eq!(
                std::fs::metadata(&image).unwrap().len() / u64::from(report.block_size),
                report.blocks
            );
            kernel_reads(&image, &what, true);
            fsck(&image, &what);
            // The kernel has changed times.
            before = contents(&image);
        }
        let theirs = estimate(&image);
        let report = shrink_file(&image, Smaller::Minimum).unwrap_or_else(|error| panic!("{what}: {error}"));
        fsck(&image, what);
        assert_same(&contents(&image), &before, what);
        println!("{what}: minimum {} blocks, resize2fs -P {theirs}", report.blocks);
        assert!(report.blocks <= theirs + theirs / 10, "{what}: {} blocks, not {theirs}", report.blocks);
        // Again: nothing changes.
        assert_eq!(shrink_file(&image, Smaller::Minimum).unwrap().blocks, report.blocks, "{what}");
        fsck(&image, what);
        kernel_reads(&image, what, false);
    }
}

/// The kernel makes inodes with equal attributes share a block.
#[test]
fn shared_attribute_blocks_are_moved_once() {
    if !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (args, len) in [(&["-b", "1024"][..], 600), (&["-b", "1024", "-O", "ea_inode"], 5_000)] {
        mkfs(&image, args, 60 * MIB);
        let mounted = LoopMount::new(&image, "").unwrap();
        for nth in 0..24 {
            let dir = mounted.path().join(format!("{nth}"));
            std::fs::create_dir(&dir).unwrap();
            for file in 0..20 {
                let path = dir.join(format!("{file}"));
                std::fs::write(&path, bytes_of(2_000, file)).unwrap();
                xattr::set(&path, "user.shared", &bytes_of(len, file % 3)).unwrap();
                xattr::set(&path, "user.small", b"value").unwrap();
            }
        }
        mounted.unmount().unwrap();
        let before = contents(&image);
        for to in [Smaller::Bytes(30 * MIB), Smaller::Minimum] {
            shrink_file(&image, to).unwrap();
            fsck(&image, "shared");
            assert_same(&contents(&image), &before, "shared");
        }
        let mounted = LoopMount::new(&image, "ro").unwrap();
        for nth in 0..24 {
            let value = xattr::get(mounted.path().join(format!("{nth}/7")), "user.shared").unwrap();
            assert_eq!(value, Some(bytes_of(len, 1)), "{args:?}");
        }
        mounted.unmount().unwrap();
    }
}

#[test]
fn what_cannot_shrink_is_refused_by_name_and_unchanged() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (args, named) in [
        (&["-O", "meta_bg,^resize_inode"][..], "meta_bg"),
        (&["-O", "sparse_super2"], "sparse_super2"),
        (&["-O", "bigalloc"], "bigalloc"),
        (&["-O", "quota"], "quota"),
        (&["-O", "verity"], "verity"),
        (&["-O", "encrypt"], "encrypt"),
        (&["-O", "casefold"], "casefold"),
        (&["-O", "mmp"], "mmp"),
    ] {
        mkfs(&image, args, 40 * MIB);
        let before = std::fs::read(&image).unwrap();
        let error = shrink_file(&image, Smaller::Bytes(20 * MIB)).unwrap_err();
        assert!(matches!(error, Error::Incompatible(_)), "{args:?}: {error}");
        assert!(error.to_string().contains(named), "{args:?}: {error}");
        assert!(std::fs::read(&image).unwrap() == before, "{args:?}: written to");
    }
    // Too small: the message has a size that works.
    mkfs(&image, &["-b", "1024"], 60 * MIB);
    fill(&image, 8);
    let before = std::fs::read(&image).unwrap();
    let error = shrink_file(&image, Smaller::Bytes(3 * MIB)).unwrap_err().to_string();
    assert!(std::fs::read(&image).unwrap() == before, "written to");
    let kib: u64 = error.rsplit(' ').next().unwrap().trim_end_matches('K').parse().unwrap();
    let tree_before = contents(&image);
    shrink_file(&image, Smaller::Bytes(kib << 10)).unwrap();
    fsck(&image, "the size of the message");
    assert_same(&contents(&image), &tree_before, "the size of the message");
}

/// A file with more names than one transaction can change keeps its group.
#[test]
fn an_inode_with_too_many_names_is_not_moved() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, &["-b", "1024", "-J", "size=1"], 60 * MIB);
    let vfs = mount(&image);
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let mut last = None;
    // Directories of the root are spread over the groups.
    for nth in 0..40 {
        let spec = CreateSpec::of(FileType::Directory, 0o755);
        let dir = vfs.create(&cred, &root, format!("{nth}").as_bytes(), &spec, false).unwrap().0;
        let (file, _) = vfs.create(&cred, &dir, b"file", &CreateSpec::file(0o600), false).unwrap();
        if last.as_ref().is_none_or(|(_, other): &(InodeRef, InodeRef)| other.ino < file.ino) {
            last = Some((dir, file));
        }
    }
    let (dir_of_last, file) = last.unwrap();
    let ino = file.ino.0;
    for nth in 0..1000 {
        vfs.link(&cred, &file, &dir_of_last, format!("{nth}").as_bytes(), false).unwrap();
    }
    drop((file, dir_of_last, root));
    vfs.unmount().unwrap();
    drop(vfs);
    let before = contents(&image);
    let report = shrink_file(&image, Smaller::Minimum).unwrap();
    assert!(report.inodes >= ino, "{} inodes, the file is {ino}", report.inodes);
    fsck(&image, "many names");
    assert_same(&contents(&image), &before, "many names");
}

/// The counter of a moved inode goes on above its old value, and directories that name it have changed.
#[test]
fn counters_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for args in [&["-b", "1024"][..], &["-b", "1024", "-I", "128"]] {
        mkfs(&image, args, 60 * MIB);
        let vfs = mount(&image);
        let (cred, root) = (Cred::root(), vfs.root().unwrap());
        for nth in 0..30 {
            let spec = CreateSpec::of(FileType::Directory, 0o755);
            let dir = vfs.create(&cred, &root, format!("{nth}").as_bytes(), &spec, false).unwrap().0;
            vfs.create(&cred, &dir, b"file", &CreateSpec::file(0o600), false).unwrap();
        }
        drop(root);
        vfs.unmount().unwrap();
        drop(vfs);
        let state = |path: &str| {
            let vfs = mount(&image);
            let inode = vfs.resolve(&Cred::root(), path.as_bytes(), true).unwrap();
            let found = (inode.ino.0, vfs.change(&inode));
            drop(inode);
            vfs.unmount().unwrap();
            found
        };
        let paths: Vec<String> = (0..30).map(|nth| format!("/{nth}/file")).collect();
        let before: Vec<_> = paths.iter().map(|path| state(path)).collect();
        let root_before = state("/");
        shrink_file(&image, Smaller::Minimum).unwrap();
        fsck(&image, "counters");
        let mut moved = 0;
        for (path, (ino, change)) in paths.iter().zip(before) {
            let (new_ino, new_change) = state(path);
            if new_ino == ino {
                assert_eq!(new_change, change, "{path}");
            } else {
                assert!(new_change > change, "{path}: {new_change:?}, {change:?} before");
                moved += 1;
            }
        }
        assert!(moved > 5, "{moved} moved");
        assert!(state("/").1 > root_before.1);
    }
}

/// A crash after any write leaves the old size or the new one, with every file.
#[test]
fn a_crash_leaves_the_old_size_or_the_new_one() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (args, mib, scale) in [
        (&["-b", "1024"][..], (20, 12), 5),
        (&["-b", "1024", "-O", "orphan_file,inline_data,ea_inode"], (20, 12), 5),
        (&["-b", "4096", "-g", "1024", "-N", "2048"], (24, 15), 6),
        (&["-t", "ext3", "-b", "1024"], (20, 12), 5),
    ] {
        let (old, new) = (mib.0 * MIB, mib.1 * MIB);
        mkfs(&image, args, old);
        fill(&image, scale);
        let before = contents(&image);
        let bytes = std::fs::read(&image).unwrap();
        let faulty = Arc::new(FaultDevice::new(Arc::new(MemDevice::from_bytes(&bytes))));
        let shared: Arc<dyn Device> = faulty.clone();
        let report = shrink(&shared, Smaller::Bytes(new), &options()).unwrap();
        let step = (faulty.len() / 60).max(1);
        let mut seen = [0; 2];
        for crash in (0..=faulty.len()).step_by(step) {
            let what = format!("{args:?}, crash after {crash} of {}", faulty.len());
            let state = faulty.image(crash).unwrap();
            let mut bytes = vec![0; old as usize];
            state.read_at(ByteOffset(0), &mut bytes).unwrap();
            std::fs::write(&image, &bytes).unwrap();
            assert_same(&contents(&image), &before, &what);
            ivers_oracle::e2fsck_repair(&image).unwrap_or_else(|error| panic!("{what}: {error:#}"));
            fsck(&image, &what);
            assert_same(&contents(&image), &before, &what);
            // The second run starts from the crash, unless that left blocks that no file has: then it asks
            // for e2fsck.
            let checked = std::fs::read(&image).unwrap();
            std::fs::write(&image, &bytes).unwrap();
            let again = match shrink_file(&image, Smaller::Bytes(new)) {
                Err(Error::Corrupt { what, .. }) if what.contains("run e2fsck") => {
                    std::fs::write(&image, &checked).unwrap();
                    shrink_file(&image, Smaller::Bytes(new))
                }
                done => done,
            };
            let again = again.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!([report.blocks, report.old_blocks].contains(&again.old_blocks), "{what}");
            seen[usize::from(again.old_blocks == report.blocks)] += 1;
            assert_eq!(again.blocks, report.blocks, "{what}");
            assert_same(&contents(&image), &before, &what);
            ivers_oracle::e2fsck_repair(&image).unwrap();
            fsck(&image, &what);
        }
        assert!(seen.iter().all(|&count| count > 0), "{args:?}: {seen:?}");
    }
}
