//! Unmounting a mount that is in use.

use crate::common::*;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn a_busy_unmount_is_refused_and_a_lazy_one_waits_for_the_last_file() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let supervisor = place.mount("rw");
    let mut file = File::create(place.path("f")).unwrap();
    file.write_all(b"before").unwrap();
    let output = ivers(["unmount".as_ref(), place.dir.as_os_str()]);
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    // umount(8) takes an image, too: the message names the directory.
    let output = ivers(["unmount".as_ref(), place.image.path().as_os_str()]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains(&format!("ivers unmount {}", place.dir.display())), "{}", said(&output));
    assert!(mount_line(&place.dir).is_some() && runs(supervisor), "refused, and still there");

    let mut lazy = Command::new(IVERS)
        .args(["unmount".as_ref(), "--lazy".as_ref(), place.dir.as_os_str()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it leaves the tree", || mount_line(&place.dir).is_none());
    assert!(lazy.try_wait().unwrap().is_none(), "the image is not safe yet");
    file.write_all(b" and after").unwrap();
    drop(file);
    assert!(lazy.wait().unwrap().success());
    assert!(!runs(supervisor));
    place.image.check().unwrap();
    place.mount("ro");
    assert_eq!(fs::read(place.path("f")).unwrap(), b"before and after");
    place.unmount();
}

/// Unmounts as umount(8) does, which returns when the kernel has detached the mount.
fn detach(dir: &std::path::Path) {
    wait_until("the mount is no longer busy", || {
        let output = Command::new("fusermount3").arg("-u").arg(dir).output().unwrap();
        output.status.success() || !said(&output).contains("busy")
    });
    assert!(mount_line(dir).is_none());
}

#[test]
fn an_open_after_umount_waits_until_the_image_is_closed() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for round in 0..8_u8 {
        place.mount("rw");
        fs::write(place.path("f"), vec![round; 8 << 20]).unwrap();
        detach(&place.dir);
        if round % 2 == 0 {
            let output = ivers(["ls".as_ref(), place.image.path().as_os_str()]);
            assert!(output.status.success(), "{}", said(&output));
        }
        place.mount("ro");
        assert_eq!(fs::read(place.path("f")).unwrap(), vec![round; 8 << 20]);
        detach(&place.dir);
    }
    ivers(["ls".as_ref(), place.image.path().as_os_str()]);
    place.image.check().unwrap();
}

#[test]
fn unmount_fails_if_the_image_cannot_be_closed() {
    if !can_mount() || !is_root() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let [small, dir] = ["small", "mnt"].map(|name| scratch.path().join(name));
    fs::create_dir(&small).unwrap();
    fs::create_dir(&dir).unwrap();
    let run = |program: &str, args: &[&std::ffi::OsStr]| {
        let output = Command::new(program).args(args).output().unwrap();
        assert!(output.status.success(), "{program}: {}", said(&output));
    };
    // The image is larger than the filesystem that contains it.
    run("mount", &["-t".as_ref(), "tmpfs".as_ref(), "-osize=24M".as_ref(), "none".as_ref(), small.as_ref()]);
    let image = small.join("image");
    run("mkfs.ext4", &["-qF".as_ref(), image.as_ref(), "200M".as_ref()]);
    run(IVERS, &["mount".as_ref(), image.as_ref(), dir.as_ref()]);
    let stored = |number: u32| -> std::io::Result<()> {
        let mut file = File::create(dir.join(format!("f{number}")))?;
        file.write_all(&vec![number as u8; 1 << 20])?;
        file.sync_all()
    };
    let durable = (0..40).take_while(|&number| stored(number).is_ok()).count() as u32;
    assert!((1..40).contains(&durable), "{durable} files fit");
    let output = ivers(["unmount".as_ref(), dir.as_os_str()]);
    let copy = scratch.path().join("copy");
    fs::copy(&image, &copy).unwrap();
    // A child that another test is starting may have the copied file open for a moment.
    run("umount", &["-l".as_ref(), small.as_ref()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("not closed without error"), "{}", said(&output));
    assert!(mount_line(&dir).is_none());
    // With enough space, all acknowledged data is there.
    run(IVERS, &["mount".as_ref(), copy.as_ref(), dir.as_ref()]);
    for number in 0..durable {
        assert!(fs::read(dir.join(format!("f{number}"))).unwrap() == vec![number as u8; 1 << 20]);
    }
    run(IVERS, &["unmount".as_ref(), dir.as_ref()]);
    ivers_oracle::e2fsck(&copy).unwrap();
}

#[test]
fn an_unmount_after_umount_waits() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for round in 0..4_u8 {
        let supervisor = place.mount("rw");
        fs::write(place.path("f"), vec![round; 16 << 20]).unwrap();
        detach(&place.dir);
        let output = ivers(["unmount".as_ref(), place.dir.as_os_str()]);
        // If the process was faster, there is nothing to unmount.
        assert!(matches!(output.status.code(), Some(0 | 4)), "{}", said(&output));
        wait_until("the process ends", || !runs(supervisor));
        place.image.check().unwrap();
    }
}

