//! `ivers changed` on files of a server: it finds every change, and asks for many files in one request.

use std::fs;
use std::io::Write;
use std::process::Command;

use crate::common::*;
use crate::nfs_client::{Exported, answered, can_serve, mount, unmount};

/// Where `changed` keeps its state.
fn state_file(exported: &Exported) -> String {
    exported.image.dir().join("saved").to_str().unwrap().to_owned()
}

/// `changed` queries the change attributes of many files in one request.
#[test]
fn a_comparison_costs_few_round_trips() {
    if !can_serve() {
        return;
    }
    let exported = Exported::new();
    let state = state_file(&exported);
    works(&["changed", &exported.name(""), "--save", &state]);
    works(&["touch", &exported.name("/sub/deeper/n7")]);
    let before = answered(&exported);
    assert_eq!(works(&["changed", &exported.name(""), "--since", &state]), "C sub/deeper/n7\n");
    let calls = answered(&exported) - before;
    // 305 files at 255 in a request; more requests connect, list four directories and leave. It would be two
    // more if the rights on a directory were not asked for together with its listing.
    assert!((4..24).contains(&calls), "{calls} round trips");
}

/// The same on a mount. It also reports a file with two names at both.
#[test]
fn a_comparison_of_a_mount_costs_few_round_trips() {
    if !can_serve() || !can_mount() {
        return;
    }
    let exported = Exported::new();
    let state = state_file(&exported);
    works(&["mkdir", &exported.name("/other")]);
    works(&["ln", &exported.name("/sub/deeper/n9"), &exported.name("/other/second name")]);
    // Without delegations each file costs a question.
    let mounted = mount(&exported, "mnt", &["-o", "nodelegations"]);
    let dir = mounted.0.to_str().unwrap();
    let count = |name: &str| {
        let stats = works(&["stats", "--json", dir]);
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        stats[name].as_u64().unwrap()
    };
    let compared = || {
        let before = ["server_requests", "queries"].map(count);
        let lines = works(&["changed", dir, "--since", &state]);
        let after = ["server_requests", "queries"].map(count);
        (lines, after[0] - before[0], after[1] - before[1])
    };
    works(&["changed", dir, "--save", &state]);
    let (lines, requests, queries) = compared();
    assert_eq!(lines, "");
    // 308 files at 255 in a request. Each of four directories is also opened and listed.
    assert!((4..25).contains(&requests) && queries >= 308, "{requests} round trips for {queries} queries");

    works(&["touch", &exported.name("/sub/deeper/n9")]);
    works(&["rm", &exported.name("/sub/deeper/n7")]);
    works(&["mv", &exported.name("/sub/deeper/n8"), &exported.name("/other/moved")]);
    let (lines, requests, _) = compared();
    let expected = "C other\nC other/second name\nC sub/deeper\nR sub/deeper/n7\n\
                    M sub/deeper/n8 -> other/moved\nC sub/deeper/n9\n";
    let sorted = |lines: &str| {
        let mut lines: Vec<_> = lines.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&lines), sorted(expected));
    assert!((4..25).contains(&requests), "{requests} round trips");
    unmount(&mounted);
}

/// What the kernel holds back of an open file counts. A filesystem that covers a directory is not walked.
#[test]
fn a_comparison_of_a_mount_sees_open_files_and_covered_directories() {
    if !can_serve() || !can_mount() {
        return;
    }
    let exported = Exported::new();
    let state = state_file(&exported);
    let mounted = mount(&exported, "mnt", &[]);
    let dir = mounted.0.to_str().unwrap();
    let compared = |also: &[&str]| works(&[&["changed", dir, "--since", &state], also].concat());
    works(&["changed", dir, "--save", &state]);
    let mut writer = fs::OpenOptions::new().append(true).open(mounted.0.join("hello")).unwrap();
    for _ in 0..2 {
        writer.write_all(b"more").unwrap();
        assert_eq!(compared(&["--save", &state]), "C hello\n");
    }
    assert_eq!(compared(&[]), "");
    drop(writer);
    if is_root() {
        let covered = mounted.0.join("sub/deeper");
        let words = ["-t", "tmpfs", "none", covered.to_str().unwrap()];
        assert!(Command::new("mount").args(words).status().unwrap().success());
        fs::write(covered.join("n1"), "elsewhere").unwrap();
        let lines = compared(&[]);
        rustix::mount::unmount(&covered, rustix::mount::UnmountFlags::empty()).unwrap();
        assert_eq!(lines.lines().count(), 301, "{lines}");
        assert!(lines.lines().all(|line| line.starts_with("R sub/deeper")), "{lines}");
        assert_eq!(compared(&[]), "");
    }
    unmount(&mounted);
}
