//! Saving a file: a regular file is replaced atomically, a device or FIFO is written to.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_vfs::FileType;

use super::failure::{FAILED, failure};
use super::format;
use crate::output::format::Shown;

/// Returns the type of a file, in words.
pub fn type_in_words(meta: &std::fs::Metadata) -> String {
    FileType::from_mode(meta.mode()).map_or_else(|| "file of unknown type".to_owned(), format::kind_in_words)
}

/// How the bytes reach the file.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// By a rename over this path, which is not a symbolic link.
    Replace(PathBuf),
    /// By writing to this device or FIFO.
    Through(PathBuf),
    /// By writing to our own standard output. A regular file there must not be replaced: the shell holds it
    /// open.
    Output,
}

/// Decides how to save to `path`, which errors call `what`. Opens nothing, so it can run before a long walk.
pub fn target(path: &Path, what: &str) -> Result<Target> {
    let context = || format!("cannot save {what} {}", path.shown());
    let refuse = |why: &str| failure(FAILED, format!("{}: {why}", context()));
    let meta = match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if path.is_symlink() {
                return Err(refuse("it is a dangling symbolic link"));
            }
            std::fs::metadata(dir_of(path)).with_context(context)?;
            return Ok(Target::Replace(path.to_owned()));
        }
        meta => meta.with_context(context)?,
    };
    let output = File::from(std::io::stdout().as_fd().try_clone_to_owned()?).metadata()?;
    if (output.dev(), output.ino()) == (meta.dev(), meta.ino()) {
        return Ok(Target::Output);
    }
    match FileType::from_mode(meta.mode()) {
        Some(FileType::Regular) => Ok(Target::Replace(path.canonicalize().with_context(context)?)),
        Some(FileType::CharDevice | FileType::Fifo) => Ok(Target::Through(path.to_owned())),
        _ => Err(refuse(&format!("it is a {}; name a regular file", type_in_words(&meta)))),
    }
}

/// Returns the directory that contains `path`.
pub fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes `bytes` to `path`, which errors call `what`. A regular file gets all of them or stays as it was.
pub fn save(path: &Path, bytes: &[u8], what: &str) -> Result<()> {
    save_by(path, |out| out.write_all(bytes), what)
}

/// As [`save`], with what is read from `source`.
pub fn save_from(path: &Path, source: &mut impl Read, what: &str) -> Result<()> {
    save_by(path, |out| std::io::copy(source, out).map(drop), what)
}

/// As [`save`], with what `write` writes.
pub fn save_by(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>, what: &str) -> Result<()> {
    let context = || format!("cannot save {what} {}", path.shown());
    match target(path, what)? {
        Target::Replace(path) => {
            let mut file = tempfile::NamedTempFile::new_in(dir_of(&path)).with_context(context)?;
            write(file.as_file_mut()).and_then(|()| file.as_file().sync_all()).with_context(context)?;
            file.persist(path).with_context(context)?;
        }
        Target::Through(path) => {
            let opened = OpenOptions::new().write(true).open(path);
            opened.and_then(|mut file| write(&mut file)).with_context(context)?;
        }
        Target::Output => {
            let mut out = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
            std::io::stdout().flush().and_then(|()| write(&mut out)).with_context(context)?;
        }
    }
    Ok(())
}
