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

/// Whether an image that was just opened is in use otherwise: a file through a loop device, or a loop device
/// through its file.
pub(crate) fn in_use(opened: &Metadata) -> bool {
    if opened.file_type().is_block_device() { is_backing_locked(opened.rdev()) } else { is_mounted(opened) }
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

fn is_mounted(image: &Metadata) -> bool {
    let same = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (image.dev(), image.ino()))
    };
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    attached().filter(|(_, backing)| same(backing)).any(|(device, _)| {
        let partitions = std::fs::read_dir(&device).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut numbers = partitions.chain([device.clone()]).filter_map(|path| device_number(&path));
        numbers.any(|number| table.lines().any(|line| line.split(' ').nth(2) == Some(&number)))
            || device.file_name().is_some_and(|name| is_claimed(&Path::new("/dev").join(name)))
    })
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
