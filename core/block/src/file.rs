//! Image files and block devices.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::device::check_range;
use crate::{BlockError, ByteOffset, Device, Result, lock};

/// The access that a [`FileDevice`] is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Reading. Any number of processes may read an image at the same time.
    ReadOnly,
    /// Reading and writing. No other process may have the image open through this crate.
    ReadWrite,
}

/// A range of bytes of an image, such as a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileRange {
    /// The first byte.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
}

/// An image file or a block device, or a range of its bytes, accessed with positional I/O and locked while it
/// is open (`lock.rs` has the protocol).
///
/// The lock prevents two mounts of one image; `udev` and `mkfs` honour it on block devices. A block device
/// that is open for writing is also claimed (`O_EXCL`): the kernel does not mount it meanwhile, and a device
/// that the kernel has mounted cannot be opened.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    /// The first byte of the device in the file.
    start: u64,
    size_bytes: AtomicU64,
    /// The device is a range of the file.
    is_range: bool,
    mode: OpenMode,
    /// Writes that returned since the open.
    written: AtomicU64,
    /// How many of them a flush made durable. Locked during a flush: a thread that waits for it may find
    /// its own writes among them.
    flushed: Mutex<u64>,
    /// No other process has the open file, so none depends on its lock.
    unshared: AtomicBool,
}

impl FileDevice {
    /// Opens and locks `path`, which must be a regular file or a block device.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self> {
        let file = open_file(path.as_ref(), mode)?;
        lock::lock_whole(&file, path.as_ref(), mode)?;
        Self::first(file, path.as_ref(), mode)
    }

    /// Creates the device of a file that this process alone has open.
    pub(crate) fn first(file: File, path: &Path, mode: OpenMode) -> Result<Self> {
        let device = Self::adopt(file, path.to_path_buf(), mode)?;
        device.unshared.store(true, Ordering::Relaxed);
        Ok(device)
    }

    /// Takes over a file that [`FileDevice::open`] opened with `mode` in another process, with its lock.
    /// The lock belongs to the open file and ends when the last process closes it.
    pub fn adopt(mut file: File, path: PathBuf, mode: OpenMode) -> Result<Self> {
        // The position of the end is the size of block devices too.
        let size_bytes = file.seek(SeekFrom::End(0)).map_err(|error| lock::open_error(&path, error))?;
        // The other process may have unflushed writes: count one, so that the first flush is not skipped.
        Ok(Self {
            file,
            path,
            start: 0,
            size_bytes: AtomicU64::new(size_bytes),
            is_range: false,
            mode,
            written: AtomicU64::new(1),
            flushed: Mutex::new(0),
            unshared: AtomicBool::new(false),
        })
    }

    /// Limits the device to a range of its bytes. Fails if the range is empty or not inside the device.
    pub fn limit(mut self, range: FileRange) -> Result<Self> {
        let FileRange { start, len } = range;
        if len == 0 {
            let (device, size_bytes) = (self.describe(), self.size_bytes());
            return Err(BlockError::OutOfRange {
                what: "begin",
                device,
                offset: ByteOffset(start),
                len,
                size_bytes,
            });
        }
        check_range(&self, "begin", ByteOffset(start), len)?;
        // Inside the device, so the sum is at most its end.
        self.start += start;
        self.size_bytes = AtomicU64::new(len);
        self.is_range = true;
        Ok(self)
    }

    /// Returns the range of the file that the device is limited to. Another process that takes over the file
    /// must limit its device too.
    pub fn range(&self) -> Option<FileRange> {
        self.is_range.then_some(FileRange { start: self.start, len: self.size_bytes() })
    }

    /// Returns the descriptor to send to another process, for [`FileDevice::adopt`]. From then on the lock
    /// may outlive this device.
    pub fn lend(&self) -> BorrowedFd<'_> {
        self.unshared.store(false, Ordering::Relaxed);
        self.file.as_fd()
    }

    /// Changes the length of an image file. An error on a block device, whose size is fixed.
    pub fn set_len(&self, size_bytes: u64) -> Result<()> {
        if self.mode == OpenMode::ReadOnly {
            let (device, offset) = (self.describe(), ByteOffset(size_bytes));
            return Err(BlockError::ReadOnly { what: "set the length", device, offset });
        }
        if self.is_range {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, "a partition has a fixed size");
            return Err(self.error("set the length to", ByteOffset(0), size_bytes, cause));
        }
        let set = self.file.set_len(size_bytes);
        set.map_err(|error| self.error("set the length to", ByteOffset(0), size_bytes, error))?;
        self.written.fetch_add(1, Ordering::Release);
        self.size_bytes.store(size_bytes, Ordering::Release);
        Ok(())
    }

    /// Records that no other process has the file any longer.
    pub(crate) fn end_lending(&self) {
        self.unshared.store(true, Ordering::Relaxed);
    }

    pub(crate) fn as_file(&self) -> &File {
        &self.file
    }

    /// The path of the image.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn check_write(&self, what: &'static str, offset: ByteOffset, len: u64) -> Result<()> {
        if self.mode == OpenMode::ReadOnly {
            return Err(BlockError::ReadOnly { what, device: self.describe(), offset });
        }
        check_range(self, what, offset, len)
    }

    fn error(
        &self,
        what: &'static str,
        offset: ByteOffset,
        len: u64,
        source: impl Into<io::Error>,
    ) -> BlockError {
        BlockError::io(what, self.describe(), offset, len, source.into())
    }
}

