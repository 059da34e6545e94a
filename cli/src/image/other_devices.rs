//! Finding the other devices of a filesystem when one is named: files in the same directory.
//!
//! The command does this before it enters the sandbox. So it reads only what [`formats::device_id`] returns:
//! numbers at fixed places of the first superblock. The driver checks everything later. A file belongs to the
//! filesystem if UUID and number of devices are the same, so an image with one device never adds another
//! file.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_block::FileDevice;
use rustix::fs::OFlags;

use super::formats;
use crate::output::failure::{REFUSED, failure};
use crate::output::format::Shown;

/// Finds the other devices of the filesystem in an image file, by their numbers. Returns none if it has one
/// device, or if the image is a block device. Fails if two files say that they are the same device.
pub fn find(image: &FileDevice) -> Result<Vec<PathBuf>> {
    // The driver reports an error of the image.
    let own = formats::head(image).ok().and_then(|head| formats::device_id(&head));
    let Some(own) = own.filter(|own| own.num_devices > 1) else { return Ok(Vec::new()) };
    let path = image.path();
    let named = std::fs::metadata(path).with_context(|| path.shown())?;
    if !named.is_file() {
        return Ok(Vec::new());
    }
    let id = |meta: &Metadata| (meta.dev(), meta.ino());
    let mut seen = HashSet::from([id(&named)]);
    let mut found = BTreeMap::<u64, Vec<PathBuf>>::new();
    for path in files_beside(path)? {
        let Some((file, meta)) = open(&path) else { continue };
        let Some(other) = read_head(file).as_deref().and_then(formats::device_id) else { continue };
        let is_member = (other.fsid, other.num_devices) == (own.fsid, own.num_devices);
        if is_member && other.devid != own.devid && seen.insert(id(&meta)) {
            found.entry(other.devid).or_default().push(path);
        }
    }
    if let Some((devid, [one, other, ..])) = found.iter().find_map(|(id, paths)| Some((id, paths.get(..2)?)))
    {
        return Err(failure(
            REFUSED,
            format!(
                "{}: {} and {} both say that they are device {devid} of this filesystem; name all its \
                 images, separated by commas",
                path.shown(),
                one.shown(),
                other.shown()
            ),
        ));
    }
    Ok(found.into_values().flatten().collect())
}

/// Returns the paths in the directory of a file, sorted. The directory is that of the file itself, if `path`
/// is a symbolic link.
fn files_beside(path: &Path) -> Result<Vec<PathBuf>> {
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink());
    let path = if is_link { path.canonicalize().with_context(|| path.shown())? } else { path.to_owned() };
    let dir = path.parent().unwrap_or(Path::new(""));
    let listed = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    // A directory that cannot be read shows no other devices. The driver says that they are missing.
    let entries = std::fs::read_dir(listed).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| dir.join(entry.file_name())).collect();
    paths.sort();
    Ok(paths)
}

/// Opens a regular file to look at it. `None`: it is something else, or may not be read.
fn open(path: &Path) -> Option<(File, Metadata)> {
    // Nothing else is opened: a FIFO would block, and opening a device can have effects.
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let meta = file.metadata().ok().filter(|meta| meta.is_file())?;
    Some((file, meta))
}

fn read_head(file: File) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    file.take(formats::HEAD_BYTES).read_to_end(&mut head).ok()?;
    Some(head)
}
