//! `ivers resize MOUNTPOINT`: a filesystem grows while programs write to it.

use crate::common::*;
use ivers_oracle::{Image, e2fs};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;

fn available(dir: &Path) -> u64 {
    let found = rustix::fs::statvfs(dir).unwrap();
    found.f_bavail * found.f_frsize
}

/// Writes at the end until no space is left; each piece is on the device before the next. Returns the length.
fn fill(file: &mut fs::File) -> u64 {
    let chunk = vec![7_u8; 1 << 18];
    let mut len = file.metadata().unwrap().len();
    loop {
        match file.write_all_at(&chunk, len).and_then(|()| file.sync_data()) {
            Ok(()) => len += chunk.len() as u64,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
                file.set_len(len).unwrap();
                return len;
            }
        }
    }
}

#[test]
fn a_full_mount_grows_and_the_writer_continues() {
    if !can_mount() {
        return;
    }
    for kind in ["ext4", "ext3", "ext2"] {
        let place = Place::of(Image::new(kind, 24 * MIB, &[]).unwrap());
        place.mount("rw");
        let mnt = place.dir.to_str().unwrap();
        let mut file = fs::File::create(place.path("file")).unwrap();
        let mut written = fill(&mut file);
        assert!(written > 10 * MIB, "{written}");
        let full = available(&place.dir);
        for mib in [60, 300] {
            // The second time as a change of the size.
            let size = if mib == 60 { "60M".to_owned() } else { format!("+{}M", mib - 60) };
            let output = ivers(["resize", mnt, &size]);
            assert!(output.status.success(), "{kind}: {}", said(&output));
            assert_eq!(fs::metadata(place.image.path()).unwrap().len(), mib * MIB);
            let gained = available(&place.dir) - full;
            assert!(gained > (mib - 24) / 2 * MIB, "{kind}, {mib}: {gained}");
            file.write_all_at(&vec![7; 5 << 20], written).unwrap();
            file.sync_all().unwrap();
            written += 5 * MIB;
            for nth in 0..200 {
                fs::create_dir(place.path(&format!("{mib}-{nth}"))).unwrap();
            }
        }
        let smaller = ivers(["resize", mnt, "100M"]);
        assert_eq!(smaller.status.code(), Some(4));
        assert!(said(&smaller).contains("unmount"), "{}", said(&smaller));
        assert_eq!(ivers(["resize", "--minimum", mnt]).status.code(), Some(4));
        fs::OpenOptions::new().write(true).open(place.image.path()).unwrap().set_len(340 * MIB).unwrap();
        written = fill(&mut file);
        assert!(written > 200 * MIB, "{kind}: {written}");
        file.sync_all().unwrap();
        drop(file);
        let read = fs::read(place.path("file")).unwrap();
        assert_eq!(read.len() as u64, written);
        assert!(read.iter().all(|&byte| byte == 7));
        place.unmount();
        place.image.check().unwrap();
    }
}

#[test]
fn what_cannot_grow_is_refused_and_unchanged() {
    if !can_mount() {
        return;
    }
    for (args, named) in
        [(&["-O", "meta_bg,^resize_inode"][..], "meta_bg"), (&["-O", "^resize_inode"], "resize_inode")]
    {
        let place = Place::of(Image::new("ext4", 24 * MIB, args).unwrap());
        place.mount("rw");
        let output = ivers(["resize", place.dir.to_str().unwrap(), "20G"]);
        assert_eq!(output.status.code(), Some(4), "{}", said(&output));
        assert!(said(&output).contains(named), "{}", said(&output));
        assert_eq!(fs::metadata(place.image.path()).unwrap().len(), 24 * MIB);
        place.unmount();
        place.image.check().unwrap();
    }
    let output = ivers(["resize", "/", "1G"]);
    assert!(said(&output).contains("not on an ivers mount"), "{}", said(&output));
}

/// Kills the processes of the mount while it grows and programs write. The moment depends on the machine;
/// what is checked does not.
#[test]
fn kill_9_while_it_grows() {
    if !can_mount() {
        return;
    }
    for kill in 0..4_u64 {
        let place = Place::of(Image::new("ext4", 24 * MIB, &[]).unwrap());
        let pid = place.mount("rw");
        fs::write(place.path("before"), vec![3; 1 << 20]).unwrap();
        fs::File::open(place.path("before")).unwrap().sync_all().unwrap();
        let stop = AtomicBool::new(false);
        let grown = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for nth in 0..100_000 {
                    let done = fs::write(place.path(&format!("file{nth}")), vec![nth as u8; 30_000]);
                    let full = |error: &std::io::Error| error.kind() == std::io::ErrorKind::StorageFull;
                    if stop.load(Ordering::Relaxed) || done.is_err_and(|error| !full(&error)) {
                        return;
                    }
                }
            });
            scope.spawn(|| {
                for mib in 1..200 {
                    let size = format!("{}M", 24 + mib * 20);
                    if !ivers(["resize", place.dir.to_str().unwrap(), &size]).status.success() {
                        return;
                    }
                    grown.store(true, Ordering::Relaxed);
                }
            });
            wait_until("it grows", || grown.load(Ordering::Relaxed));
            std::thread::sleep(std::time::Duration::from_millis(kill * 13));
            signal(pid, rustix::process::Signal::KILL);
            stop.store(true, Ordering::Relaxed);
        });
        let gone = std::process::Command::new("fusermount3").args(["-u", "-z"]).arg(&place.dir).output();
        assert!(gone.unwrap().status.success() || is_root());
        let _ = rustix::mount::unmount(&place.dir, rustix::mount::UnmountFlags::DETACH);
        let theirs = place.image.copy().unwrap();
        e2fs::e2fsck_repair(theirs.path()).unwrap();
        theirs.check().unwrap();
        place.mount("rw");
        assert_eq!(fs::read(place.path("before")).unwrap(), vec![3; 1 << 20]);
        fs::write(place.path("after"), b"after").unwrap();
        place.unmount();
        place.image.check().unwrap();
    }
}
