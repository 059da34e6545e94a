//! The command on a btrfs of several images, judged by `btrfs check` and Linux.

use crate::common::image_place::{PLAIN, TEXT, fill_many};
use crate::common::served::Server;
use crate::common::*;
use ivers_oracle::btrfs::{judge_array, with_array};
use ivers_oracle::kernel::{kernel_knows, may_loop_mount};
use ivers_oracle::{have_programs, tree};
use std::fs;
use std::path::PathBuf;

/// Images of the devices of one filesystem.
struct Array {
    dir: tempfile::TempDir,
    images: Vec<PathBuf>,
}

impl Array {
    fn make(devices: usize, data: &str, metadata: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let images: Vec<_> = (0..devices).map(|nth| dir.path().join(format!("disk-{nth}.img"))).collect();
        for image in &images {
            fs::File::create(image).unwrap().set_len(192 << 20).unwrap();
        }
        let words = ["-q", "-f", "-d", data, "-m", metadata].map(PathBuf::from);
        ivers_oracle::run("mkfs.btrfs", words.iter().chain(&images)).unwrap();
        Self { dir, images }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn one(&self, nth: usize) -> String {
        self.images[nth].to_str().unwrap().to_owned()
    }

    /// The name of all images.
    fn all(&self) -> String {
        (0..self.images.len()).map(|nth| self.one(nth)).collect::<Vec<_>>().join(",")
    }

    fn source(&self) -> PathBuf {
        let source = self.dir.path().join("source");
        fill_many(&source);
        let large: Vec<u8> = (0..3_000_000).map(|at| (at / 7) as u8).collect();
        fs::write(source.join("large"), large).unwrap();
        fs::write(source.join("file"), TEXT).unwrap();
        source
    }

    fn is_clean(&self) {
        judge_array(&self.images).unwrap();
        works(&["check", "--data", &self.all()]);
    }

    /// Mounts an image by this name.
    fn mount(&self, image: &str, options: &str) -> PathBuf {
        let dir = self.dir.path().join("mnt");
        let _ = fs::create_dir(&dir);
        works(&["mount", "-o", options, image, dir.to_str().unwrap()]);
        dir
    }

    fn unmount(&self) {
        works(&["unmount", &self.path("mnt")]);
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path().join("mnt"), rustix::mount::UnmountFlags::DETACH);
    }
}

fn have_tools() -> bool {
    have_programs(&["mkfs.btrfs", "btrfs"]) && may_loop_mount() && kernel_knows("btrfs")
}

fn is_refused(words: &[&str], has: &str) {
    let output = ivers(words);
    assert!(!output.status.success() && said(&output).contains(has), "{words:?}: {}", said(&output));
}

#[test]
fn commands_and_mounts_use_all_images() {
    if !have_tools() || !can_mount() {
        return;
    }
    for (devices, data, metadata) in
        [(2, "raid0", "raid1"), (2, "raid1", "raid1"), (4, "raid10", "raid10"), (4, "raid1c3", "raid1c3")]
    {
        let array = Array::make(devices, data, metadata);
        let (all, source) = (array.all(), array.source());
        let at = |path: &str| format!("{all}:{path}");
        works(&["cp", "-a", source.to_str().unwrap(), &at("/")]);
        array.is_clean();
        assert_eq!(works(&["cat", &at("/source/file")]).as_bytes(), TEXT);
        assert!(works(&["ls", &all]).contains("source"));
        assert!(works(&["info", &all]).contains(&format!("devices: {devices}")));
        works(&["mv", &at("/source/file"), &at("/moved")]);
        works(&["subvolume", "snapshot", &at("/"), &at("/snapshot")]);
        let dir = array.mount(&all, "rw");
        fs::rename(dir.join("moved"), dir.join("source/file")).unwrap();
        let mut large = fs::read(dir.join("source/large")).unwrap();
        large.extend([7; 100_000]);
        fs::write(dir.join("large again"), &large).unwrap();
        let in_use = [array.one(0), array.one(devices - 1), all.clone()];
        in_use.iter().for_each(|image| is_refused(&["ls", image], "mounted on"));
        let shown = tree(&dir, PLAIN).unwrap();
        array.unmount();
        array.is_clean();
        let found = with_array(&array.images, "ro", |dir| tree(dir, PLAIN)).unwrap();
        assert!(found == shown, "{data}: {found}\n---\n{shown}");
        // After Linux has written, too.
        with_array(&array.images, "rw", |dir| Ok(fs::write(dir.join("of linux"), TEXT)?)).unwrap();
        assert_eq!(works(&["cat", &at("/of linux")]).as_bytes(), TEXT);
        assert!(works(&["scrub", &all]).contains("0 copies mended"));
        let back = array.path("back");
        works(&["cp", "-a", &at("/source"), &back]);
        let [source, back] = [source, back.into()].map(|dir: PathBuf| tree(&dir, PLAIN).unwrap());
        assert!(source == back, "{source}\n---\n{back}");
    }
}

