//! The JSON rows of `cargo xtask bench`, and the effects of the modes.

mod common;

use common::*;
use serde_json::Value;
use std::collections::BTreeSet;

fn rows(args: &[&str]) -> Vec<Value> {
    let output = bench()
        .args(args)
        // Keeps compiled peers in the test directory.
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    said["rows"].as_array().unwrap().clone()
}

fn number(value: &Value, what: &str) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{what} is no number: {value}"))
}

/// Checks the fields of every row and point. `time`: the value is a rate, with a spread; otherwise less is
/// better.
fn has_all_modes(row: &Value, time: bool) {
    for mode in ["old", "new", "none"] {
        assert!(number(&row[mode], mode) > 0.0 || !time, "{row}");
        assert!(number(&row["ns_per_op"][mode], mode) > 0.0, "{row}");
        assert!(row["inode_updates"][mode].is_u64() && row["journal_blocks"][mode].is_u64(), "{row}");
        assert!(row["queries"][mode].is_u64(), "{row}");
    }
    let [old, new, none] = ["old", "new", "none"].map(|mode| number(&row[mode], mode));
    let [over_old, over_none] = if time { [new / old, new / none] } else { [old / new, none / new] };
    for (name, is) in [("new_over_old", over_old), ("new_over_none", over_none)] {
        if new == 0.0 {
            assert!(row[name].is_null(), "{row}");
            continue;
        }
        assert!((number(&row[name], name) - is).abs() < 0.002 + 0.02 * is, "{name} is not {is}: {row}");
        if time {
            let [low, high] = [0, 1].map(|nth: usize| number(&row["spread"][name][nth], "a quartile"));
            assert!(low <= high, "{row}");
        }
    }
}

fn count(row: &Value, what: &str, mode: &str) -> u64 {
    row[what][mode].as_u64().unwrap_or_else(|| panic!("{what} of {mode} is no count: {row}"))
}

fn ops(row: &Value) -> u64 {
    row["ops"].as_u64().unwrap()
}

fn kernel_is_there_or_missed(row: &Value) {
    let kernel = if row["fs"] == "xfs" { "kernel_xfs" } else { "kernel_ext4" };
    let measured = row["peers"][kernel]["ns_per_op"].as_f64().is_some_and(|ns| ns > 0.0);
    assert!(measured || row["peers_missing"][kernel].is_string(), "{row}");
}

#[test]
fn modes_are_measured_and_counted() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "mkfs.xfs"]) {
        return;
    }
    const FORMATS: [&str; 3] = ["mem", "ext4", "xfs"];
    const NAMES: [&str; 4] = ["overwrite_1_byte", "append_1_byte", "append_4k", "sequential_4k_8_jobs"];
    let (formats, names) = (FORMATS.join(","), NAMES.join(","));
    let rows = rows(&["--json", "--fs", &formats, "--ops", "4000", "--rounds", "4", "--only", &names]);
    let names: Vec<_> =
        rows.iter().map(|row| (row["fs"].as_str().unwrap(), row["name"].as_str().unwrap())).collect();
    let expected: Vec<_> = FORMATS.into_iter().flat_map(|fs| NAMES.map(|name| (fs, name))).collect();
    assert_eq!(names, expected);
    for row in &rows {
        has_all_modes(row, true);
        assert_eq!(row["unit"], "ops/s");
        assert_eq!(count(row, "queries", "new"), 0, "{row}");
        if row["name"] == "overwrite_1_byte" {
            assert_eq!(count(row, "inode_updates", "old"), ops(row), "eager updates it at every write");
            assert!(count(row, "inode_updates", "new") < ops(row) / 4, "lazy updates it at ticks: {row}");
        }
        if row["fs"] != "mem" {
            assert!(row["device_writes"]["new"]["calls"].is_u64(), "{row}");
            kernel_is_there_or_missed(row);
        }
        if row["name"] == "append_1_byte" {
            let patch_series = &row["patch_series"];
            assert!(patch_series["new_over_old"] == 2.05 && patch_series["new_over_none"].is_null(), "{row}");
            assert!(patch_series["source"].is_string(), "{row}");
        }
    }
}

/// Adds the names of an object, with a dot before the names of objects within it.
fn flatten(prefix: &str, value: &Value, names: &mut BTreeSet<String>) {
    for (name, value) in value.as_object().unwrap() {
        let name = format!("{prefix}{name}");
        if value.is_object() {
            flatten(&format!("{name}."), value, names);
        } else {
            names.insert(name);
        }
    }
}

