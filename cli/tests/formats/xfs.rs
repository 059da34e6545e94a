//! The command on XFS images, judged by xfs_repair and Linux.

use crate::common::image_place::*;
use crate::common::*;
use ivers_oracle::kernel::{LoopMount, may_loop_mount};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

fn place() -> ImagePlace {
    ImagePlace::new("disk.xfs", ivers_oracle::xfs::judge)
}

/// An image that ivers made.
fn ours(options: &[&str]) -> ImagePlace {
    let place = place();
    let words = ["mkfs", "-q", "-t", "xfs", "--size", "64M", "--small", place.name()];
    works(&[&words[..], options].concat());
    place
}

/// An image that mkfs.xfs made, with a few files.
fn theirs(options: &[&str]) -> ImagePlace {
    let place = place();
    let (source, proto) = (place.path("source"), place.path("proto"));
    fs::File::create(&place.image).unwrap().set_len(320 << 20).unwrap();
    fs::write(&source, TEXT).unwrap();
    let user = rustix::process::getuid().as_raw();
    let file = |name: &str| format!("{name} ---644 {user} 7 {source}\n");
    let text = format!(
        "/\n0 0\nd--755 0 0\ndir d--755 0 0\n{}link l--777 0 0 file\n$\n{}$\n",
        file("file"),
        file("top")
    );
    fs::write(&proto, text).unwrap();
    let words = ["-q", "-f", "-p", &proto];
    ivers_oracle::run("mkfs.xfs", words.iter().chain(options).copied().chain([place.name()])).unwrap();
    place
}

fn have_tools() -> bool {
    ivers_oracle::have_programs(&["mkfs.xfs", "xfs_repair"])
}

fn refused_with<T: std::fmt::Debug>(result: io::Result<T>, errno: Errno) {
    assert_eq!(result.map_err(|error| error.raw_os_error()).unwrap_err(), Some(errno.raw_os_error()));
}

/// Files of every form: enough names for a directory of several blocks, holes, links, attributes. The largest
/// value of an attribute has `value_len` bytes.
fn fill(dir: &Path, value_len: usize) {
    fs::create_dir_all(dir.join("many")).unwrap();
    for nth in 0..400 {
        fs::write(dir.join(format!("many/file with a long name {nth}")), vec![nth as u8; nth * 5]).unwrap();
    }
    let large: Vec<u8> = (0..3_000_000).map(|at| (at / 7) as u8).collect();
    fs::write(dir.join("large"), &large).unwrap();
    let holes = fs::File::create(dir.join("holes")).unwrap();
    holes.write_all_at(b"island", 1 << 20).unwrap();
    holes.set_len(8 << 20).unwrap();
    fs::hard_link(dir.join("large"), dir.join("many/twin")).unwrap();
    std::os::unix::fs::symlink("l".repeat(600), dir.join("long link")).unwrap();
    for (name, len) in [("user.short", 3), ("user.long", value_len)] {
        xattr::set(dir.join("large"), name, &vec![b'v'; len]).unwrap();
    }
}

#[test]
fn images_of_every_version_are_read() {
    if !have_tools() {
        return;
    }
    for options in [&[][..], &["-m", "crc=0"], &["-b", "size=1024"]] {
        let place = theirs(options);
        let before = fs::read(&place.image).unwrap();
        assert_eq!(works(&["ls", &place.at("/")]).split_whitespace().collect::<Vec<_>>(), ["dir", "top"]);
        assert_eq!(works(&["cat", &place.at("/dir/file")]).as_bytes(), TEXT);
        assert!(works(&["tree", &place.at("/")]).contains("link"));
        let copy = place.path("copy");
        works(&["cp", "-a", &place.at("/dir"), &copy]);
        assert_eq!(fs::read(Path::new(&copy).join("file")).unwrap(), TEXT);
        assert_eq!(fs::read_link(Path::new(&copy).join("link")).unwrap(), Path::new("file"));
        let facts = works(&["info", place.name()]);
        assert!(facts.contains("xfs") && facts.contains("groups") && facts.contains("; clean"), "{facts}");
        let old = options.contains(&"crc=0");
        if old {
            let refused = ivers(["cp", &place.path("source"), &place.at("/new")]);
            assert!(!refused.status.success() && said(&refused).contains("version 4"), "{}", said(&refused));
        }
        assert!(fs::read(&place.image).unwrap() == before, "the image was written to");
        if !old {
            works(&["cp", &place.path("source"), &place.at("/new")]);
            assert_eq!(works(&["cat", &place.at("/new")]).as_bytes(), TEXT);
            place.is_clean();
        }
    }
}

