//! Medians and spreads, and helpers for tables.

use serde_json::{Value, json};

/// Measured values, one per round.
pub(crate) type Samples = Vec<f64>;

/// Returns the median; 0 for no values.
pub(crate) fn median(samples: &[f64]) -> f64 {
    quantiles(samples, [(1, 2)])[0]
}

/// Returns the quantiles given as fractions; 0 for no values.
pub(crate) fn quantiles<const N: usize>(samples: &[f64], wanted: [(usize, usize); N]) -> [f64; N] {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    wanted.map(|(nth, of)| sorted.get((sorted.len() * nth / of).min(last)).copied().unwrap_or(0.0))
}

/// Returns the quartiles of the ratio per round: they show how reliable a ratio of medians is.
pub(crate) fn spread(slower: &[f64], faster: &[f64]) -> Value {
    let ratios: Samples = slower.iter().zip(faster).map(|(a, b)| a / b.max(1e-3)).collect();
    json!(quantiles(&ratios, [(1, 4), (3, 4)]).map(|ratio| places(ratio, 3)))
}

/// Rounds to a number of decimal places.
pub(crate) fn places(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// Converts nanoseconds per operation to operations per second: a whole number, or three digits below 100.
///
/// An operation may take seconds (a build), and its rate must not become 0.
pub(crate) fn rate(ns_per_op: f64) -> f64 {
    let rate = 1e9 / ns_per_op.max(1e-3);
    places(rate, (2 - rate.log10().floor() as i32).max(0))
}

pub(crate) fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or("")
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Returns the distinct reasons why peers are missing.
pub(crate) fn notes(rows: &[Value]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for (peer, why) in rows.iter().filter_map(|row| row["peers_missing"].as_object()).flatten() {
        let note = format!("{peer} is missing: {}", why.as_str().unwrap_or(""));
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles_are_computed() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[]), 0.0);
        assert_eq!(spread(&[2.0, 4.0, 6.0, 8.0], &[2.0; 4]), json!([2.0, 4.0]));
    }

    #[test]
    fn slow_operations_have_a_rate() {
        assert_eq!(rate(2_705_649_864.0), 0.37);
        assert_eq!(rate(60_000_000_000.0), 0.0167);
        assert_eq!(rate(41_300_000.0), 24.2);
        assert_eq!(rate(7_000.0), 142_857.0);
    }
}
