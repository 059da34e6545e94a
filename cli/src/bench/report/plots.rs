//! Which plots there are of which rows.

use anyhow::Result;
use plotters::style::RGBColor;
use serde_json::Value;

use super::chart::{self, Bars, Group, Line, Lines, Series};
use super::{is_fuse, mode_rows, short_title, title};

/// How a contender is called and painted. Colours that those who confuse red and green can tell apart.
const CONTENDERS: [(&str, &str, RGBColor); 10] = [
    ("old", "old (eager)", RGBColor(213, 94, 0)),
    ("new", "ivers (new)", RGBColor(0, 114, 178)),
    ("none", "noivers (none)", RGBColor(86, 180, 233)),
    ("ivers", "ivers", RGBColor(0, 114, 178)),
    ("null_passthrough", "null FUSE passthrough", RGBColor(0, 158, 115)),
    ("null_passthrough_no_xattr", "the same without xattrs", RGBColor(146, 208, 187)),
    ("fuse2fs", "fuse2fs", RGBColor(230, 159, 0)),
    ("kernel_ext4", "kernel ext4", RGBColor(130, 130, 130)),
    ("ganesha", "nfs-ganesha", RGBColor(204, 121, 167)),
    ("ganesha_dirsync", "nfs-ganesha, dirsync", RGBColor(228, 180, 206)),
];
/// For whoever is not among them.
const OTHERS: [RGBColor; 4] =
    [RGBColor(204, 121, 167), RGBColor(120, 94, 240), RGBColor(148, 103, 189), RGBColor(120, 120, 60)];

pub(super) fn series(name: &str) -> Series {
    match CONTENDERS.iter().find(|(key, ..)| *key == name) {
        Some((_, label, color)) => Series { name: (*label).to_owned(), color: *color },
        None => {
            let sum: usize = name.bytes().map(usize::from).sum();
            Series { name: super::plain(name), color: OTHERS[sum % OTHERS.len()] }
        }
    }
}

/// Names that stand in any of these objects: those that are known first, in their order.
pub(super) fn names<'a>(objects: impl Iterator<Item = &'a Value>, but: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in objects.filter_map(Value::as_object).flat_map(|object| object.keys()) {
        if !names.contains(name) && !but.contains(&name.as_str()) {
            names.push(name.clone());
        }
    }
    let rank = |name: &String| CONTENDERS.iter().position(|(key, ..)| key == name).unwrap_or(usize::MAX);
    names.sort_by_key(rank);
    names
}

/// Nanoseconds of a write by mode, the kernel's beside them, of the rows that are asked for.
fn by_mode(rows: &[&Value], title_of_all: &str, is_wanted: fn(&str) -> bool) -> Option<Bars> {
    let rows: Vec<_> = mode_rows(rows).filter(|row| row["name"].as_str().is_some_and(is_wanted)).collect();
    let names = ["old", "new", "none", "kernel_ext4"];
    let groups: Vec<_> = rows
        .iter()
        .map(|row| {
            let ns = |name: &str| match name {
                "kernel_ext4" => row["peers"][name]["ns_per_op"].as_f64(),
                mode => row["ns_per_op"][mode].as_f64(),
            };
            Group { label: title(row), values: names.iter().map(|name| ns(name)).collect() }
        })
        .collect();
    (!groups.is_empty()).then(|| Bars {
        title: title_of_all.to_owned(),
        axis: "nanoseconds a write (less is better)".to_owned(),
        is_log: false,
        series: names.map(series).into(),
        groups,
    })
}

/// Microseconds an operation through FUSE, and of the peers.
fn through_fuse(rows: &[&Value]) -> Option<Bars> {
    let rows: Vec<_> = rows.iter().filter(|row| is_fuse(row) && row["missing"].is_null()).collect();
    let peers = names(rows.iter().map(|row| &row["peers"]), &[]);
    let groups: Vec<_> = rows
        .iter()
        .map(|row| {
            let us = |value: &Value| value.as_f64().map(|ns| ns / 1000.0);
            let ours = us(&row["ns_per_op"]["new"]);
            let theirs = peers.iter().map(|peer| us(&row["peers"][peer.as_str()]["ns_per_op"]));
            Group { label: short_title(row), values: std::iter::once(ours).chain(theirs).collect() }
        })
        .collect();
    let names = std::iter::once("ivers").chain(peers.iter().map(String::as_str));
    (!groups.is_empty()).then(|| Bars {
        title: "Through the mount, and on its peers".to_owned(),
        axis: "microseconds an operation, logarithmic (less is better)".to_owned(),
        is_log: true,
        series: names.map(series).collect(),
        groups,
    })
}

