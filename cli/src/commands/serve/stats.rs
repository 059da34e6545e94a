//! The statistics of a server as JSON, as text, and for Prometheus.

use std::fmt::Write;

use ivers_nfsd::server::{Stats, StatsHandle};
use serde_json::{Map, Value, json};

/// The source of the statistics: a running server and what does not change about it.
pub struct StatsSource {
    /// The server.
    pub handle: StatsHandle,
    /// The sandbox of its process, in words.
    pub sandbox: Option<String>,
    /// The name and image of each export.
    pub images: Vec<(String, String)>,
}

impl StatsSource {
    /// Returns the current statistics. `None` if the server has ended.
    pub fn json(&self) -> Option<Value> {
        let stats = self.handle.stats()?;
        let operations = stats.operations.iter().map(|operation| {
            (operation.name.to_owned(), json!({ "calls": operation.calls, "errors": operation.errors }))
        });
        let errors = stats.errors.iter().map(|(name, count)| (name.clone(), json!(count)));
        Some(json!({
            "pid": std::process::id(),
            "sandbox": self.sandbox,
            "boot": stats.boot,
            "uptime_s": stats.uptime.as_secs(),
            "now": now(&stats),
            "total": total(&stats),
            "operations": operations.collect::<Map<_, _>>(),
            "errors": errors.collect::<Map<_, _>>(),
            "exports": self.exports(&stats),
        }))
    }

    fn exports(&self, stats: &Stats) -> Map<String, Value> {
        let one = |export: &ivers_nfsd::server::ExportStats| {
            let image = self.images.iter().find(|(name, _)| *name == export.name);
            let mut map = Map::new();
            map.insert("image".into(), image.map(|(_, image)| image.as_str()).into());
            map.insert("read_only".into(), export.read_only.into());
            for (name, value) in &export.counters {
                map.insert((*name).into(), (*value).into());
            }
            (export.name.clone(), Value::Object(map))
        };
        stats.exports.iter().map(one).collect()
    }
}

/// Returns the current state.
fn now(stats: &Stats) -> Value {
    let (counts, net) = (&stats.counts, &stats.net);
    json!({
        "connections": net.connections,
        "held_bytes": net.held_bytes,
        "clients": counts.clients,
        "sessions": counts.sessions,
        "opens": counts.opens,
        "lock_owners": counts.lock_owners,
        "locks": counts.locks,
        "delegations_read": counts.delegations_read,
        "delegations_write": counts.delegations_write,
        "copies": counts.copies,
        "recalls_pending": counts.recalls_pending,
        "in_grace": u64::from(counts.in_grace),
    })
}

/// Counters since the start.
fn total(stats: &Stats) -> Value {
    let (events, net) = (&stats.events, &stats.net);
    json!({
        "connections": net.connections_total,
        "connections_refused": net.connections_refused,
        "bytes_in": net.bytes_in,
        "bytes_out": net.bytes_out,
        "calls": net.calls,
        "calls_refused": net.calls_refused,
        "callbacks": net.callbacks,
        "callbacks_late": net.callbacks_late,
        "panics": net.panics,
        "clients_confirmed": events.clients_confirmed,
        "clients_evicted": events.clients_evicted,
        "recalls": events.recalls,
        "revocations": events.revocations,
        "refusals": stats.denials,
    })
}

fn entries<'a>(stats: &'a Value, part: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    stats[part].as_object().into_iter().flatten()
}

/// Escapes the value of a label for Prometheus.
pub fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns the statistics of [`StatsSource::json`] in the text format of Prometheus.
pub fn prometheus(stats: &Value) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, samples: &[(String, &Value)]| {
        if samples.is_empty() {
            return;
        }
        // Writing to a string never fails.
        let _ = writeln!(text, "# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    family("ivers_nfsd_uptime_seconds", "gauge", &[(String::new(), &stats["uptime_s"])]);
    for (name, value) in entries(stats, "now") {
        family(&format!("ivers_nfsd_{name}"), "gauge", &[(String::new(), value)]);
    }
    for (name, value) in entries(stats, "total") {
        family(&format!("ivers_nfsd_{name}_total"), "counter", &[(String::new(), value)]);
    }
    for (name, part) in [("operations", "calls"), ("operation_errors", "errors")] {
        let samples: Vec<_> = entries(stats, "operations")
            .map(|(operation, value)| (format!("{{operation=\"{operation}\"}}"), &value[part]))
            .collect();
        family(&format!("ivers_nfsd_{name}_total"), "counter", &samples);
    }
    let errors: Vec<_> = entries(stats, "errors")
        .map(|(status, value)| (format!("{{status=\"{}\"}}", label(status)), value))
        .collect();
    family("ivers_nfsd_errors_total", "counter", &errors);
    // The samples of a family must be adjacent: group by counter, not by export.
    let mut counters: Vec<(&String, Vec<(String, &Value)>)> = Vec::new();
    for (export, values) in entries(stats, "exports") {
        for (name, value) in values.as_object().into_iter().flatten().filter(|(_, value)| value.is_u64()) {
            let sample = (format!("{{export=\"{}\"}}", label(export)), value);
            match counters.iter_mut().find(|(known, _)| *known == name) {
                Some((_, samples)) => samples.push(sample),
                None => counters.push((name, vec![sample])),
            }
        }
    }
    for (name, samples) in counters {
        family(&format!("ivers_{name}_total"), "counter", &samples);
    }
    text
}

/// Returns the statistics as text, one number per line.
pub fn lines(stats: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    flatten("", stats, &mut lines);
    lines
}

fn flatten(prefix: &str, value: &Value, lines: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let dot = if prefix.is_empty() { "" } else { "." };
                flatten(&format!("{prefix}{dot}{name}"), value, lines);
            }
        }
        Value::String(text) => lines.push(format!("{prefix:<44} {text}")),
        Value::Null => lines.push(format!("{prefix:<44} none")),
        value => lines.push(format!("{prefix:<44} {value:>16}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_is_contiguous_and_unique() {
        let stats = json!({
            "uptime_s": 3,
            "now": {"clients": 1},
            "total": {"calls": 9, "connections": 2},
            "operations": {"READ": {"calls": 5, "errors": 1}, "WRITE": {"calls": 2, "errors": 0}},
            "errors": {"NFS4ERR_NOENT": 4},
            "exports": {
                "/a\"b": {"image": "i", "read_only": true, "bumps": 1, "queries": 2},
                "/c": {"image": "j", "read_only": false, "bumps": 3, "queries": 4},
            },
        });
        let text = prometheus(&stats);
        let types: Vec<_> = text.lines().filter(|line| line.starts_with('#')).collect();
        let mut once = types.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(types.len(), once.len(), "{text}");
        for line in [
            "ivers_nfsd_clients 1",
            "ivers_nfsd_calls_total 9",
            "ivers_nfsd_operations_total{operation=\"READ\"} 5",
            "ivers_nfsd_operation_errors_total{operation=\"READ\"} 1",
            "ivers_nfsd_errors_total{status=\"NFS4ERR_NOENT\"} 4",
            "ivers_bumps_total{export=\"/a\\\"b\"} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} not in {text}");
        }
        let at = |line: &str| text.lines().position(|other| other.starts_with(line)).unwrap();
        assert_eq!(at("ivers_bumps_total{export=\"/c\"}"), at("# TYPE ivers_bumps_total") + 2);
        assert!(
            lines(&stats).iter().any(|line| line.starts_with("exports./c.bumps ") && line.ends_with(" 3"))
        );
    }
}
