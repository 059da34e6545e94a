//! The partitions of an image, and what is in them. Reads hostile bytes: call it in the sandbox only.
//!
//! An image has at most one table: a GPT, an MBR, or the Rigid Disk Block of the Amiga.

use anyhow::{Context, Result};
use ivers_affs::rdb;
use ivers_block::{ByteOffset, Device, FileRange, OffsetDevice};
use ivers_partitions::{SECTOR_SIZES, Table, TableKind};
use ivers_vfs::Error;
use serde_json::{Value, json};

use super::foreign_formats;
use super::formats::{self, Format};
use crate::output::failure::{CORRUPT, NOT_FOUND, REFUSED, USAGE, failure, failure_with_list};
use crate::output::{format, progress};

/// A disk: an image with a partition table.
pub struct Disk {
    /// The format of the table: `gpt`, `mbr` or `rdb`.
    pub table: &'static str,
    sector_bytes: u32,
    id: Option<String>,
    damage: Vec<String>,
    partitions: Vec<Partition>,
}

/// A partition of a disk.
pub struct Partition {
    /// Its number, from 1.
    pub number: u32,
    /// The bytes of the image.
    pub range: FileRange,
    type_id: String,
    type_name: Option<&'static str>,
    name: String,
    uuid: Option<String>,
    is_extended: bool,
    problem: Option<String>,
    /// The format of the filesystem, if it is supported.
    pub format: Option<&'static Format>,
    /// What is in it.
    contents: Option<&'static str>,
}

/// Reads the partition table of an image. `None` if it has none. `place` names the image in errors.
pub fn read(device: &dyn Device, place: &str) -> Result<Option<Disk>> {
    let mut found: Option<Disk> = None;
    // The MBR of an image file does not tell the size of a sector. 512 bytes are usual. With 4096 a
    // filesystem must be where the table says, and none where it says with 512.
    for sector_bytes in SECTOR_SIZES {
        let table = ivers_partitions::read(device, sector_bytes).map_err(|error| match error {
            ivers_partitions::Error::Device(error) => Error::from(error),
            damaged => Error::corrupt(damaged.to_string(), place.to_owned()),
        })?;
        let Some(table) = table else { break };
        let kind = table.kind;
        let disk = Disk::of_table(device, table);
        let has_contents = disk.partitions.iter().any(|one| one.contents.is_some());
        if has_contents || kind == TableKind::Gpt {
            return Ok(Some(disk));
        }
        found.get_or_insert(disk);
    }
    if found.is_some() {
        return Ok(found);
    }
    Ok(rdb::partitions(device, place)?.map(|partitions| Disk::of_rdb(device, partitions)))
}

/// Finds the partition that a user named: by number, name or PARTUUID.
pub fn find(device: &dyn Device, place: &str, wanted: &str) -> Result<(Disk, usize)> {
    let Some(disk) = read(device, place)? else {
        let why = format!("{place} has no partition table");
        if let Some(format) = formats::recognise(device)? {
            let how = format!("remove partition={wanted} or @{wanted}");
            return Err(failure(REFUSED, format!("{why}: it contains: {}; {how}", format.title)));
        }
        let found = foreign_formats::recognise(device, place);
        if let Some(found) = found.filter(|found| !found.starts_with("zeros")) {
            let how = format!("remove partition={wanted} or @{wanted}");
            return Err(failure(REFUSED, format!("{why}: it is {found}; {how}")));
        }
        let how = format!("make one first (sfdisk {place}), or remove @{wanted}");
        return Err(failure(REFUSED, format!("{why}; {how}")));
    };
    let at = disk.find(place, wanted)?;
    Ok((disk, at))
}

/// Returns the format of a partition, and what is in it.
fn contents(device: &dyn Device, range: FileRange) -> (Option<&'static Format>, Option<&'static str>) {
    let Ok(part) = OffsetDevice::with_len(device, ByteOffset(range.start), range.len) else {
        return (None, None);
    };
    match formats::recognise(&part) {
        Ok(Some(format)) => (Some(format), Some(format.names[0])),
        _ => (None, foreign_formats::short_name(&part)),
    }
}

