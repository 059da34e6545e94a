//! The kernel's driver in an emulated machine, which only reads, sees what ivers wrote. In images of older
//! systems it sees what ivers sees.
//!
//! It looks for the superblock of UFS2 at byte 65536, where makefs does not put it: so its images are UFS1.

use crate::common::*;
use crate::old::{OLD, old_and_new};
use crate::sleuthkit::{changed, made};
use anyhow::{Context, Result, ensure};
use ivers_oracle::have_programs;
use ivers_oracle::machine::{self, Boot, Initramfs, Kernel};
use ivers_ufs::layout::superblock::Version;
use ivers_vfs::*;
use std::fmt::Write;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Kernel modules, in the order of loading.
const MODULES: &[&str] = &["loop", "ufs"];
/// Prints a digest of all files and all targets of symbolic links in the working directory.
const DIGESTS: &str = "export LC_ALL=C; { find . -type f | sort | tr '\\n' '\\0' | xargs -0 md5sum; \
                       find . -type l | sort | while read -r name; do \
                       echo \"$name $(readlink -n \"$name\" | md5sum)\"; done; } | md5sum";
/// Prints type, permissions, links, size and owner of each file.
const ATTRIBUTES: &str = "find . | sort | tr '\\n' '\\0' | xargs -0 stat -c '%n %f %h %s %u %g'";

/// Copies names and contents to a directory of the host, and returns what [`ATTRIBUTES`] must print.
fn copy(vfs: &Arc<Vfs>, to: &Path) -> Result<String> {
    let cred = Cred::root();
    let (mut lines, mut dirs) = (Vec::new(), vec![(vfs.root()?, ".".to_owned())]);
    while let Some((dir, path)) = dirs.pop() {
        let attr = vfs.stat(&dir);
        lines.push((path.clone(), attr));
        let mut names = Vec::new();
        vfs.readdir(&cred, &dir, 0, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            ControlFlow::Continue(())
        })?;
        for name in names.into_iter().filter(|name| name != "." && name != "..") {
            let inode = vfs.lookup(&cred, &dir, name.as_bytes())?;
            let (path, attr) = (format!("{path}/{name}"), vfs.stat(&inode));
            let target = to.join(&path);
            match inode.kind {
                FileType::Directory => {
                    fs::create_dir(target)?;
                    dirs.push((inode, path));
                    continue;
                }
                FileType::Regular => fs::write(target, read_all(vfs, &inode)?)?,
                FileType::Symlink => {
                    let link = vfs.read_link(&cred, &inode)?;
                    std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(&link), target)?;
                }
                _ => {}
            }
            lines.push((path, attr));
        }
    }
    lines.sort_by(|one, other| one.0.cmp(&other.0));
    let mut text = String::new();
    for (path, attr) in lines {
        writeln!(text, "{path} {:x} {} {} {} {}", attr.mode(), attr.nlink, attr.size, attr.uid, attr.gid)?;
    }
    Ok(text)
}

fn can_compare() -> bool {
    let programs: Vec<&str> = machine::PROGRAMS.iter().map(|(program, _)| *program).collect();
    let others = ["makefs", "apt-get", "apt-cache", "dpkg", "md5sum", "sort"];
    have_programs(&[&programs[..], &others].concat())
}

#[test]
fn the_kernel_reads_what_ivers_wrote() {
    if !can_compare() {
        return;
    }
    let of_makefs = KINDS.iter().filter(|kind| kind.0.starts_with("ufs1"));
    let of_makefs = of_makefs.map(|kind| (kind.0, "44bsd", changed(kind)));
    let ours =
        [("UFS1 of ivers", "44bsd", made(Version::Ufs1)), ("UFS2 of ivers", "ufs2", made(Version::Ufs2))];
    compare_with_kernel(of_makefs.chain(ours)).unwrap();
}

#[test]
fn the_kernel_sees_the_same_in_images_of_older_systems() {
    if can_compare() {
        let images = OLD.map(|format| (format.0, format.0, old_and_new(format).0));
        compare_with_kernel(images.into_iter()).unwrap();
    }
}

/// Compares what ivers and the kernel see in some images: their names, their `ufstype=`, and their bytes.
fn compare_with_kernel(images: impl Iterator<Item = (&'static str, &'static str, Vec<u8>)>) -> Result<()> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("a target directory")?;
    let kernel = Kernel::newest(&target.join("kernel"))?;
    let root = Initramfs::new()?;
    let mut expected = Vec::new();
    for (nth, (name, kind, image)) in images.enumerate() {
        let host = tempfile::tempdir()?;
        let (tree, file) = (host.path().join("tree"), host.path().join("image"));
        fs::create_dir(&tree)?;
        let attributes = copy(&mount_device(memory(&image))?, &tree)?;
        let digests = ivers_oracle::run("sh", ["-c", &format!("cd {} && {DIGESTS}", tree.display())])?;
        fs::write(&file, &image)?;
        root.file(&format!("image{nth}"), &file)?;
        expected.push((name, kind, attributes, String::from_utf8(digests.stdout)?));
    }
    let mut guest = Boot::new(kernel, root, MODULES)?.boot("ufs")?;
    for (nth, (name, kind, attributes, digests)) in expected.into_iter().enumerate() {
        guest.run(&format!("mount -t ufs -o loop,ro,ufstype={kind} /image{nth} /mnt"))?;
        let seen = guest.run(&format!("cd /mnt && {ATTRIBUTES}"))?;
        let differs = seen.lines().zip(attributes.lines()).find(|(theirs, ours)| theirs != ours);
        ensure!(seen.trim() == attributes.trim(), "{name}: the kernel and ivers see {differs:?}");
        ensure!(guest.run(&format!("cd /mnt && {DIGESTS}"))?.trim() == digests.trim(), "{name}: contents");
        guest.run("cd / && umount /mnt")?;
    }
    let complaints = guest.complaints();
    let complaints: Vec<_> = complaints.iter().filter(|line| line.to_lowercase().contains("ufs")).collect();
    ensure!(complaints.is_empty(), "{complaints:#?}");
    guest.off()
}