#[test]
fn commands_change_images() {
    if !have_tools() {
        return;
    }
    for options in [&[][..], &["-O", "parent,exchange"]] {
        let place = ours(options);
        fill(Path::new(&place.path("tree")), 2000);
        change_by_commands(&place, "tree", "/many", "holes");
    }
}

#[test]
fn a_mount_is_written_and_linux_reads_it() {
    if !can_mount() || !have_tools() {
        return;
    }
    for place in [ours(&[]), theirs(&["-b", "size=1024", "-m", "rmapbt=1"]), ours(&["-O", "parent,exchange"])]
    {
        let dir = place.mount("rw");
        fill(&dir, 9000);
        change_in_a_mount(&place, &dir, "many", may_loop_mount());
    }
}

#[test]
fn what_is_not_written_is_named() {
    if !can_mount() || !have_tools() {
        return;
    }
    // Images that are only read.
    for (place, why) in [(theirs(&["-m", "crc=0"]), "version 4"), (theirs(&["-n", "version=ci"]), "case")] {
        let mnt = place.path("mnt");
        fs::create_dir(&mnt).unwrap();
        let refused = ivers(["mount", "-o", "rw", place.name(), &mnt]);
        assert!(!refused.status.success() && said(&refused).contains(why), "{}", said(&refused));
        let dir = place.mount("ro");
        refused_with(fs::write(dir.join("new"), "x"), Errno::ROFS);
        place.unmount();
    }
}

/// Files that Linux cloned are written through a mount; the others keep their contents.
#[test]
fn files_that_share_blocks_are_written() {
    if !can_mount() || !have_tools() || !may_loop_mount() {
        return;
    }
    let place = ours(&[]);
    let linux = LoopMount::new(&place.image, "").unwrap();
    let mut data = vec![b'a'; 100_000];
    fs::write(linux.path().join("file"), &data).unwrap();
    for name in ["written", "cut", "emptied", "longer"] {
        let (from, to) = (linux.path().join("file"), linux.path().join(name));
        ivers_oracle::run("cp", ["--reflink=always".as_ref(), from.as_os_str(), to.as_os_str()]).unwrap();
    }
    linux.unmount().unwrap();
    let dir = place.mount("rw");
    let open = |name: &str| fs::File::options().write(true).open(dir.join(name)).unwrap();
    open("written").write_all_at(b"new", 50_001).unwrap();
    open("cut").set_len(70_001).unwrap();
    open("cut").set_len(80_000).unwrap();
    fs::write(dir.join("emptied"), "new").unwrap();
    open("longer").write_all_at(b"new", 300_000).unwrap();
    place.unmount();
    place.is_clean();
    let dir = place.mount("ro");
    let read = |name: &str| fs::read(dir.join(name)).unwrap();
    assert_eq!(read("emptied"), b"new");
    assert!(read("file") == data);
    assert!(read("cut") == [&data[..70_001], &[0; 9999]].concat());
    assert!(read("longer") == [&data[..], &[0; 200_000], b"new"].concat());
    data[50_001..50_004].copy_from_slice(b"new");
    assert!(read("written") == data);
    place.unmount();

    // A copy in a mount shares the blocks, and each file changes alone.
    let dir = place.mount("rw");
    let file = dir.join("large");
    let mut data: Vec<u8> = (0..20_000_003u32).map(|at| (at / 7) as u8).collect();
    fs::write(&file, &data).unwrap();
    let free = |file: &Path| {
        fs::File::open(file).unwrap().sync_all().unwrap();
        rustix::fs::statvfs(&dir).unwrap().f_bfree
    };
    let before = free(&file);
    let copy = dir.join("copy");
    assert_eq!(fs::copy(&file, &copy).unwrap(), data.len() as u64);
    assert!(free(&copy) + 100 > before, "{before} blocks were free, now {}", free(&copy));
    assert!(fs::read(&copy).unwrap() == data);
    open("copy").write_all_at(b"new", 10_000_001).unwrap();
    assert!(fs::read(&file).unwrap() == data);
    data[10_000_001..10_000_004].copy_from_slice(b"new");
    assert!(fs::read(&copy).unwrap() == data);
    place.unmount();
    place.is_clean();
}

#[test]
fn a_full_disk_stops_a_writing_program() {
    if !can_mount() || !have_tools() {
        return;
    }
    let place = theirs(&[]);
    let dir = place.mount("rw");
    full_disk::stops_a_writing_program(&dir, "xfs");
    place.unmount();
    place.is_clean();
}
