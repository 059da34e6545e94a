//! `ivers check`: exit codes, text and JSON, and what the other commands leave.

use crate::common;
use crate::common::{ivers, said, works};
use ivers_oracle::btrfs_fields::BtrfsImage;
use ivers_oracle::{Image, have_programs};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Each type of `ivers mkfs` with the size of its image.
const TYPES: [(&str, &str); 8] = [
    ("ext2", "24M"),
    ("ext3", "24M"),
    ("ext4", "24M"),
    ("fat12", "8M"),
    ("fat16", "20M"),
    ("fat32", "40M"),
    ("ofs", "880K"),
    ("ffs", "20M"),
];

/// Asserts that the check finds nothing.
fn is_clean(image: &str, after: &str) {
    let output = ivers(["check", image]);
    assert!(output.status.success(), "after {after}: {}", said(&output));
    assert!(output.stderr.is_empty(), "after {after}: {}", said(&output));
}

#[test]
fn exit_codes_are_those_of_fsck() {
    if !have_programs(&["mkfs.ext4"]) {
        return;
    }
    let image = Image::new("ext4", 16 << 20, &["-O", "^metadata_csum,^uninit_bg"]).unwrap();
    let path = image.path().to_str().unwrap().to_owned();
    let before = fs::read(&path).unwrap();
    let clean = ivers(["check", &path]);
    assert_eq!(clean.status.code(), Some(0), "{}", said(&clean));
    assert!(said(&clean).contains(": ext4: clean"), "{}", said(&clean));
    let mut damaged = before.clone();
    // The counts of free blocks and inodes in the superblock.
    damaged[1024 + 0xC] ^= 1;
    damaged[1024 + 0x10] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let found = ivers(["check", &path]);
    assert_eq!(found.status.code(), Some(4), "{}", said(&found));
    for expected in ["filesystem: free-blocks-count-wrong: ", "ext4: 2 findings", "nothing was changed"] {
        assert!(said(&found).contains(expected), "{expected}: {}", said(&found));
    }
    let json = ivers(["check", "--json", &path]);
    let lines: Vec<serde_json::Value> = String::from_utf8(json.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0]["code"] == "free-blocks-count-wrong" && lines[0]["inode"].is_null(), "{lines:?}");
    assert!(lines[2]["clean"] == false && lines[2]["findings"] == 2, "{lines:?}");
    assert_eq!(fs::read(&path).unwrap(), damaged, "the check wrote to the image");
    fs::write(&path, [0; 5000]).unwrap();
    let foreign = ivers(["check", &path]);
    assert_eq!(foreign.status.code(), Some(8), "{}", said(&foreign));
    for words in [&["check"][..], &["check", "--nonsense", &path], &["check", "-o", "offset=x", &path]] {
        let output = ivers(words);
        assert_eq!(output.status.code(), Some(16), "{words:?}: {}", said(&output));
    }
}

/// JSON errors keep the kind that other commands give them; `code` is the exit code.
#[test]
fn json_errors_have_the_kind_and_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let (missing, zeros) = (dir.path().join("missing"), dir.path().join("zeros"));
    fs::write(&zeros, [0; 5000]).unwrap();
    let [missing, zeros] = [missing, zeros].map(|path| path.to_str().unwrap().to_owned());
    for (words, kind, code) in [
        (&["check", "--json", &missing][..], "not_found", 8),
        (&["--json", "check", &zeros], "refused", 8),
        (&["--json", "check", "-o", "nonsense", &zeros], "usage", 16),
        (&["--json", "check", "--nonsense", &zeros], "usage", 16),
    ] {
        let output = ivers(words);
        let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
        assert!(error["error"] == kind && error["code"] == code, "{words:?}: {error}");
    }
}

#[test]
fn a_lost_superblock_is_damage_if_there_is_a_copy() {
    if !have_programs(&["mkfs.ext4"]) {
        return;
    }
    for options in [&["-b", "1024"][..], &["-b", "2048"], &["-b", "4096"]] {
        let image = Image::new("ext4", 160 << 20, options).unwrap();
        let file = fs::OpenOptions::new().write(true).open(image.path()).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 1024], 1024).unwrap();
        let output = ivers(["check".as_ref(), image.path().as_os_str()]);
        assert_eq!(output.status.code(), Some(4), "{options:?}: {}", said(&output));
        assert!(said(&output).contains("e2fsck -b "), "{options:?}: {}", said(&output));
    }
}

