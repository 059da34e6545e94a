//! The table of the rows with many files, as text.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::mounted::FUSE2FS;
use crate::image::Format;
use crate::mounts::IVERS;
use crate::statistics::{notes, number, text};

/// Formats the table.
pub(crate) fn table(rows: &[Value]) -> Vec<String> {
    let mut lines = vec![
        "us per file, medians of the rounds; times fewest: the cost over that of the same step in the first \
            row of its kind; over the kernel: above 1x, ivers is faster; cpu: processor time of the program \
            and the server, in us; reads: of the device, for each file"
            .to_owned(),
        format!(
            "{:<38}{:>9}{:>9}{:>14}{:>9}{:>14}{:>17}{:>9}{:>8}{:>10}{:>10}{:>10}{:>10}",
            "workload",
            "files",
            "ivers",
            "times fewest",
            "kernel",
            "times fewest",
            "over the kernel",
            "fuse2fs",
            "cpu",
            "kernel's",
            "peak MiB",
            "reads",
            "kernel's"
        ),
    ];
    for row in rows {
        let us = |ns: &Value| ns.as_f64().map_or("-".to_owned(), |ns| format!("{:.2}", ns / 1000.0));
        let times = |ratio: &Value| ratio.as_f64().map_or("-".to_owned(), |ratio| format!("{ratio:.2}x"));
        let ops = number(&row["ops"]);
        let reads = |reads: &Value| {
            reads.as_f64().map_or("-".to_owned(), |reads| format!("{:.4}", reads / ops.max(1.0)))
        };
        let format = Format::named(text(row, "fs")).unwrap_or(Format::Ext4);
        let kernel = format.kernel_peer();
        lines.push(format!(
            "{:<38}{:>9.0}{:>9}{:>14}{:>9}{:>14}{:>17}{:>9}{:>8}{:>10}{:>10.0}{:>10}{:>10}",
            text(row, "name"),
            number(&row["files"]),
            us(&row["ns_per_op"]["new"]),
            times(&row["over_fewest_files"][IVERS]),
            us(&row["peers"][kernel]["ns_per_op"]),
            times(&row["over_fewest_files"][kernel]),
            times(&row["new_over_peer"][kernel]),
            us(&row["peers"][FUSE2FS]["ns_per_op"]),
            us(&row["processor_ns_per_op"][IVERS]),
            us(&row["processor_ns_per_op"][kernel]),
            number(&row["peak_bytes"]) / f64::from(1 << 20),
            reads(&row["device_reads"][IVERS]),
            reads(&row["device_reads"][kernel]),
        ));
    }
    lines.extend(rows.first().map(|row| {
        let bound = number(&row["bound_bytes"]) / f64::from(1 << 20);
        format!(
            "peak: resident memory of a process of ivers since its start; its bound is {bound:.0} MiB, \
                cache= and 64 MiB"
        )
    }));
    lines.extend(notes(rows));
    lines
}

/// Fails if the memory of a row exceeds its bound.
pub(crate) fn judge(rows: &[Value]) -> Result<()> {
    let mib = |row: &Value, name| number(&row[name]) / f64::from(1 << 20);
    let exceeds = |row: &&Value| number(&row["peak_bytes"]) > number(&row["bound_bytes"]);
    let exceeding: Vec<_> = rows
        .iter()
        .filter(|row| row["peak_bytes"].is_number())
        .filter(exceeds)
        .map(|row| {
            let (peak, bound) = (mib(row, "peak_bytes"), mib(row, "bound_bytes"));
            format!("{}: {peak:.1} MiB of at most {bound:.0} MiB", text(row, "name"))
        })
        .collect();
    ensure!(exceeding.is_empty(), "memory exceeds its bound: {}", exceeding.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_peak_above_its_bound_is_an_error() {
        let row =
            |name, peak: Value| json!({ "name": name, "peak_bytes": peak, "bound_bytes": 320_u64 << 20 });
        let within = [row("a", json!(320_u64 << 20)), row("b", Value::Null), json!({ "name": "other" })];
        judge(&within).unwrap();
        let above = [row("c", json!((320_u64 << 20) + 1)), row("d", json!(372_u64 << 20))];
        let said = judge(&above).unwrap_err().to_string();
        assert!(said.contains("c: 320.0 MiB of at most 320 MiB, d: 372.0 MiB"), "{said}");
    }
}
