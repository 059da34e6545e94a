//! A process that queries a file while another process writes to it.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use ivers_fuse::CHANGE;

/// Prints a line when the first query is done, queries until standard input ends, and prints the number of
/// queries.
pub(crate) fn run(file: &Path, for_change: bool) -> Result<()> {
    let done = Arc::new(AtomicBool::new(false));
    let watched = Arc::clone(&done);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        watched.store(true, Ordering::Relaxed);
    });
    let question = || -> Result<()> {
        if for_change {
            xattr::get(file, CHANGE)?.context("the file has no change attribute")?;
        } else {
            std::fs::metadata(file)?;
        }
        Ok(())
    };
    question()?;
    crate::print("asking")?;
    std::io::stdout().flush()?;
    let mut queries = 1_u64;
    while !done.load(Ordering::Relaxed) {
        question()?;
        queries += 1;
    }
    crate::print(queries)
}
