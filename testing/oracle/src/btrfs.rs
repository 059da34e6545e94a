//! Oracles of btrfs: `btrfs check`, and Linux.

use crate::LoopMount;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::Path;

/// How the lines begin that `btrfs check` prints for a clean image.
const USUAL: [&str; 9] = [
    "Opening filesystem",
    "Checking filesystem on ",
    "UUID: ",
    "[",
    "found ",
    "total ",
    "btree space waste bytes: ",
    "file data blocks allocated: ",
    " referenced ",
];
/// Other lines that are no findings: about the old cache of free space, which only Linux updates; about what
/// `--force` skips; about loop devices of other tests, which disappear while it looks at all devices.
const HARMLESS: [&str; 3] = ["space cache will be invalidated", "--force", "cannot scan"];

/// Returns the lines of the output of `btrfs check` that a clean image does not have.
pub fn findings(said: &str) -> impl Iterator<Item = &str> {
    said.lines().filter(|line| {
        !line.is_empty()
            && !USUAL.iter().any(|usual| line.starts_with(usual))
            && !HARMLESS.iter().any(|harmless| line.contains(harmless))
    })
}

/// Lets `btrfs check` judge an image, with the checksums of all data. The error has all of its output. Any
/// line that is not one of a clean image counts as a finding, whatever the exit code is.
pub fn judge(image: &Path) -> Result<()> {
    // Without `--force` it also checks what other loop devices mount.
    let words = ["check", "--force", "--check-data-csum"].map(OsStr::new);
    let output = crate::run("btrfs", words.into_iter().chain([image.as_os_str()]))?;
    let said = crate::said(&output);
    if !said.contains("no error found") || findings(&said).next().is_some() {
        bail!("btrfs check {}: {said}", image.display());
    }
    Ok(())
}

/// What Linux does to a filesystem: new files of several sizes, names, attributes, a snapshot, removals.
const WRITES: &str = r#"
set -e
mkdir linux-writes; cd linux-writes
seq 1 200000 > large; for i in $(seq 1 300); do echo $i > file-$i; done
mv file-1 renamed; ln renamed link; rm file-2; truncate -s 100 file-3
dd if=/dev/zero of=large bs=4096 seek=3 count=9 conv=notrunc status=none
mkdir dir; mv file-4 dir; setfattr -n user.of-linux -v value file-5; sync
cd ..; btrfs -q subvolume snapshot . linux-writes/snapshot; echo more >> linux-writes/file-6; sync -f .
btrfs -q subvolume delete linux-writes/snapshot; rm -r linux-writes
"#;

/// Lets Linux write to a copy of an image, and judges the copy again. The image stays as it is.
pub fn linux_writes(image: &Path) -> Result<()> {
    let copy = image.with_extension("linux");
    crate::run("cp", ["--sparse=always".as_ref(), image.as_os_str(), copy.as_os_str()])?;
    let mounted = LoopMount::new(&copy, "")?;
    let root = mounted.path().as_os_str();
    crate::run("sh", ["-c".as_ref(), "cd \"$0\"; eval \"$1\"".as_ref(), root, WRITES.as_ref()])
        .context("Linux writes to an image that ivers wrote")?;
    mounted.unmount()?;
    judge(&copy)?;
    Ok(std::fs::remove_file(copy)?)
}
