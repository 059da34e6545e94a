//! Results as JSON; docs/json.md lists the names.

use serde_json::{Map, Value, json};

use super::contenders::{MODES, Measured, Sample};
use super::statistics::{median, places, quantiles, rate, spread};

/// Figures of the patch series of 2017 for a row. A field is `None` where the series gives no figure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reference {
    pub(crate) new_over_old: Option<f64>,
    pub(crate) new_over_none: Option<f64>,
    pub(crate) source: &'static str,
}

impl Reference {
    pub(crate) fn to_json(self) -> Value {
        json!({
            "new_over_old": self.new_over_old,
            "new_over_none": self.new_over_none,
            "source": self.source,
        })
    }
}

fn each(ours: &[Sample; 3], of: &dyn Fn(&Sample) -> Value) -> Value {
    let figures = MODES.iter().zip(ours).map(|((label, _), sample)| ((*label).to_owned(), of(sample)));
    Value::Object(figures.collect())
}

fn latency(sample: &Sample) -> Value {
    let ns: Vec<f64> = sample.latencies.iter().copied().map(f64::from).collect();
    let [p50, p99, p999, max] =
        quantiles(&ns, [(1, 2), (99, 100), (999, 1000), (1, 1)]).map(|figure| figure as u64);
    json!({ "p50": p50, "p99": p99, "p999": p999, "max": max })
}

fn device_writes(sample: &Sample) -> Option<Value> {
    let writes = sample.counts.writes?;
    Some(json!({ "calls": writes.calls, "bytes": writes.bytes, "flushes": writes.flushes }))
}

/// Returns the fields of a row or of a point of a curve.
pub(crate) fn figures(measured: &Measured) -> Map<String, Value> {
    let ours = &measured.ours;
    let [old, new, none] = [0, 1, 2].map(|mode: usize| ours[mode].ns_per_op.as_slice());
    let mut figures = json!({
        "ops": measured.ops,
        "rounds": measured.rounds,
        "old": rate(median(old)),
        "new": rate(median(new)),
        "none": rate(median(none)),
        "new_over_old": places(median(old) / median(new).max(1e-3), 3),
        "new_over_none": places(median(none) / median(new).max(1e-3), 3),
        "spread": { "new_over_old": spread(old, new), "new_over_none": spread(none, new) },
        "ns_per_op": each(ours, &|sample| json!(places(median(&sample.ns_per_op), 1))),
        "inode_updates": each(ours, &|sample| json!(sample.counts.inode_updates)),
        "journal_blocks": each(ours, &|sample| json!(sample.counts.journal_blocks)),
        "queries": each(ours, &|sample| json!(sample.counts.queries)),
        "peers": {},
        "new_over_peer": {},
    });
    if ours.iter().all(|sample| !sample.cpu_ns_per_op.is_empty()) {
        figures["cpu_ns_per_op"] = each(ours, &|sample| json!(places(median(&sample.cpu_ns_per_op), 1)));
    }
    if ours.iter().any(|sample| median(&sample.queries_per_second) > 0.0) {
        figures["queries_per_second"] =
            each(ours, &|sample| json!(median(&sample.queries_per_second).round()));
    }
    if ours.iter().all(|sample| !sample.latencies.is_empty()) {
        figures["latency_ns"] = each(ours, &latency);
    }
    if ours.iter().all(|sample| sample.counts.writes.is_some()) {
        figures["device_writes"] = each(ours, &|sample| json!(device_writes(sample)));
    }
    if let Some((name, kernel)) = &measured.kernel {
        let ns = median(&kernel.ns_per_op);
        let mut peer = json!({ "value": rate(ns), "ns_per_op": places(ns, 1) });
        if !kernel.latencies.is_empty() {
            peer["latency_ns"] = latency(kernel);
        }
        if let Some(writes) = device_writes(kernel) {
            peer["device_writes"] = writes;
        }
        figures["peers"][*name] = peer;
        figures["new_over_peer"][*name] = json!(places(ns / median(new).max(1e-3), 3));
    }
    if !measured.missing.is_empty() {
        figures["peers_missing"] = measured.missing.clone().into();
    }
    match figures {
        Value::Object(figures) => figures,
        _ => unreachable!("an object was written above"),
    }
}

/// Replaces the values by values in a unit of which less is better and zero is possible.
pub(crate) fn less_is_better(figures: &mut Map<String, Value>, [old, new, none]: [f64; 3]) {
    figures.remove("spread");
    for (name, value) in [("old", old), ("new", new), ("none", none)] {
        figures.insert(name.into(), json!(places(value, 3)));
    }
    for (name, other) in [("new_over_old", old), ("new_over_none", none)] {
        figures.insert(name.into(), if new > 0.0 { json!(places(other / new, 3)) } else { Value::Null });
    }
}

/// Builds a row.
pub(crate) fn row(
    name: &str,
    fs: &str,
    unit: &str,
    figures: Map<String, Value>,
    reference: Option<Reference>,
) -> Value {
    let mut row = json!({ "name": name, "fs": fs, "unit": unit });
    if let Some(row) = row.as_object_mut() {
        row.extend(figures);
        row.extend(reference.map(|reference| ("patch_series".to_owned(), reference.to_json())));
    }
    row
}
