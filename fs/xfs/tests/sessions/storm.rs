//! Random changes through the VFS on images of many kinds. They are checked against a model in memory, also
//! after remounts; by xfs_repair; by our checker; and by Linux, which must see an equal tree. `IVERS_SEED`
//! and `IVERS_STEPS` replay and lengthen a run, `IVERS_KIND` selects a kind, `IVERS_CHECK_EACH` checks the
//! image after each so many steps.

use crate::common::storm::Storm;
use crate::common::*;
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::can_loop_mount;
use std::path::Path;

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

fn storm(name: &str, image: &Path, judge: impl Fn(&Path, &str)) {
    let (seed, steps) = (number("IVERS_SEED", 1), number("IVERS_STEPS", 700));
    let check_each = number("IVERS_CHECK_EACH", 0);
    println!("{name}: IVERS_SEED={seed} IVERS_STEPS={steps}");
    let mut storm = Storm::new(mount_writable(image), seed);
    for round in 0..3 {
        let what = format!("{name}, seed {seed}, round {round}");
        for step in 0..steps {
            storm.step();
            if check_each > 0 && step % check_each == 0 {
                storm.vfs().sync().unwrap();
                let copy = image.with_extension("copy");
                copy_image(image, &copy);
                assert_clean(&copy, &format!("{what}, step {step}"));
            }
        }
        storm.check(&what);
        let before = storm.values();
        storm.unmount();
        judge(image, &what);
        storm.mount(mount_writable(image));
        assert_eq!(storm.values(), before, "{what}: values after a remount");
        storm.check(&format!("{what}, mounted again"));
    }
    storm.unmount();
    let vfs = mount(image);
    let ours = our_tree(&vfs, true).unwrap();
    vfs.unmount().unwrap();
    drop(vfs);
    let mounted = LoopMount::new(image, "ro,nouuid").unwrap();
    let theirs = kernel_tree(mounted.path());
    mounted.unmount().unwrap();
    assert_same(&ours, &theirs, name);
}

/// Calls `f` with the kinds that the environment selects.
fn each<'k, K: 'k>(kinds: &'k [K], name: impl Fn(&K) -> &str, f: impl Fn(&'k K, &Path)) {
    let only = std::env::var("IVERS_KIND").ok();
    let dir = tempfile::tempdir().unwrap();
    let kinds = kinds.iter().filter(|kind| only.as_deref().is_none_or(|only| only == name(kind)));
    kinds.for_each(|kind| f(kind, &dir.path().join("image")));
}

#[test]
fn random_changes_of_all_kinds() {
    if !have_xfsprogs() || !can_loop_mount() {
        return;
    }
    each(
        V5,
        |(name, _)| name,
        |(name, args), image| {
            mkfs(image, args, None);
            storm(name, image, |image, what| {
                repair_finds_nothing(image, what);
                assert_clean(image, what);
            });
        },
    );
}

#[test]
fn random_changes_with_parent_pointers() {
    if !can_loop_mount() {
        return;
    }
    each(
        parents::KINDS,
        |kind| kind.name,
        |kind, image| {
            kind.make(image);
            storm(kind.name, image, parents::judge);
        },
    );
}
