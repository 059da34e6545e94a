//! Writes fuzz inputs: `cargo run -p ivers-fuzz-targets --example inputs DIR` makes a directory for each
//! target in DIR.

use ivers_fuzz_targets::{TARGETS, inputs::inputs};
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(std::io::Error::other("usage: inputs DIR"));
    };
    for target in TARGETS {
        let folder = dir.join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (number, input) in inputs(target).iter().enumerate() {
            std::fs::write(folder.join(format!("input-{number:04}")), input)?;
        }
    }
    Ok(())
}
