//! Opening the directory and the file of a cache: ownership, permissions, the lock.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use thiserror::Error;

use crate::layout::{Geometry, HEADER_BYTES};

/// The smallest cache in bytes.
pub const BYTES_MIN: u64 = 1 << 20;
/// The name of the file in the directory.
const FILE: &str = "contents";
/// The permission bits of everyone but the owner.
const OTHERS: u32 = 0o077;

/// Why a cache cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The directory cannot be opened or created.
    #[error("cannot open the directory: {0}")]
    Directory(std::io::Error),
    /// Another user owns the directory, or may enter it.
    #[error("the directory must belong to this user, and no other user may enter it; set mode 700")]
    Shared,
    /// The file is not a regular, private file of this user with one name.
    #[error("{FILE:?} in it is not a private file of this user; remove it")]
    Strange,
    /// The file cannot be opened, read or written.
    #[error("cannot use {FILE:?} in it: {0}")]
    File(std::io::Error),
    /// Another mount uses the cache.
    #[error("another mount uses it; name another directory")]
    InUse,
    /// The size is less than [`BYTES_MIN`].
    #[error("a cache must have at least {BYTES_MIN} bytes")]
    TooSmall,
}

fn is_private(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & OTHERS == 0
}

/// Opens the file of a cache in a directory, and locks it. Creates both if they do not exist. Empties a file
/// of another size or layout.
pub fn open(dir: &Path, bytes: u64) -> Result<(File, Geometry), OpenError> {
    if bytes < BYTES_MIN {
        return Err(OpenError::TooSmall);
    }
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(OpenError::Directory(error.into())),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir =
        rustix::fs::open(dir, flags, Mode::empty()).map_err(|error| OpenError::Directory(error.into()))?;
    if !is_private(&rustix::fs::fstat(&dir).map_err(|error| OpenError::Directory(error.into()))?) {
        return Err(OpenError::Shared);
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(&dir, FILE, flags, Mode::RUSR | Mode::WUSR) {
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(OpenError::Strange),
        opened => opened.map_err(|error| OpenError::File(error.into()))?,
    };
    let stat = rustix::fs::fstat(&file).map_err(|error| OpenError::File(error.into()))?;
    let is_regular = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile;
    if !is_regular || stat.st_nlink != 1 || !is_private(&stat) {
        return Err(OpenError::Strange);
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Err(OpenError::InUse),
        locked => locked.map_err(|error| OpenError::File(error.into()))?,
    }
    let file = File::from(file);
    let geometry = prepare(&file, bytes).map_err(OpenError::File)?;
    Ok((file, geometry))
}

/// Returns the geometry of the file. Empties the file first if it does not have this size and a valid header.
fn prepare(file: &File, bytes: u64) -> std::io::Result<Geometry> {
    let new = Geometry::of_size(bytes, rand::random());
    let mut header = vec![0; HEADER_BYTES];
    let found = match file.read_exact_at(&mut header, 0) {
        Ok(()) => Geometry::decode(&header, file.metadata()?.len()),
        Err(_) => None,
    };
    if let Some(found) = found.filter(|found| found.sets == new.sets) {
        return Ok(found);
    }
    file.set_len(0)?;
    file.set_len(new.file_bytes())?;
    file.write_all_at(&new.header(), 0)?;
    Ok(new)
}
