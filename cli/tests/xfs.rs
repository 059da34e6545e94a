//! The command on XFS images, which are only read.

mod common;

use common::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TEXT: &[u8] = b"text of a file";

/// An image with a few files, made without a kernel.
fn image(dir: &Path, args: &[&str]) -> PathBuf {
    let (image, source, proto) = (dir.join("disk.xfs"), dir.join("source"), dir.join("proto"));
    fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
    fs::write(&source, TEXT).unwrap();
    let file =
        |name: &str| format!("{name} ---644 {} 7 {}\n", rustix::process::getuid().as_raw(), source.display());
    let text = format!(
        "/\n0 0\nd--755 0 0\ndir d--755 0 0\n{}link l--777 0 0 file\n$\n{}$\n",
        file("file"),
        file("top")
    );
    fs::write(&proto, text).unwrap();
    let words = ["-q", "-f", "-p", proto.to_str().unwrap()];
    ivers_oracle::run("mkfs.xfs", words.iter().chain(args).copied().chain([image.to_str().unwrap()]))
        .unwrap();
    image
}

fn out(args: &[&str]) -> String {
    let output = ivers(args);
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn images_are_read_without_a_mount() {
    if !ivers_oracle::have_programs(&["mkfs.xfs"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for args in [&[][..], &["-m", "crc=0"], &["-b", "size=1024"]] {
        let image = image(dir.path(), args);
        let before = fs::read(&image).unwrap();
        let name = image.to_str().unwrap();
        let at = |path: &str| format!("{name}:{path}");
        assert_eq!(out(&["ls", &at("/")]).split_whitespace().collect::<Vec<_>>(), ["dir", "top"]);
        assert_eq!(out(&["cat", &at("/dir/file")]).as_bytes(), TEXT);
        assert!(out(&["tree", &at("/")]).contains("link"));
        let copy = dir.path().join("copy");
        out(&["cp", "-a", &at("/dir"), copy.to_str().unwrap()]);
        assert_eq!(fs::read(copy.join("file")).unwrap(), TEXT);
        assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("file"));
        fs::remove_dir_all(&copy).unwrap();
        let facts = out(&["info", name]);
        assert!(facts.contains("xfs") && facts.contains("groups") && facts.contains("; clean"), "{facts}");
        let refused = ivers(["cp", image.with_file_name("source").to_str().unwrap(), &at("/new")]);
        assert!(!refused.status.success() && said(&refused).contains("read"), "{}", said(&refused));
        assert!(fs::read(&image).unwrap() == before, "the image was written to");
    }
}

#[test]
fn an_image_is_mounted_read_only() {
    if !can_mount() || !ivers_oracle::have_programs(&["mkfs.xfs"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), &[]);
    let mnt = dir.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    let (name, at) = (image.to_str().unwrap(), mnt.to_str().unwrap());
    let refused = ivers(["mount", "-o", "rw", name, at]);
    assert!(!refused.status.success() && said(&refused).contains("does not write"), "{}", said(&refused));
    out(&["mount", "-o", "ro", name, at]);
    let seen = fs::read(mnt.join("dir/link")).unwrap();
    let write = fs::write(mnt.join("new"), "x").map_err(|error| error.raw_os_error());
    let names = Command::new("ls").arg(&mnt).output().unwrap();
    out(&["unmount", at]);
    assert_eq!(seen, TEXT);
    assert_eq!(write, Err(Some(rustix::io::Errno::ROFS.raw_os_error())));
    assert_eq!(names.stdout, b"dir\ntop\n");
}
