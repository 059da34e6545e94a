//! Writes first inputs: `cargo run -p ivers-fuzz-targets --example seeds DIR` makes a folder a target in DIR.

use ivers_fuzz_targets::{TARGETS, seeds::seeds};
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(std::io::Error::other("usage: seeds DIR"));
    };
    for target in TARGETS {
        let folder = dir.join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (number, seed) in seeds(target).iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number:04}")), seed)?;
        }
    }
    Ok(())
}
