//! The configuration files of a server: its own file, certificates, names of owners.
//!
//! A FIFO in place of a file is refused, since it could keep the server from starting. A descriptor that the
//! caller passes (`/dev/stdin`, `<(...)` of a shell) is trusted and read once, at the start.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::output::format::Shown;

/// Most bytes of a configuration file.
const FILE_BYTES: u64 = 16 << 20;

/// Opens a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// Returns whether the path names a descriptor of this process.
pub fn is_descriptor(path: &Path) -> bool {
    path == Path::new("/dev/stdin")
        || ["/dev/fd", "/proc/self/fd"].iter().any(|dir| path.parent() == Some(Path::new(dir)))
}

/// Reads a file at the start of the server.
pub fn read_at_start(path: &Path) -> io::Result<Vec<u8>> {
    read(if is_descriptor(path) { File::open(path) } else { open(path) }?)
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if read as u64 > FILE_BYTES { Err(io::Error::other("longer than 16 MiB")) } else { Ok(bytes) }
}

/// The contents of files by path.
pub struct Contents(Vec<(PathBuf, Result<Vec<u8>, String>)>);

impl Contents {
    /// Reads files at the start of the server.
    pub fn at_start(paths: &[PathBuf]) -> Self {
        let read = |path: &PathBuf| read_at_start(path).map_err(|error| error.to_string());
        Self(paths.iter().map(|path| (path.clone(), read(path))).collect())
    }

    /// Reads files again.
    pub fn reread(paths: &[PathBuf]) -> Self {
        Self::of_open(paths.iter().map(|path| (path.clone(), open(path).map_err(|error| error.to_string()))))
    }

    /// Reads open files.
    pub fn of_open(files: impl Iterator<Item = (PathBuf, Result<File, String>)>) -> Self {
        let read = |file: Result<File, String>| read(file?).map_err(|error| error.to_string());
        Self(files.map(|(path, file)| (path, read(file))).collect())
    }

    /// Returns the contents of one file.
    pub fn get(&self, path: &Path) -> Result<&[u8]> {
        match self.0.iter().find(|(name, _)| name == path) {
            Some((_, Ok(bytes))) => Ok(bytes),
            Some((_, Err(why))) if is_descriptor(path) => {
                bail!(
                    "cannot read {} again ({why}): it was passed as a descriptor at the start",
                    path.shown()
                )
            }
            Some((_, Err(why))) => bail!("cannot read {}: {why}", path.shown()),
            None => bail!("{} is new in the configuration: restart the server", path.shown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["file", "missing", "dir", "pipe"].map(|name| dir.path().join(name)).to_vec();
        std::fs::write(&paths[0], "text").unwrap();
        std::fs::create_dir(&paths[2]).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &paths[3], 0o600.into()).unwrap();
        for contents in [Contents::at_start(&paths), Contents::reread(&paths)] {
            assert_eq!(contents.get(&paths[0]).unwrap(), b"text");
            for (path, why) in [
                (&paths[1], "cannot read"),
                (&paths[2], "not a regular file"),
                (&paths[3], "not a regular file"),
                (&dir.path().join("x"), "restart the server"),
            ] {
                assert!(contents.get(path).unwrap_err().to_string().contains(why));
            }
        }
        let endless = [PathBuf::from("/dev/zero")];
        assert!(Contents::at_start(&endless).get(&endless[0]).is_err());
    }

    #[test]
    fn a_descriptor_is_read_once() {
        let (reader, mut writer) = io::pipe().unwrap();
        io::Write::write_all(&mut writer, b"text").unwrap();
        drop(writer);
        let path = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
        let paths = [path.clone()];
        assert_eq!(Contents::at_start(&paths).get(&path).unwrap(), b"text");
        let again = Contents::reread(&paths);
        assert!(again.get(&path).unwrap_err().to_string().contains("passed as a descriptor at the start"));
        assert!(!is_descriptor(Path::new("/dev/null")));
    }
}
