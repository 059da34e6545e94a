//! The open files of an image: one, or one for each device of a filesystem that has several.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_block::{FileDevice, FileRange, OpenMode};
use serde::{Deserialize, Serialize};

/// An open and locked file of an image.
#[derive(Debug)]
pub struct ImageFile {
    /// Its name, which may name a partition of it.
    pub name: PathBuf,
    /// The file, or the partition.
    pub device: Arc<FileDevice>,
}

/// The open and locked files of an image.
#[derive(Debug)]
pub struct ImageFiles {
    /// The only one, or the first of several.
    pub first: ImageFile,
    /// The other devices of the filesystem.
    pub others: Vec<ImageFile>,
}

/// What a process that takes over a file of an image needs besides its descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct SentFile {
    /// The name of one of several files. `None`: that of the image.
    name: Option<Vec<u8>>,
    /// The partition that the device is limited to: the first byte and the length.
    range: Option<(u64, u64)>,
}

impl ImageFiles {
    /// An image with one file.
    pub fn one(image: &Path, device: FileDevice) -> Self {
        let first = ImageFile { name: image.to_owned(), device: Arc::new(device) };
        Self { first, others: Vec::new() }
    }

    /// All files.
    pub fn all(&self) -> impl Iterator<Item = &ImageFile> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns the descriptors to send to another process, for [`ImageFiles::adopt`].
    pub fn lend(&self) -> Vec<BorrowedFd<'_>> {
        self.all().map(|file| file.device.lend()).collect()
    }

    /// Returns what to send with the descriptors.
    pub fn sent(&self) -> Vec<SentFile> {
        let sent = |file: &ImageFile| SentFile {
            name: (!self.others.is_empty()).then(|| file.name.as_os_str().as_bytes().to_vec()),
            range: file.device.range().map(|range| (range.start, range.len)),
        };
        self.all().map(sent).collect()
    }

    /// Takes over the files of another process, with their locks. `None`: it has sent none.
    pub fn adopt(
        image: &Path,
        sent: Vec<SentFile>,
        fds: Vec<OwnedFd>,
        mode: OpenMode,
    ) -> Result<Option<Self>> {
        anyhow::ensure!(sent.len() == fds.len(), "{} descriptors for {} files", fds.len(), sent.len());
        let mut files = sent.into_iter().zip(fds).map(|(SentFile { name, range }, fd)| {
            let name =
                name.map_or_else(|| image.to_owned(), |name| std::ffi::OsString::from_vec(name).into());
            let mut device = FileDevice::adopt(File::from(fd), name.clone(), mode)?;
            if let Some((start, len)) = range {
                device = device.limit(FileRange { start, len })?;
            }
            Ok(ImageFile { name, device: Arc::new(device) })
        });
        let Some(first) = files.next().transpose()? else { return Ok(None) };
        Ok(Some(Self { first, others: files.collect::<Result<_>>()? }))
    }

    /// As [`ImageFiles::adopt`], of an image that has files.
    pub fn adopt_some(image: &Path, sent: Vec<SentFile>, fds: Vec<OwnedFd>, mode: OpenMode) -> Result<Self> {
        Self::adopt(image, sent, fds, mode)?.context("a request without a descriptor")
    }
}