#[test]
fn findings_on_xfs_have_paths() {
    if !have_programs(&["mkfs.xfs", "xfs_db"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, proto) = (dir.path().join("image"), dir.path().join("proto"));
    fs::write(&proto, "/\n0 0\nd--755 0 0\nd d--755 0 0\nlink l--777 0 0 target\n$\n$\n").unwrap();
    fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
    let words = ["-q".as_ref(), "-p".as_ref(), proto.as_os_str(), image.as_os_str()];
    ivers_oracle::run("mkfs.xfs", words).unwrap();
    let check = || ivers(["check".as_ref(), "--json".as_ref(), image.as_os_str()]);
    assert_eq!(check().status.code(), Some(0), "{}", said(&check()));
    let commands = ["-x", "-c", "path /d/link", "-c", "write -d core.nlinkv2 7"];
    ivers_oracle::run("xfs_db", commands.iter().map(|word| (*word).as_ref()).chain([image.as_os_str()]))
        .unwrap();
    let output = check();
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&first["code"], &first["path"]), (&"link-count-wrong".into(), &"/d/link".into()), "{text}");
    // Without its first block it is still recognised.
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 512], 0).unwrap();
    let output = check();
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("superblock-invalid"), "{}", said(&output));
}

#[test]
fn the_memory_of_a_check_is_bounded() {
    if !have_programs(&["mkfs.ext4"]) {
        return;
    }
    // Each group has bitmaps of its own, so that each part of the image takes memory: 10 MiB together.
    let options = ["-b", "1024", "-N", "100000", "-O", "^flex_bg,^has_journal,^resize_inode"];
    let image = Image::new("ext4", 40 << 30, &options).unwrap();
    let word = image.path().to_str().unwrap();
    is_clean(word, "mkfs");
    let output = ivers(["check", "-o", "cache=4M", word]);
    assert_eq!(output.status.code(), Some(8), "{}", said(&output));
    let text = said(&output);
    assert!(text.contains("the check needs more than 4 MiB") && text.contains("-o cache="), "{text}");
}

/// A filesystem of each type is clean after mkfs, and after what the other commands do to it.
#[test]
fn what_the_other_commands_make_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let (image, other) = (dir.path().join("image"), dir.path().join("other"));
    let (word, filled) = (image.to_str().unwrap(), other.to_str().unwrap());
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    for (kind, size) in TYPES {
        let _ = fs::remove_file(&image);
        let _ = fs::remove_file(&other);
        works(&["mkfs", "-qF", "-t", kind, "--size", size, word]);
        is_clean(word, &format!("mkfs -t {kind}"));
        works(&["label", word, "PROOF"]);
        is_clean(word, &format!("label of {kind}"));
        if kind != "ofs" {
            works(&["mkfs", "-qF", "-t", kind, "--size", size, "--from", source, filled]);
            is_clean(filled, &format!("mkfs --from of {kind}"));
        }
        let host = format!("{source}/main.rs");
        shell(
            &image,
            &format!(
                "mkdir a\nput {host} a/b\nmv a/b a/c\ncp a/c a/d\nmkdir a/e\nmv a/e e\nrm a/c\n\
                 rm -r a\nmkdir g\n"
            ),
        );
        is_clean(word, &format!("the shell on {kind}"));
        if kind.starts_with("ext") {
            works(&["label", word, ""]);
            is_clean(word, &format!("no label on {kind}"));
            works(&["resize", word, "60M"]);
            is_clean(word, &format!("resize of {kind}"));
        }
        if kind.starts_with("fat") {
            works(&["label", word, ""]);
            is_clean(word, &format!("no label on {kind}"));
        }
    }
}

/// Runs a script in `ivers shell`.
fn shell(image: &Path, script: &str) {
    let mut child = Command::new(common::IVERS)
        .arg("shell")
        .arg(image)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}: {}", image.display(), said(&output));
}

