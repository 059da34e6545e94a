//! `bench --report`: the results as one self-contained page, and the main plot as a separate file.
//!
//! | module | contents |
//! |---|---|
//! | [mod@machine] | machine and command |
//! | [`chart`] | bars and lines as SVG |
//! | [`plots`] | the plots |
//! | [`page`] | the page |
//!
//! The input is the JSON of the rows, so that a page can be rebuilt from saved rows of one or more runs.
//! Rows of unknown kinds are shown as JSON.

mod chart;
mod machine;
mod page;
mod plots;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

pub(crate) use self::machine::{command_line, machine};

/// The results of one or more runs.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    machines: Vec<Value>,
    commands: Vec<String>,
    pub(crate) rows: Vec<Value>,
    missing: Vec<String>,
}

impl Runs {
    /// Adds one run, as JSON.
    pub(crate) fn add(&mut self, run: &Value) {
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

    /// Reads saved runs.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Self> {
        let mut runs = Self::default();
        for file in files {
            let text = std::fs::read_to_string(file)
                .map_err(|error| anyhow!("--from {}: {error}", file.display()))?;
            let run: Value = serde_json::from_str(&text)
                .map_err(|error| anyhow!("--from {}: not JSON: {error}", file.display()))?;
            if !run["rows"].is_array() {
                return Err(anyhow!("--from {}: has no rows", file.display()));
            }
            runs.add(&run);
        }
        Ok(runs)
    }
}

/// Creates the directory of a report if necessary; called before anything is measured.
pub(crate) fn make_dir(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| anyhow!("--report {}: {error}", dir.display()))
}

/// Writes the page, its main plot and the rows. Returns the path of the page.
pub(crate) fn write(dir: &Path, runs: &Runs) -> Result<PathBuf> {
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

/// Replaces characters that HTML and SVG do not allow.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Returns the name of a row for display.
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

/// Returns the name of a row for display, without the filesystem.
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

/// Returns whether the row compares other libraries.
fn is_peers(row: &Value) -> bool {
    row["name"].as_str().is_some_and(|name| name.starts_with("peers_"))
}

/// Returns whether a larger value is better.
fn is_timed(row: &Value) -> bool {
    row["unit"].as_str().is_none_or(|unit| unit == "ops/s")
}

/// Returns the in-process rows with times of old, new and none, except curves.
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
