//! The tables of the in-process rows as text.

use serde_json::Value;

use super::statistics::{notes, number, text};

/// Formats a ratio and its quartiles: `1.29x [1.20, 1.31]`.
pub(crate) fn ratio(row: &Value, key: &str) -> String {
    let spread = &row["spread"][key];
    match (spread[0].as_f64(), spread[1].as_f64()) {
        (Some(low), Some(high)) => format!("{:>6.2}x [{low:.2}, {high:.2}]", number(&row[key])),
        _ => row[key].as_f64().map_or_else(|| format!("{:>6}", "-"), |ratio| format!("{ratio:>6.2}x")),
    }
}

pub(crate) fn three(row: &Value, key: &str) -> String {
    format!("{} / {} / {}", row[key]["old"], row[key]["new"], row[key]["none"])
}

/// Formats old, new and none: nanoseconds per operation, or values in the unit of the row.
fn cells(row: &Value, unit: &str) -> String {
    let cells = ["old", "new", "none"].map(|mode| match unit {
        "ops/s" => format!("{:>10.1}", number(&row["ns_per_op"][mode])),
        _ => format!("{:>10.1}", number(&row[mode])),
    });
    cells.concat()
}

/// The results of the kernel's driver of the same format.
pub(crate) fn kernel(row: &Value) -> &Value {
    let mut peers = row["peers"].as_object().into_iter().flatten();
    peers.find(|(name, _)| name.starts_with("kernel_")).map_or(&Value::Null, |(_, results)| results)
}

fn kernel_ns(row: &Value) -> String {
    match kernel(row)["ns_per_op"].as_f64() {
        Some(ns) => format!("{ns:.1}"),
        None => "-".to_owned(),
    }
}

/// Formats all tables of in-process rows.
pub(crate) fn mode_table(rows: &[Value]) -> Vec<String> {
    let mut lines = vec![
        "ns per operation, medians; old = eager, new = lazy, none = off; in brackets the quartiles of the \
            ratio per round"
            .to_owned(),
        format!(
            "{:<5}{:<29}{:>10}{:>10}{:>10}{:>10}  {:<22}{:<22}{:<25}{:<22}{:<23}{}",
            "fs",
            "workload",
            "old",
            "new",
            "none",
            "kernel",
            "new/old",
            "new/none",
            "updates old/new/none",
            "journal blocks",
            "queries",
            "2017 new/old, new/none"
        ),
    ];
    let (timed, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row["unit"] == "ops/s");
    for row in timed.iter().filter(|row| row["points"].is_null()) {
        let patch_series = match (
            row["patch_series"]["new_over_old"].as_f64(),
            row["patch_series"]["new_over_none"].as_f64(),
        ) {
            (Some(old), Some(none)) => format!("{old}x, {none}x"),
            (Some(old), None) => format!("{old}x"),
            _ => String::new(),
        };
        lines.push(
            format!(
                "{:<5}{:<29}{}{:>10}  {:<22}{:<22}{:<25}{:<22}{:<23}{patch_series}",
                text(row, "fs"),
                text(row, "name"),
                cells(row, "ops/s"),
                kernel_ns(row),
                ratio(row, "new_over_old"),
                ratio(row, "new_over_none"),
                three(row, "inode_updates"),
                three(row, "journal_blocks"),
                three(row, "queries"),
            )
            .trim_end()
            .to_owned(),
        );
    }
    lines.extend(crowd_table(rows));
    lines.extend(latency_table(rows));
    for row in rows.iter().filter(|row| row["points"].is_array()) {
        lines.extend(curve_table(row));
    }
    for row in others.iter().filter(|row| row["points"].is_null()) {
        let (fs, name, unit) = (text(row, "fs"), text(row, "name"), text(row, "unit"));
        lines.push(format!("{fs} {name}, {unit}: old / new / none{}", cells(row, unit)));
    }
    lines.extend(notes(rows));
    lines.push(
        "kernel: its driver on an equal image, loop-mounted, through system calls; the three modes are calls \
            of the library"
            .to_owned(),
    );
    lines
}

