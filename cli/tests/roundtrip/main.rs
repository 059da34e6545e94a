//! The round trip: images made by mkfs and filled by the kernel are changed through our mount and read back
//! by e2fsck, the kernel and debugfs. Then other programs change files in between, and no earlier change
//! attribute may vouch for other contents.
//!
//! `IVERS_ROUND_FILES` sets the size of the source tree (default 300, 20,000 in the soak; one directory gets
//! five times as many names), `IVERS_SEED` replays a run; both are printed. Without root the kernel's part is
//! skipped, with a message.

mod ledger;
mod mounts;
mod others;
mod work;

use ivers_oracle::{Image, LoopMount, TreeOptions, stored_counter, tree};
use ledger::Ledger;
use mounts::Ours;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Inodes whose stored counter is compared with debugfs, which starts again for each.
const VERSIONS_COMPARED: usize = 40;

fn knob(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Returns stored counters as our mount shows them, by inode number.
fn stored_versions(root: &Path, ledger: &Ledger) -> Vec<(u64, u64)> {
    let paths = ledger.paths();
    let step = (paths.len() / VERSIONS_COMPARED).max(1);
    paths
        .iter()
        .step_by(step)
        .map(|path| {
            let full = root.join(path);
            let ino = std::fs::symlink_metadata(&full).unwrap().ino();
            (ino, mounts::attribute(&full, "system.ivers.stored"))
        })
        .collect()
}

fn assert_same_tree(kind: &str, what: &str, left: &str, right: &str) {
    let differing = left.lines().zip(right.lines()).find(|(left, right)| left != right);
    let lines = (left.lines().count(), right.lines().count());
    assert!(left == right, "{kind}: {what}: {lines:?} entries, the first that differ: {differing:#?}");
}

fn round_trip(kind: &str, mkfs: &str, options: &[&str]) {
    let programs = ["mke2fs", "e2fsck", "debugfs", "tar", "fusermount3"];
    if !ivers_oracle::can_mount(&programs) {
        return;
    }
    let root = ivers_oracle::kernel::may_loop_mount();
    if !root {
        eprintln!("{kind}: the kernel's part needs root: left out");
    }
    let files = knob("IVERS_ROUND_FILES", 300);
    let seed = knob("IVERS_SEED", 11);
    println!("{kind}: IVERS_ROUND_FILES={files} IVERS_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    // Space for the source tree twice, and an inode for each name.
    let inodes = (files * 10 + 4000).to_string();
    let mut arguments = vec!["-N", &inodes];
    arguments.extend(options);
    let image = Image::new(mkfs, (96 << 20) + files * (40 << 10), &arguments).unwrap();
    let all = TreeOptions::default();
    // A kernel without quotas reads images with project ids, and does not write them.
    let kernel_writes = root
        && (!options.iter().any(|option| option.contains("project"))
            || LoopMount::new(image.path(), "").is_ok());

    let kernel_tree = kernel_writes.then(|| {
        let kernel = LoopMount::new(image.path(), "").unwrap();
        work::fill(kernel.path()).unwrap();
        let text = tree(kernel.path(), all).unwrap();
        kernel.unmount().unwrap();
        text
    });

    let ours = Ours::mount(image.path());
    match kernel_tree {
        Some(text) => assert_same_tree(kind, "filled by the kernel", &text, &tree(ours.path(), all).unwrap()),
        None => work::fill(ours.path()).unwrap(),
    }
    let source = image.dir().join("source");
    work::source_tree(&source, files, &mut rng).unwrap();
    work::untar(&source, ours.path()).unwrap();
    let plain = TreeOptions { no_times: true, no_trusted: true };
    let (from, to) = (tree(&source, plain).unwrap(), tree(&ours.path().join("untar"), plain).unwrap());
    assert_same_tree(kind, "untarred", &from, &to);
    work::rename_storm(ours.path(), files * 2, &mut rng).unwrap();
    work::attributes(ours.path()).unwrap();
    work::links(ours.path(), files).unwrap();
    work::sparse(ours.path(), &mut rng).unwrap();
    work::direct(ours.path(), files.min(2000), &mut rng).unwrap();
    work::many_names(ours.path(), files * 5).unwrap();
    work::deep(ours.path(), files.min(1500)).unwrap();
    work::times_and_owners(ours.path(), root, !options.contains(&"128")).unwrap();
    work::no_space(ours.path()).unwrap();
    work::prune(ours.path(), &mut rng).unwrap();

    let mut ledger = Ledger::default();
    let shown = tree(ours.path(), all).unwrap();
    ledger.look(kind, ours.path(), &shown);
    let versions = stored_versions(ours.path(), &ledger);
    ours.unmount();
    image.check().unwrap();
    for (ino, stored) in versions {
        assert_eq!(
            stored_counter(image.path(), &format!("<{ino}>")).unwrap(),
            stored,
            "{kind}: the version of inode {ino}"
        );
    }

    let ours = Ours::mount(image.path());
    ledger.rests(kind, ours.path());
    ours.unmount();
    image.check().unwrap();

    if root {
        let kernel = LoopMount::new(image.path(), if kernel_writes { "" } else { "ro" }).unwrap();
        let read = tree(kernel.path(), all).unwrap();
        assert_same_tree(kind, "read by the kernel", &shown, &read);
        if kernel_writes {
            others::change_files(kernel.path(), "kernel").unwrap();
        }
        let left = tree(kernel.path(), all).unwrap();
        kernel.unmount().unwrap();
        let ours = Ours::mount(image.path());
        let found = tree(ours.path(), all).unwrap();
        assert_same_tree(kind, "changed by the kernel", &left, &found);
        ledger.look(kind, ours.path(), &found);
        others::change_files(ours.path(), "ours").unwrap();
        ledger.look(kind, ours.path(), &tree(ours.path(), all).unwrap());
        ours.unmount();
        image.check().unwrap();
    }

    // Within the second of our unmount: whole seconds alone would not show it.
    others::debugfs(&image).unwrap();
    let ours = Ours::mount(image.path());
    ledger.look(kind, ours.path(), &tree(ours.path(), all).unwrap());
    others::change_files(ours.path(), "after-debugfs").unwrap();
    ledger.look(kind, ours.path(), &tree(ours.path(), all).unwrap());
    ours.unmount();
    image.check().unwrap();

    if others::fuse2fs(kind, &image).unwrap() {
        let ours = Ours::mount(image.path());
        let found = tree(ours.path(), all).unwrap();
        ledger.look(kind, ours.path(), &found);
        others::change_files(ours.path(), "after-fuse2fs").unwrap();
        ledger.look(kind, ours.path(), &tree(ours.path(), all).unwrap());
        ours.unmount();
        image.check().unwrap();
    }
}

macro_rules! kinds {
    ($($name:ident: $mkfs:literal $($arg:literal)*;)*) => {
        $(#[test] fn $name() { round_trip(stringify!($name), $mkfs, &[$($arg),*]); })*
    };
}

kinds! {
    ext4_defaults: "ext4" "-b" "4096";
    ext4_1k_blocks: "ext4" "-b" "1024";
    ext4_2k_blocks: "ext4" "-b" "2048";
    ext4_small_inodes: "ext4" "-I" "128";
    ext4_without_journal: "ext4" "-O" "^has_journal";
    ext4_meta_bg: "ext4" "-b" "1024" "-O" "meta_bg,^resize_inode";
    ext4_sparse_super2: "ext4" "-O" "sparse_super2";
    ext4_uninit_bg: "ext4" "-O" "^metadata_csum,uninit_bg";
    ext4_seed_large_dir_project: "ext4" "-O" "metadata_csum_seed,large_dir,project";
    ext4_inline_data: "ext4" "-O" "inline_data";
    ext4_ea_inode: "ext4" "-O" "ea_inode";
    ext4_orphan_file: "ext4" "-O" "orphan_file";
    ext3: "ext3";
    ext2: "ext2" "-b" "1024";
}