#[test]
fn rows_have_the_documented_names() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let page = std::fs::read_to_string(page).unwrap();
    let names = page.lines().find_map(|line| line.strip_prefix("| `cargo xtask bench` |")).unwrap();
    let documented: BTreeSet<_> = names.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    assert!(documented.contains("new_over_old"), "{documented:?}");
    let rows = rows(&["--json", "--fs", "mem", "--ops", "100", "--rounds", "1"]);
    assert!(!rows.is_empty());
    for row in rows {
        let mut names = BTreeSet::new();
        flatten("", &row, &mut names);
        let missing: Vec<_> = documented.difference(&names).collect();
        assert!(missing.is_empty(), "{missing:?} not in {row}");
    }
}

#[test]
fn queries_cost_few_inode_updates() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let words = ["--json", "--ops", "4000", "--rounds", "4", "--fs", "ext4", "--only"];
    let rows = rows(&[&words[..], &["query_hammer,query_curve,sequential_4k_8_jobs_queried"]].concat());
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["sequential_4k_8_jobs_queried", "query_hammer_1", "query_hammer_2", "query_hammer_8", "query_curve"]
    );
    for row in &rows[..4] {
        has_all_modes(row, true);
        for mode in ["old", "new"] {
            assert!(count(row, "queries", mode) >= row["rounds"].as_u64().unwrap(), "{row}");
            assert!(number(&row["queries_per_second"][mode], "rate") > 0.0, "{row}");
            assert!(number(&row["cpu_ns_per_op"][mode], "time") > 0.0, "{row}");
        }
        assert_eq!(count(row, "queries", "none"), 0, "{row}");
        assert!(row["peers_missing"]["kernel_ext4"].is_string(), "{row}");
    }
    for row in &rows[1..4] {
        assert_eq!(count(row, "inode_updates", "old"), ops(row), "eager updates it at every write");
        assert!(count(row, "inode_updates", "new") <= ops(row), "{row}");
    }
    let points = rows[4]["points"].as_array().unwrap();
    let (last, points) = points.split_last().unwrap();
    assert!(last["label"].is_string() && count(last, "queries", "new") > 0, "{last}");
    let xs: Vec<_> = points.iter().map(|point| number(&point["x"], "x")).collect();
    assert_eq!(xs, [0.0, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
    for (point, x) in points.iter().zip(xs) {
        has_all_modes(point, true);
        let asked = ops(point) as f64 * x / 1e6;
        for mode in ["old", "new"] {
            let queries = count(point, "queries", mode);
            assert!((queries as f64 - asked).abs() <= 1.0, "{queries} are not {asked}: {point}");
        }
        let updates = count(point, "inode_updates", "new");
        assert!(updates < ops(point) / 4, "bumps are deferred: {updates} for {x} queries a million: {point}");
        assert_eq!(count(point, "inode_updates", "old"), ops(point), "{point}");
    }
}

#[test]
fn queries_cost_inode_updates_under_nolazyversion() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let rows = rows(&["--json", "--ops", "4000", "--rounds", "4", "--fs", "ext4", "--only", "nolazyversion"]);
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["nolazyversion_8_jobs_queried", "nolazyversion_query_curve"]);
    has_all_modes(&rows[0], true);
    // At the last point another thread queries: several queries can precede one write.
    let (last, points) = rows[1]["points"].as_array().unwrap().split_last().unwrap();
    assert!(count(last, "inode_updates", "new") <= ops(last), "{last}");
    for point in points {
        // Each query is followed by a write that pays for it, except the last.
        let updates = count(point, "inode_updates", "new");
        assert!(updates + 1 >= count(point, "queries", "new") && updates <= ops(point), "{point}");
        assert_eq!(count(point, "inode_updates", "old"), ops(point), "{point}");
    }
}

