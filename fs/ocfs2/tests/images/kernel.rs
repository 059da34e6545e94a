//! Linux fills images of all geometries in an emulated machine. ivers reads the same trees.

use crate::common::*;
use anyhow::{Context, Result, ensure};
use ivers_ocfs2::check::check;
use ivers_oracle::{Ocfs2Machine, can_fill_ocfs2, fsck_ocfs2, mkfs_ocfs2};
use ivers_vfs::check::Memory;
use ivers_vfs::*;
use md5::{Digest, Md5};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Images: bytes, and options of mkfs.ocfs2.
const LINUX_KINDS: &[(u64, &[&str])] = &[
    (16 << 20, &["-b", "1K", "-C", "4K", "-J", "size=4M"]),
    (24 << 20, &["-b", "4K", "-C", "32K", "-J", "size=4M", "--fs-features=metaecc"]),
    (
        16 << 20,
        &[
            "-b",
            "512",
            "-C",
            "4K",
            "-J",
            "size=4M",
            "--fs-feature-level=max-features",
            "--fs-features=metaecc",
        ],
    ),
    (28 << 20, &["-b", "2K", "-C", "8K", "-J", "size=4M", "-N", "3", "--fs-feature-level=max-compat"]),
    (100 << 20, &["-b", "4K", "-C", "1M"]),
];

/// What fsck.ocfs2 finds with blocks of 512 bytes: mkfs.ocfs2 makes no index for the directory of system
/// files, and Linux leaves blocks past the end of a quota file.
const USUAL: [&str; 2] = ["DX_TREE_MISSING", "INODE_SPARSE_SIZE"];

/// Fills `/mnt`. Features that a filesystem has not are left out.
const FILL: &[&str] = &[
    "mkdir -p d/sub e && echo hello > a && ln a d/sub/hard && : > empty",
    "for i in $(seq 150); do echo $i > d/file-with-a-longer-name-$i; done",
    "rm d/file-with-a-longer-name-2 && mv d/file-with-a-longer-name-3 d/sub/moved",
    ": > e/$(printf 'n%.0s' $(seq 255))",
    "dd if=/dev/urandom of=large bs=1k count=700 2>/dev/null",
    "dd if=large of=odd bs=777 count=3 2>/dev/null",
    "for i in $(seq 0 3 75); do dd if=a of=holes bs=4k seek=$i count=1 conv=notrunc 2>/dev/null; done",
    "truncate -s 3000000 hole && { fallocate -l 300000 ahead || : ; }",
    "ln -s a short && ln -s $(printf 'x%.0s' $(seq 700)) long && mkfifo -m 640 fifo && mknod -m 600 c c 5 1",
    "mknod b b 259 70000 && chown 1000:70000 odd && chmod 6751 odd && touch -d '2009-02-13 23:31:30' odd",
    "setfattr -n user.color -v blue a && setfattr -n trusted.t -v secret a",
    "setfattr -h -n trusted.l -v x short",
    "setfacl -m u:1000:r,g:5:rwx a && setfacl -d -m u:7:rx e",
    "i=0; { echo '# file: odd'; while [ $i -lt 90 ]; do i=$((i+1)); v=$v.$i; \
     echo user.some-longer-name-$i=\"$v\"; done; } > .names && setfattr --restore=.names && rm .names",
    "setfattr -n user.large -v $(seq -s, 2000) d",
    "{ /usr/bin/cp --reflink=always large clone && echo more >> clone || : ; }",
    "sync",
];

/// What Linux says of a tree: modes, owners, links, sizes, devices, times; contents; attributes.
const LOOK: [&str; 4] = [
    "find . -exec stat -c '%n %f %u %g %h %s %t:%T %Y' {} +",
    "find . -type f -exec md5sum {} +",
    "find . -type l -exec stat -c '%N' {} +",
    "getfattr -R -P -h -d -m - -e hex . 2>/dev/null || :",
];

