//! The licenses and copyright notices of the crates in the program: most require that a binary carries them.

use super::bill::{Crate, Metadata};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Returns the texts of the files of a crate that hold a license or a notice, by their names.
fn texts(it: &Crate) -> Result<Vec<String>> {
    let dir = Path::new(&it.manifest).parent().context("a manifest lies in a folder")?;
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let is_one = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
        if path.is_file() && is_one.iter().any(|start| name.starts_with(start)) {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let text = fs::read(path).with_context(|| path.display().to_string())?;
        Ok(String::from_utf8_lossy(&text).trim_end().replace("\r\n", "\n"))
    };
    paths.iter().map(read).collect()
}

/// Returns a text with all crates of others, and each license text once, with the crates that have it.
pub fn text(metadata: &Metadata) -> Result<String> {
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut table = String::new();
    for it in metadata.crates.values().filter(|it| it.is_foreign) {
        writeln!(table, "{} {}: {}", it.name, it.version, it.license)?;
        for text in texts(it)? {
            by_text.entry(text).or_default().push(format!("{} {}", it.name, it.version));
        }
    }
    let mut whole = format!("The program `ivers` contains these Rust crates:\n\n{table}");
    for (text, crates) in by_text {
        write!(whole, "\n{}\n{}\n\n{text}\n", "=".repeat(78), crates.join(", "))?;
    }
    Ok(whole)
}