/// Formats processor time and query rates of rows with several threads.
fn crowd_table(rows: &[Value]) -> Vec<String> {
    let crowds: Vec<_> = rows.iter().filter(|row| row["cpu_ns_per_op"].is_object()).collect();
    if crowds.is_empty() {
        return Vec::new();
    }
    let head = format!(
        "{:<5}{:<29}{:>10}{:>10}{:>10}{:>16}{:>16}",
        "fs", "writers' processor time, ns", "old", "new", "none", "queries/s old", "new"
    );
    let mut lines = vec![String::new(), head];
    for row in crowds {
        let cpu = ["old", "new", "none"].map(|mode| format!("{:>10}", number(&row["cpu_ns_per_op"][mode])));
        let asked = ["old", "new"].map(|mode| match row["queries_per_second"][mode].as_f64() {
            Some(rate) => format!("{rate:>16}"),
            None => String::new(),
        });
        let (fs, name) = (text(row, "fs"), text(row, "name"));
        lines.push(format!("{fs:<5}{name:<29}{}{}", cpu.concat(), asked.concat()));
    }
    lines
}

/// Formats latencies and device writes of rows that time each operation.
fn latency_table(rows: &[Value]) -> Vec<String> {
    let timed: Vec<_> = rows.iter().filter(|row| row["latency_ns"].is_object()).collect();
    if timed.is_empty() {
        return Vec::new();
    }
    let head = format!(
        "{:<5}{:<29}{:<12}{:>12}{:>12}{:>12}{:>12}{:>14}{:>16}{:>9}",
        "fs", "workload", "", "p50 ns", "p99", "p99.9", "max", "device writes", "bytes", "flushes"
    );
    let mut lines = vec![String::new(), head];
    for row in timed {
        let kernel = kernel(row);
        let mut contenders: Vec<_> = ["old", "new", "none"]
            .map(|mode| (mode, &row["latency_ns"][mode], &row["device_writes"][mode]))
            .into();
        if kernel["latency_ns"].is_object() {
            contenders.push(("kernel", &kernel["latency_ns"], &kernel["device_writes"]));
        }
        for (who, latency, writes) in contenders {
            let ns = ["p50", "p99", "p999", "max"].map(|key| format!("{:>12}", number(&latency[key])));
            lines.push(format!(
                "{:<5}{:<29}{who:<12}{}{:>14}{:>16}{:>9}",
                text(row, "fs"),
                text(row, "name"),
                ns.concat(),
                number(&writes["calls"]),
                number(&writes["bytes"]),
                number(&writes["flushes"]),
            ));
        }
    }
    lines
}

fn curve_table(row: &Value) -> Vec<String> {
    let unit = text(row, "unit");
    let shown = if unit == "ops/s" { "ns per operation" } else { unit };
    let axis = [text(row, "x_name"), text(row, "x_unit")].join(" ");
    let mut lines = vec![
        String::new(),
        format!("{} {}, {shown}", text(row, "fs"), text(row, "name")),
        format!(
            "{:<34}{:>10}{:>10}{:>10}{:>10}  {:<22}{:<22}{}",
            axis.trim(),
            "old",
            "new",
            "none",
            "kernel",
            "new/old",
            "new/none",
            "updates old/new/none"
        ),
    ];
    for point in row["points"].as_array().into_iter().flatten() {
        let x = [number(&point["x"]).to_string(), text(point, "label").to_owned()].join(" ");
        lines.push(format!(
            "{:<34}{}{:>10}  {:<22}{:<22}{}",
            x.trim(),
            cells(point, unit),
            kernel_ns(point),
            ratio(point, "new_over_old"),
            ratio(point, "new_over_none"),
            three(point, "inode_updates"),
        ));
    }
    lines
}