/// Programs that ignore the errors of close(2) do not learn that the kernel's cache could not be stored.
#[test]
fn unmount_counts_the_files_that_lack_data() {
    if !can_mount() {
        return;
    }
    let place = Place::of(ivers_oracle::Image::new("ext4", 16 << 20, &["-m", "0"]).unwrap());
    let mount_and_fill = || {
        place.mount("rw");
        let ballast = File::create(place.path("ballast")).unwrap();
        let free = rustix::fs::statvfs(&place.dir).unwrap();
        let len = free.f_bavail * free.f_frsize - 64 * 1024;
        rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
        for name in ["a", "b", "removed", "emptied"] {
            // The error of close(2) is ignored.
            File::create(place.path(name)).unwrap().write_all(&[1; 300_000]).unwrap();
        }
        fs::remove_file(place.path("removed")).unwrap();
        File::create(place.path("emptied")).unwrap();
    };
    mount_and_fill();
    let output = ivers(["unmount".as_ref(), place.dir.as_os_str()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let log = place.log();
    assert!(said(&output).contains("the image is closed, but 2 files lack data"), "{}{log}", said(&output));
    for name in ["a", "b"] {
        let lines =
            log.lines().filter(|line| line.contains(&format!("({name}): ")) && line.contains("wrote"));
        assert_eq!(lines.count(), 2, "when it happened, and at the end: {log}");
    }
    assert!(log.contains("no space left"), "{log}");
    place.image.check().unwrap();

    place.mount("rw");
    for name in ["a", "b", "emptied", "ballast"] {
        fs::remove_file(place.path(name)).unwrap();
    }
    place.unmount();
    mount_and_fill();
    for name in ["a", "b"] {
        fs::remove_file(place.path(name)).unwrap();
    }
    place.unmount();
}

/// The message appears on a terminal, after a second, without --quiet. An open file keeps the mount alive.
#[test]
fn a_waiting_unmount_prints_a_message() {
    if !can_mount() || !ivers_oracle::have_programs(&["script"]) {
        return;
    }
    for (quiet, shown) in [("", true), ("--quiet", false)] {
        let place = Place::new();
        place.mount("rw");
        let open = File::create(place.path("open")).unwrap();
        let command = format!("{IVERS} unmount {quiet} --lazy {}", place.dir.display());
        let mut terminal = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut screen = terminal.stdout.take().unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let seen = told.clone();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = screen.read(&mut bytes) {
                seen.lock().unwrap().extend_from_slice(&bytes[..n]);
            }
        });
        let is_told =
            || String::from_utf8_lossy(&told.lock().unwrap()).contains("waiting until the image is closed");
        wait_until("it is out of the tree", || mount_line(&place.dir).is_none());
        if shown {
            wait_until("the message appears", is_told);
        } else {
            std::thread::sleep(Duration::from_millis(1500));
        }
        drop(open);
        assert!(terminal.wait().unwrap().success());
        reader.join().unwrap();
        assert_eq!(is_told(), shown);
        place.image.check().unwrap();
    }
}

/// The supervisor finds a moved mount, to unmount it and to have the kernel write its cached data.
#[test]
fn a_moved_mount_is_unmounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let [old, new] = ["old", "new name"].map(|name| place.image.dir().join(name));
    fs::create_dir_all(old.join("mnt")).unwrap();
    let output = ivers(["mount".as_ref(), place.image.path().as_os_str(), old.join("mnt").as_os_str()]);
    assert!(output.status.success(), "{}", said(&output));
    fs::rename(&old, &new).unwrap();
    let dir = new.join("mnt");
    let mut held = File::create(dir.join("f")).unwrap();
    held.write_all(b"x").unwrap();
    let seen = change(&dir.join("f"));
    assert_eq!(change(&dir.join("f")), seen, "nothing has changed, although the file is open");
    drop(held);
    let supervisor = about(&dir)["pid"].as_i64().unwrap() as i32;
    let pid = rustix::process::Pid::from_raw(supervisor).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_until("it has ended", || !runs(supervisor));
    assert!(mount_line(&dir).is_none());
    place.image.check().unwrap();
}

#[test]
fn unmount_fails_if_the_image_was_truncated() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount("rw");
    fs::write(place.path("f"), vec![1; 1 << 20]).unwrap();
    File::options().write(true).open(place.image.path()).unwrap().set_len(1 << 20).unwrap();
    let output = ivers(["unmount".as_ref(), place.dir.as_os_str()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("not closed without error"), "{}", said(&output));
    assert!(
        !said(&output).contains("until it is unmounted") && !place.log().contains("until it is unmounted")
    );
}