#[test]
fn curves_have_all_points() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let words =
        ["--json", "--ops", "4000", "--rounds", "10", "--only", "write_sizes,scaling,updates_by_tick"];
    let rows = rows(&words);
    let expected: [(&str, &[f64]); 4] = [
        ("write_sizes", &[1.0, 8.0, 64.0, 512.0, 4096.0, 32768.0, 262144.0, 1048576.0]),
        ("scaling_own_files", &[1.0, 2.0]),
        ("scaling_one_file", &[1.0, 2.0]),
        ("updates_by_tick", &[0.1, 1.0, 4.0, 10.0, 100.0]),
    ];
    assert_eq!(rows.len(), expected.len());
    for (row, (name, xs)) in rows.iter().zip(expected) {
        assert_eq!(row["name"], name);
        let points = row["points"].as_array().unwrap();
        assert_eq!(points.iter().map(|point| number(&point["x"], "x")).collect::<Vec<_>>(), xs);
        for name in ["x_name", "x_unit", "x_scale"] {
            assert!(row[name].is_string(), "{name}: {row}");
        }
        let at = points.iter().find(|point| point["x"] == row["at"]).unwrap();
        assert_eq!((&at["old"], &at["new"]), (&row["old"], &row["new"]));
        let ticks = name == "updates_by_tick";
        assert_eq!(row["unit"], if ticks { "updates/million writes" } else { "ops/s" });
        for point in points {
            has_all_modes(point, !ticks);
            kernel_is_there_or_missed(point);
            assert_eq!(count(point, "inode_updates", "old"), ops(point), "{point}");
            if ticks {
                assert_eq!(point["old"], 1e6);
                let a_million = count(point, "inode_updates", "new") as f64 * 1e6 / ops(point) as f64;
                assert!((number(&point["new"], "updates") - a_million).abs() < 1.0, "{point}");
            }
        }
    }
}

#[test]
fn memory_per_inode_is_measured() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let rows = rows(&["--json", "--ops", "50000", "--fs", "ext4", "--only", "inode_memory"]);
    assert_eq!((rows.len(), &rows[0]["unit"], ops(&rows[0])), (1, &"bytes/inode".into(), 5000));
    has_all_modes(&rows[0], false);
    for mode in ["old", "new", "none"] {
        // At least the structure itself, and less than any allocator would need.
        assert!((256.0..16384.0).contains(&number(&rows[0][mode], mode)), "{}", rows[0]);
        assert!(number(&rows[0]["accounted"][mode], mode) >= 512.0, "{}", rows[0]);
    }
}

#[test]
fn latencies_and_device_writes_are_measured() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let words = ["--json", "--ops", "8000", "--rounds", "10", "--only", "tiobench,msync,latency"];
    let rows = rows(&words);
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "tiobench_write",
            "tiobench_randwrite",
            "tiobench_read",
            "tiobench_randread",
            "msync_pages",
            "latency_1_byte",
            "latency_4k_8_jobs",
            "latency_4k_fsync"
        ]
    );
    for row in &rows {
        has_all_modes(row, true);
        kernel_is_there_or_missed(row);
        let name = row["name"].as_str().unwrap();
        let device = |mode: &str, what: &str| row["device_writes"][mode][what].as_u64().unwrap();
        for mode in ["old", "new", "none"] {
            match name {
                "tiobench_write" | "tiobench_randwrite" | "latency_4k_fsync" => {
                    assert!(device(mode, "calls") >= ops(row), "each goes to the image: {row}");
                    assert!(device(mode, "bytes") >= 4096 * ops(row), "{row}");
                }
                "tiobench_read" | "tiobench_randread" => {
                    assert_eq!(count(row, "inode_updates", mode), 0, "{row}");
                }
                _ => {}
            }
            if name == "latency_4k_fsync" {
                assert!(device(mode, "flushes") >= ops(row), "{row}");
            }
            if name.starts_with("latency") {
                let tail = ["p50", "p99", "p999", "max"]
                    .map(|which| row["latency_ns"][mode][which].as_u64().unwrap());
                assert!(tail.is_sorted() && tail[0] > 0, "{row}");
            }
        }
    }
}

const PEERS_THROUGH_FUSE: [&str; 8] = [
    "fuse2fs",
    "null_passthrough",
    "null_passthrough_no_xattr",
    "kernel_ext4",
    "ivers_xfs",
    "kernel_xfs",
    "ivers_btrfs",
    "kernel_btrfs",
];