/// What ivers says of the same, in the same words.
fn look(vfs: &Arc<Vfs>) -> ivers_vfs::Result<[String; 3]> {
    let (mut stats, mut sums, mut links) = (Vec::new(), Vec::new(), Vec::new());
    let mut dirs = vec![(vfs.root()?, ".".to_owned())];
    let stat = |inode: &InodeRef, path: &str| {
        let attr = vfs.stat(inode);
        let major = attr.rdev >> 8 & 0xFFF;
        let minor = attr.rdev & 0xFF | attr.rdev >> 12 & 0xFFF00;
        let (mode, size, links, time) = (attr.mode(), attr.size, attr.nlink, attr.mtime.sec);
        format!("{path} {mode:x} {} {} {links} {size} {major:x}:{minor:x} {time}", attr.uid, attr.gid)
    };
    stats.push(stat(&vfs.root()?, "."));
    while let Some((dir, prefix)) = dirs.pop() {
        for name in names(vfs, &dir)? {
            let path = format!("{prefix}/{}", String::from_utf8_lossy(&name));
            let inode = vfs.lookup(&Cred::root(), &dir, &name)?;
            stats.push(stat(&inode, &path));
            match inode.kind {
                FileType::Regular => {
                    let sum = Md5::digest(read_all(vfs, &inode)?);
                    let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
                    sums.push(format!("{sum}  {path}"));
                }
                FileType::Symlink => {
                    let target = vfs.read_link(&Cred::root(), &inode)?;
                    links.push(format!("'{path}' -> '{}'", String::from_utf8_lossy(&target)));
                }
                FileType::Directory => dirs.push((inode, path)),
                _ => {}
            }
        }
    }
    Ok([stats, sums, links].map(|mut lines| {
        lines.sort();
        lines.join("\n")
    }))
}

fn sorted(text: &str) -> String {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Attributes by path and name, from the output of getfattr.
fn attributes(said: &str) -> BTreeMap<(String, String), String> {
    let (mut path, mut found) = (String::new(), BTreeMap::new());
    for line in said.lines() {
        if let Some(name) = line.strip_prefix("# file: ") {
            path = if name == "." { "/".to_owned() } else { format!("/{name}") };
        } else if let Some((name, value)) = line.split_once('=') {
            found.insert((path.clone(), name.to_owned()), value.to_owned());
        }
    }
    found
}

fn compare(vfs: &Arc<Vfs>, theirs: &[String; 4], kind: &str) -> Result<()> {
    let ours = look(vfs)?;
    for (ours, theirs) in ours.iter().zip(theirs) {
        let theirs = sorted(theirs);
        let other = ours.lines().zip(theirs.lines()).find(|(ours, theirs)| ours != theirs);
        ensure!(*ours == theirs, "{kind}: {other:#?}\n{ours}\n---\n{theirs}");
    }
    let theirs = attributes(&theirs[3]);
    ensure!(theirs.len() > 90, "{kind}: {theirs:?}");
    for ((path, name), value) in &theirs {
        let inode = find(vfs, path)?;
        let ours =
            vfs.get_xattr(&Cred::root(), &inode, name.as_bytes()).context(format!("{path}: {name}"))?;
        let ours: String = ours.iter().map(|byte| format!("{byte:02x}")).collect();
        ensure!(format!("0x{ours}") == *value, "{kind}: {path}: {name}: {ours} and {value}");
    }
    let odd = find(vfs, "/odd")?;
    let listed = vfs.list_xattr(&Cred::root(), &odd)?.len();
    ensure!(listed == theirs.keys().filter(|(path, _)| path == "/odd").count(), "{kind}: {listed}");
    Ok(())
}

#[test]
fn linux_and_ivers_read_the_same_trees() {
    if can_fill_ocfs2() {
        compare_with_linux().unwrap();
    }
}

fn compare_with_linux() -> Result<()> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("a target directory")?;
    let dir = tempfile::tempdir()?;
    let images: Vec<_> = (0..LINUX_KINDS.len()).map(|nth| dir.path().join(nth.to_string())).collect();
    for ((bytes, options), image) in LINUX_KINDS.iter().zip(&images) {
        mkfs_ocfs2(image, *bytes, options)?;
    }
    let mut machine = Ocfs2Machine::boot(&target.join("kernel"), &images)?;
    for (nth, (_, options)) in LINUX_KINDS.iter().enumerate() {
        let kind = options.join(" ");
        machine.mount(nth)?;
        let is_old = kind.contains("max-compat");
        for line in FILL.iter().filter(|line| !(is_old && line.contains("setf"))) {
            machine.run(line).with_context(|| kind.clone())?;
        }
        let mut theirs = LOOK.map(|_| String::new());
        for (said, line) in theirs.iter_mut().zip(LOOK) {
            *said = machine.run(line)?;
        }
        machine.unmount()?;
        std::fs::write(&images[nth], machine.image(nth)?)?;
        let device = Arc::new(ivers_block::FileDevice::open(&images[nth], ivers_block::OpenMode::ReadOnly)?);
        let vfs = mount_device(device.clone())?;
        match is_old {
            false => compare(&vfs, &theirs, &kind)?,
            true => ensure!(look(&vfs)?[1] == sorted(&theirs[1]), "{kind}"),
        }
        vfs.unmount()?;
        let found = check(device, Memory::unlimited(), "image")?;
        ensure!(found.is_clean(), "{kind}: {:#?}", found.kept());
        let mut theirs = fsck_ocfs2(&images[nth])?;
        theirs.retain(|name| !USUAL.contains(&&**name));
        ensure!(theirs.is_empty(), "{kind}: {theirs:?}");
    }
    machine.off()
}