/// Unlocks explicitly: a child process that another thread is starting has a copy of every descriptor until
/// it runs its program, and would keep the image locked until then.
impl Drop for FileDevice {
    fn drop(&mut self) {
        if *self.unshared.get_mut() {
            lock::unlock(&self.file);
        }
    }
}

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> Result<()> {
        check_range(self, "read", offset, buf.len() as u64)?;
        self.file
            .read_exact_at(buf, self.start + offset.0)
            .map_err(|e| self.error("read", offset, buf.len() as u64, e))
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.check_write("write", offset, buf.len() as u64)?;
        let done = self.file.write_all_at(buf, self.start + offset.0);
        self.written.fetch_add(1, Ordering::Release);
        done.map_err(|e| self.error("write", offset, buf.len() as u64, e))
    }

    fn write_fua(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.check_write("write", offset, buf.len() as u64)?;
        let mut done = 0;
        while done < buf.len() {
            let part = [io::IoSlice::new(&buf[done..])];
            let at = self.start + offset.0 + done as u64;
            match rustix::io::pwritev2(&self.file, &part, at, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(self.error("write", offset, buf.len() as u64, io::ErrorKind::WriteZero)),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => {
                    self.write_at(offset, buf)?;
                    return self.flush();
                }
                Err(e) => return Err(self.error("write", offset, buf.len() as u64, e)),
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if self.mode == OpenMode::ReadOnly {
            return Ok(());
        }
        // Read before the lock: if a flush that this thread waited for covers its writes, it needs no other.
        let own_writes = self.written.load(Ordering::Acquire);
        let mut flushed = self.flushed.lock();
        if *flushed < own_writes {
            let written = self.written.load(Ordering::Acquire);
            // Before the length of the file: it may be growing, and `set_len` sets the length first.
            let end = self.start + self.size_bytes.load(Ordering::Acquire);
            // Another process truncated the image: blocks beyond its end are lost.
            let size = rustix::fs::fstat(&self.file).map_err(|e| self.error("flush", ByteOffset(0), 0, e))?;
            let is_file = rustix::fs::FileType::from_raw_mode(size.st_mode).is_file();
            if is_file && u64::try_from(size.st_size).is_ok_and(|size| size < end) {
                let cut = io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("the image shrank from {end} to {} bytes", size.st_size),
                );
                return Err(self.error("flush", ByteOffset(0), 0, cut));
            }
            self.file.sync_data().map_err(|e| self.error("flush", ByteOffset(0), 0, e))?;
            *flushed = written;
        }
        Ok(())
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> Result<()> {
        self.check_write("discard", offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let done = rustix::fs::fallocate(&self.file, punch, self.start + offset.0, len);
        self.written.fetch_add(1, Ordering::Release);
        match done {
            Ok(()) | Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => Ok(()),
            Err(e) => Err(self.error("discard", offset, len, e)),
        }
    }

    fn make_room(&self, size_bytes: u64) -> Result<()> {
        if self.is_range {
            // What follows belongs to others.
            return check_range(self, "extend", ByteOffset(0), size_bytes);
        }
        let error = |errno: Errno| self.error("extend", ByteOffset(0), size_bytes, errno);
        // Not `File::metadata`: its system call is not allowed in a sandbox.
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&self.file).map_err(error)?.st_mode);
        if !kind.is_file() {
            // A block device may have grown since it was opened.
            let now = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0)).map_err(error)?;
            self.size_bytes.fetch_max(now, Ordering::Relaxed);
        } else if size_bytes > self.size_bytes() {
            return self.set_len(size_bytes);
        }
        check_range(self, "extend", ByteOffset(0), size_bytes)
    }

    fn is_read_only(&self) -> bool {
        self.mode == OpenMode::ReadOnly
    }

    fn describe(&self) -> String {
        lock::shown(&self.path)
    }
}

