//! Bad input: one line says what is wrong, the exit code is the documented one, and nothing is written.

use crate::common::*;
use ivers_oracle::Image;
use std::fs;
use std::path::{Path, PathBuf};

/// A file to copy.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

/// Asserts this exit code, one line that contains `word`, and no mount.
fn refused(args: &[&str], code: i32, word: &str) {
    let output = ivers(args);
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
    assert!(text.lines().count() == 1 && text.contains(word), "{args:?}: not one line with {word:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", said(&output));
}

/// Copies a good image and changes bytes of its superblock. The image has no checksums, so that only the
/// changed field matters.
fn altered(image: &Image, name: &str, offset: usize, change: impl Fn(&mut [u8])) -> PathBuf {
    let mut bytes = fs::read(image.path()).unwrap();
    change(&mut bytes[1024 + offset..]);
    let path = image.dir().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn bad_images_are_refused() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let dir = place.dir.to_str().unwrap();
    let good = Image::new("ext4", 16 << 20, &["-O", "^metadata_csum"]).unwrap();
    let with = |name: &str, bytes: Vec<u8>| {
        let path = good.dir().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let magic = |offset: usize, magic: &[u8]| {
        let mut bytes = vec![0; 1 << 20];
        bytes[offset..offset + magic.len()].copy_from_slice(magic);
        bytes
    };
    // Features are named after fields of the format: s_feature_incompat is at byte 96.
    let incompat = |name: &str, bit: u32| {
        altered(&good, name, 96, |field| {
            let value = u32::from_le_bytes(field[..4].try_into().unwrap()) | bit;
            field[..4].copy_from_slice(&value.to_le_bytes());
        })
    };
    let table: [(PathBuf, i32, &str); 10] = [
        (with("partitioned", magic(510, b"\x55\xaa")), 4, "-o offset="),
        (
            with("garbage", (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()),
            4,
            "no ext2",
        ),
        (with("empty", Vec::new()), 4, "is empty"),
        (with("short", vec![0; 1500]), 4, "no ext2"),
        (with("xfs", magic(0, b"XFSB")), 4, "XFS version 0"),
        (with("btrfs", magic(0x10040, b"_BHRfS_M")), 5, "bad checksum"),
        (incompat("casefold", 0x20000), 4, "casefold"),
        (incompat("encrypt", 0x10000), 4, "encrypt"),
        (incompat("unknown", 0x4000_0000), 4, "FEATURE_I30"),
        (altered(&good, "blocks", 4, |field| field[..4].fill(0xff)), 5, "corrupt"),
    ];
    for (image, code, word) in &table {
        let before = fs::read(image).unwrap();
        let image_word = image.to_str().unwrap();
        refused(&["mount", image_word, dir], *code, word);
        refused(&["mount", "-o", "ro", image_word, dir], *code, word);
        refused(&["ls", image_word], *code, word);
        refused(&["cp", FILE, &format!("{image_word}:/x")], *code, word);
        assert!(fs::read(image).unwrap() == before, "{image_word}: written to");
    }
    assert!(mount_line(&place.dir).is_none());
}

/// An image that cannot be parsed stays refused for the operands that follow.
#[test]
fn several_operands_on_a_damaged_image_have_one_reason() {
    let good = Image::new("ext4", 16 << 20, &["-O", "^metadata_csum"]).unwrap();
    let bad = altered(&good, "inodes", 40, |field| field[..4].fill(0x58));
    let inside = |path: &str| format!("{}:{path}", bad.display());
    for command in ["ls", "cat", "stat"] {
        let output = ivers([command, &inside("/a"), &inside("/")]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((output.status.code(), lines.len()), (Some(5), 2), "{command}: {}", said(&output));
        assert!(lines[0].contains("s_inodes_per_group") && lines[1].contains("was not opened"), "{text}");
        assert!(output.stdout.is_empty(), "{command}: {}", said(&output));
    }
}

#[test]
fn mkfs_refuses_what_is_no_file() {
    let place = Place::new();
    let fifo = place.dir.join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    for path in [fifo.to_str().unwrap(), "/dev/null"] {
        refused(&["mkfs", path, "--size", "10M"], 2, "neither a file nor a block device");
    }
}

/// A walk over them ends, with little memory and time.
#[test]
fn directory_cycles_and_shared_directories_are_refused() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "debugfs"]) {
        return;
    }
    // The first two contain themselves; the third has the shape of a valid tree, but 2^40 paths.
    let doubles: Vec<String> = (0..40)
        .flat_map(|n| {
            let (upper, lower) = (format!("/d{n}"), format!("/d{}", n + 1));
            [format!("mkdir {lower}"), format!("ln {lower} {upper}/x"), format!("ln {lower} {upper}/y")]
        })
        .collect();
    let doubles: Vec<&str> = std::iter::once("mkdir /d0").chain(doubles.iter().map(String::as_str)).collect();
    for requests in [&["mkdir /a", "ln /a /a/b"][..], &["mkdir /a", "ln / /a/b"], &doubles] {
        let image = Image::new("ext4", 8 << 20, &["-O", "^metadata_csum"]).unwrap();
        let script = image.dir().join("requests");
        fs::write(&script, requests.join("\n")).unwrap();
        let made = ["-w".as_ref(), "-f".as_ref(), script.as_os_str(), image.path().as_os_str()];
        ivers_oracle::output("debugfs", made).unwrap();
        let image_word = image.path().to_str().unwrap();
        let saved = image.dir().join("state");
        let saved = saved.to_str().unwrap();
        let copy = image.dir().join("copy");
        let all = format!("{image_word}:/");
        for words in [
            &["tree", image_word][..],
            &["tree", "--json", image_word],
            &["changed", image_word, "--save", saved],
            &["cp", "-r", &all, copy.to_str().unwrap()],
        ] {
            let output = ivers(words);
            assert_eq!(output.status.code(), Some(5), "{words:?}: {}", said(&output));
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(text.contains("has two parents"), "{words:?}: {text}");
            assert!(output.stdout.len() < 1 << 20, "{words:?}: {} bytes", output.stdout.len());
        }
    }
}

