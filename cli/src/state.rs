//! Reading and writing the file that `changed` saves.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers::state_format::{LEN_MAX, MAGIC, MAGIC_FAMILY, State};
use ivers_vfs::FileType;

use crate::failure::{FAILED, failure};
use crate::show;

/// What kind of file it is, in words.
fn kind(meta: &std::fs::Metadata) -> String {
    FileType::from_mode(meta.mode()).map_or_else(|| "strange file".to_owned(), show::kind_in_words)
}

/// Read a saved state. What is none is refused before it is read to its end: it may have none.
pub fn load(path: &Path) -> Result<State> {
    let place = || format!("cannot read the state {}", path.display());
    let refuse = |why: &str| failure(FAILED, format!("{} {why}: save a new one with --save", path.display()));
    // Before it is opened: a FIFO would wait for a writer, and to some devices opening does something.
    let meta = std::fs::metadata(path).with_context(place)?;
    if !meta.is_file() {
        let why = format!("is no saved state but a {}", kind(&meta));
        return Err(failure(FAILED, format!("{} {why}: a regular file is wanted", path.display())));
    }
    let file = File::open(path).with_context(place)?;
    let mut bytes = Vec::new();
    (&file).take(MAGIC.len() as u64).read_to_end(&mut bytes).with_context(place)?;
    if bytes != MAGIC {
        let is_other_version = bytes.len() == MAGIC.len() && bytes.starts_with(MAGIC_FAMILY);
        return Err(refuse(if is_other_version {
            "was saved by another version of ivers and does not say of which directory"
        } else {
            "is no saved state"
        }));
    }
    if meta.len() > LEN_MAX {
        return Err(refuse("is longer than any saved state"));
    }
    file.take(LEN_MAX).read_to_end(&mut bytes).with_context(place)?;
    State::decode(&bytes).ok_or_else(|| refuse("is a damaged state"))
}

/// The bytes of a state, if they can be read again.
pub fn encode(state: &State) -> Result<Vec<u8>> {
    let bytes = state.encode();
    if state.is_loadable(bytes.len()) { Ok(bytes) } else { Err(too_long()) }
}

/// What is said of a state that would take too much memory.
pub fn too_long() -> anyhow::Error {
    failure(FAILED, "the paths of this tree are too long for a state: take parts of it")
}

/// How a state gets to where it shall be.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// By a rename over this name, which is no symbolic link.
    Replace(PathBuf),
    /// Through a device or a FIFO, which stays.
    Through(PathBuf),
    /// Through our own standard output, whatever that is: a file under that name must not be replaced below the shell that holds it.
    Output,
}

/// Where `path` leads. Opens nothing, so that it can be asked before the walk too.
pub fn target(path: &Path) -> Result<Target> {
    let place = || format!("cannot save the state {}", path.display());
    let refuse = |why: &str| failure(FAILED, format!("{}: {why}", place()));
    let meta = match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if path.is_symlink() {
                return Err(refuse("a symbolic link to nothing"));
            }
            std::fs::metadata(dir_of(path)).with_context(place)?;
            return Ok(Target::Replace(path.to_owned()));
        }
        meta => meta.with_context(place)?,
    };
    let output = File::from(std::io::stdout().as_fd().try_clone_to_owned()?).metadata()?;
    if (output.dev(), output.ino()) == (meta.dev(), meta.ino()) {
        return Ok(Target::Output);
    }
    match FileType::from_mode(meta.mode()) {
        Some(FileType::Regular) => Ok(Target::Replace(path.canonicalize().with_context(place)?)),
        Some(FileType::CharDevice | FileType::Fifo) => Ok(Target::Through(path.to_owned())),
        _ => Err(refuse(&format!("a file is wanted, and this is a {}", kind(&meta)))),
    }
}

/// The directory that a name is in.
pub fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Save: a regular file whole or not at all.
pub fn save(state: &State, path: &Path) -> Result<()> {
    put(path, &encode(state)?, "the state")
}

/// Put bytes under a name, which errors call `what`: a regular file is replaced as a whole or not at all.
pub fn put(path: &Path, bytes: &[u8], what: &str) -> Result<()> {
    let place = || format!("cannot save {what} {}", path.display());
    match target(path)? {
        Target::Replace(path) => {
            let mut file = tempfile::NamedTempFile::new_in(dir_of(&path)).with_context(place)?;
            file.write_all(bytes).and_then(|()| file.as_file().sync_all()).with_context(place)?;
            file.persist(path).with_context(place)?;
        }
        Target::Through(path) => {
            let opened = OpenOptions::new().write(true).open(path);
            opened.and_then(|mut file| file.write_all(bytes)).with_context(place)?;
        }
        Target::Output => {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush()).with_context(place)?;
        }
    }
    Ok(())
}
