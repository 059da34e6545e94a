//! Mounting and unmounting.

use crate::common::*;
use ivers_fuse::{FuseOptions, MountError};
use std::fs;
use std::io::Write;
use std::time::Duration;

#[test]
fn unmounting_writes_everything_back() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    fs::write(m.path("f"), b"kept").unwrap();
    m.session.unmount().unwrap();
    assert!(!m.session.is_mounted());
    assert!(!m.path("f").exists());
    m.session.unmount().expect("again is no error");
    // The same filesystem, mounted again.
    let session = ivers_fuse::mount(m.vfs.clone(), m.dir.path(), FuseOptions::default()).unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"kept");
    session.unmount().unwrap();
    m.vfs.unmount().unwrap();
}

#[test]
fn unmounting_a_busy_mount_is_refused() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let mut file = fs::File::create(m.path("f")).unwrap();
    assert!(matches!(m.session.unmount(), Err(MountError::Busy(_))));
    assert!(m.session.is_mounted());
    file.write_all(b"before").unwrap();
    m.session.detach().unwrap();
    assert!(!m.path("f").exists(), "out of the tree");
    file.write_all(b" and after").unwrap();
    assert!(!m.session.wait_for(Duration::from_millis(100)), "the mount ended with a file open");
    drop(file);
    m.session.wait().unwrap();
    let inode = m.vfs.resolve(&ivers_vfs::Cred::root(), "/f", false).unwrap();
    let mut data = [0; 32];
    let read = m.vfs.read(&ivers_vfs::Cred::root(), &inode, 0, &mut data).unwrap();
    assert_eq!(&data[..read], b"before and after");
}

#[test]
fn another_program_can_unmount() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let program = if is_root() { ("umount", vec![]) } else { ("fusermount3", vec!["-u"]) };
    let status = std::process::Command::new(program.0).args(program.1).arg(m.dir.path()).status().unwrap();
    assert!(status.success());
    m.session.wait().unwrap();
}

#[test]
fn a_read_only_mount_refuses_changes() {
    if !can_mount() {
        return;
    }
    let m = mount_with(FuseOptions { read_only: true, ..FuseOptions::default() });
    assert_eq!(fs::write(m.path("f"), b"x").unwrap_err().raw_os_error(), Some(30), "EROFS");
    assert!(change(m.dir.path()) > 0);
}

#[test]
fn a_missing_directory_is_named() {
    let error = ivers_fuse::mount(mem_vfs(1 << 30), "/no/such/place".as_ref(), FuseOptions::default())
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("/no/such/place"), "{error}");
}

#[test]
fn the_mounter_is_root_inside_with_fakeroot() {
    if !can_mount() || !is_root() {
        return;
    }
    // As root the option must only do no harm; `as_a_user` tests it for an ordinary user.
    let m = mount_with(FuseOptions { fakeroot: true, ..FuseOptions::default() });
    fs::write(m.path("f"), b"x").unwrap();
    std::os::unix::fs::chown(m.path("f"), Some(7), Some(7)).unwrap();
    fs::write(m.path("f"), b"still mine to change").unwrap();
}
