//! Medians and spreads, and the tables for people.

use serde_json::{Value, json};

/// What was measured, one figure a round.
pub(super) type Samples = Vec<f64>;

/// The middle figure; 0 of nothing.
pub(super) fn median(samples: &[f64]) -> f64 {
    quantile(samples, 1, 2)
}

fn quantile(samples: &[f64], nth: usize, of: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() * nth / of).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// The quartiles of the rounds' own ratios: how far a ratio of medians is to be trusted.
pub(super) fn spread(slower: &[f64], faster: &[f64]) -> Value {
    let ratios: Samples = slower.iter().zip(faster).map(|(a, b)| a / b.max(1e-3)).collect();
    json!([places(quantile(&ratios, 1, 4), 3), places(quantile(&ratios, 3, 4), 3)])
}

/// Cut to so many digits behind the point.
pub(super) fn places(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// Operations a second from nanoseconds an operation.
pub(super) fn rate(ns_per_op: f64) -> f64 {
    (1e9 / ns_per_op.max(1e-3)).round()
}

pub(super) fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or("")
}

pub(super) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// The reasons why peers are missing, each once.
pub(super) fn notes(rows: &[Value]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for (peer, why) in rows.iter().filter_map(|row| row["peers_missing"].as_object()).flatten() {
        let note = format!("{peer} is missing: {}", why.as_str().unwrap_or(""));
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

/// The table of `ivers bench`.
pub(super) fn mode_table(rows: &[Value]) -> Vec<String> {
    let mut lines = vec![
        "ns an operation, medians; old = eager, new = lazy, none = off; in brackets the quartiles of the rounds' own ratios"
            .to_owned(),
        format!(
            "{:<5}{:<22}{:>8}{:>8}{:>8}{:>8}  {:<22}{:<22}{:<25}{:<16}{}",
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
            "queries"
        ),
    ];
    for row in rows {
        let three = |key: &str| format!("{} / {} / {}", row[key]["old"], row[key]["new"], row[key]["none"]);
        let ns = |mode: &str| number(&row["ns_per_op"][mode]);
        let ratio = |key: &str| {
            let (low, high) = (number(&row["spread"][key][0]), number(&row["spread"][key][1]));
            format!("{:>6.2}x [{low:.2}, {high:.2}]", number(&row[key]))
        };
        let kernel = match row["peers"]["kernel_ext4"]["ns_per_op"].as_f64() {
            Some(ns) => format!("{ns:.1}"),
            None => "-".to_owned(),
        };
        lines.push(format!(
            "{:<5}{:<22}{:>8.1}{:>8.1}{:>8.1}{kernel:>8}  {:<22}{:<22}{:<25}{:<16}{}",
            text(row, "fs"),
            text(row, "name"),
            ns("old"),
            ns("new"),
            ns("none"),
            ratio("new_over_old"),
            ratio("new_over_none"),
            three("inode_updates"),
            three("journal_blocks"),
            three("queries"),
        ));
    }
    lines.extend(notes(rows));
    lines.push(
        "kernel: its ext4 on an equal image, loop-mounted, by system calls; the three modes are calls of the library".to_owned(),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_what_was_measured() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[]), 0.0);
        assert_eq!(spread(&[2.0, 4.0, 6.0, 8.0], &[2.0; 4]), json!([2.0, 4.0]));
    }
}