/// If one image is named, the others are found beside it.
#[test]
fn the_other_images_are_found() {
    if !have_tools() || !can_mount() {
        return;
    }
    let array = Array::make(2, "raid0", "raid1");
    works(&["cp", "-a", array.source().to_str().unwrap(), &format!("{}:/", array.one(0))]);
    array.is_clean();
    // A filesystem with the same UUID and one device is another one.
    let dump = ivers_oracle::run("btrfs", ["inspect-internal", "dump-super", &array.one(0)]).unwrap();
    let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
    let uuid = dump.lines().find_map(|line| line.strip_prefix("fsid")).unwrap().trim();
    let other = array.path("another.img");
    works(&["mkfs", "-q", "--type", "btrfs", "--uuid", uuid, &other, "--size", "128M"]);
    let before = fs::read(&other).unwrap();
    let dir = array.mount(&array.one(1), "rw");
    assert_eq!(fs::read(dir.join("source/file")).unwrap(), TEXT);
    fs::write(dir.join("new"), vec![1; 1_000_000]).unwrap();
    array.unmount();
    array.is_clean();
    assert!(fs::read(&other).unwrap() == before, "another filesystem was written to");
    // Also by a link in another directory.
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("link.img");
    std::os::unix::fs::symlink(&array.images[0], &link).unwrap();
    assert_eq!(works(&["cat", &format!("{}:/source/file", link.display())]).as_bytes(), TEXT);
    let state = tempfile::tempdir().unwrap();
    let served = Server::start(state.path(), [format!("{},name=/x", array.one(1))]);
    assert!(!served.log().contains("read-only"), "{}", served.log());
    assert!(served.stop().success());
    // Two files that say that they are the same device.
    fs::copy(&array.images[1], array.path("copy.img")).unwrap();
    is_refused(&["ls", &array.one(0)], "both say that they are device 2");
    assert!(works(&["ls", &array.all()]).contains("source"));
    // The copy is the one that is named.
    assert!(works(&["ls", &array.path("copy.img")]).contains("source"));
}

#[test]
fn missing_images_are_named() {
    if !have_tools() || !can_mount() {
        return;
    }
    let array = Array::make(2, "raid1", "raid1");
    works(&["cp", "-a", array.source().to_str().unwrap(), &format!("{}:/", array.all())]);
    let elsewhere = tempfile::tempdir().unwrap();
    fs::copy(&array.images[0], elsewhere.path().join("gone")).unwrap();
    fs::remove_file(&array.images[0]).unwrap();
    let left = array.one(1);
    is_refused(&["ls", &left], "1 of 2 devices are missing; name the images of all devices");
    is_refused(&["ls", &array.all()], "disk-0.img");
    let file = format!("{left}:/source/file");
    assert_eq!(works(&["cat", "-o", "degraded", &file]).as_bytes(), TEXT);
    is_refused(&["rm", "-o", "degraded", &file], "missing");
    let before = fs::read(&left).unwrap();
    let dir = array.mount(&left, "degraded");
    let written = fs::write(dir.join("new"), TEXT).map_err(|error| error.raw_os_error());
    assert_eq!(written, Err(Some(rustix::io::Errno::ROFS.raw_os_error())));
    let [source, mounted] = [array.dir.path().join("source"), dir.join("source")];
    let [source, mounted] = [source, mounted].map(|dir| tree(&dir, PLAIN).unwrap());
    array.unmount();
    assert!(source == mounted, "{source}\n---\n{mounted}");
    is_refused(&["mount", "-o", "rw,degraded", &left, &array.path("mnt")], "devices are missing");
    assert!(fs::read(&left).unwrap() == before, "it was written to");
    // Both again, one of them elsewhere.
    let both = format!("{},{left}", elsewhere.path().join("gone").display());
    assert_eq!(works(&["cat", &format!("{both}:/source/file")]).as_bytes(), TEXT);
}

#[test]
fn names_that_are_no_devices_of_one_filesystem_are_refused() {
    if !have_tools() {
        return;
    }
    let array = Array::make(2, "raid1", "raid1");
    let (first, second) = (array.one(0), array.one(1));
    is_refused(&["ls", &format!("{first},{first}")], "is named twice");
    let ext4 = array.path("with,comma.ext4");
    works(&["mkfs", "-q", &ext4, "--size", "16M"]);
    // It is one image.
    works(&["mkdir", &format!("{ext4}:/dir")]);
    assert!(works(&["ls", &ext4]).contains("dir"));
    is_refused(&["ls", &format!("{ext4},{first}")], "which has one device; name no other image");
    is_refused(&["ls", &format!("{first},{ext4}")], "name devices of one filesystem");
    let other = Array::make(2, "raid1", "raid1");
    is_refused(&["ls", &format!("{first},{}", other.one(1))], "belong to different filesystems");
    is_refused(&["resize", &format!("{first},{second}"), "1G"], "can be resized");
}
