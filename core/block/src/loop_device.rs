//! Loop devices: an image file that is also in use as a block device.
//!
//! A lock of the file does not lock the loop device, and vice versa. The checks here read sysfs and the mount
//! table, which an unprivileged process can do. They prevent accidents only: they miss a loop device that is
//! attached later or mounted in another namespace.

use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

const BLOCK_DEVICES: &str = "/sys/block";

/// How the kernel uses an image: as a loop device, or mounted itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelUse {
    /// The block device, such as `/dev/loop0`.
    pub device: PathBuf,
    /// Where it is mounted, if that is visible.
    pub dir: Option<PathBuf>,
    /// The kernel writes to it.
    pub is_writer: bool,
}

/// Whether an image that was just opened is in use otherwise: a file through a loop device, or a loop device
/// through its file.
pub(crate) fn in_use(opened: &Metadata) -> bool {
    if opened.file_type().is_block_device() {
        is_backing_locked(opened.rdev())
    } else {
        kernel_use(opened).is_some()
    }
}

/// Returns how the kernel uses an image: a file through a loop device that is mounted or claimed, or a block
/// device that is mounted.
pub fn kernel_use(image: &Metadata) -> Option<KernelUse> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    if image.file_type().is_block_device() {
        let number = format!("{}:{}", rustix::fs::major(image.rdev()), rustix::fs::minor(image.rdev()));
        let (dir, source, is_writer) = mounted(&table, &number)?;
        return Some(KernelUse { device: source.into(), dir: Some(dir), is_writer });
    }
    let same = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (image.dev(), image.ino()))
    };
    attached().filter(|(_, backing)| same(backing)).find_map(|(device, _)| {
        let node = Path::new("/dev").join(device.file_name()?);
        let partitions = std::fs::read_dir(&device).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut numbers = partitions.chain([device.clone()]).filter_map(|path| device_number(&path));
        if let Some((dir, _, is_writer)) = numbers.find_map(|number| mounted(&table, &number)) {
            return Some(KernelUse { device: node, dir: Some(dir), is_writer });
        }
        let is_writer = std::fs::read_to_string(device.join("ro")).is_ok_and(|text| text.trim() == "0");
        is_claimed(&node).then_some(KernelUse { device: node, dir: None, is_writer })
    })
}

/// Returns where a block device is mounted, by the name that the table has for it, and whether the
/// filesystem is writable.
fn mounted(table: &str, number: &str) -> Option<(PathBuf, String, bool)> {
    let line = table.lines().find(|line| line.split(' ').nth(2) == Some(number))?;
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut filesystem = filesystem.split(' ').skip(1);
    let source = filesystem.next()?.to_owned();
    let is_writer = !filesystem.next()?.split(',').any(|option| option == "ro");
    Some((mount.split(' ').nth(4)?.into(), source, is_writer))
}

/// The sysfs directories of attached loop devices, with the paths of their backing files.
fn attached() -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let names = std::fs::read_dir(BLOCK_DEVICES).into_iter().flatten().flatten();
    names.filter_map(|name| {
        let backing = std::fs::read_to_string(name.path().join("loop/backing_file")).ok()?;
        Some((name.path(), PathBuf::from(backing.trim_end_matches('\n'))))
    })
}

/// The device number in a sysfs directory, as `major:minor`.
fn device_number(device: &Path) -> Option<String> {
    Some(std::fs::read_to_string(device.join("dev")).ok()?.trim().to_owned())
}

/// Whether a block device is claimed exclusively. False if this process may not open the device.
fn is_claimed(device: &Path) -> bool {
    let exclusive = OFlags::EXCL.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(exclusive).open(device);
    opened.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::BUSY))
}

fn is_backing_locked(device: u64) -> bool {
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    attached().filter(|(path, _)| device_number(path).as_ref() == Some(&device)).any(|(_, backing)| {
        File::open(backing).is_ok_and(|file| {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_device_is_found_in_the_table() {
        let table = "36 35 7:1 / /mnt rw,relatime shared:1 - ext4 /dev/loop1 ro\n\
                     37 35 7:2 / /data ro - ext4 /dev/loop2 rw,errors=continue\n";
        let found = |number| mounted(table, number);
        assert_eq!(found("7:1"), Some(("/mnt".into(), "/dev/loop1".into(), false)));
        assert_eq!(
            found("7:2"),
            Some(("/data".into(), "/dev/loop2".into(), true)),
            "another mount may write"
        );
        assert_eq!(found("7:3"), None);
    }
}
