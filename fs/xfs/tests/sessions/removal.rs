//! Removing a file of many extents.

use crate::common::*;
use ivers_vfs::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The removal takes thousands of transactions. Others come between them.
#[test]
fn other_files_change_while_a_long_one_is_removed() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, &["-b", "size=1024"], None);
    let vfs = mount_writable(&image);
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let (file, _) = vfs.create(&cred, &root, b"long", &CreateSpec::file(0o644), false).unwrap();
    for nth in 0..20_000 {
        vfs.fallocate(&cred, &file, FallocateMode::empty(), nth * 2048, 1024).unwrap();
    }
    drop(file);
    let is_removed = AtomicBool::new(false);
    let made = thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut made = 0u32;
            while !is_removed.load(Ordering::Acquire) {
                let name = made.to_string();
                vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap();
                made += 1;
            }
            made
        });
        vfs.unlink(&cred, &root, b"long", false).unwrap();
        is_removed.store(true, Ordering::Release);
        others.join().unwrap()
    });
    eprintln!("{made} files were made meanwhile");
    assert!(made > 20, "{made} files");
    drop(root);
    vfs.unmount().unwrap();
    drop(vfs);
    repair_finds_nothing(&image, "a long file was removed");
}
