//! Oracles of btrfs: `btrfs check`, and Linux.

use crate::LoopMount;
use crate::kernel::LoopDevice;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

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

/// Loop devices of the images of a filesystem with several devices.
pub struct Loops(Vec<LoopDevice>);

impl Loops {
    /// Attaches loop devices to images.
    pub fn attach(images: &[PathBuf]) -> Result<Self> {
        let attach = |image: &PathBuf| LoopDevice::attach(image, false);
        Ok(Self(images.iter().map(attach).collect::<Result<_>>()?))
    }

    /// Attaches loop devices to the parts of an image that has so many devices of equal size, one after the
    /// other.
    pub fn attach_parts(image: &Path, devices: u64) -> Result<Self> {
        let bytes = std::fs::metadata(image)?.len() / devices;
        let attach = |number| LoopDevice::attach_part(image, number * bytes..(number + 1) * bytes);
        Ok(Self((0..devices).map(attach).collect::<Result<_>>()?))
    }

    /// Their names.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|device| device.name().to_owned()).collect()
    }

    /// Makes the kernel and btrfs-progs know them as one array.
    pub fn scan(&self) -> Result<()> {
        self.0.iter().try_for_each(|device| crate::run("btrfs", ["device", "scan", device.name()]).map(drop))
    }

    /// As [`judge`], for the filesystem on them.
    pub fn judge(&self) -> Result<()> {
        // It looks at all devices, and misses some if loop devices of other tests come and go.
        const TRIES: usize = 50;
        self.scan()?;
        let first = self.0[0].name();
        let mut judged = judge(Path::new(first));
        for _ in 1..TRIES {
            match &judged {
                Err(error) if format!("{error:#}").contains("is missing") => {}
                _ => break,
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
            judged = judge(Path::new(first));
        }
        judged
    }

    /// Runs something with the filesystem on them mounted by Linux.
    pub fn mounted<T>(&self, options: &str, run: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        self.scan()?;
        let dir = tempfile::tempdir()?;
        let first = self.0[0].name();
        crate::run("mount", [OsStr::new("-o"), options.as_ref(), first.as_ref(), dir.path().as_ref()])?;
        let result = run(dir.path());
        crate::run("umount", [dir.path()])?;
        result
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for device in &self.0 {
            // The kernel remembers devices of arrays by their names, which other tests use again.
            let _ = crate::output("btrfs", ["device", "scan", "--forget", device.name()]);
        }
    }
}

/// As [`judge`], for the images of a filesystem with several devices.
pub fn judge_array(images: &[PathBuf]) -> Result<()> {
    Loops::attach(images)?.judge()
}

/// Runs something with a filesystem of several devices mounted by Linux.
pub fn with_array<T>(images: &[PathBuf], options: &str, run: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    Loops::attach(images)?.mounted(options, run)
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
