//! Names and attributes compared with the kernel and e2fsck: ivers reads what they wrote, and they accept
//! what ivers wrote.

use ivers_block::{FileDevice, OpenMode};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::{CreateSpec, Cred, DriverOptions, InodeRef, MountOptions, RenameFlags, Vfs, XattrMode};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// mkfs.ext4 arguments of the shapes that matter to directories.
const VARIANTS: &[(&str, &[&str])] = &[
    ("default", &["-t", "ext4"]),
    ("1k", &["-t", "ext4", "-b", "1024"]),
    ("no dir_index", &["-t", "ext4", "-O", "^dir_index"]),
    ("inline_data", &["-t", "ext4", "-O", "inline_data"]),
    ("no filetype", &["-t", "ext4", "-O", "^filetype"]),
    ("large_dir 1k", &["-t", "ext4", "-O", "large_dir", "-b", "1024"]),
    ("no checksums", &["-t", "ext4", "-O", "^metadata_csum"]),
    ("ext2", &["-t", "ext2"]),
    ("ext3 1k", &["-t", "ext3", "-b", "1024"]),
    ("small inodes", &["-t", "ext4", "-I", "128"]),
];

struct Image {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    fn make(args: &[&str], bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        let out = Command::new("mkfs.ext4").args(["-qF", "-N", "60000"]).args(args).arg(&path).output();
        let out = out.expect("mkfs.ext4 (e2fsprogs)");
        assert!(out.status.success(), "mkfs.ext4 {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        Self { _dir: dir, path }
    }

    fn mount(&self) -> Arc<Vfs> {
        let device = Arc::new(FileDevice::open(&self.path, OpenMode::ReadWrite).unwrap());
        let options =
            OpenOptions::from(DriverOptions { place: "test image".into(), ..DriverOptions::default() });
        Vfs::mount(Ext4::open(device, options).unwrap(), MountOptions::default()).unwrap()
    }

    fn fsck(&self, what: &str) {
        ivers_oracle::e2fsck(&self.path).unwrap_or_else(|error| panic!("{what}: {error:#}"));
    }

    /// Runs `work` on the kernel's mount of the image; `None` where this process may not mount.
    fn by_kernel<R>(&self, work: impl FnOnce(&Path) -> R) -> Option<R> {
        let at = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount").arg("-o").arg("loop").arg(&self.path).arg(at.path()).output();
        if !mounted.is_ok_and(|out| out.status.success()) {
            eprintln!("not compared with the kernel: mounting is not allowed here");
            return None;
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(at.path())));
        let out = Command::new("umount").arg(at.path()).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Some(result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

fn root() -> Cred {
    Cred::root()
}

/// Returns all names of a directory with their inode numbers, read in pieces of `piece` entries.
fn list(vfs: &Vfs, dir: &InodeRef, piece: usize) -> BTreeMap<Vec<u8>, u64> {
    let mut names = BTreeMap::new();
    let mut cursor = 0;
    loop {
        let mut count = 0;
        vfs.readdir(&Cred::root(), dir, cursor, &mut |entry| {
            let twice = names.insert(entry.name.to_vec(), entry.ino.0);
            assert_eq!(twice, None, "{} comes twice", String::from_utf8_lossy(entry.name));
            cursor = entry.next;
            count += 1;
            if count == piece { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        if count == 0 {
            break;
        }
    }
    assert!(names.remove(&b"."[..]).is_some() && names.remove(&b".."[..]).is_some());
    names
}

fn kernel_list(dir: &Path) -> BTreeMap<Vec<u8>, u64> {
    use std::os::unix::{ffi::OsStringExt, fs::DirEntryExt};
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_vec(), entry.ino())).collect()
}

fn name(number: u32) -> Vec<u8> {
    let mut name = format!("file-{number}-").into_bytes();
    name.resize(name.len() + (number as usize * 7) % 40, b'x');
    if number.is_multiple_of(50) {
        name.extend_from_slice("\u{fc}\u{e9}".as_bytes());
    }
    name
}

#[test]
fn names_written_by_the_kernel_are_read() {
    for (what, args) in VARIANTS {
        let image = Image::make(args, 128 << 20);
        let expected = image.by_kernel(|at| {
            use std::os::unix::ffi::OsStringExt;
            for (dir, count) in [("small", 3), ("medium", 60), ("large", 5000)] {
                std::fs::create_dir(at.join(dir)).unwrap();
                for number in 0..count {
                    let file = std::ffi::OsString::from_vec(name(number));
                    std::fs::write(at.join(dir).join(file), b"").unwrap();
                }
            }
            ["", "small", "medium", "large"].map(|dir| (dir, kernel_list(&at.join(dir))))
        });
        let Some(expected) = expected else { return };
        let vfs = image.mount();
        for (dir, names) in &expected {
            let inode = vfs.resolve(&root(), format!("/{dir}"), true).unwrap();
            for piece in [1000, 7] {
                assert_eq!(&list(&vfs, &inode, piece), names, "{what}: {dir}");
            }
            for (name, ino) in names {
                assert_eq!(vfs.lookup(&root(), &inode, name).unwrap().ino.0, *ino, "{what}");
            }
            assert!(vfs.lookup(&root(), &inode, b"not there").is_err());
        }
        vfs.unmount().unwrap();
        image.fsck(what);
    }
}

#[test]
fn the_kernel_and_e2fsck_accept_written_names() {
    for (what, args) in VARIANTS {
        let image = Image::make(args, 128 << 20);
        let vfs = image.mount();
        let top = vfs.root().unwrap();
        let count = if *what == "no dir_index" || what.starts_with("ext2") { 3000 } else { 12_000 };
        let (dir, _) = vfs.create(&root(), &top, b"dir", &CreateSpec::directory(0o755), false).unwrap();
        let mut expected = BTreeSet::new();
        for number in 0..count {
            vfs.create(&root(), &dir, &name(number), &CreateSpec::file(0o644), false)
                .unwrap_or_else(|error| panic!("{what}: {number}: {error}"));
            expected.insert(name(number));
        }
        for number in (0..count).step_by(3) {
            vfs.unlink(&root(), &dir, &name(number), false).unwrap();
            expected.remove(&name(number));
        }
        for number in (1..count).step_by(3) {
            let new = format!("renamed {number}").into_bytes();
            vfs.rename(&root(), &dir, &name(number), &dir, &new, RenameFlags::empty(), false).unwrap();
            expected.remove(&name(number));
            expected.insert(new);
        }
        // Directories: created, moved between parents, exchanged, removed.
        let sub = |parent: &InodeRef, name: &[u8]| {
            vfs.create(&root(), parent, name, &CreateSpec::directory(0o755), false).unwrap().0
        };
        let (a, b) = (sub(&top, b"a"), sub(&top, b"b"));
        sub(&a, b"moved");
        sub(&a, b"gone");
        sub(&b, b"swapped");
        vfs.create(&root(), &a, b"file", &CreateSpec::file(0o600), false).unwrap();
        vfs.create(&root(), &a, b"link", &CreateSpec::symlink("short"), false).unwrap();
        vfs.create(&root(), &a, b"long link", &CreateSpec::symlink("x".repeat(300)), false).unwrap();
        vfs.rename(&root(), &a, b"moved", &b, b"moved", RenameFlags::empty(), false).unwrap();
        vfs.rename(&root(), &a, b"file", &b, b"swapped", RenameFlags::EXCHANGE, false).unwrap();
        vfs.rmdir(&root(), &a, b"gone", false).unwrap();
        let moved = vfs.lookup(&root(), &b, b"moved").unwrap();
        for number in 0..100 {
            sub(&moved, format!("subdirectory {number}").as_bytes());
        }
        assert!(vfs.rmdir(&root(), &b, b"moved", false).is_err());
        assert_eq!(list(&vfs, &dir, 100).into_keys().collect::<BTreeSet<_>>(), expected, "{what}");
        drop((moved, a, b, dir, top));
        vfs.unmount().unwrap();
        drop(vfs);
        image.fsck(what);
        image.by_kernel(|at| {
            let names: BTreeSet<_> = kernel_list(&at.join("dir")).into_keys().collect();
            assert_eq!(names, expected, "{what}: the kernel's view");
            assert!(at.join("b/swapped").is_file() && at.join("a/file").is_dir(), "{what}");
            assert_eq!(kernel_list(&at.join("b/moved")).len(), 100, "{what}");
            assert_eq!(std::fs::read_link(at.join("a/long link")).unwrap().as_os_str().len(), 300, "{what}");
        });
        image.fsck(what);
    }
}

#[test]
fn readdir_returns_each_stable_name_once_during_changes() {
    for (what, args) in VARIANTS {
        let image = Image::make(args, 64 << 20);
        let vfs = image.mount();
        let top = vfs.root().unwrap();
        let make = |dir: &InodeRef, name: &str| {
            vfs.create(&root(), dir, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap();
        };
        // From a directory in its inode or in one block to a tree, and from a tree to a larger one.
        for start in [2, 20, 800] {
            let name = format!("dir{start}");
            let dir =
                vfs.create(&root(), &top, name.as_bytes(), &CreateSpec::directory(0o755), false).unwrap().0;
            for number in 0..start {
                make(&dir, &format!("stays {number}"));
                make(&dir, &format!("goes {number}"));
            }
            let (mut seen, mut cursor, mut round) = (Vec::new(), 0, 0);
            loop {
                let mut last = None;
                vfs.readdir(&Cred::root(), &dir, cursor, &mut |entry| {
                    last = Some(entry.next);
                    if entry.name.starts_with(b"stays") {
                        seen.push(entry.name.to_vec());
                    }
                    ControlFlow::Break(())
                })
                .unwrap();
                let Some(next) = last else { break };
                cursor = next;
                if round < 2 * start && round % 2 == 0 {
                    for extra in 0..(1000 / start).max(4) {
                        make(&dir, &format!("comes {round} {extra}"));
                    }
                    vfs.unlink(&root(), &dir, format!("goes {}", round / 2).as_bytes(), false).unwrap();
                }
                round += 1;
                assert!(round < 100_000, "{what}");
            }
            let unique: BTreeSet<_> = seen.iter().collect();
            assert_eq!((seen.len(), unique.len()), (start as usize, start as usize), "{what}: {start}");
        }
        drop(top);
        vfs.unmount().unwrap();
        drop(vfs);
        image.fsck(what);
    }
}

#[test]
fn attributes_agree_with_the_kernel() {
    for (what, args) in VARIANTS {
        let image = Image::make(args, 64 << 20);
        let by_kernel = image.by_kernel(|at| {
            std::fs::write(at.join("theirs"), b"x").unwrap();
            for (name, len) in [
                ("user.small", 5),
                ("user.large", 700),
                ("trusted.t", 60),
                ("security.s", 1),
                ("user.empty", 0),
            ] {
                xattr::set(at.join("theirs"), name, &vec![b'k'; len]).unwrap();
            }
        });
        let vfs = image.mount();
        let top = vfs.root().unwrap();
        if by_kernel.is_some() {
            let theirs = vfs.lookup(&root(), &top, b"theirs").unwrap();
            for (name, len) in [
                ("user.small", 5),
                ("user.large", 700),
                ("trusted.t", 60),
                ("security.s", 1),
                ("user.empty", 0),
            ] {
                assert_eq!(vfs.get_xattr(&root(), &theirs, name).unwrap(), vec![b'k'; len], "{what}: {name}");
            }
            assert_eq!(vfs.list_xattr(&root(), &theirs).unwrap().len(), 5, "{what}");
            vfs.remove_xattr(&root(), &theirs, "user.large").unwrap();
            vfs.set_xattr(&root(), &theirs, "user.small", &[b'k'; 300], XattrMode::Replace).unwrap();
        }
        let ours = vfs.create(&root(), &top, b"ours", &CreateSpec::file(0o644), false).unwrap().0;
        for number in 0..12usize {
            let name = format!("user.name{number}");
            vfs.set_xattr(&root(), &ours, &name, &vec![number as u8; number * 4], XattrMode::Create).unwrap();
        }
        for number in (0..12).step_by(2) {
            vfs.remove_xattr(&root(), &ours, format!("user.name{number}")).unwrap();
        }
        assert!(vfs.set_xattr(&root(), &ours, "user.huge", &[0; 60_000], XattrMode::Any).is_err());
        drop((ours, top));
        vfs.unmount().unwrap();
        drop(vfs);
        image.fsck(what);
        image.by_kernel(|at| {
            for number in 0..12usize {
                let value = xattr::get(at.join("ours"), format!("user.name{number}")).unwrap();
                let expected = (number % 2 == 1).then(|| vec![number as u8; number * 4]);
                assert_eq!(value, expected, "{what}: {number}");
            }
            assert_eq!(xattr::get(at.join("theirs"), "user.small").unwrap(), Some(vec![b'k'; 300]), "{what}");
            assert_eq!(xattr::get(at.join("theirs"), "user.large").unwrap(), None, "{what}");
        });
    }
}

#[test]
fn inline_directories_made_by_the_kernel_are_changed() {
    for (what, args) in [
        ("inline", &["-t", "ext4", "-O", "inline_data"][..]),
        ("inline, no dir_index", &["-t", "ext4", "-O", "inline_data,^dir_index", "-b", "1024"][..]),
    ] {
        let image = Image::make(args, 64 << 20);
        let made = image.by_kernel(|at| {
            for dir in ["empty", "few", "more", "parent"] {
                std::fs::create_dir(at.join(dir)).unwrap();
            }
            for name in ["one", "two"] {
                std::fs::write(at.join("few").join(name), b"").unwrap();
            }
            for name in ["alpha", "beta", "gamma", "delta", "epsilon"] {
                std::fs::write(at.join("more").join(name), b"").unwrap();
            }
            std::fs::create_dir(at.join("few/child")).unwrap();
        });
        if made.is_none() {
            return;
        }
        let vfs = image.mount();
        let dir = |path: &str| vfs.resolve(&root(), path, true).unwrap();
        let top = vfs.root().unwrap();
        vfs.rmdir(&root(), &top, b"empty", false).unwrap();
        assert!(vfs.rmdir(&root(), &top, b"few", false).is_err());
        let (few, more, parent) = (dir("/few"), dir("/more"), dir("/parent"));
        assert_eq!(list(&vfs, &more, 1).len(), 5, "{what}");
        // A move of an inline directory changes its parent's number.
        vfs.rename(&root(), &few, b"child", &parent, b"child", RenameFlags::empty(), false).unwrap();
        assert_eq!(vfs.resolve(&root(), "/parent/child/..", true).unwrap().ino, parent.ino);
        for number in 0..200u32 {
            for into in [&few, &more] {
                vfs.create(&root(), into, &name(number), &CreateSpec::file(0o644), false).unwrap();
            }
            if number % 3 == 0 {
                vfs.unlink(&root(), &few, &name(number), false).unwrap();
            }
        }
        vfs.unlink(&root(), &more, b"gamma", false).unwrap();
        let expected = [&few, &more].map(|dir| list(&vfs, dir, 10).into_keys().collect::<BTreeSet<_>>());
        assert_eq!(expected[1].len(), 204, "{what}");
        drop((few, more, parent, top));
        vfs.unmount().unwrap();
        drop(vfs);
        image.fsck(what);
        image.by_kernel(|at| {
            for (dir, expected) in ["few", "more"].iter().zip(&expected) {
                assert_eq!(
                    &kernel_list(&at.join(dir)).into_keys().collect::<BTreeSet<_>>(),
                    expected,
                    "{what}"
                );
            }
        });
    }
}

#[test]
fn hashes_equal_those_of_the_kernel() {
    for (hash, flag) in [
        ("legacy", "signed"),
        ("half_md4", "unsigned"),
        ("tea", "signed"),
        ("tea", "unsigned"),
        ("legacy", "unsigned"),
    ] {
        let image = Image::make(&["-t", "ext4", "-b", "1024"], 64 << 20);
        let run = |program: &str, args: &[&str]| {
            let out = Command::new(program).args(args).arg(&image.path).output().unwrap();
            assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        };
        run("tune2fs", &["-E", &format!("hash_alg={hash}")]);
        // s_flags: the signedness of characters in hashes.
        run("debugfs", &["-w", "-R", if flag == "signed" { "ssv flags 1" } else { "ssv flags 2" }]);
        let half = 300;
        let ours = || {
            let vfs = image.mount();
            let top = vfs.root().unwrap();
            let dir = vfs.lookup(&root(), &top, b"dir");
            let dir = dir.unwrap_or_else(|_| {
                vfs.create(&root(), &top, b"dir", &CreateSpec::directory(0o755), false).unwrap().0
            });
            for number in 0..half {
                vfs.create(&root(), &dir, &name(number), &CreateSpec::file(0o644), false).unwrap();
            }
            drop((dir, top));
            vfs.unmount().unwrap();
        };
        ours();
        image.fsck(hash);
        let kernel = image.by_kernel(|at| {
            use std::os::unix::ffi::OsStringExt;
            for number in 0..half {
                let path = at.join("dir").join(std::ffi::OsString::from_vec(name(number)));
                std::fs::remove_file(path).unwrap();
                let path = at.join("dir").join(std::ffi::OsString::from_vec(name(number + half)));
                std::fs::write(path, b"").unwrap();
            }
        });
        if kernel.is_none() {
            return;
        }
        ours();
        image.fsck(hash);
        let vfs = image.mount();
        let dir = vfs.resolve(&root(), "/dir", true).unwrap();
        assert_eq!(list(&vfs, &dir, 9).len() as u32, 2 * half, "{hash} {flag}");
        for number in 0..2 * half {
            vfs.lookup(&root(), &dir, &name(number)).unwrap();
        }
        drop(dir);
        vfs.unmount().unwrap();
    }
}

#[test]
fn directories_with_too_many_links_have_a_link_count_of_one() {
    let image = Image::make(&["-t", "ext4", "-b", "1024", "-N", "70000"], 256 << 20);
    let vfs = image.mount();
    let top = vfs.root().unwrap();
    let dir = vfs.create(&root(), &top, b"dir", &CreateSpec::directory(0o755), false).unwrap().0;
    for number in 0..65_100 {
        vfs.create(&root(), &dir, format!("{number}").as_bytes(), &CreateSpec::directory(0o755), false)
            .unwrap();
    }
    assert_eq!(vfs.stat(&dir).nlink, 1);
    vfs.rmdir(&root(), &dir, b"0", false).unwrap();
    assert_eq!(vfs.stat(&dir).nlink, 1);
    drop((dir, top));
    vfs.unmount().unwrap();
    drop(vfs);
    image.fsck("65,099 subdirectories");
}

#[test]
fn large_values_and_shared_blocks_work() {
    for (what, args) in [
        ("ea_inode", &["-t", "ext4", "-O", "ea_inode"][..]),
        ("ea_inode 1k", &["-t", "ext4", "-O", "ea_inode", "-b", "1024", "-I", "128"][..]),
    ] {
        let image = Image::make(args, 64 << 20);
        let made = image.by_kernel(|at| {
            for file in ["a", "b", "c", "d", "e"] {
                std::fs::write(at.join(file), b"x").unwrap();
                // Equal attributes: the kernel lets them share a block, and the inode of the large value.
                xattr::set(at.join(file), "user.block", &[b'v'; 500]).unwrap();
                xattr::set(at.join(file), "user.large", &[b'L'; 30_000]).unwrap();
            }
        });
        let vfs = image.mount();
        let top = vfs.root().unwrap();
        if made.is_some() {
            let file = |name: &[u8]| vfs.lookup(&root(), &top, name).unwrap();
            assert_eq!(vfs.get_xattr(&root(), &file(b"a"), "user.large").unwrap(), [b'L'; 30_000]);
            vfs.set_xattr(&root(), &file(b"a"), "user.block", &[b'w'; 501], XattrMode::Any).unwrap();
            vfs.remove_xattr(&root(), &file(b"b"), "user.large").unwrap();
            vfs.unlink(&root(), &top, b"c", false).unwrap();
            vfs.set_xattr(&root(), &file(b"d"), "user.large", &[b'M'; 65_000], XattrMode::Any).unwrap();
        }
        let ours = vfs.create(&root(), &top, b"ours", &CreateSpec::file(0o644), false).unwrap().0;
        for round in 0..20usize {
            let len = 1000 + round * 3000;
            vfs.set_xattr(&root(), &ours, "user.one", &vec![round as u8; len], XattrMode::Any).unwrap();
            vfs.set_xattr(&root(), &ours, format!("user.{round}"), &vec![1; 5000], XattrMode::Any).unwrap();
        }
        for round in 0..10 {
            vfs.remove_xattr(&root(), &ours, format!("user.{round}")).unwrap();
        }
        let gone = vfs.create(&root(), &top, b"gone", &CreateSpec::file(0o644), false).unwrap().0;
        vfs.set_xattr(&root(), &gone, "user.large", &[3; 40_000], XattrMode::Any).unwrap();
        drop(gone);
        vfs.unlink(&root(), &top, b"gone", false).unwrap();
        drop((ours, top));
        vfs.unmount().unwrap();
        drop(vfs);
        image.fsck(what);
        image.by_kernel(|at| {
            let get = |file: &str, name: &str| xattr::get(at.join(file), name).unwrap();
            assert_eq!(get("ours", "user.one"), Some(vec![19; 58_000]), "{what}");
            assert_eq!(
                (get("ours", "user.3"), get("ours", "user.15")),
                (None, Some(vec![1; 5000])),
                "{what}"
            );
            assert_eq!(get("a", "user.large"), Some(vec![b'L'; 30_000]), "{what}");
            assert_eq!(get("a", "user.block"), Some(vec![b'w'; 501]), "{what}");
            assert_eq!(
                (get("b", "user.large"), get("b", "user.block")),
                (None, Some(vec![b'v'; 500])),
                "{what}"
            );
            assert_eq!(get("d", "user.large"), Some(vec![b'M'; 65_000]), "{what}");
            assert_eq!(get("e", "user.large"), Some(vec![b'L'; 30_000]), "{what}");
            std::fs::remove_file(at.join("ours")).unwrap();
            std::fs::remove_file(at.join("d")).unwrap();
        });
        image.fsck(what);
    }
}

#[test]
fn damaged_directories_are_errors() {
    for args in [
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal,inline_data", "-N", "2000"][..],
        &["-t", "ext2", "-b", "1024", "-N", "2000"],
    ] {
        let image = Image::make(args, 16 << 20);
        let vfs = image.mount();
        let top = vfs.root().unwrap();
        let dir = vfs.create(&root(), &top, b"dir", &CreateSpec::directory(0o755), false).unwrap().0;
        for number in 0..400 {
            vfs.create(&root(), &dir, &name(number), &CreateSpec::file(0o644), false).unwrap();
        }
        vfs.set_xattr(&root(), &dir, "user.x", &[1; 300], XattrMode::Any).unwrap();
        drop((dir, top));
        vfs.unmount().unwrap();
        drop(vfs);
        let sound = std::fs::read(&image.path).unwrap();
        // Damage only blocks with relevant contents: those of the directory, its inode and its attributes.
        let telling: Vec<usize> = (0..sound.len() / 1024)
            .filter(|block| {
                let bytes = &sound[block * 1024..][..1024];
                let magic = bytes[..4] == [0, 0, 2, 0xEA];
                magic
                    || bytes.windows(5).any(|w| w == b"file-")
                    || bytes[..12].ends_with(b".\0\0\0")
                    || bytes.windows(2).any(|w| w == [0xED, 0x41])
            })
            .collect();
        let mut state = 7u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        for _ in 0..400 {
            let mut bytes = sound.clone();
            for _ in 0..1 + random(8) {
                let block = telling[random(telling.len())];
                // Headers, tables and the first entries are at the start.
                let at = block * 1024 + if random(2) == 0 { random(64) } else { random(1024) };
                bytes[at] = [0, 1, 0xFF, random(256) as u8][random(4)];
            }
            let device = Arc::new(ivers_block::MemDevice::from_bytes(&bytes));
            let Ok(fs) = Ext4::open(device, OpenOptions::default()) else { continue };
            let Ok(vfs) = Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() })
            else {
                continue;
            };
            let Ok(dir) = vfs.resolve(&root(), "/dir", true) else { continue };
            let (mut cursor, mut steps) = (0, 0);
            loop {
                let before = cursor;
                let result = vfs.readdir(&Cred::root(), &dir, cursor, &mut |entry| {
                    cursor = entry.next;
                    ControlFlow::Break(())
                });
                steps += 1;
                assert!(steps < 100_000, "readdir has no end");
                if result.is_err() || cursor == before {
                    break;
                }
            }
            for number in (0..400).step_by(17) {
                let _ = vfs.lookup(&root(), &dir, &name(number));
                let _ = vfs.unlink(&root(), &dir, &name(number), false);
                let _ = vfs.create(&root(), &dir, &name(number + 1000), &CreateSpec::file(0o644), false);
            }
            if let Ok(names) = vfs.list_xattr(&root(), &dir) {
                for name in names {
                    let _ = vfs.get_xattr(&root(), &dir, name);
                }
            }
            let _ = vfs.set_xattr(&root(), &dir, "user.y", &[2; 100], XattrMode::Any);
        }
    }
}
