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
const KINDS: &[(u64, &[&str])] = &[
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
    let images: Vec<_> = (0..KINDS.len()).map(|nth| dir.path().join(nth.to_string())).collect();
    for ((bytes, options), image) in KINDS.iter().zip(&images) {
        mkfs_ocfs2(image, *bytes, options)?;
    }
    let mut machine = Ocfs2Machine::boot(&target.join("kernel"), &images)?;
    for (nth, (_, options)) in KINDS.iter().enumerate() {
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