#[test]
fn bad_mount_points_and_options_are_refused() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (image, dir) = (place.image.path().to_str().unwrap(), place.dir.to_str().unwrap());
    let before = fs::read(place.image.path()).unwrap();
    let full = place.image.dir().to_str().unwrap();
    refused(&["mount", image, full], 2, "not empty");
    refused(&["mount", image, &format!("{dir}/missing")], 3, "missing");
    refused(&["mount", &format!("{image}.missing"), dir], 3, "missing");
    refused(&["mount", full, dir], 1, "neither a regular file nor a block device");
    refused(&["mount", "--type", "btrfs", image, dir], 4, "btrfs");
    for option in
        ["nonsense", "cache=1", "cache=much", "iversion=often", "commit=0", "offset=x", "norecovery"]
    {
        refused(&["mount", "-o", option, image, dir], 2, option);
    }
    refused(&["ls", &format!("{image}:/missing")], 3, "missing");
    refused(&["cp", "-o", "norecovery", FILE, &format!("{image}:/x")], 2, "norecovery");
    refused(&["cat", &format!("{image}:/lost+found")], 1, "lost+found");
    refused(&["stat", &format!("{image}:/missing")], 3, "missing");
    refused(&["cp", &format!("{image}:/missing"), full], 3, "missing");
    refused(&["changed", image, "--since", &format!("{dir}/missing")], 3, "missing");
    refused(&["stats", dir], 4, "not on an ivers mount");
    refused(&["unmount", dir], 4, "nothing to unmount");
    refused(&["mkfs", image], 4, "it contains an ext2, ext3 or ext4 filesystem; --force overwrites it");
    refused(&["mkfs", image, "--size", "1G"], 4, "not empty");
    refused(&["mkfs", "-F", image, "--size", "1M"], 2, "cannot shrink a file");
    assert!(fs::read(place.image.path()).unwrap() == before, "a refused call wrote to the image");
    assert!(mount_line(&place.dir).is_none());

    place.mount("rw");
    let other = place.image.dir().join("other");
    fs::create_dir(&other).unwrap();
    refused(&["mount", image, other.to_str().unwrap()], 6, "in use");
    refused(&["ls", image], 6, "in use");
    refused(&["mkfs", "-F", image], 6, "in use");
    refused(&["mkfs", "-F", image, "--size", "1G"], 6, "in use");
    refused(&["mount", image, dir], 6, "mounted there already");
    if rustix::process::geteuid().is_root() {
        refused(&["unmount", &format!("{dir}/lost+found")], 2, "not a mount point");
        rustix::mount::mount_bind(dir, &other).unwrap();
        refused(&["unmount", other.to_str().unwrap()], 6, dir);
    }
    place.unmount();
    place.image.check().unwrap();
}

