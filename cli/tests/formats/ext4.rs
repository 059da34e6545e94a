//! Features of ext4 alone, tested through a mount.

use crate::common::*;
use ivers_oracle::Image;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const SWAP_BOOT: &str = "import fcntl,sys; fcntl.ioctl(open(sys.argv[1],'r+'), 0x6611)";

/// The writer is known from the open: write-back of the kernel's page cache has no caller.
#[test]
fn only_root_uses_reserved_blocks() {
    if !can_mount() || !is_root() || !ivers_oracle::have_programs(&["setpriv"]) {
        return;
    }
    let place = Place::of(Image::new("ext4", 64 << 20, &["-m", "25"]).unwrap());
    for options in ["allow_other", "allow_other,no_writeback_cache"] {
        place.mount(options);
        fs::set_permissions(&place.dir, fs::Permissions::from_mode(0o777)).unwrap();
        let fill = |as_whom: &[&str], name: &str, mib: u32| {
            let (of, count) = (format!("of={}", place.path(name).display()), format!("count={mib}"));
            let dd = ["dd", "if=/dev/zero", &of, "bs=1M", &count, "conv=fsync"];
            let mut words = as_whom.iter().copied().chain(dd);
            said(&Command::new(words.next().unwrap()).args(words).output().unwrap())
        };
        let theirs = fill(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"], "theirs", 60);
        assert!(theirs.contains("No space left on device"), "{options}: {theirs}");
        let left = rustix::fs::statvfs(&place.dir).unwrap();
        let (free, open) = (left.f_bfree * left.f_frsize, left.f_bavail * left.f_frsize);
        assert!(free >= 15 << 20 && open <= 2 << 20, "{options}: {free} bytes free, {open} for everybody");
        let ours = fill(&["env"], "ours", 12);
        assert!(ours.starts_with("exit status: 0"), "{options}: {ours}");
        fs::remove_file(place.path("theirs")).unwrap();
        fs::remove_file(place.path("ours")).unwrap();
        place.unmount();
        place.image.check().unwrap();
    }
}

/// A name whose inode is damaged is not a missing name: a program that copies the directory must get an
/// error.
#[test]
fn a_damaged_inode_keeps_its_name_in_listings() {
    if !can_mount() {
        return;
    }
    const BLOCK: u64 = 4096;
    let place = Place::of(Image::new("ext4", 64 << 20, &["-b", "4096"]).unwrap());
    place.mount("rw");
    for name in ["one", "two", "three"] {
        fs::write(place.path(name), name).unwrap();
    }
    place.unmount();
    let output = Command::new("debugfs").args(["-R", "imap /two"]).arg(place.image.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let place_of =
        text.split("located at block ").nth(1).and_then(|rest| rest.trim().split_once(", offset 0x"));
    let (block, offset) = place_of.unwrap_or_else(|| panic!("{text}"));
    // A timestamp of the inode, which the checksum covers.
    let at = block.parse::<u64>().unwrap() * BLOCK + u64::from_str_radix(offset, 16).unwrap() + 8;
    let mut image = fs::OpenOptions::new().read(true).write(true).open(place.image.path()).unwrap();
    image.seek(SeekFrom::Start(at)).unwrap();
    image.write_all(&[0xA5; 4]).unwrap();
    drop(image);

    place.mount("rw");
    for round in 0..2 {
        let mut names: Vec<_> =
            fs::read_dir(&place.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["lost+found", "one", "three", "two"], "{round}");
        let error = fs::metadata(place.path("two")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::UCLEAN.raw_os_error()), "{round}");
        assert_eq!(fs::read(place.path("three")).unwrap(), b"three");
    }
    let copied =
        Command::new("cp").arg("-a").arg(&place.dir).arg(place.image.dir().join("copy")).output().unwrap();
    assert!(!copied.status.success(), "{}", said(&copied));
    place.unmount();
}

/// The kernel's pages of the file are written before the swap and dropped after it. With the write-back cache
/// the kernel would keep the old size.
#[test]
fn boot_loader_swap_works_through_a_mount() {
    if !can_mount() || !ivers_oracle::have_programs(&["python3"]) {
        return;
    }
    let place = Place::new();
    for options in ["no_writeback_cache", "no_writeback_cache,threads=1", "no_writeback_cache,nosandbox"] {
        place.mount(options);
        let path = place.path("f");
        let swap = || Command::new("python3").args(["-c", SWAP_BOOT]).arg(&path).output().unwrap();
        let held = fs::File::create(&path).unwrap();
        fs::write(&path, b"one").unwrap();
        let done = swap();
        assert!(done.status.success(), "{options}: {}", said(&done));
        assert_eq!(fs::read(&path).unwrap(), b"", "{options}");
        fs::write(&path, b"the second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"the second");
        let done = swap();
        assert!(done.status.success(), "{options}: {}", said(&done));
        assert_eq!(fs::read(&path).unwrap(), b"one", "{options}: not what the kernel remembers");
        drop(held);
        fs::remove_file(&path).unwrap();
        // Clears the boot loader for the next round.
        fs::write(&path, b"").unwrap();
        assert!(swap().status.success());
        fs::remove_file(&path).unwrap();
        place.unmount();
        place.image.check().unwrap();
    }
    place.mount("rw");
    fs::write(place.path("f"), b"stays").unwrap();
    let done = Command::new("python3").args(["-c", SWAP_BOOT]).arg(place.path("f")).output().unwrap();
    assert!(said(&done).contains("Operation not supported"), "{}", said(&done));
    assert_eq!(fs::read(place.path("f")).unwrap(), b"stays");
    assert!(place.log().contains("no_writeback_cache"), "{}", place.log());
    place.unmount();
}

#[test]
fn a_full_disk_stops_a_writing_program() {
    if !can_mount() {
        return;
    }
    let place = Place::of(Image::new("ext4", 32 << 20, &["-m", "0"]).unwrap());
    for options in ["rw", "threads=1", "no_writeback_cache"] {
        place.mount(options);
        full_disk::stops_a_writing_program(&place.dir, options);
        place.unmount();
        place.image.check().unwrap();
    }
}