/// A superblock with other bytes is damaged, not of an unknown kind, and a copy of it is pointed to.
#[test]
fn a_destroyed_superblock_is_called_damaged() {
    if !have_programs(&["mkfs.ext4"]) {
        return;
    }
    let image = Image::new("ext4", 16 << 20, &["-b", "1024"]).unwrap();
    let path = image.path().to_str().unwrap();
    let whole = fs::read(path).unwrap();
    let noise = |at: usize| (at as u32).wrapping_mul(2_654_435_761) as u8 | 0x80;
    // All fields but the magic; fields from the features on; nothing but zeros.
    for (from, to, code) in [(0, 1024, 5), (0x5C, 1024, 5), (0x60, 0x64, 5)] {
        let mut damaged = whole.clone();
        for (at, byte) in damaged[1024 + from..1024 + to].iter_mut().enumerate() {
            *byte = noise(from + at);
        }
        damaged[1024 + 56..][..2].copy_from_slice(&[0x53, 0xEF]);
        fs::write(path, &damaged).unwrap();
        let output = ivers(["ls", path]);
        assert_eq!(output.status.code(), Some(code), "{from:#x}: {}", said(&output));
        for part in [path, "superblock", "damaged", "ivers check"] {
            assert!(said(&output).contains(part), "{from:#x}: {part}: {}", said(&output));
        }
        let checked = ivers(["check", path]);
        assert_eq!(checked.status.code(), Some(4), "{from:#x}: {}", said(&checked));
        for part in ["superblock-invalid", "e2fsck -b 8193 -B 1024"] {
            assert!(said(&checked).contains(part), "{from:#x}: {part}: {}", said(&checked));
        }
    }
    for zeros in [1024..2048, 0..70_000] {
        let mut damaged = whole.clone();
        damaged[zeros].fill(0);
        fs::write(path, &damaged).unwrap();
        for words in [["ls", path], ["info", path]] {
            let output = ivers(words);
            assert_eq!(output.status.code(), Some(5), "{words:?}: {}", said(&output));
            assert!(said(&output).contains(&format!("ivers check {path}")), "{words:?}: {}", said(&output));
        }
        let checked = ivers(["check", path]);
        assert_eq!(checked.status.code(), Some(4), "{}", said(&checked));
        assert!(said(&checked).contains("e2fsck -b 8193 -B 1024"), "{}", said(&checked));
    }
}

#[test]
fn errors_name_the_image_once() {
    if !have_programs(&["mkfs.ext4", "mkfs.xfs", "xfs_db", "mkfs.btrfs", "btrfs"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let name = path.to_str().unwrap();
    let set_len = |bytes| fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    let refused = |format: &str| {
        for words in [["check", name], ["scrub", name], ["ls", name]] {
            let output = ivers(words);
            let code = if words[0] == "ls" { 4 } else { 8 };
            assert_eq!(output.status.code(), Some(code), "{format}: {words:?}: {}", said(&output));
            assert_eq!(said(&output).matches(name).count(), 1, "{format}: {words:?}: {}", said(&output));
        }
    };
    // An unknown incompatible feature each.
    set_len(24 << 20);
    ivers_oracle::run("mkfs.ext4", ["-q", "-O", "^metadata_csum,^uninit_bg", name]).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[1024 + 0x63] |= 0x40;
    fs::write(&path, &bytes).unwrap();
    refused("ext4");
    set_len(320 << 20);
    ivers_oracle::run("mkfs.xfs", ["-q", name]).unwrap();
    let write = "write -d features_incompat 0x4000000b";
    let of_each =
        (0..4).flat_map(|group| ["-c".into(), format!("sb {group}"), "-c".into(), write.to_owned()]);
    let words = ["-x".to_owned()].into_iter().chain(of_each).chain([name.to_owned()]);
    ivers_oracle::run("xfs_db", words).unwrap();
    refused("xfs");
    set_len(128 << 20);
    ivers_oracle::run("mkfs.btrfs", ["-q", "-f", name]).unwrap();
    let mut image = BtrfsImage::parse(fs::read(&path).unwrap());
    image.change(None, |superblock| superblock[0xbc + 6] |= 0x40);
    fs::write(&path, &image.bytes).unwrap();
    refused("btrfs");
}

#[test]
fn a_filesystem_that_was_not_unmounted_has_a_note() {
    if !have_programs(&["mkfs.ext2"]) {
        return;
    }
    let image = Image::new("ext2", 16 << 20, &[]).unwrap();
    let path = image.path().to_str().unwrap();
    let mut bytes = fs::read(path).unwrap();
    // s_state
    bytes[1024 + 0x3A] &= !1;
    fs::write(path, &bytes).unwrap();
    let output = ivers(["check", path]);
    assert!(output.status.success(), "{}", said(&output));
    for part in ["note: ", "not unmounted cleanly", "e2fsck", ": ext2: clean"] {
        assert!(said(&output).contains(part), "{part}: {}", said(&output));
    }
}
