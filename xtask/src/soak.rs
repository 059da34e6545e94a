//! `cargo xtask soak`: the long tests, in steps. A failure prints the seed that replays it; the other steps
//! still run.

use crate::{ensure, fuzz, kmod, mutants, nfs, nfs_client, release, run, suites};
use std::time::{Duration, Instant};

/// The time of each fuzz target.
const FUZZ_MINUTES: u64 = 30;

/// Returns whether the step passed.
pub(crate) type Step = fn() -> bool;

/// The steps: name and function.
pub(crate) const STEPS: [(&str, Step); 18] = [
    ("mixed_workload", mixed_workload),
    ("contract", contract),
    ("crash", crash),
    ("crash_sequences", crash_sequences),
    ("scale", scale),
    ("races", races),
    ("mutants", || mutants::mutants(None)),
    ("roundtrip", roundtrip),
    ("suites", suites::suites),
    ("suites_xfs", suites::suites_xfs),
    ("suites_btrfs", suites::suites_btrfs),
    ("kill9", kill9),
    ("measure", measure),
    ("kmod", kmod::kmod),
    ("nfs", nfs::nfs),
    ("nfs_client", nfs_client::nfs_client),
    ("fuzz", || fuzz::fuzz(None, FUZZ_MINUTES, fuzz::INPUT_SECONDS)),
    ("release", release::release),
];

/// Runs `cargo test --release ARGS -- --nocapture EXTRA`.
fn test(what: &str, args: &[&str], extra: &[&str], env: &[(&str, &str)]) -> bool {
    let args = [&["test", "--release"], args, &["--", "--nocapture"], extra].concat();
    run(what, "cargo", &args, env)
}

/// Runs every seed, even after a failure.
fn all(seeds: &[&str], one: impl Fn(&str) -> bool) -> bool {
    seeds.iter().filter(|seed| !one(seed)).count() == 0
}

fn mixed_workload() -> bool {
    let args = ["-p", "ivers-ext4", "--test", "mixed_workload"];
    all(&["1", "2", "3", "4", "5"], |seed| {
        test("mixed workload", &args, &[], &[("IVERS_SEED", seed), ("IVERS_STEPS", "5000")])
    })
}

fn contract() -> bool {
    let long = [("IVERS_STEPS", "20000"), ("IVERS_PHASES", "2000")];
    all(&["11", "12", "13"], |seed| {
        let env = [&[("IVERS_SEED", seed)], &long[..]].concat();
        let through = [&env[..], &[("IVERS_FUSE_OPTIONS", "no_writeback_cache")]].concat();
        test(
            "contract in-process, through FUSE and on the kernel's filesystems",
            &["-p", "ivers-contract"],
            &[],
            &env,
        ) & test(
            "contract through FUSE without write-back cache",
            &["-p", "ivers-contract", "--test", "fuse"],
            &[],
            &through,
        )
    }) & test("queries under -o strict", &["-p", "ivers", "--test", "strict"], &["--ignored"], &[])
}

fn crash() -> bool {
    let args = ["-p", "ivers-ext4", "--test", "explore"];
    let amiga = ["-p", "ivers-affs", "--test", "explore"];
    let fat = ["-p", "ivers-fat", "--test", "explore"];
    let ufs = ["-p", "ivers-ufs", "--test", "images"];
    let ocfs2 = ["-p", "ivers-ocfs2", "--test", "images"];
    let xfs = ["-p", "ivers-xfs", "--test", "explore"];
    let btrfs = ["-p", "ivers-btrfs", "--test", "explore"];
    // Checks by other tools would take most of the time. Few states get them.
    let rarely = |states| [("IVERS_CRASH_CHECK_EVERY", "64"), ("IVERS_CRASH_STATES", states)];
    test("140,000 crash states of ext4, ext3 and ext2", &args, &[], &[("IVERS_CRASH_STATES", "20000")])
        & test("120,000 crash states of OFS and FFS", &amiga, &[], &[("IVERS_CRASH_STATES", "40000")])
        & test("80,000 crash states of FAT", &fat, &[], &[("IVERS_CRASH_STATES", "20000")])
        & test("60,000 crash states of UFS", &ufs, &["crash_leaves"], &[("IVERS_CRASH_STATES", "30000")])
        & test(
            "100,000 crash states of OCFS2",
            &ocfs2,
            &["crashes_leave"],
            &[("IVERS_CRASH_STATES", "34000")],
        )
        & test("100,000 crash states of XFS", &xfs, &["no_crash_point"], &rarely("5600"))
        & test("100,000 crash states of btrfs", &btrfs, &["no_crash_point"], &rarely("7200"))
}

fn crash_sequences() -> bool {
    let args = ["-p", "ivers-ext4", "--test", "explore"];
    let what = "all sequences of up to three operations at every crash point";
    test(what, &args, &["every_short_sequence"], &[("IVERS_CRASH_SEQUENCES", "3")])
}

fn scale() -> bool {
    let env = [("IVERS_NAMES", "1000000")];
    test("a directory with a million names", &["-p", "ivers-ext4", "--test", "scale"], &[], &env)
}

fn measure() -> bool {
    let args = ["-p", "ivers", "--test", "measure"];
    test(
        "20,000 files, one of them changed",
        &args,
        &["of_many_files", "--test-threads=1"],
        &[("IVERS_MEASURED_FILES", "20000")],
    )
}

fn races() -> bool {
    // The assertions of a test build must hold in every schedule.
    let flags = "--cfg shuttle -C debug-assertions";
    let args = ["-p", "ivers-races", "--target-dir", "target/shuttle"];
    all(&["11", "12", "13"], |seed| {
        let env = [("RUSTFLAGS", flags), ("IVERS_SEED", seed), ("IVERS_SCHEDULES", "100000")];
        test("100,000 schedules per race and scheduler, fewer on XFS", &args, &[], &env)
    })
}

fn roundtrip() -> bool {
    let args = ["-p", "ivers", "--test", "roundtrip"];
    let env = [("IVERS_ROUND_FILES", "20000")];
    test("round trip of 20,000 files and 100,000 names", &args, &["--test-threads=2"], &env)
}

fn kill9() -> bool {
    test("200 kills", &["-p", "ivers", "--test", "kill9"], &[], &[("IVERS_KILLS", "200")])
}

/// Runs all steps, or the one with this name.
pub(crate) fn soak(only: Option<&str>) -> bool {
    let steps: Vec<_> = STEPS.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)).collect();
    let programs = [
        ("mkfs.ext4", "e2fsprogs"),
        ("fusermount3", "fuse3"),
        ("fuse2fs", "fuse2fs"),
        ("mkfs.xfs", "xfsprogs"),
        ("mkfs.btrfs", "btrfs-progs"),
        ("mkfs.fat", "dosfstools"),
        ("mcopy", "mtools"),
        ("unadf", "unadf"),
        ("pip3", "python3-pip python3-venv"),
    ];
    if !ensure(&programs) {
        return false;
    }
    let mut results: Vec<(&str, bool, Duration)> = Vec::new();
    for (name, step) in steps {
        let begin = Instant::now();
        let ok = step();
        results.push((name, ok, begin.elapsed()));
    }
    println!("== soak");
    for (name, ok, took) in &results {
        println!("{name:15} {} in {} s", if *ok { "passed" } else { "FAILED" }, took.as_secs());
    }
    results.iter().all(|(_, ok, _)| *ok)
}
