//! Reading and writing the file that `changed` saves.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use ivers::state_format::{LEN_MAX, MAGIC, MAGIC_FAMILY, State};

use crate::output::failure::{FAILED, failure};
use crate::output::save::type_in_words;

/// Reads a saved state. Refuses a file that is not a regular file, and one whose first bytes are not those of
/// a saved state, before it reads the rest.
pub fn load(path: &Path) -> Result<State> {
    let context = || format!("cannot read the saved state {}", path.display());
    let refuse = |why: &str| failure(FAILED, format!("{} {why}; save a new one with --save", path.display()));
    // Checked before it is opened: a FIFO would wait for a writer, and opening some devices has effects.
    let meta = std::fs::metadata(path).with_context(context)?;
    if !meta.is_file() {
        let why = format!("is not a saved state but a {}", type_in_words(&meta));
        return Err(failure(FAILED, format!("{} {why}; name a regular file", path.display())));
    }
    let file = File::open(path).with_context(context)?;
    let mut bytes = Vec::new();
    (&file).take(MAGIC.len() as u64).read_to_end(&mut bytes).with_context(context)?;
    if bytes != MAGIC {
        let is_other_version = bytes.len() == MAGIC.len() && bytes.starts_with(MAGIC_FAMILY);
        return Err(refuse(if is_other_version {
            "was saved by another version of ivers and does not name its directory"
        } else {
            "is not a saved state"
        }));
    }
    if meta.len() > LEN_MAX {
        return Err(refuse("is longer than any saved state"));
    }
    file.take(LEN_MAX).read_to_end(&mut bytes).with_context(context)?;
    State::decode(&bytes).ok_or_else(|| refuse("is a damaged saved state"))
}

/// Encodes a state. Fails if [`load`] could not read it.
pub fn encode(state: &State) -> Result<Vec<u8>> {
    let bytes = state.encode();
    if state.is_loadable(bytes.len()) { Ok(bytes) } else { Err(too_long()) }
}

/// Returns the error for a state that would take too much memory.
pub fn too_long() -> anyhow::Error {
    failure(FAILED, "the paths of this tree are too long for a saved state; save parts of the tree")
}
