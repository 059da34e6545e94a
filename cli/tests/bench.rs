//! `ivers bench`: its JSON, and that the modes do what they are said to do.

use serde_json::Value;
use std::process::Command;

fn rows(args: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_ivers"))
        .arg("bench")
        .args(args)
        // What is compiled for a peer is kept where the tests keep things.
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

#[test]
fn modes_are_measured_and_counted() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let rows = rows(&["--json", "--ops", "4000", "--rounds", "4"]);
    let names: Vec<_> =
        rows.iter().map(|row| (row["fs"].as_str().unwrap(), row["name"].as_str().unwrap())).collect();
    for fs in ["mem", "ext4"] {
        for name in ["overwrite_1_byte", "append_1_byte", "append_4k", "sequential_4k_8_jobs"] {
            assert!(names.contains(&(fs, name)), "{fs} {name} is missing from {names:?}");
        }
    }
    for name in ["query_hammer_1", "query_hammer_2", "query_hammer_8"] {
        assert!(names.contains(&("ext4", name)), "{name} is missing from {names:?}");
    }
    for row in &rows {
        if row["name"].as_str().unwrap().starts_with("query_hammer") {
            for mode in ["old", "new"] {
                assert!(row["queries"][mode].as_u64().unwrap() >= row["rounds"].as_u64().unwrap(), "{row}");
            }
            assert_eq!(row["inode_updates"]["old"], row["ops"], "eager updates it at every write");
            assert!(row["inode_updates"]["new"].as_u64() <= row["ops"].as_u64(), "{row}");
        } else {
            assert_eq!(row["queries"]["new"], 0, "{row}");
        }
        assert_eq!(row["unit"], "ops/s");
        let ops = row["ops"].as_u64().unwrap();
        for mode in ["old", "new", "none"] {
            assert!(number(&row[mode], mode) > 0.0, "{row}");
            assert!(number(&row["ns_per_op"][mode], mode) > 0.0, "{row}");
            assert!(row["inode_updates"][mode].is_u64() && row["journal_blocks"][mode].is_u64(), "{row}");
        }
        let [old, new, none] = ["old", "new", "none"].map(|mode| number(&row[mode], mode));
        assert!((number(&row["new_over_old"], "ratio") - new / old).abs() < 0.02 * new / old, "{row}");
        assert!((number(&row["new_over_none"], "ratio") - new / none).abs() < 0.02 * new / none, "{row}");
        if row["name"] == "overwrite_1_byte" {
            assert_eq!(row["inode_updates"]["old"].as_u64(), Some(ops), "eager updates it at every write");
            assert!(
                row["inode_updates"]["new"].as_u64().unwrap() < ops / 4,
                "lazy updates it at ticks: {row}"
            );
        }
        if row["fs"] == "ext4" {
            let measured = row["peers"]["kernel_ext4"]["ns_per_op"].as_f64().is_some_and(|ns| ns > 0.0);
            assert!(measured || row["peers_missing"]["kernel_ext4"].is_string(), "{row}");
        }
    }
}

#[test]
fn mounts_are_measured_beside_their_peers() {
    if !ivers_oracle::have_fuse() || !ivers_oracle::have_programs(&["mkfs.ext4", "tar"]) {
        return;
    }
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
        "fuse_create",
        "fuse_unlink",
        "fuse_untar",
        "fuse_walk_stat",
        "fuse_fio_4k_8_jobs",
        "fuse_msync",
    ];
    assert_eq!(names, wanted);
    let by_fio = &rows[8..];
    if ivers_oracle::have_programs(&["fio"]) {
        for row in by_fio {
            for mode in ["old", "new", "none"] {
                assert!(number(&row[mode], mode) > 0.0, "{row}");
                assert!(row["inode_updates"][mode].is_u64() && row["journal_blocks"][mode].is_u64(), "{row}");
                let latency =
                    ["p50", "p99", "p999", "max"].map(|name| number(&row["latency_ns"][mode][name], name));
                assert!(latency.is_sorted() && latency[3] > 0.0, "{row}");
            }
            assert!(row["new_over_old"].is_number() && row["seeds"]["new_over_old"].is_number(), "{row}");
            assert!(row["seeds"]["source"].is_string(), "{row}");
        }
        // 125 blocks, in as many threads as there are processors.
        let blocks = by_fio[1]["ops"].as_u64().unwrap();
        assert!((1..=125).contains(&blocks), "{}", by_fio[1]);
    } else {
        assert!(by_fio.iter().all(|row| row["missing"].is_string()), "{by_fio:?}");
    }
    for row in rows.iter().filter(|row| row["missing"].is_null()) {
        assert!(number(&row["new"], "new") > 0.0, "{row}");
        for peer in ["fuse2fs", "null_passthrough", "null_passthrough_no_xattr", "kernel_ext4"] {
            if row["peers_missing"][peer].is_string() {
                assert!(row["peers"][peer].is_null(), "{row}");
                continue;
            }
            assert!(number(&row["peers"][peer]["value"], peer) > 0.0, "{row}");
            assert!(number(&row["new_over_peer"][peer], peer) > 0.0, "{row}");
            // One round: its own ratio is the median and both quartiles.
            let spread = &row["spread"]["new_over_peer"][peer];
            let ratio = number(&row["new_over_peer"][peer], peer);
            assert_eq!((number(&spread[0], peer), number(&spread[1], peer)), (ratio, ratio), "{row}");
            assert!(row["options"][peer].is_string(), "{row}");
        }
    }
    // Whoever asks for the change attribute is counted by the mount that he asks; who asks for times alone is not.
    let asked = |row: &Value| row["asked"]["ivers"].as_u64().unwrap();
    assert!(
        rows[2]["queries"]["new"].as_u64().unwrap() >= asked(&rows[2]) && asked(&rows[2]) >= 1,
        "{}",
        rows[2]
    );
    assert!(rows[1]["queries"]["new"] == 0 && asked(&rows[1]) >= 1, "{}", rows[1]);
    // Untar and walk have the tree's entries for operations: itself, a directory, a file.
    assert_eq!(rows[6]["ops"], 3);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for bad in [["--ops", "0"], ["--fs", "xfs"], ["--rounds", "0"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_ivers")).arg("bench").args(bad).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{bad:?}");
    }
}
