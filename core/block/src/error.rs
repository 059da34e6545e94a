//! Errors of devices.

use std::io;
use std::sync::Arc;

use crate::{BlockNo, ByteOffset};

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, BlockError>;

/// An error of a device. It names the operation, the device and the position.
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
        /// The position of the access.
        offset: ByteOffset,
        /// The length of the access in bytes.
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
        /// The position of the access.
        offset: ByteOffset,
        /// The length of the access in bytes.
        len: u64,
        /// The size of the device in bytes.
        size_bytes: u64,
    },
    /// A write to a device that is open for reading only.
    #[error("{device}: cannot {what} at byte {offset}: the device is open for reading only")]
    ReadOnly {
        /// `write` or `discard`.
        what: &'static str,
        /// The device.
        device: String,
        /// The position of the access.
        offset: ByteOffset,
    },
    /// Another process has the image open for writing, or has it open at all and this open is for writing.
    #[error("{device}: in use by another process; unmount it there first")]
    Busy {
        /// The device.
        device: String,
    },
    /// The cache holds changes of the block as part of another unit.
    #[error("{device}: block {block} is in use as part of another structure")]
    OtherUnit {
        /// The device.
        device: String,
        /// The first block of both units.
        block: BlockNo,
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
    /// Creates a [`BlockError::Io`].
    pub fn io(
        what: &'static str,
        device: impl Into<String>,
        offset: ByteOffset,
        len: u64,
        source: io::Error,
    ) -> Self {
        Self::Io { what, device: device.into(), offset, len, source: Arc::new(source) }
    }

    /// The position of the failed access, if the error has one.
    pub fn offset(&self) -> Option<ByteOffset> {
        match self {
            Self::Io { offset, .. } | Self::OutOfRange { offset, .. } | Self::ReadOnly { offset, .. } => {
                Some(*offset)
            }
            Self::Busy { .. } | Self::OtherUnit { .. } | Self::Open { .. } => None,
        }
    }

    /// The operating system's error number, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } | Self::Open { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// Formats a file name or path for messages: if it has control characters or bytes that are not UTF-8, these
/// and all other bytes that are not printable ASCII are escaped.
pub fn printable(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => name.escape_ascii().to_string(),
    }
}
