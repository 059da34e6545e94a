//! The command line of fuse2fs, through a symbolic link of that name.

use crate::common::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Creates the link next to the image.
fn link(place: &Place) -> PathBuf {
    let link = place.image.dir().join("fuse2fs");
    std::os::unix::fs::symlink(IVERS, &link).unwrap();
    link
}

fn call(link: &Path, words: &[&str]) -> Output {
    Command::new(link).args(words).stdin(Stdio::null()).output().unwrap()
}

/// Unmounts as callers of fuse2fs do: that returns before the image is closed.
fn unmount(place: &Place, image: &Path) {
    let pid = i32::try_from(about(&place.dir)["pid"].as_i64().unwrap()).unwrap();
    let output = Command::new("fusermount3").arg("-u").arg(&place.dir).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    wait_until("the process ends", || !runs(pid));
    ivers_oracle::e2fsck(image).unwrap();
}

#[test]
fn the_fuse2fs_link_mounts_writes_and_unmounts() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let link = link(&place);
    let [image, dir] = [place.image.path(), &place.dir].map(|path| path.to_str().unwrap());
    let output = call(&link, &["-o", "rw,fakeroot,kernel_cache", image, dir]);
    assert!(output.status.success(), "{}", said(&output));
    let line = mount_line(&place.dir).unwrap();
    assert!(line.starts_with(&format!("{image} ")) && line.contains(" fuse.ext4 rw"), "{line}");
    fs::write(place.path("file"), b"through the other name").unwrap();
    assert!(change(&place.path("file")) > 0);
    unmount(&place, place.image.path());
    let cat = ivers(["cat", &format!("{image}:/file")]);
    assert_eq!(cat.stdout, b"through the other name", "{}", said(&cat));

    let output = call(&link, &[image, dir, "-o", "norecovery"]);
    assert!(output.status.success(), "{}", said(&output));
    let error = fs::write(place.path("file"), b"").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    unmount(&place, place.image.path());

    let mut serving =
        Command::new(&link).args(["-f", "-s", image, dir]).stderr(Stdio::null()).spawn().unwrap();
    wait_until("it serves", || mount_line(&place.dir).is_some() && place.path("file").exists());
    assert!(serving.try_wait().unwrap().is_none(), "-f stays");
    unmount(&place, place.image.path());
    assert!(serving.wait().unwrap().success());
}

#[test]
fn mounting_at_an_offset_leaves_earlier_bytes_unchanged() {
    if !can_mount() {
        return;
    }
    const OFFSET: usize = (1 << 20) + 512;
    let place = Place::new();
    let link = link(&place);
    let disk = place.image.dir().join("disk");
    let mut bytes = vec![0x5a; OFFSET];
    bytes.extend(fs::read(place.image.path()).unwrap());
    fs::write(&disk, &bytes).unwrap();
    let [disk_word, dir] = [&disk, &place.dir].map(|path| path.to_str().unwrap());
    let output = call(&link, &["-o", &format!("offset={OFFSET}"), disk_word, dir]);
    assert!(output.status.success(), "{}", said(&output));
    fs::write(place.path("file"), vec![7; 3 << 20]).unwrap();
    place.unmount();
    let bytes = fs::read(&disk).unwrap();
    assert!(bytes[..OFFSET].iter().all(|&byte| byte == 0x5a), "the offset was ignored");
    fs::write(place.image.path(), &bytes[OFFSET..]).unwrap();
    place.image.check().unwrap();

    let option = format!("offset={OFFSET},ro");
    let output = ivers(["mount", "-o", &option, disk_word, dir]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(fs::read(place.path("file")).unwrap(), vec![7; 3 << 20]);
    place.unmount();
    let beyond = ivers(["mount", "-o", "offset=99999999999", disk_word, dir]);
    assert_eq!(beyond.status.code(), Some(1), "{}", said(&beyond));
    assert!(mount_line(&place.dir).is_none());
}

#[test]
fn unsupported_options_are_named() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let link = link(&place);
    let [image, dir] = [place.image.path(), &place.dir].map(|path| path.to_str().unwrap());
    let before = fs::read(place.image.path()).unwrap();
    for option in ["uid=1000", "minixdf", "errors=panic", "nonsense"] {
        let output = call(&link, &["-o", option, image, dir]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            text.starts_with("fuse2fs: ") && text.contains(option) && text.lines().count() == 1,
            "{text}"
        );
    }
    assert!(mount_line(&place.dir).is_none());
    assert!(fs::read(place.image.path()).unwrap() == before);
    let help = String::from_utf8(call(&link, &["--help"]).stdout).unwrap();
    assert!(help.contains("fakeroot") && help.contains("offset=BYTES"), "{help}");
    let version = String::from_utf8(call(&link, &["-V"]).stdout).unwrap();
    assert!(version.starts_with("fuse2fs (ivers "), "{version}");
}
