//! Reading and writing the file that `changed` saves.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use ivers::state_format::State;

use crate::failure::{FAILED, failure};

/// Read a saved state.
pub fn load(path: &Path) -> Result<State> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read the state {}", path.display()))?;
    State::decode(&bytes).ok_or_else(|| {
        failure(
            FAILED,
            format!("{} is no saved state, or damaged: save a new one with --save", path.display()),
        )
    })
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

/// Save, whole or not at all.
pub fn save(state: &State, path: &Path) -> Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = || format!("cannot save the state {}", path.display());
    let bytes = encode(state)?;
    let mut file = tempfile::NamedTempFile::new_in(dir).with_context(place)?;
    file.write_all(&bytes).and_then(|()| file.as_file().sync_all()).with_context(place)?;
    file.persist(path).with_context(place)?;
    Ok(())
}
