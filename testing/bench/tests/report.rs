//! `cargo xtask bench --report`: the page is complete, contains all figures and loads nothing.

mod common;

use ivers_oracle::said;
use scraper::{Html, Selector};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Output;

fn bench<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    common::bench().args(args).output().unwrap()
}

/// Rows of each kind, one of an unknown kind, and texts that look like markup.
fn saved_results() -> Value {
    json!({
        "machine": {
            "cpu": "<script>alert(1)</script> & Co", "cpus": 2, "memory_bytes": 1_u64 << 33,
            "tools": { "fio": "fio-3.33" },
        },
        "commands": ["cargo xtask bench --report 'a \"dir\" & <more>'"],
        "missing": ["all of that: <b>gone</b>"],
        "rows": [
            {
                "name": "overwrite_1_byte", "fs": "ext4", "unit": "ops/s", "ops": 12_345, "rounds": 7,
                "old": 1_876_172, "new": 9_930_486, "none": 9_950_248, "new_over_old": 5.293,
                "new_over_none": 0.998,
                "spread": { "new_over_old": [4.88, 5.38], "new_over_none": [0.99, 1.01] },
                "ns_per_op": { "old": 533.1, "new": 100.7, "none": 100.5 },
                "inode_updates": { "old": 12_345, "new": 569, "none": 567 },
                "journal_blocks": { "old": 3, "new": 4, "none": 5 },
                "queries": { "old": 0, "new": 0, "none": 0 },
                "latency_ns": { "old": { "p50": 501, "p99": 902, "p999": 2_003, "max": 70_004 },
                    "new": { "p50": 101, "p99": 302, "p999": 1_003, "max": 60_004 } },
                "device_writes": { "new": { "calls": 77, "bytes": 8_888, "flushes": 9 } },
                "peers": { "kernel_ext4": { "value": 679_902, "ns_per_op": 1_470.8 } },
                "new_over_peer": { "kernel_ext4": 14.606 },
                "patch_series": { "new_over_old": 2.05, "new_over_none": null, "source": "dd <bs=1>" },
            },
            {
                "name": "fuse_untar", "fs": "ext4", "unit": "ops/s", "ops": 8_852, "rounds": 3, "new": 2_165,
                "ns_per_op": { "new": 461_800.1 }, "seconds": { "ivers": 4.0881 },
                "options": { "ivers": "iversion=lazy" },
                "peers": { "fuse2fs": { "value": 1_049, "ns_per_op": 952_666.2 },
                    "null_passthrough": { "value": 3_000, "ns_per_op": 333_333.3 } },
                "new_over_peer": { "fuse2fs": 2.063, "null_passthrough": 0.722 },
                "spread": { "new_over_peer": { "fuse2fs": [1.811, 2.499],
                    "null_passthrough": [0.701, 0.811] } },
                "peers_missing": { "kernel_ext4": "a loop mount needs <root>" },
            },
            { "name": "fuse_fio_4k_8_jobs", "fs": "ext4", "missing": "not installed (package fio)" },
            {
                "name": "query_rate", "fs": "ext4", "unit": "ops/s",
                "x_name": "queries per second", "x_unit": "1/s", "x_scale": "log",
                "points": [
                    { "x": 0, "old": 1_000, "new": 5_001, "none": 5_002, "new_over_old": 5.001 },
                    { "x": 1_000, "old": 900, "new": 4_001, "none": 5_003, "new_over_old": 4.446 },
                    { "x": 1_000_000, "label": "saturated", "old": 800, "new": 901, "none": 5_004,
                        "new_over_old": 1.126 },
                ],
            },
            {
                "name": "peers_create", "fs": "ext4", "unit": "ops/s", "ns_per_op": { "new": 20_019.4 },
                "new": 49_952,
                "peers": { "rsext4": { "value": 18_893, "ns_per_op": 52_931.3 } },
                "new_over_peer": { "rsext4": 2.644 },
                "spread": { "new_over_peer": { "rsext4": [2.5, 2.7] } },
                "e2fsck": { "rsext4": "Free blocks <count> wrong" },
            },
            {
                "name": "nfs_write_4k_sync", "fs": "ext4", "unit": "ops/s", "ops": 4_000, "rounds": 5,
                "depth": 1, "old": 7_001, "new": 8_002,
                "new_over_old": 1.143,
                "spread": { "new_over_old": [1.101, 1.201], "new_over_peer": { "ganesha": [1.31, 1.51] } },
                "ns_per_op": { "old": 142_836.7, "new": 124_968.8 },
                "inode_updates": { "old": 4_001, "new": 3_002 },
                "peers": { "ganesha": { "value": 5_003, "ns_per_op": 199_880.1 } },
                "new_over_peer": { "ganesha": 1.401 },
                "patch_series": { "new_over_old": 1.09, "new_over_none": null, "source": "fio over NFS" },
            },
            { "name": "inode_bytes", "fs": "mem", "unit": "bytes/inode", "old": 611, "new": 612,
                "none": 613 },
            { "name": "<img src=x onerror=y>\u{1}", "what": ["nobody", { "knows": 4_711 }] },
            { "points": "odd", "latency_ns": 5, "peers": [1], "spread": null,
                "patch_series": { "new_over_old": "many" }, "name": 3 },
            "no row at all",
        ],
    })
}