impl Disk {
    fn of_table(device: &dyn Device, table: Table) -> Self {
        let partitions = table.partitions.into_iter().map(|one| {
            let range =
                FileRange { start: one.bytes.start, len: one.bytes.end.saturating_sub(one.bytes.start) };
            let is_usable = one.problem.is_none() && !one.is_extended;
            let (format, contents) = if is_usable { contents(device, range) } else { (None, None) };
            Partition {
                number: one.number,
                range,
                type_id: one.kind.id(),
                type_name: one.kind.name(),
                name: one.name,
                uuid: Some(one.uuid),
                is_extended: one.is_extended,
                problem: one.problem,
                format,
                contents,
            }
        });
        Self {
            table: table.kind.name(),
            sector_bytes: table.sector_bytes,
            id: Some(table.id),
            damage: table.damage,
            partitions: partitions.collect(),
        }
    }

    fn of_rdb(device: &dyn Device, partitions: Vec<rdb::Partition>) -> Self {
        let partitions = (1..).zip(partitions).map(|(number, one)| {
            let range = FileRange { start: one.start, len: one.len };
            let (format, contents) = contents(device, range);
            Partition {
                number,
                range,
                type_id: one.type_name(),
                type_name: None,
                name: one.name,
                uuid: None,
                is_extended: false,
                problem: None,
                format,
                contents,
            }
        });
        Self { table: RDB, sector_bytes: 512, id: None, damage: Vec::new(), partitions: partitions.collect() }
    }

    /// Returns whether the table is a Rigid Disk Block. Its driver reads it too: it has the geometry.
    pub fn is_rdb(&self) -> bool {
        self.table == RDB
    }

    /// Returns a partition.
    pub fn partition(&self, at: usize) -> Result<&Partition> {
        self.partitions.get(at).context("a partition is missing")
    }

    /// Returns the position of the partition that `wanted` names.
    pub fn find(&self, place: &str, wanted: &str) -> Result<usize> {
        let is_it = |one: &Partition| match wanted.parse::<u32>() {
            Ok(number) => one.number == number,
            Err(_) => {
                let same_uuid = one.uuid.as_ref().is_some_and(|uuid| uuid.eq_ignore_ascii_case(wanted));
                // AmigaDOS does not distinguish case.
                one.name == wanted || same_uuid || self.is_rdb() && one.name.eq_ignore_ascii_case(wanted)
            }
        };
        let found: Vec<usize> =
            (0..self.partitions.len()).filter(|&at| is_it(&self.partitions[at])).collect();
        let wanted = format::name(wanted.as_bytes());
        let &[at] = &found[..] else {
            let (code, what) = match found.len() {
                0 => (NOT_FOUND, "no partition"),
                _ => (USAGE, "several partitions"),
            };
            return Err(failure_with_list(code, format!("{place} has {what} {wanted:?}"), self.list()));
        };
        let one = &self.partitions[at];
        if one.is_extended {
            let why = "is extended: it contains the logical partitions, from 5 on";
            let why = format!("{place}: partition {} {why}", one.number);
            return Err(failure_with_list(USAGE, why, self.list()));
        }
        if let Some(problem) = &one.problem {
            let why = format!("{place}: partition {} cannot be used: {problem}", one.number);
            return Err(failure(CORRUPT, format!("{why}; repair the table (sfdisk, sgdisk)")));
        }
        Ok(at)
    }

