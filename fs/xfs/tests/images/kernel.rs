//! Trees that the kernel wrote: closed cleanly, and with a dirty log that is replayed in memory. Needs root
//! and loop devices; without them, prints a note and passes.

use crate::common::fill::{fill, in_dir};
use crate::common::*;
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::can_loop_mount;
use ivers_vfs::*;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

fn tree_of_kernel(image: &Path) -> Tree {
    let mounted = LoopMount::new(image, "ro").unwrap();
    let tree = kernel_tree(mounted.path());
    mounted.unmount().unwrap();
    tree
}

fn has_tools() -> bool {
    have_xfsprogs() && ivers_oracle::have_programs(&["xfs_io"]) && can_loop_mount()
}

#[test]
fn the_kernel_and_ivers_see_the_same_tree() {
    if !has_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, args) in V5 {
        let image = dir.path().join("image");
        mkfs(&image, args, None);
        let mounted = LoopMount::new(&image, "").unwrap();
        fill(mounted.path());
        mounted.unmount().unwrap();
        let theirs = tree_of_kernel(&image);
        let vfs = mount(&image);
        assert_eq!(log_state(&vfs), "clean", "{name}");
        assert_same(&our_tree(&vfs, true).unwrap(), &theirs, name);
        holes_are_known(&vfs, name);
        vfs.unmount().unwrap();
    }
}

fn log_state(vfs: &Arc<Vfs>) -> String {
    let facts = vfs.fs().describe();
    let (_, log) = facts.into_iter().find(|(name, _)| name == "log").unwrap();
    log.rsplit_once("; ").unwrap().1.to_owned()
}

fn holes_are_known(vfs: &Arc<Vfs>, what: &str) {
    let cred = Cred::root();
    let sparse = vfs.resolve(&cred, "/sparse", false).unwrap();
    let data = vfs.seek_data(&sparse, 0).unwrap();
    assert!(data > 2_900_000 && data <= 3_000_000, "{what}: {data}");
    let fragments = vfs.resolve(&cred, "/fragments", false).unwrap();
    let (mut at, mut runs) = (0, 0);
    while let Ok(data) = vfs.seek_data(&fragments, at) {
        at = vfs.seek_hole(&fragments, data).unwrap();
        runs += 1;
    }
    assert_eq!(runs, 301, "{what}");
}

#[test]
fn a_dirty_log_is_replayed_in_memory() {
    if !has_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    const KINDS: [&str; 6] = [
        "default",
        "all features of 6.1",
        "blocks of 1 KiB",
        "blocks of 64 KiB",
        "sectors of 4096",
        "log records of 256 KiB",
    ];
    for (name, args) in V5.iter().filter(|(name, _)| KINDS.contains(name)) {
        for how in ["shutdown -f", "shutdown"] {
            let image = dir.path().join("image");
            mkfs(&image, args, None);
            // Something is in place before, and everything else in the log.
            let mounted = LoopMount::new(&image, "").unwrap();
            in_dir(mounted.path(), "mkdir old; for i in $(seq 400); do echo $i > old/$i; done");
            mounted.unmount().unwrap();
            let mounted = LoopMount::new(&image, "").unwrap();
            fill(mounted.path());
            let more = "rm -r old/1* big many/*3*; mkdir old/new; mv names old/new; \
                for i in $(seq 300); do ln d/hard old/new/$i; done; sync";
            in_dir(mounted.path(), more);
            in_dir(
                mounted.path(),
                "for i in $(seq 500); do echo $i > d/late-$i; done; rm d/late-1*; chmod 700 d",
            );
            let path = mounted.path().to_str().unwrap().to_owned();
            ivers_oracle::run("xfs_io", ["-x", "-c", how, &path]).unwrap();
            mounted.unmount().unwrap();
            let copy = dir.path().join("copy");
            copy_image(&image, &copy);
            // The kernel replays the log when it mounts for writing.
            LoopMount::new(&copy, "").unwrap().unmount().unwrap();
            let theirs = tree_of_kernel(&copy);
            let vfs = mount(&image);
            assert!(log_state(&vfs).starts_with("dirty: "), "{name}: {}", log_state(&vfs));
            assert_same(&our_tree(&vfs, true).unwrap(), &theirs, &format!("{name}, {how}"));
            vfs.unmount().unwrap();
        }
    }
}

#[test]
fn files_that_were_open_without_a_name_are_hidden() {
    if !has_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, &[], None);
    let mounted = LoopMount::new(&image, "").unwrap();
    let files: Vec<_> = (0..100)
        .map(|number| {
            let path = mounted.path().join(number.to_string());
            std::fs::write(&path, "text").unwrap();
            let file = std::fs::File::open(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            (std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()), file)
        })
        .collect();
    let path = mounted.path().to_str().unwrap().to_owned();
    ivers_oracle::run("xfs_io", ["-x", "-c", "shutdown -f", &path]).unwrap();
    let numbers: Vec<u64> = files.iter().map(|(ino, _)| *ino).collect();
    drop(files);
    mounted.unmount().unwrap();
    let vfs = mount(&image);
    let facts = vfs.fs().describe();
    assert!(facts.contains(&("unlinked inodes".to_owned(), "100".to_owned())), "{facts:?}");
    for ino in numbers {
        assert!(matches!(vfs.get(Ino(ino)), Err(Error::Name(NameError::Stale))), "{ino}");
    }
    assert!(our_tree(&vfs, true).unwrap().is_empty());
    let name = std::ffi::OsStr::from_bytes(b"0");
    assert!(vfs.lookup(&Cred::root(), &vfs.root().unwrap(), name.as_bytes()).is_err());
}
