//! Layers: which crate may use which, in what is shipped.

use super::root;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// The allowed dependencies of each shipped crate on others of the workspace. Development dependencies are
/// free.
///
/// What the table keeps: the VFS knows no journal and no write ordering; a driver knows no front end; a front
/// end knows no driver; only `cli` knows both; nothing shipped knows `testing`.
const ALLOWED: &[(&str, &[&str])] = &[
    ("iversion", &[]),
    ("ivers-block", &["ivers-sync"]),
    ("ivers-sync", &[]),
    ("ivers-busy-poll", &[]),
    ("ivers-content-cache", &[]),
    ("ivers-thread-sched", &[]),
    ("ivers-nfs4", &[]),
    ("ivers-journal", &["ivers-block", "ivers-sync"]),
    ("ivers-partitions", &["ivers-block"]),
    ("ivers-write-ordering", &["ivers-block", "ivers-sync"]),
    ("ivers-vfs", &["iversion", "ivers-block", "ivers-sync"]),
    ("ivers-ima", &["ivers-vfs"]),
    ("ivers-mem", &["ivers-vfs"]),
    ("ivers-affs", &["ivers-block", "ivers-write-ordering", "ivers-vfs"]),
    ("ivers-btrfs", &["ivers-block", "ivers-vfs"]),
    ("ivers-ext4", &["iversion", "ivers-block", "ivers-journal", "ivers-vfs"]),
    ("ivers-fat", &["ivers-block", "ivers-write-ordering", "ivers-vfs"]),
    ("ivers-nfs", &["ivers-busy-poll", "ivers-content-cache", "ivers-nfs4", "ivers-vfs"]),
    ("ivers-ocfs2", &["ivers-block", "ivers-journal", "ivers-vfs"]),
    ("ivers-ufs", &["ivers-block", "ivers-write-ordering", "ivers-vfs"]),
    ("ivers-xfs", &["ivers-block", "ivers-journal", "ivers-sync", "ivers-vfs"]),
    ("ivers-sandbox", &[]),
    ("ivers-fuse", &["ivers-busy-poll", "ivers-thread-sched", "ivers-vfs"]),
    ("ivers-nfsd", &["ivers-busy-poll", "ivers-nfs4", "ivers-vfs"]),
    (
        "ivers",
        &[
            "ivers-affs",
            "ivers-block",
            "ivers-btrfs",
            "ivers-content-cache",
            "ivers-ext4",
            "ivers-fat",
            "ivers-fuse",
            "ivers-ima",
            "ivers-mem",
            "ivers-nfs",
            "ivers-nfsd",
            "ivers-ocfs2",
            "ivers-partitions",
            "ivers-sandbox",
            "ivers-ufs",
            "ivers-vfs",
            "ivers-xfs",
        ],
    ),
];

const SHIPPED: [&str; 4] = ["core/", "fs/", "serve/", "cli/"];

#[test]
fn crates_use_only_what_their_layer_may() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let metadata = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let name = |value: &serde_json::Value| value["name"].as_str().unwrap().to_owned();
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    let mut allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    for package in packages {
        let manifest = package["manifest_path"].as_str().unwrap();
        let folder = manifest.strip_prefix(root().to_str().unwrap()).unwrap().trim_start_matches('/');
        if !SHIPPED.iter().any(|floor| folder.starts_with(floor)) {
            continue;
        }
        let krate = name(package);
        let may = allowed.remove(krate.as_str()).unwrap_or_else(|| panic!("{krate} has no row in ALLOWED"));
        let dependencies = package["dependencies"].as_array().unwrap();
        let shipped = dependencies.iter().filter(|dependency| dependency["kind"] != "dev").map(name);
        let uses: BTreeSet<String> = shipped.filter(|used| ours.contains(used)).collect();
        let may: BTreeSet<String> = may.iter().map(|&used| used.to_owned()).collect();
        assert_eq!(uses, may, "{krate}: what it uses (left) is not what its row in ALLOWED says (right)");
    }
    assert!(allowed.is_empty(), "rows in ALLOWED without a crate: {:?}", allowed.keys());
}