#[test]
fn mounts_are_measured_beside_their_peers() {
    if !ivers_oracle::can_mount(&["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "tar"]) {
        return;
    }
    build_ivers();
    let tree = tempfile::tempdir().unwrap();
    std::fs::create_dir(tree.path().join("sub")).unwrap();
    std::fs::write(tree.path().join("sub/file"), vec![b'x'; 10_000]).unwrap();
    let tree_word = tree.path().to_str().unwrap();
    let rows = rows(&["--json", "--fuse", "--ops", "2000", "--rounds", "1", "--tree", tree_word]);
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let wanted = [
        "fuse_write_1_byte",
        "fuse_write_1_byte_stat",
        "fuse_write_1_byte_asked",
        "fuse_write_4k",
        "fuse_read_cold",
        "fuse_create",
        "fuse_unlink",
        "fuse_untar",
        "fuse_walk_stat",
        "fuse_build",
        "fuse_build_again",
        "fuse_fio_4k_8_jobs",
        "fuse_msync",
    ];
    assert_eq!(names, wanted);
    let row = |name: &str| &rows[names.iter().position(|other| *other == name).unwrap()];
    let by_fio = [row("fuse_fio_4k_8_jobs"), row("fuse_msync")];
    let builds = [row("fuse_build"), row("fuse_build_again")];
    if ivers_oracle::have_programs(&["fio"]) {
        for row in by_fio {
            for mode in ["old", "new", "none"] {
                assert!(number(&row[mode], mode) > 0.0, "{row}");
                assert!(row["inode_updates"][mode].is_u64() && row["journal_blocks"][mode].is_u64(), "{row}");
                let latency =
                    ["p50", "p99", "p999", "max"].map(|name| number(&row["latency_ns"][mode][name], name));
                assert!(latency.is_sorted() && latency[3] > 0.0, "{row}");
            }
            assert!(
                row["new_over_old"].is_number() && row["patch_series"]["new_over_old"].is_number(),
                "{row}"
            );
            assert!(row["patch_series"]["source"].is_string(), "{row}");
        }
        // 125 blocks, divided by the number of processors.
        let blocks = by_fio[1]["ops"].as_u64().unwrap();
        assert!((1..=125).contains(&blocks), "{}", by_fio[1]);
    } else {
        assert!(by_fio.iter().all(|row| row["missing"].is_string()), "{by_fio:?}");
    }
    for row in rows.iter().filter(|row| row["missing"].is_null()) {
        assert!(number(&row["new"], "new") > 0.0, "{row}");
        for peer in PEERS_THROUGH_FUSE {
            if row["peers_missing"][peer].is_string() {
                assert!(row["peers"][peer].is_null(), "{row}");
                continue;
            }
            assert!(number(&row["peers"][peer]["value"], peer) > 0.0, "{row}");
            assert!(number(&row["new_over_peer"][peer], peer) > 0.0, "{row}");
            // With one round its ratio is the median and both quartiles.
            let spread = &row["spread"]["new_over_peer"][peer];
            let ratio = number(&row["new_over_peer"][peer], peer);
            assert_eq!((number(&spread[0], peer), number(&spread[1], peer)), (ratio, ratio), "{row}");
            assert!(row["options"][peer].is_string(), "{row}");
        }
    }
    if ivers_oracle::have_programs(&["make", "cc"]) {
        for row in builds {
            for mode in ["old", "new", "none"] {
                assert!(number(&row[mode], mode) > 0.0, "{row}");
                // The build creates objects and archives in each mode; the second make changes nothing.
                assert_eq!(count(row, "inode_updates", mode) > 0, row["name"] == "fuse_build", "{row}");
            }
            assert!(
                row["new_over_old"].is_number() && row["patch_series"]["new_over_old"].is_null(),
                "{row}"
            );
            assert!(row["patch_series"]["source"].is_string() && ops(row) == 1, "{row}");
        }
    } else {
        assert!(builds.iter().all(|row| row["missing"].is_string()), "{rows:?}");
    }
    // The mount counts queries of the change attribute, but not of times.
    let asked = |row: &Value| row["asked"]["ivers"].as_u64().unwrap();
    let queried = row("fuse_write_1_byte_asked");
    assert!(
        queried["queries"]["new"].as_u64().unwrap() >= asked(queried) && asked(queried) >= 1,
        "{queried}"
    );
    let stated = row("fuse_write_1_byte_stat");
    assert!(stated["queries"]["new"] == 0 && asked(stated) >= 1, "{stated}");
    // The operations of untar and walk are the entries of the tree: itself, a directory, a file.
    assert_eq!(row("fuse_untar")["ops"], 3);
}

#[test]
fn the_only_option_selects_in_process_and_fuse_rows() {
    if !ivers_oracle::can_mount(&["mkfs.ext4", "tar"]) {
        return;
    }
    build_ivers();
    let tree = tempfile::tempdir().unwrap();
    let tree_word = tree.path().to_str().unwrap();
    let words = ["--json", "--fs", "mem", "--ops", "2000", "--rounds", "2", "--fuse-rounds", "1"];
    let rows = rows(&[&words[..], &["--tree", tree_word, "--only", "append_4k,fuse_unlink"]].concat());
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    // Files must be created before they are removed.
    assert_eq!(names, ["append_4k", "fuse_create", "fuse_unlink"]);
    assert!(rows.iter().all(|row| number(&row["new"], "new") > 0.0), "{rows:?}");
}

#[test]
fn rows_with_many_files_are_measured_by_name() {
    if !ivers_oracle::can_mount(&["mkfs.ext4"]) {
        return;
    }
    build_ivers();
    let rows = rows(&["--json", "--ops", "1500", "--fuse-rounds", "1", "--only", "scale_10k,scale_100k"]);
    let steps = ["create", "cold_walk", "warm_walk", "random_stats", "readdir", "remove"];
    let expected: Vec<_> = ["scale_10k", "scale_100k"]
        .into_iter()
        .flat_map(|size| steps.map(|step| format!("{size}_{step}")))
        .collect();
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, expected);
    for (nth, row) in rows.iter().enumerate() {
        assert_eq!((&row["files"], &row["ops"]), (&1500.into(), &1500.into()), "{row}");
        kernel_is_there_or_missed(row);
        let ns = |row: &Value| number(&row["ns_per_op"]["new"], "ns");
        let over_fewest = ns(row) / ns(&rows[nth % steps.len()]);
        let said = number(&row["over_fewest_files"]["ivers"], "a ratio");
        assert!((said - over_fewest).abs() < 0.01 + 0.01 * over_fewest, "{said} is not {over_fewest}: {row}");
        let memory = ["peak_bytes", "bound_bytes"].map(|name| number(&row[name], name));
        assert!(memory[0] > 1e6 && memory[1] == f64::from((256 + 64) << 20), "{row}");
        let processor_ns = number(&row["processor_ns_per_op"]["ivers"], "ns");
        assert!(processor_ns > 0.0 && processor_ns < 100.0 * ns(row), "{row}");
    }
}

