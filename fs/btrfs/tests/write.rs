//! Random changes through the VFS on images of many kinds. They are checked against a model in memory, also
//! after remounts; by `btrfs check`; and by Linux, which must see an equal tree and write on. `IVERS_SEED`
//! and `IVERS_STEPS` replay and lengthen a run, `IVERS_KIND` selects a kind, `IVERS_CHECK_EACH` checks the
//! image after each so many steps.

mod common;

use common::fill::in_dir;
use common::storm::Storm;
use common::*;

/// Kinds of images that are written.
const WRITABLE: &[Kind] = &[
    DEFAULT,
    Kind { name: "nodes of 4 KiB", mkfs: &["-n", "4096"], mount: "", devices: 1 },
    Kind { name: "nodes of 64 KiB", mkfs: &["-n", "65536"], mount: "", devices: 1 },
    Kind { name: "xxhash64", mkfs: &["--csum", "xxhash"], mount: "", devices: 1 },
    Kind { name: "sha256", mkfs: &["--csum", "sha256"], mount: "", devices: 1 },
    Kind { name: "blake2b", mkfs: &["--csum", "blake2"], mount: "", devices: 1 },
    Kind { name: "mixed groups", mkfs: &["-M"], mount: "", devices: 1 },
    Kind {
        name: "old features",
        mkfs: &["-O", "^no-holes,^extref,^skinny-metadata", "-R", "^free-space-tree"],
        mount: "",
        devices: 1,
    },
    Kind { name: "all single", mkfs: &["-m", "single", "-d", "single"], mount: "", devices: 1 },
    Kind { name: "all DUP", mkfs: &["-m", "dup", "-d", "dup"], mount: "", devices: 1 },
    Kind { name: "zstd", mkfs: &[], mount: "compress-force=zstd", devices: 1 },
    Kind { name: "no checksums of data", mkfs: &[], mount: "nodatasum", devices: 1 },
    Kind { name: "data in place", mkfs: &[], mount: "nodatacow", devices: 1 },
    Kind { name: "RAID0", mkfs: &["-d", "raid0", "-m", "raid0"], mount: "", devices: 3 },
    Kind { name: "RAID1", mkfs: &["-d", "raid1", "-m", "raid1"], mount: "", devices: 2 },
    Kind { name: "RAID1C3", mkfs: &["-d", "raid1c3", "-m", "raid1c3"], mount: "", devices: 3 },
    Kind { name: "RAID10", mkfs: &["-d", "raid10", "-m", "raid10"], mount: "", devices: 4 },
];

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

fn each_kind(run: impl Fn(&Kind, &Images)) {
    let only = std::env::var("IVERS_KIND").ok();
    let dir = tempfile::tempdir().unwrap();
    for kind in WRITABLE.iter().filter(|kind| only.as_deref().is_none_or(|only| only == kind.name)) {
        run(kind, &Images::make(dir.path(), kind));
    }
}

fn storm(kind: &Kind, images: &Images, mut storm: Storm, steps: u64) {
    let (name, check_each) = (kind.name, number("IVERS_CHECK_EACH", 0));
    for round in 0..3 {
        let what = format!("{name}, round {round}");
        for step in 0..steps {
            storm.step();
            if check_each > 0 && step % check_each == 0 {
                storm.vfs().sync().unwrap();
                assert_clean(images, &format!("{what}, step {step}"));
            }
        }
        storm.check(&what);
        let before = storm.values();
        storm.unmount();
        assert_clean(images, &what);
        storm.mount(mount_writable(images));
        assert!(kind.mount == "nodatacow" || storm.values() == before, "{what}: values after a remount");
        storm.check(&format!("{what}, mounted again"));
    }
    storm.unmount();
    assert_clean(images, name);
    let vfs = mount(images);
    let ours = our_tree(&vfs, true).unwrap();
    vfs.unmount().unwrap();
    drop(vfs);
    assert_same(&ours, &images.with_kernel("ro", kernel_tree), name);
}

#[test]
fn random_changes_of_all_kinds() {
    if !can_fill() {
        return;
    }
    let (seed, steps) = (number("IVERS_SEED", 1), number("IVERS_STEPS", 400));
    each_kind(|kind, images| {
        println!("{}: IVERS_SEED={seed} IVERS_STEPS={steps}", kind.name);
        storm(kind, images, Storm::new(mount_writable(images), seed), steps);
        // Linux writes on, and finds its way.
        images.with_kernel(kind.mount, |root| in_dir(root, "mkdir kernel; seq 1 90000 > kernel/f; rm -rf [0-4]*; sync"));
        assert_clean(images, kind.name);
    });
}