#[test]
fn mkfs_detects_filesystems_that_start_late() {
    let place = tempfile::tempdir().unwrap();
    for (name, offset, magic, what) in [
        ("iso", 0x8001, "CD001", "not empty: it contains an ISO 9660 image;"),
        ("btrfs", 0x10040, "_BHRfS_M", "not empty: it contains a btrfs filesystem;"),
        ("zfs", 0x20000, "\x0c\x01\x7a\x00", "not empty: it contains data;"),
    ] {
        let image = place.path().join(name);
        let mut bytes = vec![0; 64 << 20];
        bytes[offset..offset + magic.len()].copy_from_slice(magic.as_bytes());
        fs::write(&image, &bytes).unwrap();
        refused(&["mkfs", image.to_str().unwrap()], 4, what);
        assert!(fs::read(&image).unwrap() == bytes, "{name}: written to");
    }
}

/// A file that mkfs created is removed if the filesystem does not fit into it.
#[test]
fn a_failed_mkfs_removes_its_file() {
    let place = tempfile::tempdir().unwrap();
    let image = place.path().join("image");
    let mkfs = |prefix: &str| {
        let script = format!("{prefix} exec \"$0\" mkfs --quiet --size 64M \"$1\"");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script, IVERS]).arg(&image).output().unwrap()
    };
    // Limits files to 512 KiB, and ignores the signal for it.
    let output = mkfs("trap '' XFSZ; ulimit -f 1024;");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(!image.exists(), "{}", said(&output));
    let output = mkfs("");
    assert!(output.status.success() && output.stdout.is_empty(), "{}", said(&output));
}

#[test]
fn the_image_as_log_file_is_refused() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let image = place.image.path().to_str().unwrap();
    let before = fs::read(image).unwrap();
    refused(&["mount", "--log", image, image, place.dir.to_str().unwrap()], 2, "this file is the image");
    assert!(fs::read(image).unwrap() == before, "written to");
}

#[test]
fn completions_to_a_closed_pipe_do_not_panic() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_ivers"))
        .args(["completions", "bash"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{}", said(&output));
}

#[test]
fn bigalloc_is_read_only_with_a_message() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let image = Image::new("ext4", 64 << 20, &["-O", "bigalloc"]).unwrap();
    let before = fs::read(image.path()).unwrap();
    let log: &Path = &image.dir().join("log");
    let words = [
        "mount".as_ref(),
        "--log".as_ref(),
        log.as_os_str(),
        image.path().as_os_str(),
        place.dir.as_os_str(),
    ];
    let output = ivers(words);
    assert!(output.status.success(), "{}", said(&output));
    assert!(fs::read_to_string(log).unwrap().contains("bigalloc"));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.lines().count() == 1 && told.contains("mounted read-only") && told.contains("bigalloc"));
    assert!(fs::write(place.path("x"), b"").is_err());
    place.unmount();
    let [bigalloc, dir] = [image.path(), &place.dir].map(|path| path.to_str().unwrap());
    // No message for a user who requested ro; a refusal for one who requested rw. mount(8) passes rw in any
    // case, so its rw does not count.
    let asked = ivers(["mount", "--json", "-o", "ro", bigalloc, dir]);
    assert!(asked.status.success() && asked.stderr.is_empty(), "{}", said(&asked));
    let answer: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert!(answer["read_only"] == true && answer["read_only_because"].is_null(), "{answer}");
    place.unmount();
    refused(&["mount", "-o", "rw", bigalloc, dir], 4, "bigalloc");
    assert!(mount_line(&place.dir).is_none());
    let by_table = ivers(["--json", "mount", "--rw-optional", "-o", "rw", bigalloc, dir]);
    let answer: serde_json::Value = serde_json::from_slice(&by_table.stdout).unwrap();
    assert!(answer["read_only_because"].as_str().unwrap().contains("bigalloc"), "{answer}");
    place.unmount();
    let by_table = ivers([bigalloc, dir, "-o", "rw"]);
    assert!(by_table.status.success() && said(&by_table).contains("bigalloc"), "{}", said(&by_table));
    place.unmount();
    refused(&["cp", FILE, &format!("{}:/x", image.path().display())], 1, "read-only");
    assert!(fs::read(image.path()).unwrap() == before, "written to");
}

