//! The files that a server is told by: its own, certificates, names of owners.
//!
//! A pipe that stands where a file should is not waited for: whoever could put one there would keep the server from starting. What the caller hands over by a
//! descriptor (`/dev/stdin`, a shell's `<(...)`) is his own, and is read once, at the start.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// No file that a server is told by is longer.
const FILE_BYTES: u64 = 16 << 20;

/// Open a file, and nothing else.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// Whether it is a descriptor of this process.
pub fn is_handed_over(path: &Path) -> bool {
    path == Path::new("/dev/stdin")
        || ["/dev/fd", "/proc/self/fd"].iter().any(|dir| path.parent() == Some(Path::new(dir)))
}

/// What a file holds at the start.
pub fn read_first(path: &Path) -> io::Result<Vec<u8>> {
    read(if is_handed_over(path) { File::open(path) } else { open(path) }?)
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if read as u64 > FILE_BYTES { Err(io::Error::other("it is far too long")) } else { Ok(bytes) }
}

/// What files hold, by their paths.
pub struct Contents(Vec<(PathBuf, Result<Vec<u8>, String>)>);

impl Contents {
    /// At the start.
    pub fn first(paths: &[PathBuf]) -> Self {
        let read = |path: &PathBuf| read_first(path).map_err(|error| error.to_string());
        Self(paths.iter().map(|path| (path.clone(), read(path))).collect())
    }

    /// Once more, by their names.
    pub fn again(paths: &[PathBuf]) -> Self {
        Self::of(paths.iter().map(|path| (path.clone(), open(path).map_err(|error| error.to_string()))))
    }

    /// Those that are open.
    pub fn of(files: impl Iterator<Item = (PathBuf, Result<File, String>)>) -> Self {
        let read = |file: Result<File, String>| read(file?).map_err(|error| error.to_string());
        Self(files.map(|(path, file)| (path, read(file))).collect())
    }

    /// What one of them holds.
    pub fn get(&self, path: &Path) -> Result<&[u8]> {
        match self.0.iter().find(|(name, _)| name == path) {
            Some((_, Ok(bytes))) => Ok(bytes),
            Some((_, Err(why))) if is_handed_over(path) => {
                bail!("cannot read {} again ({why}): it was handed over at the start", path.display())
            }
            Some((_, Err(why))) => bail!("cannot read {}: {why}", path.display()),
            None => bail!("{} was not named when the server was started: start it again", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn files_are_read_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["file", "missing", "dir", "pipe"].map(|name| dir.path().join(name)).to_vec();
        std::fs::write(&paths[0], "text").unwrap();
        std::fs::create_dir(&paths[2]).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &paths[3], 0o600.into()).unwrap();
        for contents in [Contents::first(&paths), Contents::again(&paths)] {
            assert_eq!(contents.get(&paths[0]).unwrap(), b"text");
            for (path, why) in [
                (&paths[1], "cannot read"),
                (&paths[2], "no regular file"),
                (&paths[3], "no regular file"),
                (&dir.path().join("x"), "start it again"),
            ] {
                assert!(contents.get(path).unwrap_err().to_string().contains(why));
            }
        }
        let endless = [PathBuf::from("/dev/zero")];
        assert!(Contents::first(&endless).get(&endless[0]).is_err());
    }

    #[test]
    fn what_is_handed_over_is_read_once() {
        let (reader, mut writer) = io::pipe().unwrap();
        io::Write::write_all(&mut writer, b"text").unwrap();
        drop(writer);
        let path = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
        let paths = [path.clone()];
        assert_eq!(Contents::first(&paths).get(&path).unwrap(), b"text");
        let again = Contents::again(&paths);
        assert!(again.get(&path).unwrap_err().to_string().contains("handed over at the start"));
        assert!(!is_handed_over(Path::new("/dev/null")));
    }
}