    /// Returns the position of the only partition with a filesystem. `requested`: only one of this format
    /// counts.
    pub fn only(&self, place: &str, requested: Option<&'static Format>) -> Result<usize> {
        let counts = |one: &Partition| match (one.format, requested) {
            (Some(found), Some(requested)) => found.names == requested.names,
            (found, None) => found.is_some(),
            (None, Some(_)) => false,
        };
        let found: Vec<usize> =
            (0..self.partitions.len()).filter(|&at| counts(&self.partitions[at])).collect();
        match &found[..] {
            [at] => Ok(*at),
            [] => {
                let wanted = requested.map_or(formats::SUPPORTED, |format| format.title);
                let why = format!("{place} contains no {wanted}, and no partition of it does");
                Err(failure_with_list(REFUSED, why, self.list()))
            }
            [first, ..] => {
                let number = self.partitions[*first].number;
                let count = found.len();
                let why = format!(
                    "{place}: {count} partitions contain a filesystem; name one, as {place}@{number}"
                );
                Err(failure_with_list(REFUSED, why, self.list()))
            }
        }
    }

    /// Returns the partitions for an error.
    fn list(&self) -> Vec<String> {
        if self.partitions.is_empty() {
            return vec!["the table is empty".to_owned()];
        }
        let mut all: Vec<_> = self.partitions.iter().take(LISTED_MAX).map(Partition::describe).collect();
        let more = self.partitions.len() - all.len();
        all.extend((more > 0).then(|| format!("and {more} more (ivers info)")));
        all
    }

    /// Returns the table in JSON. Users rely on its keys.
    pub fn json(&self) -> Value {
        json!({
            "table": self.table,
            "sector_bytes": self.sector_bytes,
            "id": self.id,
            "damage": self.damage,
            "partitions": self.partitions.iter().map(Partition::json).collect::<Vec<_>>(),
        })
    }

    /// Returns the table as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("table: {}", self.table)];
        lines.extend(self.id.as_ref().map(|id| format!("id: {id}")));
        lines.push(format!("sector: {} bytes", self.sector_bytes));
        lines.extend(self.damage.iter().map(|what| format!("damaged: {what}")));
        lines.push("partitions:".to_owned());
        let head = ["number", "start", "size", "type", "name", "contents"].map(str::to_owned);
        let mut rows = vec![head];
        rows.extend(self.partitions.iter().map(Partition::row));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..6).map(width).collect();
        for row in &rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                0..=2 => format!("{cell:>width$}"),
                _ => format!("{cell:<width$}"),
            });
            lines.push(format!("  {}", cells.collect::<Vec<_>>().join("  ").trim_end()));
        }
        lines
    }
}

/// Most partitions that an error lists.
const LISTED_MAX: usize = 16;
/// The name of the Amiga's table.
const RDB: &str = "rdb";

impl Partition {
    fn type_text(&self) -> String {
        let id = || format::name(self.type_id.as_bytes());
        self.type_name.map_or_else(id, str::to_owned)
    }

    fn contents_text(&self) -> String {
        match (&self.problem, self.contents) {
            (Some(problem), _) => format!("unusable: {problem}"),
            (None, Some(contents)) => contents.to_owned(),
            (None, None) if self.is_extended => "logical partitions".to_owned(),
            (None, None) => "unknown".to_owned(),
        }
    }

    fn describe(&self) -> String {
        let FileRange { start, len } = self.range;
        let size = progress::bytes(len);
        let name = format::name(self.name.as_bytes());
        let name = if name.is_empty() { name } else { format!(" {name:?}") };
        format!(
            "{}: {size} at byte {start}, {}{name}, {}",
            self.number,
            self.type_text(),
            self.contents_text()
        )
    }

    fn row(&self) -> [String; 6] {
        [
            self.number.to_string(),
            self.range.start.to_string(),
            progress::bytes(self.range.len),
            self.type_text(),
            format::name(self.name.as_bytes()),
            self.contents_text(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "number": self.number,
            "start": self.range.start,
            "size": self.range.len,
            "type": self.type_name,
            "type_id": self.type_id,
            "name": self.name,
            "uuid": self.uuid,
            "fs": self.format.map(|format| format.names[0]),
            "contents": self.contents,
            "problem": self.problem,
        })
    }
}
