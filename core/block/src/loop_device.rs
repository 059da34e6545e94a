//! Loop devices: one image under two names, which no lock of either name tells.
//!
//! What sysfs and the table of mounts tell is enough against accidents, and all that an ordinary user gets to know: a loop device attached
//! in between, or mounted in another namespace, goes unnoticed.

use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

const LOOPS: &str = "/sys/block";

/// Whether an image that was just opened is in use under another name: a file through a loop device, a loop device through its file.
pub(crate) fn in_use(opened: &Metadata) -> bool {
    if opened.file_type().is_block_device() { is_backing_locked(opened.rdev()) } else { is_mounted(opened) }
}

/// Loop devices that have a backing file, with its path.
fn attached() -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let names = std::fs::read_dir(LOOPS).into_iter().flatten().flatten();
    names.filter_map(|name| {
        let backing = std::fs::read_to_string(name.path().join("loop/backing_file")).ok()?;
        Some((name.path(), PathBuf::from(backing.trim_end_matches('\n'))))
    })
}

fn number(device: &Path) -> Option<String> {
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
        let mut numbers = partitions.chain([device.clone()]).filter_map(|place| number(&place));
        numbers.any(|number| table.lines().any(|line| line.split(' ').nth(2) == Some(&number)))
            || device.file_name().is_some_and(|name| is_claimed(&Path::new("/dev").join(name)))
    })
}

/// Whether somebody has a block device for himself; only who may open it gets to know.
fn is_claimed(device: &Path) -> bool {
    let exclusive = OFlags::EXCL.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(exclusive).open(device);
    opened.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::BUSY))
}

fn is_backing_locked(device: u64) -> bool {
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    attached().filter(|(place, _)| number(place).as_ref() == Some(&device)).any(|(_, backing)| {
        File::open(backing).is_ok_and(|file| {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
        })
    })
}
