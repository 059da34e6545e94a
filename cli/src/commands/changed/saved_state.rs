//! Opening the file that `changed` saved.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use anyhow::{Context, Result};
use ivers::state_format::{Header, LEN_MAX, MAGIC, MAGIC_2, MAGIC_FAMILY, ReadError, Reader};

use crate::output::failure::{FAILED, failure};
use crate::output::format::Shown;
use crate::output::save::type_in_words;

/// A saved state. Its records are read one at a time.
pub struct Saved {
    /// The records that were not read yet.
    pub records: Reader<BufReader<File>>,
    /// What precedes them.
    pub header: Header,
}

/// Opens a saved state and checks all of it. It must be a regular file that begins with the magic of a saved
/// state; otherwise the rest is not read.
pub fn open(path: &Path) -> Result<Saved> {
    let context = || format!("cannot read the saved state {}", path.shown());
    let refuse = |why: &str| failure(FAILED, format!("{} {why}; save a new one with --save", path.shown()));
    // Checked before it is opened: a FIFO would wait for a writer, and opening some devices has effects.
    let meta = std::fs::metadata(path).with_context(context)?;
    if !meta.is_file() {
        let why = format!("is not a saved state but a {}", type_in_words(&meta));
        return Err(failure(FAILED, format!("{} {why}; name a regular file", path.shown())));
    }
    let mut file = File::open(path).with_context(context)?;
    let mut magic = Vec::new();
    (&file).take(MAGIC.len() as u64).read_to_end(&mut magic).with_context(context)?;
    if magic != MAGIC && magic != MAGIC_2 {
        let is_other_version = magic.len() == MAGIC.len() && magic.starts_with(MAGIC_FAMILY);
        return Err(refuse(if is_other_version {
            "was saved by another version of ivers and does not name its directory"
        } else {
            "is not a saved state"
        }));
    }
    if meta.len() > LEN_MAX {
        return Err(refuse("is longer than any saved state"));
    }
    let explain = |error: ReadError| match error {
        ReadError::Damaged => refuse("is a damaged saved state"),
        ReadError::Io(error) => anyhow::Error::from(error).context(context()),
    };
    let mut begin = || -> Result<Saved> {
        file.rewind().with_context(context)?;
        let file = file.try_clone().with_context(context)?;
        let (records, header) = Reader::new(BufReader::with_capacity(64 << 10, file)).map_err(explain)?;
        Ok(Saved { records, header })
    };
    // The checksum is at the end: nothing is reported from a state that turns out to be damaged.
    let mut all = begin()?;
    while all.records.next_record().map_err(explain)?.is_some() {}
    begin()
}
