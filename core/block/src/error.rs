//! What can go wrong between us and a device.

use std::io;
use std::sync::Arc;

use crate::ByteOffset;

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, BlockError>;

/// An error of a device; names what was tried, on which device and where.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The operating system or the medium failed.
    #[error("{device}: cannot {what} {len} bytes at byte {offset}: {source}")]
    Io {
        /// `read`, `write`, `flush` or `discard`.
        what: &'static str,
        /// The device, as [`crate::Device::describe`] names it.
        device: String,
        /// Byte offset of the access.
        offset: ByteOffset,
        /// Length of the access in bytes.
        len: u64,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// The access does not lie inside the device.
    #[error("{device}: cannot {what} {len} bytes at byte {offset}: the device ends at byte {size_bytes}")]
    OutOfRange {
        /// `read`, `write` or `discard`.
        what: &'static str,
        /// The device.
        device: String,
        /// Byte offset of the access.
        offset: ByteOffset,
        /// Length of the access in bytes.
        len: u64,
        /// Size of the device.
        size_bytes: u64,
    },
    /// A change of a device that was opened for reading.
    #[error("{device}: cannot {what} at byte {offset}: the device is open for reading only")]
    ReadOnly {
        /// `write` or `discard`.
        what: &'static str,
        /// The device.
        device: String,
        /// Byte offset of the access.
        offset: ByteOffset,
    },
    /// Somebody else has the image open for writing (or we want to write and somebody has it open at all).
    #[error("{device}: in use by another process; unmount it there first")]
    Busy {
        /// The device.
        device: String,
    },
    /// The image cannot be opened.
    #[error("{device}: cannot open: {source}")]
    Open {
        /// The device.
        device: String,
        /// The cause.
        source: Arc<io::Error>,
    },
}

impl BlockError {
    /// An [`BlockError::Io`].
    pub fn io(
        what: &'static str,
        device: impl Into<String>,
        offset: ByteOffset,
        len: u64,
        source: io::Error,
    ) -> Self {
        Self::Io { what, device: device.into(), offset, len, source: Arc::new(source) }
    }

    /// The byte offset at which it happened, where there is one.
    pub fn offset(&self) -> Option<ByteOffset> {
        match self {
            Self::Io { offset, .. } | Self::OutOfRange { offset, .. } | Self::ReadOnly { offset, .. } => {
                Some(*offset)
            }
            Self::Busy { .. } | Self::Open { .. } => None,
        }
    }

    /// The operating system's number for the error, where it gave one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } | Self::Open { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}
