//! The plots, and the rows in each.

use anyhow::Result;
use plotters::style::RGBColor;
use serde_json::Value;

use super::chart::{self, Bars, Group, Line, Lines, Series};
use super::{is_fuse, mode_rows, short_title, title};
use crate::tables::kernel;

/// Keys, names and colours of the contenders. The colours are distinguishable with red-green colour
/// blindness.
const CONTENDERS: [(&str, &str, RGBColor); 15] = [
    ("old", "old (eager)", RGBColor(213, 94, 0)),
    ("new", "ivers (new)", RGBColor(0, 114, 178)),
    ("none", "noivers (none)", RGBColor(86, 180, 233)),
    ("ivers", "ivers", RGBColor(0, 114, 178)),
    ("ivers_xfs", "ivers, XFS", RGBColor(120, 94, 240)),
    ("ivers_btrfs", "ivers, btrfs", RGBColor(148, 103, 189)),
    ("null_passthrough", "null FUSE passthrough", RGBColor(0, 158, 115)),
    ("null_passthrough_no_xattr", "the same without xattrs", RGBColor(146, 208, 187)),
    ("fuse2fs", "fuse2fs", RGBColor(230, 159, 0)),
    ("kernel", "kernel", RGBColor(130, 130, 130)),
    ("kernel_ext4", "kernel ext4", RGBColor(130, 130, 130)),
    ("kernel_xfs", "kernel XFS", RGBColor(180, 180, 180)),
    ("kernel_btrfs", "kernel btrfs", RGBColor(205, 205, 205)),
    ("ganesha", "nfs-ganesha", RGBColor(204, 121, 167)),
    ("ganesha_dirsync", "nfs-ganesha, dirsync", RGBColor(228, 180, 206)),
];
/// Colours for other contenders.
const OTHERS: [RGBColor; 4] =
    [RGBColor(204, 121, 167), RGBColor(120, 94, 240), RGBColor(148, 103, 189), RGBColor(120, 120, 60)];

pub(crate) fn series(name: &str) -> Series {
    match CONTENDERS.iter().find(|(key, ..)| *key == name) {
        Some((_, label, color)) => Series { name: (*label).to_owned(), color: *color },
        None => {
            let sum: usize = name.bytes().map(usize::from).sum();
            Series { name: super::plain(name), color: OTHERS[sum % OTHERS.len()] }
        }
    }
}

/// Returns the keys of all these objects, known contenders first, in their order.
pub(crate) fn names<'a>(objects: impl Iterator<Item = &'a Value>, but: &[&str]) -> Vec<String> {
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

/// Plots nanoseconds per write by mode, beside the kernel's, for the selected rows.
fn by_mode(rows: &[&Value], title_of_all: &str, is_wanted: fn(&str) -> bool) -> Option<Bars> {
    let rows: Vec<_> = mode_rows(rows).filter(|row| row["name"].as_str().is_some_and(is_wanted)).collect();
    let names = ["old", "new", "none", "kernel"];
    let groups: Vec<_> = rows
        .iter()
        .map(|row| {
            let ns = |name: &str| match name {
                "kernel" => kernel(row)["ns_per_op"].as_f64(),
                mode => row["ns_per_op"][mode].as_f64(),
            };
            Group { label: title(row), values: names.iter().map(|name| ns(name)).collect() }
        })
        .collect();
    (!groups.is_empty()).then(|| Bars {
        title: title_of_all.to_owned(),
        axis: "nanoseconds per write (less is better)".to_owned(),
        is_log: false,
        series: names.map(series).into(),
        groups,
    })
}

/// Plots microseconds per operation through FUSE, beside the peers.
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
        title: "Through FUSE, beside other filesystems".to_owned(),
        axis: "microseconds per operation, logarithmic (less is better)".to_owned(),
        is_log: true,
        series: names.map(series).collect(),
        groups,
    })
}

/// Draws the main plot.
pub(crate) fn main(rows: &[&Value]) -> Result<String> {
    let what = "One-byte writes in-process, by mode of the change attribute";
    let small = by_mode(rows, what, |name| name.ends_with("_1_byte"));
    let charts: Vec<_> = [small, through_fuse(rows)].into_iter().flatten().collect();
    chart::bars(&charts)
}

/// Plots one-byte writes while other threads query.
pub(crate) fn hammered(rows: &[&Value]) -> Result<Option<String>> {
    let what = "One-byte writes in-process while threads query the change attribute without pause";
    by_mode(rows, what, |name| name.starts_with("query_hammer"))
        .map(|chart| chart::bars(&[chart]))
        .transpose()
}

/// Plots new over old beside the figures of the patch series.
pub(crate) fn beside_reference(rows: &[&Value]) -> Result<Option<String>> {
    let with_reference = rows.iter().filter(|row| row["patch_series"]["new_over_old"].is_number());
    let groups: Vec<_> = with_reference
        .map(|row| Group {
            label: title(row),
            values: vec![row["new_over_old"].as_f64(), row["patch_series"]["new_over_old"].as_f64()],
        })
        .collect();
    if groups.is_empty() {
        return Ok(None);
    }
    let grey = RGBColor(130, 130, 130);
    chart::bars(&[Bars {
        title: "New over old, here and in the patch series of 2017".to_owned(),
        axis: "speed relative to old (more is better)".to_owned(),
        is_log: false,
        series: vec![series("ivers"), Series { name: "patch series, Linux of 2017".to_owned(), color: grey }],
        groups,
    }])
    .map(Some)
}

/// Keys and names of the latency percentiles.
pub(crate) const QUANTILES: [(&str, &str); 4] =
    [("p50", "p50"), ("p99", "p99"), ("p999", "p99.9"), ("max", "max")];

/// Returns the latencies of a row: ours by mode, then the peers'.
pub(crate) fn latencies(row: &Value) -> Vec<(String, &Value)> {
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

/// Plots p50 to maximum of a row that timed single operations.
pub(crate) fn latency(row: &Value) -> Result<Option<String>> {
    let whose = latencies(row);
    if whose.is_empty() {
        return Ok(None);
    }
    let groups = QUANTILES.map(|(key, label)| Group {
        label: label.to_owned(),
        values: whose.iter().map(|(_, latency)| latency[key].as_f64().map(|ns| ns / 1000.0)).collect(),
    });
    chart::bars(&[Bars {
        title: format!("{}: latency of single operations", title(row)),
        axis: "microseconds, logarithmic (less is better)".to_owned(),
        is_log: true,
        series: whose.iter().map(|(name, _)| series(name)).collect(),
        groups: groups.into(),
    }])
    .map(Some)
}

/// Plots a curve.
pub(crate) fn curve(row: &Value) -> Result<Option<String>> {
    let Some(points) = row["points"].as_array() else { return Ok(None) };
    let lines =
        names(points.iter(), &["x", "new_over_old", "new_over_none"]).into_iter().filter_map(|name| {
            let points: Vec<_> = points
                .iter()
                .filter_map(|point| Some((point["x"].as_f64()?, point[name.as_str()].as_f64()?)))
                .collect();
            // Other fields of a point have other units.
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
