//! Locks on image files.
//!
//! Several processes may use disjoint partitions of one image at the same time. So there are two locks, which
//! belong to the open file and end when the last process closes it:
//!
//! | user | `flock(2)` on the file | lock of a byte range (`F_OFD_SETLK`) |
//! |---|---|---|
//! | writes the whole image | exclusive | - |
//! | reads the whole image | shared | shared, on all bytes from [`RANGES_START`] on |
//! | writes a partition | shared | exclusive, on the partition |
//! | reads a partition | shared | shared, on the partition |
//!
//! - Every user holds at least the shared `flock`, so a writer of the whole image excludes all others. It
//!   needs no range.
//! - All others hold a range. Two of them exclude each other if the ranges overlap and one of them writes.
//! - A partition table that lies cannot break this: the ranges are those of the accesses, since a device is
//!   limited to the range that it locked.
//! - Other programs, such as `sfdisk --lock`, take an exclusive `flock` before they write. They exclude all
//!   users, and each user excludes them.
//! - Ranges start at byte 512, so that QEMU, which locks single bytes between 100 and 300 of an image that it
//!   has open, can read an image that is also read here.
//!
//! Where a filesystem implements `flock` as a range lock of the whole file (NFS), a second writer of a
//! partition is refused. That is safe.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::file::{FileRange, open_file};
use crate::{BlockError, FileDevice, OpenMode, Result, loop_device, printable};

/// The first byte that range locks cover.
const RANGES_START: u64 = 512;

/// Formats a path for errors.
pub(crate) fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

pub(crate) fn busy(path: &Path) -> BlockError {
    BlockError::Busy { device: shown(path) }
}

pub(crate) fn open_error(path: &Path, error: io::Error) -> BlockError {
    BlockError::Open { device: shown(path), source: Arc::new(error) }
}

/// Locks a file as a user of the whole image.
pub(crate) fn lock_whole(file: &File, path: &Path, mode: OpenMode) -> Result<()> {
    let operation = match mode {
        OpenMode::ReadOnly => FlockOperation::NonBlockingLockShared,
        OpenMode::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    lock_file(file, path, mode, operation)?;
    match mode {
        OpenMode::ReadOnly => lock_range(file, path, mode, RANGES_START, None),
        OpenMode::ReadWrite => Ok(()),
    }
}

fn lock_file(file: &File, path: &Path, mode: OpenMode, operation: FlockOperation) -> Result<()> {
    match rustix::fs::flock(file, operation) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(busy(path)),
        // Some network filesystems have no locks; reading is still safe.
        Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK) if mode == OpenMode::ReadOnly => {}
        Err(e) => return Err(open_error(path, e.into())),
    }
    let is_writer = mode == OpenMode::ReadWrite;
    if is_writer && loop_device::in_use(&file.metadata().map_err(|e| open_error(path, e))?) {
        return Err(busy(path));
    }
    Ok(())
}

/// Locks bytes of a file. `len`: `None` for all that follow.
fn lock_range(file: &File, path: &Path, mode: OpenMode, start: u64, len: Option<u64>) -> Result<()> {
    let kind = match mode {
        OpenMode::ReadOnly => libc::F_RDLCK,
        OpenMode::ReadWrite => libc::F_WRLCK,
    };
    use nix::errno::Errno;
    match set_range(file, kind, start, len) {
        Ok(()) => Ok(()),
        Err(Errno::EAGAIN | Errno::EACCES) => Err(busy(path)),
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENOLCK | Errno::EINVAL)
            if mode == OpenMode::ReadOnly =>
        {
            Ok(())
        }
        Err(error) => Err(open_error(path, error.into())),
    }
}

fn set_range(file: &File, kind: libc::c_int, start: u64, len: Option<u64>) -> nix::Result<()> {
    let out_of_range = nix::errno::Errno::EOVERFLOW;
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start.try_into().map_err(|_| out_of_range)?,
        // Zero means all bytes that follow.
        l_len: len.unwrap_or(0).try_into().map_err(|_| out_of_range)?,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).map(drop)
}