/// Fills a filesystem through the VFS, and removes a part again.
fn fill(vfs: &Arc<Vfs>) -> ivers_vfs::Result<()> {
    let (cred, root) = (Cred::root(), vfs.root()?);
    let create = |dir: &InodeRef, name: &str, spec: &CreateSpec| {
        vfs.create(&cred, dir, name.as_bytes(), spec, false).map(|created| created.0)
    };
    let file = CreateSpec::file(0o644);
    let many = create(&root, "many", &CreateSpec::directory(0o755))?;
    for nth in 0..900 {
        create(&many, &format!("a file with a longer name {nth}"), &file)?;
    }
    for nth in (0..900).filter(|nth| nth % 4 == 1) {
        vfs.unlink(&cred, &many, format!("a file with a longer name {nth}").as_bytes(), false)?;
    }
    let few = create(&root, "few", &CreateSpec::directory(0o750))?;
    for nth in 0..40u64 {
        let held = create(&few, &format!("{nth}"), &file)?;
        let data: Vec<u8> = (0..nth * 777).map(|at| (at * 7 + nth) as u8).collect();
        vfs.write(&cred, &held, nth * 3000, &data, WriteFlags::empty())?;
    }
    let holes = create(&root, "holes", &file)?;
    for nth in 0..120u64 {
        vfs.write(&cred, &holes, nth * 37 % 120 * 70_000, &nth.to_le_bytes(), WriteFlags::empty())?;
    }
    vfs.fallocate(&cred, &holes, FallocateMode::empty(), 9_000_000, 300_000)?;
    let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    vfs.fallocate(&cred, &holes, mode, 700_000, 800_000)?;
    create(&root, "short", &CreateSpec::symlink("few/1"))?;
    create(&root, "long", &CreateSpec::symlink("x".repeat(3000)))?;
    create(&root, "pipe", &CreateSpec::of(FileType::Fifo, 0o640))?;
    vfs.link(&cred, &holes, &few, b"hard", false)?;
    let plain = RenameFlags::empty();
    vfs.rename(&cred, &few, b"7", &many, b"moved", plain, false)?;
    let inner = create(&few, "inner", &CreateSpec::directory(0o700))?;
    create(&inner, "deep", &file)?;
    vfs.rename(&cred, &few, b"inner", &many, b"inner", plain, false)?;
    vfs.set_xattr(&cred, &holes, "user.color", b"blue", XattrMode::Any)?;
    vfs.set_xattr(&cred, &holes, "trusted.large", &[b'v'; 3000], XattrMode::Any)?;
    vfs.set_xattr(&cred, &few, "user.dir", &[b'w'; 70], XattrMode::Any)?;
    let set = SetAttr { size: Some(10_000), ..SetAttr::default() };
    let cut = vfs.lookup(&cred, &few, b"39")?;
    vfs.set_attr(&cred, &cut, &set)?;
    vfs.sync()
}

