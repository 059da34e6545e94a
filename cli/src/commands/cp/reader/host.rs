//! Reading files of the host.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use ivers_vfs::FileType;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::super::interrupt;
use super::{FileHeader, Source};
use crate::arguments::{STANDARD, is_stream};
use crate::image::open_options::Owners;

/// Opens an operand that is read as a stream: standard input, a FIFO or a character device, and what has no
/// path of its own, such as /dev/fd/3. `None` if it is an ordinary file, or a directory.
pub fn open_stream(path: &Path) -> Result<Option<File>> {
    if path == Path::new(STANDARD) {
        return Ok(Some(File::from(std::io::stdin().as_fd().try_clone_to_owned()?)));
    }
    let has_no_path = || path.canonicalize().is_err() && fs::metadata(path).is_ok_and(|meta| !meta.is_dir());
    if is_stream(path) || has_no_path() { Ok(Some(File::open(path)?)) } else { Ok(None) }
}

/// Passes what comes out of a stream to `sink`, with byte offsets. Returns the number of bytes.
pub fn read_stream(mut file: &File, sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<u64> {
    let mut buffer = vec![0; super::super::stream::CHUNK_MAX];
    let mut at = 0;
    loop {
        // A signal does not end a read, but it ends this wait. The limit is for one that comes just before.
        let mut ready = [PollFd::new(file, PollFlags::IN)];
        let limit = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        match rustix::event::poll(&mut ready, Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => {
                interrupt::check()?;
                continue;
            }
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match file.read(&mut buffer) {
            Ok(0) => return Ok(at),
            Ok(n) => {
                sink(at, &buffer[..n])?;
                at += n as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the attributes of a copy of a stream: a new file of this user.
pub fn stream_header() -> FileHeader {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = (now.as_secs() as i64, now.subsec_nanos());
    let owners = Owners::default();
    FileHeader {
        name: Vec::new(),
        id: (0, 0),
        has_links: false,
        mode: FileType::Regular.mode_bits() | (0o666 & !owners.fmask),
        uid: owners.uid,
        gid: owners.gid,
        rdev: 0,
        atime: now,
        mtime: now,
        size: 0,
        target: Vec::new(),
    }
}

/// The files of the host, identified by path.
pub struct Host;

impl Source for Host {
    type File = PathBuf;

    fn header(&self, path: &PathBuf) -> Result<FileHeader> {
        let meta = fs::symlink_metadata(path)?;
        let target =
            if meta.is_symlink() { fs::read_link(path)?.into_os_string().into_vec() } else { Vec::new() };
        Ok(FileHeader {
            name: Vec::new(),
            id: (meta.dev(), meta.ino()),
            has_links: !meta.is_dir() && meta.nlink() > 1,
            mode: meta.mode(),
            uid: meta.uid(),
            gid: meta.gid(),
            rdev: meta.rdev() as u32,
            atime: (meta.atime(), meta.atime_nsec() as u32),
            mtime: (meta.mtime(), meta.mtime_nsec() as u32),
            size: if meta.is_file() { meta.len() } else { 0 },
            target,
        })
    }

    fn xattrs(&self, path: &PathBuf) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let names = match xattr::list(path) {
            Ok(names) => names,
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        // A value that this user may not read is omitted.
        let read = |name: std::ffi::OsString| Some((xattr::get(path, &name).ok()??, name));
        Ok(names.filter_map(read).map(|(value, name)| (name.into_vec(), value)).collect())
    }

    fn names(&self, dir: &PathBuf) -> (Vec<Vec<u8>>, Result<()>) {
        let mut names = Vec::new();
        let mut read_names = || -> Result<()> {
            for entry in fs::read_dir(dir)? {
                names.push(entry?.file_name().into_vec());
            }
            Ok(())
        };
        let whole = read_names();
        names.sort();
        (names, whole)
    }

    fn child(&self, dir: &PathBuf, name: &[u8]) -> Result<PathBuf> {
        Ok(dir.join(OsStr::from_bytes(name)))
    }

    fn read(&self, path: &PathBuf, sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<u64> {
        // The path can have changed concurrently, e.g. to a symbolic link to a file that its owner can not
        // read.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            bail!("is no longer a file");
        }
        // Zeroing a large buffer would take longer than reading a small file.
        let len = usize::try_from(meta.len()).unwrap_or(usize::MAX);
        let mut buffer = vec![0; len.clamp(4096, super::super::stream::CHUNK_MAX)];
        // Most files have a block for each byte, and are small: three calls to find no hole cost more than
        // reading them.
        let may_have_holes = meta.blocks() * 512 < meta.len();
        let mut at = 0;
        loop {
            // Without support for holes the file is all data.
            let (from, to) = match may_have_holes.then(|| rustix::fs::seek(&file, SeekFrom::Data(at))) {
                Some(Ok(from)) => (from, rustix::fs::seek(&file, SeekFrom::Hole(from))?),
                Some(Err(Errno::NXIO)) => return Ok(file.metadata()?.len().max(at)),
                Some(Err(_)) | None => (at, u64::MAX),
            };
            at = from;
            while at < to {
                let room = usize::try_from(to - at).unwrap_or(usize::MAX).min(buffer.len());
                match file.read_at(&mut buffer[..room], at)? {
                    0 => return Ok(at),
                    n => {
                        sink(at, &buffer[..n])?;
                        at += n as u64;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let [secret, link, fifo] = ["secret", "link", "fifo"].map(|name| dir.path().join(name));
        fs::write(&secret, "secret").unwrap();
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let read = |path| Host.read(path, &mut |_, _| Ok(()));
        assert_eq!(read(&secret).unwrap(), 6);
        assert!(read(&link).is_err() && read(&fifo).is_err());
    }
}