fn render(dir: &Path, run: &Value) -> (String, String) {
    let from = dir.join("run.json");
    fs::write(&from, run.to_string()).unwrap();
    let report = dir.join("deep/report");
    let [from, to] = [&from, &report].map(|path| path.to_str().unwrap());
    let output = bench(["--report", to, "--from", from]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("index.html"), "{}", said(&output));
    (
        fs::read_to_string(report.join("index.html")).unwrap(),
        fs::read_to_string(report.join("main.svg")).unwrap(),
    )
}

fn text(page: &Html, selector: &str) -> Vec<String> {
    page.select(&Selector::parse(selector).unwrap()).map(|found| found.text().collect()).collect()
}

fn numbers(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Number(number) => found.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| numbers(item, found)),
        Value::Object(items) => items.values().for_each(|item| numbers(item, found)),
        _ => {}
    }
}

#[test]
fn a_page_contains_every_figure_and_loads_nothing() {
    let place = tempfile::tempdir().unwrap();
    let run = saved_results();
    let (page, svg) = render(place.path(), &run);
    let html = Html::parse_document(&page);
    assert!(html.errors.is_empty(), "{:?}", html.errors);

    // Every number in the tables of known rows is in a cell; every number of any row is on the page.
    let cells = text(&html, "td");
    for figure in [
        "533.1",
        "100.7",
        "1470.8",
        "12345 / 569 / 567",
        "3 / 4 / 5",
        "70004",
        "461800.1",
        "952666.2",
        "333333.3",
        "142836.7",
        "124968.8",
        "199880.1",
        "4001 / 3002 / \u{2013}",
        "612",
    ] {
        assert!(cells.iter().any(|cell| cell == figure), "{figure} is in no cell of {cells:?}");
    }
    for ratio in [
        "5.293\u{d7} [4.88, 5.38]",
        "2.063\u{d7} [1.811, 2.499]",
        "2.05\u{d7}",
        "1.126\u{d7}",
        "2.644\u{d7} [2.5, 2.7]",
        "1.143\u{d7} [1.101, 1.201]",
        "1.401\u{d7} [1.31, 1.51]",
        "1.09\u{d7}",
    ] {
        assert!(cells.iter().any(|cell| cell.trim() == ratio), "{ratio} is in no cell of {cells:?}");
    }
    let raw = text(&html, "details pre").concat();
    let mut wanted = Vec::new();
    numbers(&run["rows"], &mut wanted);
    assert!(wanted.len() > 70);
    for figure in wanted {
        assert!(raw.contains(&figure), "{figure}");
    }

    // Targets are judged by the ratio first, then by its spread.
    let judged: Vec<_> =
        text(&html, "tr").into_iter().filter(|row| row.contains("over null FUSE passthrough")).collect();
    assert!(judged.len() == 1 && judged[0].ends_with("within the spread"), "{judged:?}");
    let judged: Vec<_> = text(&html, "tr").into_iter().filter(|row| row.contains("over fuse2fs")).collect();
    assert!(judged.len() == 1 && judged[0].ends_with("missed"), "{judged:?}");

    assert!(text(&html, "p").iter().any(|line| line.contains("rsext4: Free blocks <count> wrong.")));

    // Rows over NFS have a separate section.
    let headings = text(&html, "h2");
    assert!(headings.iter().any(|heading| heading == "Over NFS"), "{headings:?}");
    assert_eq!(text(&html, "tr").iter().filter(|row| row.contains("142836.7")).count(), 1);

    // The page lists what is missing.
    let missing = text(&html, "li");
    for why in [
        "all of that: <b>gone</b>",
        "FUSE fio 4k 8 jobs: not installed (package fio)",
        "kernel_ext4: a loop mount needs <root>",
    ] {
        assert!(missing.iter().any(|line| line == why), "{why} is not in {missing:?}");
    }

    // Texts are escaped, and nothing is loaded.
    assert!(text(&html, "td").iter().any(|cell| cell == "<script>alert(1)</script> & Co"));
    for element in ["script", "img", "link", "iframe", "object", "b", "[src]", "[href]", "[onerror]"] {
        assert!(text(&html, element).is_empty(), "{element}");
    }
    assert!(!page.contains("@import") && !page.contains("url("));
    assert!(text(&html, "pre")[0].contains("cargo xtask bench --report 'a \"dir\" & <more>'"));
    assert!(page.contains("8.0 GiB"));

    // Four plots: the main plot, the patch series, latency and the curve.
    assert_eq!(html.select(&Selector::parse("svg").unwrap()).count(), 4);
    let labels = text(&html, "svg text").concat();
    for label in [
        "nanoseconds per write",
        "microseconds per operation",
        "queries per second, 1/s",
        "never",
        "ops/s",
        "untar",
        "null FUSE passthrough",
    ] {
        assert!(labels.contains(label), "{label} is in no plot");
    }
    let plot = roxmltree::Document::parse(&svg).unwrap();
    assert_eq!(plot.root_element().tag_name().name(), "svg");
    // Three modes and the kernel; ivers and two peers.
    let bars = |color: &str| plot.descendants().filter(|node| node.attribute("fill") == Some(color)).count();
    assert_eq!((bars("#D55E00"), bars("#0072B2"), bars("#56B4E9")), (1 + 1, 2 + 2, 1 + 1), "{svg}");
}

