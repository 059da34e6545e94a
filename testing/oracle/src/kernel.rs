//! Loop mounts by the kernel's own driver.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use tempfile::TempDir;

/// Returns whether this process may make loop mounts.
pub fn may_loop_mount() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists()
}

/// Returns whether a test with loop mounts can run. Under CI it must.
pub fn can_loop_mount() -> bool {
    let can = may_loop_mount();
    if !can {
        assert!(std::env::var_os("CI").is_none(), "CI is set and there are no loop mounts: they need root");
        crate::skipped("loop mounts need root");
    }
    can
}

/// Returns whether the kernel has a driver for this type of filesystem, under its name in /proc/filesystems.
/// Says so if a test is skipped for that.
pub fn kernel_knows(fs_type: &str) -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let knows = known.lines().any(|line| line.split('\t').next_back() == Some(fs_type));
    if !knows {
        crate::skipped(&format!("the kernel has no {fs_type}"));
    }
    knows
}

/// Lets the kernel recover an image: mounts and unmounts it. `None` if it is not possible here.
pub fn recovers(image: &Path, options: &str) -> Option<Result<()>> {
    may_loop_mount().then(|| LoopMount::new(image, options)?.unmount())
}

/// Mounts an image and calls `look` with the directory. `None` if it is not possible here.
pub fn shows(image: &Path, options: &str, look: &mut dyn FnMut(&Path) -> Result<()>) -> Option<Result<()>> {
    may_loop_mount().then(|| {
        let mount = LoopMount::new(image, options)?;
        look(mount.path())?;
        mount.unmount()
    })
}

/// A loop device of an image. Detached when dropped.
pub struct LoopDevice(String);

impl LoopDevice {
    /// Attaches an image to a free loop device.
    pub fn attach(image: &Path, read_only: bool) -> Result<Self> {
        let mut args = vec![OsStr::new("--find"), "--show".as_ref()];
        args.extend(read_only.then_some(OsStr::new("--read-only")));
        args.push(image.as_ref());
        Self::attached(&args)
    }

    /// Attaches these bytes of an image to a free loop device.
    pub fn attach_part(image: &Path, part: Range<u64>) -> Result<Self> {
        let (offset, len) = (part.start.to_string(), (part.end - part.start).to_string());
        let words = ["--find", "--show", "--offset", &offset, "--sizelimit", &len].map(OsStr::new);
        Self::attached(&[&words[..], &[image.as_os_str()]].concat())
    }

    fn attached(args: &[&OsStr]) -> Result<Self> {
        let attached = crate::run("losetup", args)?;
        Ok(Self(String::from_utf8(attached.stdout)?.trim().to_owned()))
    }

    /// Returns its name, such as `/dev/loop3`.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = crate::run("losetup", ["--detach", &self.0]) {
            eprintln!("{error:#}");
        }
    }
}

/// An image mounted by the kernel; unmounted when dropped.
pub struct LoopMount {
    dir: Option<TempDir>,
    device: LoopDevice,
}

impl LoopMount {
    /// Mounts an image with these options.
    ///
    /// The loop device is always a new one. `mount -o loop` reuses an existing loop device of the image. If
    /// another program keeps one open after a read-only mount, the new mount would be read-only, too.
    pub fn new(image: &Path, options: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("ivers-kernel-").tempdir()?;
        let device = LoopDevice::attach(image, options.split(',').any(|option| option == "ro"))?;
        let options = if options.is_empty() { "rw" } else { options };
        crate::run("mount", [OsStr::new("-o"), options.as_ref(), device.0.as_ref(), dir.path().as_ref()])?;
        Ok(Self { dir: Some(dir), device })
    }

    /// Returns the name of the loop device.
    pub fn device(&self) -> &str {
        self.device.name()
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.dir.as_ref().map_or(Path::new("/nonexistent"), TempDir::path)
    }

    /// Unmounts; returns an error if that fails.
    pub fn unmount(mut self) -> Result<()> {
        self.detach()
    }

    fn detach(&mut self) -> Result<()> {
        let Some(dir) = self.dir.take() else { return Ok(()) };
        let mut result = crate::run("umount", [dir.path()]);
        // Other programs, such as indexers, open every new mount for a moment.
        for _ in 0..50 {
            if !matches!(&result, Err(error) if format!("{error:#}").contains("busy")) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
            result = crate::run("umount", [dir.path()]);
        }
        if result.is_err() {
            // Deleting the directory now would delete the files in the image.
            let _kept = dir.keep();
        }
        result.map(drop)
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            eprintln!("{error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writable_mount_follows_a_read_only_one_whose_device_is_open() {
        if !crate::have_programs(&["mke2fs", "losetup"]) || !can_loop_mount() || !kernel_knows("ext4") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        crate::run("mke2fs", ["-q".as_ref(), "-t".as_ref(), "ext4".as_ref(), image.as_os_str()]).unwrap();
        let first = LoopMount::new(&image, "ro").unwrap();
        let held = std::fs::File::open(first.device()).unwrap();
        assert!(std::fs::write(first.path().join("file"), "x").is_err());
        first.unmount().unwrap();
        let second = LoopMount::new(&image, "").unwrap();
        std::fs::write(second.path().join("file"), "x").unwrap();
        second.unmount().unwrap();
        drop(held);
    }
}
