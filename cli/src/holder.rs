//! Who has an image open, and whether that ends by itself.
//!
//! umount(8) and fusermount3 return when the kernel has let go of a mount, and the process behind it writes back and closes the
//! image after that. Who mounts it again at once, as scripts do, would find it in use: so we wait for such a process, and only for
//! such a one.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use ivers_block::{BlockError, FileDevice, OpenMode};

use crate::outcome;
use crate::progress::Waiting;

/// How long a process may take to notice that its mount is gone. Who asks for an image that stays mounted waits as long for the
/// answer.
const NOTICED: Duration = Duration::from_secs(1);
/// Closing writes back what the caches hold: on a slow disk some minutes.
const CLOSED: Duration = Duration::from_secs(300);

/// Opens and locks an image as [`FileDevice::open`] does, once a mount of it that is gone has closed it.
pub fn open_when_closed(image: &Path, mode: OpenMode) -> Result<FileDevice, BlockError> {
    let busy = match FileDevice::open(image, mode) {
        Err(busy @ BlockError::Busy { .. }) => busy,
        opened => return opened,
    };
    let Ok(found) = std::fs::metadata(image) else { return Err(busy) };
    for pid in holders(&found) {
        let ending = outcome::ask(pid).filter(|ending| ending.is_near(NOTICED)).ok_or(busy.clone())?;
        let waiting = Waiting::to("until the mount before this one has closed the image");
        let complaint = ending.patient_for(CLOSED).complaint();
        drop(waiting);
        if let Some((_, complaint)) = complaint {
            log::warn!(
                "{}: the mount before this one did not end in good order: {complaint}",
                image.display()
            );
        }
    }
    FileDevice::open(image, mode)
}

/// The processes that took a `flock(2)` on a file, of those that this one may know of.
fn holders(file: &Metadata) -> Vec<i32> {
    // A file of which a line is "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1022 0 EOF", its device in hexadecimal digits (proc_locks(5)).
    let table = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let holder = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, on, ..] if on == place => pid.parse().ok(),
            _ => None,
        }
    };
    table.lines().filter_map(holder).collect()
}