#[test]
fn a_page_is_rebuilt_from_saved_rows() {
    let place = tempfile::tempdir().unwrap();
    let (page, svg) = render(place.path(), &saved_results());
    let kept = place.path().join("deep/report/rows.json");
    let again = place.path().join("again");
    let output = bench(["--report", again.to_str().unwrap(), "--from", kept.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(fs::read_to_string(again.join("index.html")).unwrap(), page);
    assert_eq!(fs::read_to_string(again.join("main.svg")).unwrap(), svg);

    // Several runs are combined.
    let other = place.path().join("other.json");
    fs::write(&other, json!({ "rows": [{ "name": "one_more" }] }).to_string()).unwrap();
    let [to, first, second] = [&again, &kept, &other].map(|path| path.to_str().unwrap());
    let output = bench(["--json", "--report", to, "--from", first, "--from", second]);
    assert!(output.status.success(), "{}", said(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["rows"].as_array().unwrap().len(), 11);
    assert_eq!(answer["rows"][10]["name"], "one_more");
}

#[test]
fn a_page_without_rows_is_a_page() {
    let place = tempfile::tempdir().unwrap();
    let (page, svg) = render(place.path(), &json!({ "rows": [] }));
    assert!(Html::parse_document(&page).errors.is_empty());
    roxmltree::Document::parse(&svg).unwrap();
}

#[test]
fn measured_rows_are_on_the_page() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("report");
    // The tests of rows measure FUSE; this test runs without it.
    let kept = place.path().join("mem.json");
    let output = bench(["--json", "--fs", "mem", "--ops", "400", "--rounds", "2"]);
    assert!(output.status.success(), "{}", said(&output));
    fs::write(&kept, &output.stdout).unwrap();
    let output = bench(["--report", to.to_str().unwrap(), "--from", kept.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let page = Html::parse_document(&fs::read_to_string(to.join("index.html")).unwrap());
    assert!(page.errors.is_empty());
    let kept: Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
    let cells = text(&page, "td");
    let rows = kept["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows.iter().filter(|row| row["points"].is_null() && row["ns_per_op"]["old"].is_number()) {
        for mode in ["old", "new", "none"] {
            let figure = row["ns_per_op"][mode].to_string();
            let figure = figure.strip_suffix(".0").unwrap_or(&figure).to_owned();
            assert!(cells.contains(&figure), "{figure} of {row} is in no cell");
        }
    }
}

#[test]
fn invalid_reports_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (file, dir, odd) = (path("file"), path("dir"), path("odd.json"));
    fs::write(&file, "{\"rows\": []}").unwrap();
    fs::write(&odd, "{\"rows\": 5}").unwrap();
    for (code, words) in [
        // An output path that is a file fails before anything is measured.
        (1, vec!["--report", &file, "--ops", "100000000000"]),
        (1, vec!["--report", &dir, "--from", "/nowhere/at all"]),
        (1, vec!["--report", &dir, "--from", &odd]),
        (1, vec!["--report", &dir, "--from", "/proc/self/cmdline"]),
        (2, vec!["--from", &file]),
    ] {
        let output = bench(&words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
    }
}