/// Opens `path` without a lock. It must be a regular file or a block device.
pub(crate) fn open_file(path: &Path, mode: OpenMode) -> Result<File> {
    let open_error = |e: io::Error| lock::open_error(path, e);
    // Opening a FIFO or a tty can block or have effects.
    let kind = std::fs::metadata(path).map_err(open_error)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(open_error(io::Error::other("neither a regular file nor a block device")));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(mode == OpenMode::ReadWrite);
    if kind.is_block_device() && mode == OpenMode::ReadWrite {
        // The kernel's mounts, swap and RAIDs claim a device this way and honour no other lock.
        options.custom_flags(OFlags::EXCL.bits().cast_signed());
    }
    let file = options.open(path).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => lock::busy(path),
        _ => open_error(error),
    })?;
    if kind.is_block_device() && mode == OpenMode::ReadWrite {
        let number = file.metadata().map_err(open_error)?.rdev();
        if is_write_protected(number) {
            // The kernel lets root open such a device for writing and fails the writes.
            let cause = "the block device is read-only";
            return Err(open_error(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, cause)));
        }
    }
    Ok(file)
}

/// The answer of BLKROGET, without an ioctl (Documentation/ABI/stable/sysfs-block). False without sysfs:
/// then the first write fails.
fn is_write_protected(number: u64) -> bool {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro")).is_ok_and(|ro| ro.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_locks_and_refuses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, vec![0u8; 65536]).unwrap();
        let dev = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
        assert_eq!(dev.size_bytes(), 65536);
        dev.write_at(ByteOffset(4096), &[7; 4096]).unwrap();
        dev.write_fua(ByteOffset(100), &[9; 10]).unwrap();
        dev.flush().unwrap();
        let mut buf = [0; 4096];
        dev.read_at(ByteOffset(4096), &mut buf).unwrap();
        assert_eq!(buf, [7; 4096]);
        dev.discard(ByteOffset(4096), 4096).unwrap();
        assert!(matches!(FileDevice::open(&path, OpenMode::ReadOnly), Err(BlockError::Busy { .. })));
        assert!(matches!(dev.read_at(ByteOffset(65535), &mut buf), Err(BlockError::OutOfRange { .. })));
        assert!(matches!(dev.write_at(ByteOffset(u64::MAX), &buf), Err(BlockError::OutOfRange { .. })));
        let other = File::from(dev.lend().try_clone_to_owned().unwrap());
        drop(dev);
        let adopted = FileDevice::adopt(other, path.clone(), OpenMode::ReadWrite).unwrap();
        assert_eq!(adopted.size_bytes(), 65536);
        assert!(matches!(FileDevice::open(&path, OpenMode::ReadOnly), Err(BlockError::Busy { .. })));
        drop(adopted);
        // A copy of the descriptor, as in a child process that is being started, does not keep the lock.
        let dev = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
        let _copy = dev.file.try_clone().unwrap();
        drop(dev);
        let a = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
        let _b = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
        assert!(matches!(FileDevice::open(&path, OpenMode::ReadWrite), Err(BlockError::Busy { .. })));
        assert!(matches!(a.write_at(ByteOffset(0), &buf), Err(BlockError::ReadOnly { .. })));
        assert!(a.is_read_only());
        assert!(FileDevice::open(dir.path(), OpenMode::ReadOnly).is_err());
    }
}
