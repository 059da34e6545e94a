//! Printing the findings of a checker.

use std::fmt::Display;

use anyhow::Result;
use ivers_vfs::check::{Finding, Findings};
use serde_json::{Value, json};

use super::{format, print};

/// Returns the place of a finding, in words.
fn place_of(finding: &Finding) -> String {
    let place = &finding.place;
    let mut parts = Vec::new();
    if let Some(group) = place.group {
        parts.push(format!("group {group}"));
    }
    let path = place.path.as_ref().map(|path| format::name(path));
    match (place.inode, path) {
        (Some(inode), Some(path)) => parts.push(format!("inode {inode} ({path})")),
        (Some(inode), None) => parts.push(format!("inode {inode}")),
        (None, Some(path)) => parts.push(path),
        (None, None) => {}
    }
    if let Some(block) = place.block {
        parts.push(format!("block {block}"));
    }
    if parts.is_empty() { "filesystem".into() } else { parts.join(", ") }
}

/// Prints notes and findings as text, each on a line.
pub fn print(image: &impl Display, found: &Findings) -> Result<()> {
    for note in found.notes() {
        print::line(format_args!("{image}: note: {note}"))?;
    }
    for finding in found.kept() {
        print::line(format_args!("{image}: {}: {}: {}", place_of(finding), finding.code, finding.what))?;
    }
    let (shown, total) = (found.kept().len() as u64, found.total());
    if total > shown {
        print::line(format_args!("{image}: {} more findings of these kinds are not shown", total - shown))?;
    }
    Ok(())
}

/// Returns the number of all findings and of each kind, in words.
pub fn in_words(found: &Findings) -> String {
    let codes: Vec<_> = found.counts().iter().map(|(code, count)| format!("{code} {count}")).collect();
    let total = found.total();
    let noun = if total == 1 { "finding" } else { "findings" };
    format!("{total} {noun} ({})", codes.join(", "))
}

/// Prints findings as JSON, each on a line.
pub fn print_json(found: &Findings) -> Result<()> {
    for Finding { code, place, what } in found.kept() {
        let object = json!({
            "code": code,
            "group": place.group,
            "inode": place.inode,
            "block": place.block,
            "what": what,
        });
        print::json_line(&format::with_names(object, [("path", place.path.as_deref())]))?;
    }
    Ok(())
}

/// Returns the number of findings of each kind, for JSON.
pub fn json_counts(found: &Findings) -> Value {
    found.counts().iter().map(|(code, count)| json!({ "code": code, "count": count })).collect()
}