struct Loop(String);

impl Loop {
    fn attach(args: &[&str]) -> Self {
        let attached =
            std::process::Command::new("losetup").args(["-f", "--show"]).args(args).output().unwrap();
        assert!(attached.status.success(), "{}", said(&attached));
        Self(String::from_utf8(attached.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").args(["-q", &self.0]).status();
        let _ = std::process::Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// The kernel lets root open such a device for writing.
#[test]
fn a_read_only_device_mounts_read_only_with_a_message() {
    if !can_mount() || !ivers_oracle::have_programs(&["losetup", "mkfs.fat"]) {
        return;
    }
    if !is_root() {
        eprintln!("not root: no loop devices here");
        return;
    }
    let place = Place::new();
    let fat = ivers_oracle::fat::FatImage::mkfs(16 << 20, &[]).unwrap();
    for image in [place.image.path(), &fat.path()] {
        let before = fs::read(image).unwrap();
        let device = Loop::attach(&["-r", image.to_str().unwrap()]);
        let dir = place.dir.to_str().unwrap();
        refused(&["mount", "-o", "rw", &device.0, dir], 4, "the block device is read-only");
        let mounted = ivers(["--json", "mount", &device.0, dir]);
        let told = said(&mounted);
        assert!(
            mounted.status.success() && told.contains("mounted read-only: cannot open it for writing"),
            "{told}"
        );
        let answer: serde_json::Value = serde_json::from_slice(&mounted.stdout).unwrap();
        assert!(answer["read_only"] == true, "{answer}");
        assert!(fs::write(place.path("x"), b"").is_err());
        place.unmount();
        assert!(fs::read(image).unwrap() == before, "written to");
    }
}

#[test]
fn options_unsupported_by_the_format_are_refused() {
    if !can_mount() || !ivers_oracle::have_programs(&["mkfs.fat"]) {
        return;
    }
    let place = Place::new();
    let (dir, kept) = (place.dir.to_str().unwrap(), tempfile::tempdir().unwrap());
    let list = kept.path().join("list");
    let appraise = format!("appraise,measure_list={}", list.display());
    let fat = ivers_oracle::fat::FatImage::mkfs(16 << 20, &[]).unwrap();
    let affs = kept.path().join("disk.adf");
    let device = ivers_block::MemDevice::new(880 << 10);
    ivers_affs::mkfs::format(&device, 1, 512, "Test", ivers_vfs::Timestamp::default()).unwrap();
    fs::write(&affs, device.to_bytes()).unwrap();
    let (fat, affs) = (fat.path(), affs.to_str().unwrap());
    let fat = fat.to_str().unwrap();
    for image in [fat, affs] {
        let before = fs::read(image).unwrap();
        refused(&["mount", "-o", &appraise, image, dir], 4, "security.ima");
        let state = kept.path().join("state");
        refused(
            &["changed", "--save", state.to_str().unwrap(), image],
            4,
            "does not store change attributes",
        );
        assert!(fs::read(image).unwrap() == before && !state.exists());
    }
    for image in [fat, place.image.path().to_str().unwrap()] {
        refused(&["mount", "-o", "partition=DH1", image, dir], 4, "has no partition table");
    }
    let about = ivers(["info", affs]);
    assert!(about.status.success() && !said(&about).contains("uuid"), "{}", said(&about));
    assert!(mount_line(&place.dir).is_none());
}

/// An image has several names: its path and the loop devices on it. An open under one name excludes the
/// others, also the kernel's mount.
#[test]
fn an_image_in_use_is_detected_under_every_name() {
    if !can_mount() || !ivers_oracle::have_programs(&["losetup", "mount", "umount"]) {
        return;
    }
    if !is_root() {
        eprintln!("not root: no loop devices here");
        return;
    }
    let run = |program: &str, args: &[&str]| std::process::Command::new(program).args(args).output().unwrap();
    let place = Place::new();
    let other = place.image.dir().join("other");
    fs::create_dir(&other).unwrap();
    let [image, dir, other] = [place.image.path(), &place.dir, &other].map(|path| path.to_str().unwrap());
    let device = Loop::attach(&[image]);

    let mounted = run("mount", &["-t", "ext4", &device.0, other]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    for name in [&device.0, image] {
        refused(&["mount", name, dir], 6, "in use");
        refused(&["mkfs", name, "--force"], 6, "in use");
        // It may change while it is read.
        refused(&["check", name], 8, &format!("mounted on {other}"));
        for words in [vec!["ls", name], vec!["info", name]] {
            let output = ivers(&words);
            let warned =
                String::from_utf8_lossy(&output.stderr).matches(&format!("mounted on {other}")).count();
            assert!(output.status.success() && warned == 1, "{words:?}: {}", said(&output));
        }
    }
    assert!(run("mount", &["-o", "remount,ro", other]).status.success());
    let output = ivers(["check", image]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    assert!(run("umount", &[other]).status.success());

    for (name, also) in [(&*device.0, image), (image, &*device.0)] {
        let mounted = ivers(["mount", name, dir]);
        assert!(mounted.status.success(), "{name}: {}", said(&mounted));
        refused(&["mount", also, other], 6, "in use");
        refused(&["mkfs", also, "--force"], 6, "in use");
        if name == device.0 {
            assert!(
                !run("mount", &["-t", "ext4", name, other]).status.success(),
                "the kernel mounted it as well"
            );
        }
        fs::write(place.path("f"), name).unwrap();
        place.unmount();
    }
}

#[test]
fn cat_refuses_a_fifo_by_name() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let image = Image::new("ext4", 16 << 20, &[]).unwrap();
    let fifo = image.dir().join("fifo");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let inside = format!("{}:/fifo", image.path().display());
    let copied = ivers(["cp", "-r", fifo.to_str().unwrap(), &inside]);
    assert!(copied.status.success(), "{}", said(&copied));
    refused(&["cat", &inside], 1, "a fifo");
}

#[test]
fn a_failed_write_of_manual_pages_names_the_file() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("file"), "").unwrap();
    refused(&["man", &path("file")], 1, &path("file"));
    refused(&["man", "--json", &path("man")], 2, "--json");
    refused(&["completions", "--json", "bash"], 2, "--json");
    assert!(ivers(["man", &path("man")]).status.success());
    let page = fs::read_to_string(path("man/ivers-changed.1")).unwrap();
    assert!(page.contains(r"[\-\-since <STATE>]") && page.contains("<TREE>\n"), "{page}");
}

/// fakeroot(1) sets the variable. What it pretends would be lost without a word.
#[test]
fn fakeroot_is_refused_where_it_would_matter() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (image, tree) = (path("disk.img"), path("tree"));
    fs::create_dir(&tree).unwrap();
    let run = |args: &[&str]| std::process::Command::new(IVERS).args(args).env("FAKEROOTKEY", "1").output();
    let refused = |args: &[&str]| {
        let output = run(args).unwrap();
        let said = said(&output);
        assert!(output.status.code() == Some(2) && said.contains("fakeroot tar"), "{args:?}: {said}");
    };
    refused(&["mkfs", &image, "--size", "8M", "--from", &tree]);
    assert!(!Path::new(&image).exists());
    works(&["mkfs", "-q", &image, "--size", "8M"]);
    refused(&["cp", "-a", &tree, &format!("{image}:/")]);
    assert!(run(&["cp", "-r", &tree, &format!("{image}:/")]).unwrap().status.success());
}
