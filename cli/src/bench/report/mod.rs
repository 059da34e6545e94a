//! `bench --report`: what was measured as a page that needs nothing else, with the plot of the front page as a file beside it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`machine`] | where figures come from |
//! | [`chart`] | bars and lines as SVG |
//! | [`plots`] | which plots there are |
//! | [`page`] | the page |
//!
//! All of it works from the JSON of the rows alone, so that a page can be made again from what was kept, or from the rows of several runs. Rows of
//! kinds that are not known here are shown as they are.

mod chart;
mod machine;
mod page;
mod plots;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::failure::{FAILED, NOT_FOUND, failure};

pub(super) use self::machine::{command_line, machine};

/// What one or more runs measured.
#[derive(Debug, Default)]
pub(super) struct Runs {
    machines: Vec<Value>,
    commands: Vec<String>,
    pub(super) rows: Vec<Value>,
    missing: Vec<String>,
}

impl Runs {
    /// One run, as JSON has it.
    pub(super) fn add(&mut self, run: &Value) {
        let items = |key: &str| run[key].as_array().cloned().unwrap_or_default();
        for machine in items("machines").into_iter().chain([run["machine"].clone()]) {
            if machine.is_object() && !self.machines.contains(&machine) {
                self.machines.push(machine);
            }
        }
        let texts =
            |key: &str| items(key).iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>();
        self.commands.extend(texts("commands"));
        self.missing.extend(texts("missing"));
        self.rows.extend(items("rows"));
    }

    /// What was kept of runs.
    pub(super) fn read(files: &[PathBuf]) -> Result<Self> {
        let mut runs = Self::default();
        for file in files {
            let text = std::fs::read_to_string(file)
                .map_err(|error| failure(NOT_FOUND, format!("--from {}: {error}", file.display())))?;
            let run: Value = serde_json::from_str(&text)
                .map_err(|error| failure(FAILED, format!("--from {}: no JSON: {error}", file.display())))?;
            if !run["rows"].is_array() {
                return Err(failure(FAILED, format!("--from {}: has no rows", file.display())));
            }
            runs.add(&run);
        }
        Ok(runs)
    }
}

/// The directory of a report: there, or made. Before anything is measured for it.
pub(super) fn make_dir(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)
        .map_err(|error| failure(FAILED, format!("--report {}: {error}", dir.display())))
}

/// Write the page, its plot and what it was made from. Says where the page is.
pub(super) fn write(dir: &Path, runs: &Runs) -> Result<PathBuf> {
    let rows: Vec<&Value> = runs.rows.iter().collect();
    let kept = json!({
        "rows": runs.rows, "machines": runs.machines, "commands": runs.commands, "missing": runs.missing,
    });
    let files = [
        ("index.html", page::page(runs)?),
        ("main.svg", plots::main(&rows)?),
        ("rows.json", format!("{kept:#}\n")),
    ];
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(dir.join("index.html"))
}

/// Without what neither HTML nor SVG may hold.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// What a row is called, for people.
fn title(row: &Value) -> String {
    let of = match row["fs"].as_str() {
        _ if is_fuse(row) => Some("FUSE"),
        _ if is_nfs(row) => Some("NFS"),
        _ if is_peers(row) => Some("libraries"),
        fs => fs,
    };
    match of {
        Some(of) => format!("{} {}", plain(of), short_title(row)),
        None => short_title(row),
    }
}

/// The same, where it is clear on what it was measured.
fn short_title(row: &Value) -> String {
    let name = plain(row["name"].as_str().unwrap_or("(no name)"));
    let name = ["fuse_", "nfs_", "peers_"].iter().find_map(|kind| name.strip_prefix(kind)).unwrap_or(&name);
    name.replace('_', " ")
}

fn is_fuse(row: &Value) -> bool {
    row["name"].as_str().is_some_and(|name| name.starts_with("fuse_"))
}

fn is_nfs(row: &Value) -> bool {
    row["name"].as_str().is_some_and(|name| name.starts_with("nfs_"))
}

/// Whether other libraries are beside ours in it.
fn is_peers(row: &Value) -> bool {
    row["name"].as_str().is_some_and(|name| name.starts_with("peers_"))
}

/// Whether more is better of what the row measured.
fn is_timed(row: &Value) -> bool {
    row["unit"].as_str().is_none_or(|unit| unit == "ops/s")
}

/// Rows of the library that time old, new and none, and are no curves.
fn mode_rows<'a>(rows: &[&'a Value]) -> impl Iterator<Item = &'a Value> {
    let is_one = |row: &&Value| {
        !is_fuse(row)
            && !is_nfs(row)
            && is_timed(row)
            && row["ns_per_op"]["old"].is_number()
            && row["points"].is_null()
    };
    rows.iter().copied().filter(is_one)
}
