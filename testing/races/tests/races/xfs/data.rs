//! Data of files: write-back, truncation, growth, copy on write.

use super::SLOWER;
use super::files::{Files, race};
use ivers_races::*;
use ivers_vfs::{CreateSpec, Cred, SetAttr, WriteFlags};
use shuttle::thread::scope;

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

/// A new mode of a file is logged while write-back gives the file blocks. Nothing logs the inode again after
/// that. One file after the other, and one crash for all: the check would take most of a schedule.
#[test]
fn xfs_attributes_against_write_back() {
    explore_one_in(SLOWER, || {
        const MODE: u32 = 0o611;
        let fixture = XfsFixture::new(Log::Small);
        let vfs = &fixture.vfs;
        let (cred, root) = (Cred::root(), vfs.root().unwrap());
        let page = [7; PAGE as usize];
        let names: Vec<String> = (0..10).map(|nth| format!("f{nth}")).collect();
        for name in &names {
            let file = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0;
            vfs.write(&cred, &file, PAGE, &page, WriteFlags::empty()).unwrap();
            scope(|scope| {
                scope.spawn(|| vfs.fsync(&file, true).unwrap());
                scope.spawn(|| {
                    let set = SetAttr { perm: Some(MODE), ..SetAttr::default() };
                    vfs.set_attr(&cred, &file, &set).unwrap();
                });
            });
        }
        vfs.sync().unwrap();
        recover(fixture.crash(), |vfs| {
            for name in &names {
                let file = find(vfs, &vfs.root().unwrap(), name).expect("the file");
                assert_eq!(file.attr().perm, MODE);
                let mut found = [0; PAGE as usize];
                assert_eq!(vfs.read(&cred, &file, PAGE, &mut found).unwrap(), found.len());
                assert_eq!(found, page, "{name}");
            }
        });
        drop(root);
        fixture.end();
    });
}
