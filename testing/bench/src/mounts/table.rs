//! The table of `cargo xtask bench --fuse`.

use serde_json::Value;

use crate::statistics::{notes, number, text};
use crate::tables::{ratio, three};

/// Headings of columns, and the names in a row.
const PEERS: [(&str, &str); 8] = [
    ("null", "null_passthrough"),
    ("no xattr", "null_passthrough_no_xattr"),
    ("fuse2fs", "fuse2fs"),
    ("kernel", "kernel_ext4"),
    ("XFS", "ivers_xfs"),
    ("kernel XFS", "kernel_xfs"),
    ("btrfs", "ivers_btrfs"),
    ("kernel btrfs", "kernel_btrfs"),
];

fn over_peer(row: &Value, peer: &str) -> String {
    let Some(ratio) = row["new_over_peer"][peer].as_f64() else { return "-".to_owned() };
    let spread = &row["spread"]["new_over_peer"][peer];
    format!("{ratio:>7.2}x [{:.2}, {:.2}]", number(&spread[0]), number(&spread[1]))
}

/// Formats the table.
pub(crate) fn table(rows: &[Value]) -> Vec<String> {
    let mut lines = vec![
        "us per operation, medians of the rounds; above 1x: ivers is faster; in brackets the quartiles of \
            the ratio per round"
            .to_owned(),
        format!("{:<25}{:>9}{:>10}", "workload", "ops", "ivers"),
    ];
    for (head, _) in PEERS {
        lines[1] += &format!("{head:>12}");
    }
    for (head, _) in PEERS {
        lines[1] += &format!("  {:<22}", format!("over {head}"));
    }
    lines[1] = lines[1].trim_end().to_owned();
    for row in rows.iter().filter(|row| row["missing"].is_null()) {
        let us = |ns: &Value| match ns.as_f64() {
            Some(ns) => format!("{:.2}", ns / 1000.0),
            None => "-".to_owned(),
        };
        let mut line =
            format!("{:<25}{:>9}{:>10}", text(row, "name"), row["ops"], us(&row["ns_per_op"]["new"]));
        for (_, peer) in PEERS {
            line += &format!("{:>12}", us(&row["peers"][peer]["ns_per_op"]));
        }
        for (_, peer) in PEERS {
            line += &format!("  {:<22}", over_peer(row, peer));
        }
        lines.push(line.trim_end().to_owned());
    }
    for row in rows.iter().filter(|row| row["new_over_old"].is_number()) {
        lines.push(format!(
            "{}: new/old {}, new/none {}, inode updates old/new/none {}, journal blocks {}",
            text(row, "name"),
            ratio(row, "new_over_old").trim_start(),
            ratio(row, "new_over_none").trim_start(),
            three(row, "inode_updates"),
            three(row, "journal_blocks"),
        ));
    }
    lines.extend(
        rows.iter().filter_map(|row| Some(format!("{}: {}", text(row, "name"), row["missing"].as_str()?))),
    );
    for row in rows {
        for (peer, ops) in row["peer_ops"].as_object().into_iter().flatten() {
            lines.push(format!("{}: {peer} did {ops} operations", text(row, "name")));
        }
    }
    lines.extend(notes(rows));
    lines.push(
        "null: libfuse's passthrough_ll over the kernel's ext4, the cost of FUSE itself; no xattr: the same, \
        so that the kernel asks for no attribute before a write; kernel: its ext4, loop-mounted; XFS: ivers \
        on an image of XFS; kernel XFS: the kernel's driver on such an image, loop-mounted"
            .to_owned(),
    );
    lines
}
