//! The interface of a device.

use std::sync::Arc;

use crate::{BlockError, ByteOffset, Result};

/// A medium of fixed size that several threads read and write at byte offsets.
///
/// # Contract
///
/// - Every later read sees a write that returned. The write survives a crash only after a later
///   [`flush`](Device::flush) returned, or if it was a [`write_fua`](Device::write_fua). Between flushes,
///   writes may reach the medium in any order, or in part.
/// - An access outside the device fails with [`BlockError::OutOfRange`]. There are no short reads or writes.
pub trait Device: Send + Sync {
    /// The size in bytes, which only [`Device::make_room`] changes while the device is open.
    fn size_bytes(&self) -> u64;

    /// Fills `buf` from `offset` on.
    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> Result<()>;

    /// Writes `buf` at `offset`.
    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> Result<()>;

    /// Writes `buf` at `offset` and returns when these bytes are durable. Earlier writes may not be.
    fn write_fua(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.write_at(offset, buf)?;
        self.flush()
    }

    /// Makes every write that returned before this call durable.
    fn flush(&self) -> Result<()>;

    /// Makes every write into a range that returned before this call durable. Others may become durable, too.
    fn flush_range(&self, _offset: ByteOffset, _len: u64) -> Result<()> {
        self.flush()
    }

    /// Declares the contents of a range unneeded. Afterwards they may read as anything. A device that cannot
    /// discard returns success.
    fn discard(&self, offset: ByteOffset, len: u64) -> Result<()>;

    /// Makes the device at least this long, for a filesystem that grows while it is in use. An error if it
    /// cannot, or if bytes of it may belong to something else.
    fn make_room(&self, size_bytes: u64) -> Result<()> {
        check_range(self, "extend", ByteOffset(0), size_bytes)
    }

    /// True if the device refuses writes.
    fn is_read_only(&self) -> bool;

    /// The device's name for messages.
    fn describe(&self) -> String;
}

/// Writes zeros over a range, in pieces of 1 MiB.
pub fn write_zeros(device: &dyn Device, start: ByteOffset, len: u64) -> Result<()> {
    let zeros = vec![0; len.min(1 << 20) as usize];
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(zeros.len() as u64);
        device.write_at(start + done, &zeros[..piece as usize])?;
        done += piece;
    }
    Ok(())
}

/// Implements [`Device`] for a pointer to one.
macro_rules! forward {
    ($pointer:ty) => {
        impl<D: Device + ?Sized> Device for $pointer {
            fn size_bytes(&self) -> u64 {
                (**self).size_bytes()
            }

            fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> Result<()> {
                (**self).read_at(offset, buf)
            }

            fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
                (**self).write_at(offset, buf)
            }

            fn write_fua(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
                (**self).write_fua(offset, buf)
            }

            fn flush(&self) -> Result<()> {
                (**self).flush()
            }

            fn flush_range(&self, offset: ByteOffset, len: u64) -> Result<()> {
                (**self).flush_range(offset, len)
            }

            fn discard(&self, offset: ByteOffset, len: u64) -> Result<()> {
                (**self).discard(offset, len)
            }

            fn make_room(&self, size_bytes: u64) -> Result<()> {
                (**self).make_room(size_bytes)
            }

            fn is_read_only(&self) -> bool {
                (**self).is_read_only()
            }

            fn describe(&self) -> String {
                (**self).describe()
            }
        }
    };
}

forward!(Arc<D>);
forward!(&D);

/// Checks that `len` bytes at `offset` lie inside `device`.
pub(crate) fn check_range(
    device: &(impl Device + ?Sized),
    what: &'static str,
    offset: ByteOffset,
    len: u64,
) -> Result<()> {
    let size_bytes = device.size_bytes();
    match offset.checked_add(len) {
        Some(end) if end.0 <= size_bytes => Ok(()),
        _ => Err(BlockError::OutOfRange { what, device: device.describe(), offset, len, size_bytes }),
    }
}