/// The plot for the front page.
pub(super) fn main(rows: &[&Value]) -> Result<String> {
    let what = "One-byte writes in-process, by how the change attribute is kept";
    let small = by_mode(rows, what, |name| name.ends_with("_1_byte"));
    let charts: Vec<_> = [small, through_fuse(rows)].into_iter().flatten().collect();
    chart::bars(&charts)
}

/// One-byte writes while others ask.
pub(super) fn hammered(rows: &[&Value]) -> Result<Option<String>> {
    let what = "One-byte writes in-process while threads ask for the change attribute without rest";
    by_mode(rows, what, |name| name.starts_with("query_hammer"))
        .map(|chart| chart::bars(&[chart]))
        .transpose()
}

/// New over old, where the seeds have a figure for it beside theirs.
pub(super) fn beside_the_seeds(rows: &[&Value]) -> Result<Option<String>> {
    let with_seeds = rows.iter().filter(|row| row["seeds"]["new_over_old"].is_number());
    let groups: Vec<_> = with_seeds
        .map(|row| Group {
            label: title(row),
            values: vec![row["new_over_old"].as_f64(), row["seeds"]["new_over_old"].as_f64()],
        })
        .collect();
    if groups.is_empty() {
        return Ok(None);
    }
    let grey = RGBColor(130, 130, 130);
    chart::bars(&[Bars {
        title: "New over old, ours and the seeds'".to_owned(),
        axis: "times as fast as old (more is better)".to_owned(),
        is_log: false,
        series: vec![
            series("ivers"),
            Series { name: "the seeds, in the kernel of 2017".to_owned(), color: grey },
        ],
        groups,
    }])
    .map(Some)
}

/// What of latencies is told: the name in a row, and for people.
pub(super) const QUANTILES: [(&str, &str); 4] =
    [("p50", "p50"), ("p99", "p99"), ("p999", "p99.9"), ("max", "max")];

/// Whose latencies a row has: ours by mode, then the peers'.
pub(super) fn latencies(row: &Value) -> Vec<(String, &Value)> {
    let of = |objects: &Value| names(std::iter::once(objects), &[]);
    let ours = of(&row["latency_ns"]).into_iter().map(|name| {
        let latency = &row["latency_ns"][name.as_str()];
        (name, latency)
    });
    let peers = of(&row["peers"]).into_iter().map(|name| {
        let latency = &row["peers"][name.as_str()]["latency_ns"];
        (name, latency)
    });
    ours.chain(peers).filter(|(_, latency)| latency.is_object()).collect()
}

/// p50 to max of a row that timed single operations.
pub(super) fn latency(row: &Value) -> Result<Option<String>> {
    let whose = latencies(row);
    if whose.is_empty() {
        return Ok(None);
    }
    let groups = QUANTILES.map(|(key, label)| Group {
        label: label.to_owned(),
        values: whose.iter().map(|(_, latency)| latency[key].as_f64().map(|ns| ns / 1000.0)).collect(),
    });
    chart::bars(&[Bars {
        title: format!("{}: how long single operations take", title(row)),
        axis: "microseconds, logarithmic (less is better)".to_owned(),
        is_log: true,
        series: whose.iter().map(|(name, _)| series(name)).collect(),
        groups: groups.into(),
    }])
    .map(Some)
}

/// A row that is a curve.
pub(super) fn curve(row: &Value) -> Result<Option<String>> {
    let Some(points) = row["points"].as_array() else { return Ok(None) };
    let lines =
        names(points.iter(), &["x", "new_over_old", "new_over_none"]).into_iter().filter_map(|name| {
            let points: Vec<_> = points
                .iter()
                .filter_map(|point| Some((point["x"].as_f64()?, point[name.as_str()].as_f64()?)))
                .collect();
            // What else is said of a point is no line of the plot: it has another unit.
            let is_contender = CONTENDERS.iter().any(|(key, ..)| *key == name);
            (is_contender && !points.is_empty()).then(|| Line { series: series(&name), points })
        });
    let lines: Vec<_> = lines.collect();
    if lines.is_empty() {
        return Ok(None);
    }
    let text = |key: &str| super::plain(row[key].as_str().unwrap_or(""));
    let x_axis = match text("x_unit") {
        unit if unit.is_empty() => text("x_name").replace('_', " "),
        unit => format!("{}, {unit}", text("x_name").replace('_', " ")),
    };
    let chart =
        Lines { title: title(row), x_axis, y_axis: text("unit"), x_is_log: row["x_scale"] == "log", lines };
    chart::lines(&chart).map(Some)
}
