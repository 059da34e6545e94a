//! The process that asks about a file while another one writes to it.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use ivers_fuse::CHANGE;

use crate::show;

/// Ask until standard input ends, then say how often. A first line says that asking has begun.
pub(super) fn ask(file: &Path, for_change: bool) -> Result<()> {
    let done = Arc::new(AtomicBool::new(false));
    let watched = Arc::clone(&done);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        watched.store(true, Ordering::Relaxed);
    });
    let question = || -> Result<()> {
        if for_change {
            xattr::get(file, CHANGE)?.context("no change attribute")?;
        } else {
            std::fs::metadata(file)?;
        }
        Ok(())
    };
    question()?;
    show::line("asking")?;
    std::io::stdout().flush()?;
    let mut asked = 1_u64;
    while !done.load(Ordering::Relaxed) {
        question()?;
        asked += 1;
    }
    show::line(asked)
}
