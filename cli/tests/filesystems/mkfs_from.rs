//! `ivers mkfs --from`: trees, spec files, sizes, and equal images from equal calls.

use crate::common::*;
use ivers_oracle::{TreeOptions, tree};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, UNIX_EPOCH};

const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

fn have_tools() -> bool {
    ivers_oracle::have_programs(&["e2fsck", "debugfs", "tar"])
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn mkfs(words: &[&str]) -> Output {
    ivers(["mkfs"].iter().chain(words))
}

fn makes(words: &[&str]) -> String {
    let output = mkfs(words);
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn is_clean(image: &Path) {
    let output = Command::new("e2fsck").arg("-fn").arg(image).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

fn debugfs(image: &Path, request: &str) -> String {
    let output = Command::new("debugfs").args(["-R", request]).arg(image).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A tree with many names in a directory, so that it is hashed, and every kind of file of an ordinary user.
fn fill(source: &Path) {
    fs::create_dir_all(source.join("many")).unwrap();
    for nth in 0..600 {
        fs::write(source.join(format!("many/file with a long name {nth}")), vec![nth as u8; nth]).unwrap();
    }
    fs::create_dir_all(source.join("sub/empty")).unwrap();
    fs::write(source.join("sub/large"), (0..900_000).map(|at| (at / 7) as u8).collect::<Vec<_>>()).unwrap();
    fs::write(source.join("sub/run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(source.join("sub/run"), fs::Permissions::from_mode(0o4755)).unwrap();
    xattr::set(source.join("sub/run"), "user.note", b"kept").unwrap();
    fs::hard_link(source.join("sub/run"), source.join("twin")).unwrap();
    std::os::unix::fs::symlink("sub/run", source.join("link")).unwrap();
    let holes = fs::File::create(source.join("holes")).unwrap();
    holes.write_all_at(b"island", 1 << 20).unwrap();
    holes.set_len(8 << 20).unwrap();
    fs::set_permissions(source.join("sub"), fs::Permissions::from_mode(0o1750)).unwrap();
    for name in ["sub/large", "sub/empty", "sub", "many"] {
        let time = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        fs::File::open(source.join(name)).unwrap().set_modified(time).unwrap();
    }
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        fill(&place.path("source"));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Compares the files of an image with the source.
    fn assert_equal(&self, image: &str) {
        let back = self.path("back");
        let copied = ivers(["cp", "-a", &format!("{}:/.", text(&self.path(image))), text(&back)]);
        assert!(copied.status.success(), "{}", said(&copied));
        let _ = fs::remove_dir(back.join("lost+found"));
        let options = TreeOptions { no_times: true, no_trusted: true };
        let [before, after] = [&self.path("source"), &back].map(|dir| tree(dir, options).unwrap());
        assert!(before == after, "{before}\n---\n{after}");
        for name in ["sub/large", "sub", "many"] {
            let [before, after] = [&self.path("source"), &back].map(|dir| {
                let meta = fs::symlink_metadata(dir.join(name)).unwrap();
                meta.modified().unwrap()
            });
            assert_eq!(before, after, "{name}");
        }
        fs::remove_dir_all(&back).unwrap();
    }
}

#[test]
fn directories_and_archives_fill_equal_images_byte_for_byte() {
    if !have_tools() {
        return;
    }
    let place = Place::new();
    let [source, archive] = ["source", "a.tar"].map(|name| place.path(name));
    let packed = Command::new("tar")
        .args(["--format=posix", "--sort=name", "--sparse", "--xattrs", "--numeric-owner", "-cf"])
        .args([&archive, Path::new("-C"), &source, Path::new(".")])
        .output()
        .unwrap();
    assert!(packed.status.success(), "{}", said(&packed));
    let mut images = Vec::new();
    for (name, from) in [("a", &source), ("b", &source), ("c", &archive), ("d", &archive)] {
        let image = place.path(name);
        let hash = ["--size", "64M", "--uuid", UUID, "--hash-seed", UUID, "--timestamp", "1500000000"];
        makes(&[&[text(&image), "--from", text(from)][..], &hash].concat());
        is_clean(&image);
        if name != "b" {
            place.assert_equal(name);
        }
        images.push(fs::read(&image).unwrap());
    }
    assert!(images[0] == images[1] && images[2] == images[3], "equal calls make equal images");
    assert!(images[0] == images[2], "a directory and its archive make equal images");
    // Later times become the time of creation. Without the option they stay, as the comparison above shows.
    let clamped = place.path("e");
    makes(&[text(&clamped), "--from", text(&source), "--size", "64M", "--timestamp", "5"]);
    let stat = ivers(["stat", "--json", &format!("{}:/sub/large", text(&clamped))]);
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
    assert_eq!((stat["mtime"]["sec"].as_i64(), stat["ctime"]["sec"].as_i64()), (Some(5), Some(5)));
    // The first session finds nothing unusual, and keeps the change attribute from then on.
    let info = ivers(["info", "--json", text(&clamped)]);
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!(info["semantics"]["crash_safe"], true, "{info}");
}

#[test]
fn files_are_left_out_and_owners_replaced() {
    if !have_tools() {
        return;
    }
    let place = Place::new();
    let [source, archive] = ["source", "a.tar"].map(|name| place.path(name));
    ivers_oracle::run(
        "tar",
        ["--sort=name", "--sparse", "--xattrs", "-cf", text(&archive), "-C", text(&source), "."],
    )
    .unwrap();
    let mut images = Vec::new();
    for (name, from) in [("a", &source), ("b", &archive)] {
        let image = place.path(name);
        let words = ["--owner", "7", "--group", "8", "--exclude", "many", "--exclude", "h*s"];
        let same = ["--size", "64M", "--uuid", UUID, "--hash-seed", UUID, "--timestamp", "1500000000"];
        makes(&[&[text(&image), "--from", text(from)][..], &words, &same].concat());
        is_clean(&image);
        for path in ["/sub/large", "/sub", "/link", "/"] {
            let stat = debugfs(&image, &format!("stat {path}"));
            assert!(stat.contains("User:     7   Group:     8"), "{path}: {stat}");
        }
        let names = debugfs(&image, "ls -p /");
        assert!(
            !names.contains("/many/") && !names.contains("/holes/") && names.contains("/twin/"),
            "{names}"
        );
        images.push(fs::read(&image).unwrap());
    }
    assert!(images[0] == images[1]);
    let image = place.path("c");
    // Layers: the second brings files through a link of the first.
    let first = place.path("layer");
    fs::create_dir_all(first.join("usr/lib")).unwrap();
    std::os::unix::fs::symlink("usr/lib", first.join("lib")).unwrap();
    let second = place.path("modules");
    fs::create_dir_all(second.join("lib/modules")).unwrap();
    fs::write(second.join("lib/modules/one"), "module").unwrap();
    for (mode, dir) in [("-cf", &first), ("-rf", &second)] {
        ivers_oracle::run("tar", [mode, text(&archive), "-C", text(dir), "."]).unwrap();
    }
    let layered = ["--from", text(&archive), "--size", "64M", "--keep-directory-symlink", "--all-root"];
    makes(&[&[text(&image)][..], &layered].concat());
    is_clean(&image);
    let stat = debugfs(&image, "stat /usr/lib/modules/one");
    assert!(stat.contains("User:     0   Group:     0"), "{stat}");
    for option in [["--owner", "1"], ["--exclude", "x"]] {
        let output = mkfs(&[&[text(&image), "-F"], &option[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("--from"), "{}", said(&output));
    }
    let output = mkfs(&[text(&place.path("d")), "--from", text(&source), "--size", "64M", "--exclude", "["]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(!place.path("d").exists());
}

/// A path of a spec file leads through a symbolic link only with `--keep-directory-symlink`.
#[test]
fn a_spec_file_names_files_behind_a_link() {
    if !have_tools() {
        return;
    }
    let place = Place::new();
    let (image, spec, from) = (place.path("image"), place.path("spec"), place.path("root"));
    fs::create_dir_all(from.join("usr/lib")).unwrap();
    fs::write(from.join("usr/lib/old"), "old").unwrap();
    std::os::unix::fs::symlink("usr/lib", from.join("lib")).unwrap();
    fs::write(&spec, "/lib/new d 700 7 8\n/lib/old f 640 9 10\n").unwrap();
    let words = [text(&image), "--size", "64M", "--from", text(&from), "--spec", text(&spec)];
    let output = mkfs(&words);
    let refused = "lib is a symbolic link; --keep-directory-symlink follows it";
    assert!(!output.status.success() && said(&output).contains(refused), "{}", said(&output));
    makes(&[&words[..], &["--keep-directory-symlink"]].concat());
    is_clean(&image);
    for (path, words) in [
        ("/usr/lib/new", ["Mode:  0700", "User:     7   Group:     8"]),
        ("/usr/lib/old", ["Mode:  0640", "User:     9   Group:    10"]),
        ("/lib", ["Type: symlink", "User:"]),
    ] {
        let stat = debugfs(&image, &format!("stat {path}"));
        assert!(words.iter().all(|word| stat.contains(word)), "{path}: {stat}");
    }
}

#[test]
fn a_spec_file_sets_owners_and_makes_device_nodes() {
    if !have_tools() {
        return;
    }
    let place = Place::new();
    let (image, spec) = (place.path("image"), place.path("spec"));
    let lines = "# path type mode uid gid major minor start increment count\n\
                 /dev d 755 0 0 - - - - -\n\
                 /dev/tty c 620 0 5 4 64 0 1 2\n\
                 /dev/disk b 660 0 6 8 300 - - -\n\
                 /run/queue p 600 7 8\n\
                 /sub/run f 6711 70000 80000\n\
                 /sub d - 1 2\n";
    fs::write(&spec, lines).unwrap();
    let from =
        ["--from", text(&place.path("source")), "--spec", text(&spec), "--root-owner=3:4"].map(str::to_owned);
    let words: Vec<_> =
        [text(&image), "--size", "64M"].into_iter().chain(from.iter().map(String::as_str)).collect();
    makes(&words);
    is_clean(&image);
    for (path, words) in [
        ("/dev", ["Mode:  0755", "User:     0"]),
        ("/dev/tty1", ["Mode:  0620", "Device major/minor number: 04:65"]),
        ("/dev/disk", ["Type: block special", "Device major/minor number: 08:300"]),
        ("/run/queue", ["Type: FIFO", "User:     7   Group:     8"]),
        ("/sub/run", ["Mode:  06711", "User: 70000   Group: 80000"]),
        ("/sub", ["Mode:  01750", "User:     1   Group:     2"]),
        ("/", ["Type: directory", "User:     3   Group:     4"]),
    ] {
        let stat = debugfs(&image, &format!("stat {path}"));
        assert!(words.iter().all(|word| stat.contains(word)), "{path}: {stat}");
    }
    for (line, why) in
        [("/sub/run d 755 0 0", "exists and is a"), ("/no f 644 0 0", "no such file"), ("x", "line 1")]
    {
        fs::write(&spec, line).unwrap();
        fs::remove_file(&image).unwrap_or_default();
        let output = mkfs(&words);
        assert!(!output.status.success() && said(&output).contains(why), "{line}: {}", said(&output));
        assert!(!image.exists(), "half a filesystem is removed");
    }
}

#[test]
fn the_automatic_size_has_little_space_left() {
    if !have_tools() {
        return;
    }
    let place = Place::new();
    for (name, from, more) in
        [("dir", "source", &[][..]), ("2k", "source", &["-b", "2048"]), ("none", "source", &["--no-journal"])]
    {
        let image = place.path(name);
        makes(&[&[text(&image), "--from", text(&place.path(from)), "--size", "auto"][..], more].concat());
        is_clean(&image);
        place.assert_equal(name);
        let info = ivers(["info", "--json", text(&image)]);
        let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
        let bytes = fs::metadata(&image).unwrap().len();
        let free = info["blocks_free"].as_u64().unwrap() * info["block_size"].as_u64().unwrap();
        assert!(free <= (bytes / 40).max(256 << 10), "{name}: {free} of {bytes} bytes are free");
        let inodes = (info["files"].as_u64().unwrap(), info["files_free"].as_u64().unwrap());
        assert!(inodes.1 < inodes.0 / 2, "{name}: {inodes:?}");
    }
    // A pipe can be read once only.
    let image = place.path("pipe");
    let line = format!(
        "tar -c -C {} . | {IVERS} mkfs {} --from - --size auto -q",
        text(&place.path("source")),
        text(&image)
    );
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    is_clean(&image);
    assert_eq!(ivers(["cat", &format!("{}:/sub/run", text(&image))]).stdout, b"#!/bin/sh\n");
}

/// A group then has hardly more inodes than are reserved, and most of the first guess are too many.
#[test]
fn a_tree_of_large_files_has_few_inodes() {
    if !have_tools() {
        return;
    }
    let place = Place::new();
    let source = place.path("large");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), vec![b'A'; 200 << 20]).unwrap();
    for (name, more) in
        [("large.1k", &[][..]), ("large.4k", &["-b", "4096"]), ("large.ext2", &["-t", "ext2"])]
    {
        let image = place.path(name);
        makes(&[&[text(&image), "--from", text(&source), "--size", "auto"][..], more].concat());
        is_clean(&image);
        let info = ivers(["info", "--json", text(&image)]);
        let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
        assert!(info["files"].as_u64().unwrap() <= 1024, "{name}: {}", info["files"]);
        fs::remove_file(&image).unwrap();
    }
}

/// FAT does not distinguish the names. The first file stays, and the other is reported.
#[test]
fn names_that_fall_together_are_reported() {
    let place = Place::new();
    let (source, image) = (place.path("case"), place.path("case.img"));
    fs::create_dir(&source).unwrap();
    for name in ["File", "file"] {
        fs::write(source.join(name), name).unwrap();
    }
    let output = mkfs(&[text(&image), "-t", "fat16", "--size", "16M", "--from", text(&source)]);
    assert!(
        output.status.code() == Some(1) && said(&output).contains("does not distinguish"),
        "{}",
        said(&output)
    );
    assert_eq!(works(&["ls", &format!("{}:/", text(&image))]).lines().count(), 1);
}

#[test]
fn too_few_inodes_are_named() {
    let place = Place::new();
    let (source, image) = (place.path("many"), place.path("many.img"));
    fs::create_dir(&source).unwrap();
    for number in 0..200 {
        fs::write(source.join(number.to_string()), "").unwrap();
    }
    let output = mkfs(&[text(&image), "--size", "8M", "-i", "100000", "--from", text(&source)]);
    assert!(!output.status.success() && said(&output).contains("inodes are in use"), "{}", said(&output));
}

#[test]
fn what_fails_leaves_no_image() {
    if !have_tools() {
        return;
    }
    let place = Place::new();
    let (image, source, archive) = (place.path("image"), place.path("source"), place.path("a.tar"));
    let packed =
        Command::new("tar").arg("-cf").args([&archive, Path::new("-C"), &source, Path::new(".")]).status();
    assert!(packed.unwrap().success());
    let whole = fs::read(&archive).unwrap();
    fs::write(&archive, &whole[..whole.len() / 2]).unwrap();
    let (image_name, source_name, archive_name) = (text(&image), text(&source), text(&archive));
    for (words, why) in [
        (vec!["--from", archive_name, "--size", "64M"], "the archive is truncated"),
        (vec!["--from", archive_name, "--size", "auto"], "the archive is truncated"),
        (vec!["--from", source_name, "--size", "2M"], "choose a larger --size"),
        (vec!["--from", "/nonexistent", "--size", "64M"], "/nonexistent"),
        (vec!["--size", "auto"], "only with --from"),
        (vec!["--spec", source_name, "--size", "64M"], "--from"),
    ] {
        let output = mkfs(&[&[image_name][..], &words].concat());
        assert!(!output.status.success() && said(&output).contains(why), "{words:?}: {}", said(&output));
        assert!(!image.exists(), "{words:?}");
    }
    // What cannot be created is named, and the rest is there.
    let hostile = place.path("hostile");
    fs::create_dir(&hostile).unwrap();
    fs::write(hostile.join("x"), "x").unwrap();
    let packed = Command::new("tar")
        .args(["--transform", "s,x,../x,", "-P", "-cf"])
        .args([&archive, Path::new("-C"), &hostile, Path::new("x")])
        .output()
        .unwrap();
    assert!(packed.status.success(), "{}", said(&packed));
    let output = mkfs(&[image_name, "--from", archive_name, "--size", "64M", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("../x: refused"), "{}", said(&output));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((told["files"].as_u64(), told["problems"].as_u64()), (Some(0), Some(1)));
    is_clean(&image);
}

/// A source that never ends: the command is interrupted while it reads. Nothing that looks whole is left.
#[test]
fn an_interrupted_filesystem_is_not_left() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for is_new in [true, false] {
        let mut words = vec!["mkfs", "--from", "-", text(&image)];
        if is_new {
            words.extend(["--size", "256M"]);
        } else {
            fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        }
        let mut command = Command::new(IVERS);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut archive = child.stdin.take().unwrap();
        // A file of 1 GiB, in octal.
        let mut header = [0_u8; 512];
        header[..4].copy_from_slice(b"file");
        header[100..108].copy_from_slice(b"0000644\0");
        header[108..124].copy_from_slice(b"0000000\x000000000\0");
        header[124..136].copy_from_slice(b"10000000000\0");
        header[136..148].copy_from_slice(b"00000000000\0");
        header[148..156].fill(b' ');
        header[156] = b'0';
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.write_all(&header).unwrap();
        // The pipe is full when the filesystem is being filled.
        archive.write_all(&vec![7; 4 << 20]).unwrap();
        signal(i32::try_from(child.id()).unwrap(), rustix::process::Signal::INT);
        // It reads on before it looks for the signal.
        while archive.write_all(&[7; 1 << 16]).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", said(&output));
        assert!(said(&output).contains("interrupted; it "), "{}", said(&output));
        assert_eq!(image.exists(), !is_new);
        if !is_new {
            let info = ivers(["info", text(&image)]);
            assert_eq!(info.status.code(), Some(4), "{}", said(&info));
        }
    }
}
