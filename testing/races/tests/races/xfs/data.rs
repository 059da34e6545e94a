//! Data of files: write-back, truncation, growth, copy on write.

use super::SLOWER;
use super::files::{Files, race};
use ivers_races::explore_one_in;

/// All of them, write-back beside truncation and beside the removal of an open file included.
#[test]
fn xfs_against_crashes() {
    let parts = [
        Files::write,
        Files::grow,
        Files::cut,
        Files::fsync_cut,
        Files::rename,
        Files::make_and_remove,
        Files::share,
        Files::unshare,
        Files::observe,
        Files::press,
        Files::sync,
    ];
    explore_one_in(SLOWER, move || race(&[], &parts));
}

#[test]
fn xfs_fsync_against_growth() {
    let others = [Files::press, Files::fsync_grown, Files::cut];
    explore_one_in(SLOWER, move || race(&[Files::grow, Files::fsync_grown, Files::fsync_grown], &others));
}

#[test]
fn xfs_copy_on_write_against_clone() {
    let others = [Files::share, Files::unshare, Files::press, Files::sync, Files::observe, Files::cut];
    explore_one_in(SLOWER, move || race(&[Files::write, Files::unshare], &others));
}