/// What Linux changes in what ivers wrote.
const CHANGE: [&str; 4] = [
    "for i in $(seq 300); do echo $i > many/new-$i; done; rm many/*name*[02468] && rm -r many/inner",
    "dd if=/dev/urandom of=holes bs=1k seek=600 count=900 conv=notrunc 2>/dev/null && \
     truncate -s 5000000 holes",
    "setfattr -n user.more -v value holes && setfattr -x user.dir few && mv few/3 many/three",
    "sync",
];

#[test]
fn linux_reads_and_changes_what_ivers_wrote() {
    if can_fill_ocfs2() {
        let kinds: Vec<_> = KINDS.iter().filter(|kind| kind.name != "1M").collect();
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let dir = tempfile::tempdir().unwrap();
        // Each kind as ivers closes it, and as a crash leaves it.
        let mut images = Vec::new();
        for kind in &kinds {
            let device = Arc::new(ivers_block::MemDevice::from_bytes(&kind.image(kind.bytes / 2)));
            let vfs = mount_writable(device.clone());
            fill(&vfs).unwrap();
            let crashed = device.to_bytes();
            vfs.unmount().unwrap();
            drop(vfs);
            assert_clean(&device, kind.name);
            for bytes in [device.to_bytes(), crashed] {
                let path = dir.path().join(images.len().to_string());
                std::fs::write(&path, bytes).unwrap();
                images.push(path);
            }
        }
        let mut machine = Ocfs2Machine::boot(&target.join("kernel"), &images).unwrap();
        for (nth, image) in images.iter().enumerate() {
            let kind = format!("{}, image {nth}", kinds[nth / 2].name);
            let vfs = mount(&std::fs::read(image).unwrap());
            let ours = look(&vfs).unwrap();
            machine.mount(nth).unwrap();
            if nth % 2 == 1 {
                // A local mount of Linux reads the root before it replays the journal, and keeps it so.
                let options = "heartbeat=none,acl,user_xattr";
                let again = format!("cd / && umount /mnt && mount -t ocfs2 -o {options} /dev/loop{nth} /mnt");
                machine.run(&again).unwrap();
            }
            for (ours, line) in ours.iter().zip(LOOK) {
                let theirs = sorted(&machine.run(line).unwrap());
                let other = ours.lines().zip(theirs.lines()).find(|(ours, theirs)| ours != theirs);
                assert!(*ours == theirs, "{kind}: {other:#?}");
            }
            let theirs = attributes(&machine.run(LOOK[3]).unwrap());
            // Two of them are shown by two names of one file.
            assert_eq!(theirs.len(), 5, "{kind}: {:?}", theirs.keys());
            assert_eq!(theirs[&("/holes".into(), "user.color".into())], "0x626c7565");
            for line in CHANGE {
                machine.run(line).unwrap_or_else(|error| panic!("{kind}: {error:#}"));
            }
            machine.unmount().unwrap();
            let after = Arc::new(ivers_block::MemDevice::from_bytes(&machine.image(nth).unwrap()));
            assert_clean(&after, &kind);
            let vfs = mount_writable(after.clone());
            let holes = find(&vfs, "/holes").unwrap();
            vfs.write(&Cred::root(), &holes, 0, &[3; 100_000], WriteFlags::empty()).unwrap();
            drop(holes);
            vfs.unmount().unwrap();
            drop(vfs);
            assert_clean(&after, &kind);
        }
        machine.off().unwrap();
    }
}
