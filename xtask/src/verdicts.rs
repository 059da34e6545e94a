//! The verdicts of two checkers on damaged images, and the page that compares them.

use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::checkers::Ran;

/// The verdicts on one image: whether something is wrong. `None`: the checker failed.
pub struct Row {
    pub target: String,
    pub damage: String,
    pub theirs: Option<bool>,
    pub ours: Option<bool>,
    pub codes: Vec<String>,
    pub said: String,
}

impl Row {
    /// Returns whether only the other checker finds damage.
    pub fn is_missed(&self) -> bool {
        self.theirs == Some(true) && self.ours != Some(true)
    }
}

/// Returns what the exit code of `ivers check` says: whether something is wrong. `None`: the check failed.
pub fn verdict(ran: &Ran) -> Result<Option<bool>> {
    Ok(match ran.code {
        Some(0) => Some(false),
        Some(4) => Some(true),
        Some(8) => None,
        code => bail!("ivers check ended with {code:?}: {}", ran.text),
    })
}

/// Returns the command that writes a page.
pub fn command_of(task: &str, step: usize) -> String {
    format!("cargo xtask {task}{}", if step > 1 { format!(" {step}") } else { String::new() })
}

/// A page that compares `ivers check` with another checker.
pub struct Page<'a> {
    /// The other checker.
    pub other: &'a str,
    /// What damaged the images.
    pub damager: &'a str,
    /// The command that writes the page.
    pub command: &'a str,
    /// How the other checker was called, with its version.
    pub other_command: &'a str,
}

impl Page<'_> {
    /// Returns the text of the page.
    pub fn text(&self, rows: &[Row]) -> Result<String> {
        let Self { other, damager, command, other_command } = self;
        let mut text = String::new();
        writeln!(text, "# `ivers check` beside {other}\n")?;
        writeln!(
            text,
            "For maintainers: which images that {damager} damaged each checker calls damaged.\n\
             `{command}` writes this page.\n\
             The other checker is {other_command}.\n"
        )?;
        let count = |theirs: bool, ours: bool| {
            rows.iter().filter(|row| (row.theirs, row.ours) == (Some(theirs), Some(ours))).count()
        };
        let failed = rows.iter().filter(|row| row.theirs.is_none() || row.ours.is_none()).count();
        writeln!(text, "| verdicts | images |\n|---|---|")?;
        writeln!(text, "| both find damage | {} |", count(true, true))?;
        writeln!(text, "| only ivers finds damage | {} |", count(false, true))?;
        writeln!(text, "| neither finds damage | {} |", count(false, false))?;
        writeln!(text, "| only {other} finds damage | {} |", count(true, false))?;
        writeln!(text, "| a checker could not do it | {failed} |\n")?;
        self.write_wrong(&mut text, rows)?;
        write_only_ours(&mut text, rows)?;
        self.write_all(&mut text, rows)?;
        Ok(text)
    }

    fn write_wrong(&self, text: &mut String, rows: &[Row]) -> Result<()> {
        let other = self.other;
        writeln!(text, "## Only {other} finds damage, or a checker could not do it\n")?;
        let name = |verdict: Option<bool>| match verdict {
            Some(true) => "damaged",
            Some(false) => "clean",
            None => "failed",
        };
        let wrong: Vec<_> =
            rows.iter().filter(|row| row.theirs.is_none() || row.ours.is_none() || row.is_missed()).collect();
        if wrong.is_empty() {
            return Ok(writeln!(text, "None.\n")?);
        }
        writeln!(text, "| structure | damage | {other} | ivers |\n|---|---|---|---|")?;
        for row in wrong {
            let (theirs, ours) = (name(row.theirs), name(row.ours));
            writeln!(text, "| {} | `{}` | {theirs} | {ours} |", row.target, row.damage)?;
        }
        Ok(writeln!(text)?)
    }

    fn write_all(&self, text: &mut String, rows: &[Row]) -> Result<()> {
        writeln!(text, "\n## All structures\n")?;
        let other = self.other;
        writeln!(
            text,
            "| structure | images | {other} finds damage | ivers finds damage |\n|---|---|---|---|"
        )?;
        let mut all: BTreeMap<&str, [u32; 3]> = BTreeMap::new();
        for row in rows {
            let entry = all.entry(&row.target).or_default();
            entry[0] += 1;
            entry[1] += u32::from(row.theirs == Some(true));
            entry[2] += u32::from(row.ours == Some(true));
        }
        for (target, [images, theirs, ours]) in all {
            writeln!(text, "| {target} | {images} | {theirs} | {ours} |")?;
        }
        Ok(())
    }
}

fn write_only_ours(text: &mut String, rows: &[Row]) -> Result<()> {
    writeln!(text, "## Only ivers finds damage\n\n| structure | images | our findings |\n|---|---|---|")?;
    let mut only: BTreeMap<&str, (u32, BTreeSet<&str>)> = BTreeMap::new();
    for row in rows.iter().filter(|row| (row.theirs, row.ours) == (Some(false), Some(true))) {
        let entry = only.entry(&row.target).or_default();
        entry.0 += 1;
        entry.1.extend(row.codes.iter().map(String::as_str));
    }
    for (target, (images, codes)) in only {
        writeln!(text, "| {target} | {images} | {} |", codes.into_iter().collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}