/// Unlocks a file. If this fails, the file was never locked, or closing it unlocks it.
pub(crate) fn unlock(file: &File) {
    let _ = set_range(file, libc::F_UNLCK, 0, None);
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// An image file of which a partition is about to be used. It can be lent to a process that reads the
/// partition table, and not be written before the partition is locked.
#[derive(Debug)]
pub struct DiskFile {
    file: FileDevice,
    mode: OpenMode,
}

impl DiskFile {
    /// Opens `path` as [`FileDevice::open`] does. Other processes may use other partitions.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self> {
        let path = path.as_ref();
        let file = open_file(path, mode)?;
        lock_file(&file, path, mode, FlockOperation::NonBlockingLockShared)?;
        Ok(Self { file: FileDevice::first(file, path, mode)?, mode })
    }

    /// Returns the whole file, to lend it.
    pub fn whole(&self) -> &FileDevice {
        &self.file
    }

    /// Locks a range. Fails with [`BlockError::Busy`] if another process uses a part of it.
    pub fn lock(&self, range: FileRange) -> Result<()> {
        lock_range(self.file.as_file(), self.file.path(), self.mode, range.start, Some(range.len))
    }

    /// Returns the device. Call it after [`DiskFile::lock`], limit it to that range, and call it only when
    /// the processes that the file was lent to have ended.
    pub fn into_device(self) -> FileDevice {
        self.file.end_lending();
        self.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path, mode: OpenMode, start: u64) -> Result<FileDevice> {
        let range = FileRange { start, len: 4096 };
        let disk = DiskFile::open(path, mode)?;
        disk.lock(range)?;
        disk.into_device().limit(range)
    }

    #[test]
    fn disjoint_ranges_are_used_at_the_same_time_and_overlapping_ones_are_not() {
        use OpenMode::{ReadOnly, ReadWrite};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, vec![0u8; 65536]).unwrap();
        let is_busy = |opened: Result<FileDevice>| matches!(opened, Err(BlockError::Busy { .. }));

        let first = open(&path, ReadWrite, 4096).unwrap();
        let second = open(&path, ReadWrite, 8192).unwrap();
        for mode in [ReadOnly, ReadWrite] {
            assert!(is_busy(open(&path, mode, 4096)) && is_busy(open(&path, mode, 12287)), "{mode:?}");
            assert!(is_busy(FileDevice::open(&path, mode)), "{mode:?}: the whole image");
        }
        drop(first);
        let reader = open(&path, ReadOnly, 4096).unwrap();
        assert!(open(&path, ReadOnly, 4096).is_ok() && is_busy(open(&path, ReadWrite, 4096)));
        assert!(is_busy(FileDevice::open(&path, ReadOnly)), "the second range is being written");
        drop(second);
        let whole = FileDevice::open(&path, ReadOnly).unwrap();
        assert!(is_busy(open(&path, ReadWrite, 8192)) && open(&path, ReadOnly, 8192).is_ok());
        drop((whole, reader));
        let whole = FileDevice::open(&path, ReadWrite).unwrap();
        assert!(is_busy(open(&path, ReadOnly, 4096)));
        drop(whole);
        assert!(open(&path, ReadWrite, 4096).is_ok());
    }

    #[test]
    fn a_limited_device_stays_in_its_range() {
        use crate::{ByteOffset, Device};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, vec![1u8; 16384]).unwrap();
        let device = open(&path, OpenMode::ReadWrite, 4096).unwrap();
        assert_eq!((device.size_bytes(), device.range()), (4096, Some(FileRange { start: 4096, len: 4096 })));
        device.write_at(ByteOffset(0), &[2; 2048]).unwrap();
        device.write_fua(ByteOffset(2048), &[3; 2048]).unwrap();
        device.flush().unwrap();
        device.discard(ByteOffset(1024), 512).unwrap();
        let mut bytes = [0; 2];
        device.read_at(ByteOffset(2047), &mut bytes).unwrap();
        assert_eq!(bytes, [2, 3]);
        for at in [2049, 4096, u64::MAX, u64::MAX - 4095] {
            assert!(device.write_at(ByteOffset(at), &[9; 2048]).is_err(), "{at}");
            assert!(device.read_at(ByteOffset(at), &mut [0; 2048]).is_err(), "{at}");
            assert!(device.discard(ByteOffset(at), 2048).is_err(), "{at}");
        }
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes[..4096].iter().chain(&bytes[8192..]).all(|&byte| byte == 1));
        drop(device);
        for (start, len) in [(0, 0), (16384, 1), (1, 16384), (u64::MAX, 1), (1, u64::MAX)] {
            let whole = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
            assert!(whole.limit(FileRange { start, len }).is_err(), "{start}, {len}");
        }
    }
}