/// The steps of the rows with many files that are not on ext4 through FUSE.
#[test]
fn many_files_are_measured_in_each_scene() {
    if !ivers_oracle::can_mount(&["mkfs.ext4", "mkfs.fat", "mkfs.xfs"]) {
        return;
    }
    build_ivers();
    let scenes: [(&str, &str, &[&str]); 5] = [
        ("scale_xfs_10k", "xfs", &["create", "cold_walk", "warm_walk", "random_stats", "readdir", "remove"]),
        ("scale_fat_10k", "fat", &["create", "cold_walk", "warm_walk", "random_stats", "readdir", "remove"]),
        ("scale_mem_10k", "mem", &["create", "warm_walk", "random_stats", "readdir", "remove"]),
        (
            "scale_nfs_10k",
            "ext4",
            &["list", "list_again", "getattr", "lookup", "open", "getattr_beside_opens", "close"],
        ),
        (
            "scale_commands_10k",
            "ext4",
            &["changed_save", "changed_since", "tree", "measure", "measure_again", "cp"],
        ),
    ];
    let only = scenes.map(|(name, ..)| name).join(",");
    let rows = rows(&["--json", "--ops", "1500", "--fuse-rounds", "1", "--only", &only]);
    let expected: Vec<_> = scenes
        .into_iter()
        .flat_map(|(name, fs, steps)| steps.iter().map(move |step| (format!("{name}_{step}"), fs)))
        .collect();
    let names: Vec<_> = rows
        .iter()
        .map(|row| (row["name"].as_str().unwrap().to_owned(), row["fs"].as_str().unwrap()))
        .collect();
    assert_eq!(names, expected);
    for row in &rows {
        assert_eq!(row["files"], 1500, "{row}");
        assert_eq!(number(&row["over_fewest_files"]["ivers"], "a ratio"), 1.0, "{row}");
        assert!(number(&row["peak_bytes"], "bytes") > 1e6 && number(&row["new"], "a rate") > 0.0, "{row}");
    }
}

#[test]
fn invalid_options_are_refused() {
    let refused = |words: &[&str]| {
        let output = bench().args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for bad in [["--ops", "0"], ["--fs", "fat"], ["--rounds", "0"]] {
        refused(&bad);
    }
    let said = refused(&["--only", "append_1_byte,appending"]);
    assert!(said.contains("appending") && said.contains("query_hammer_8"), "{said}");
    let said = refused(&["--fs", "mem", "--only", "tiobench"]);
    assert!(said.contains("not measured on mem"), "{said}");
    refused(&["--all", "--only", "tiobench"]);
    let said = refused(&["--fuse", "--only", "tiobench"]);
    assert!(said.contains("fuse_untar") && !said.contains("query_hammer"), "{said}");
}
