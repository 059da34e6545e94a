//! The command on an image that is not mounted: JSON names, exit codes, `changed`.

use ivers_oracle::Image;
use std::process::{Command, Output, Stdio};

fn ivers(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ivers")).args(args).output().unwrap()
}

#[test]
fn changed_reports_files_copied_into_an_image() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck", "debugfs"]) {
        return;
    }
    let image = Image::new("ext4", 32 << 20, &[]).unwrap();
    let source = image.dir().join("source");
    let state = image.dir().join("state");
    let (image_word, source, state) =
        (image.path().to_str().unwrap(), source.to_str().unwrap(), state.to_str().unwrap());
    let file = format!("{image_word}:/file");
    std::fs::write(source, "one").unwrap();
    assert!(ivers(&["cp", source, &file]).status.success());
    assert_eq!(ivers(&["cat", &file]).stdout, b"one");
    let said: serde_json::Value = serde_json::from_slice(&ivers(&["stat", "--json", &file]).stdout).unwrap();
    let stored: u64 = said["stored"].as_str().unwrap().parse().unwrap();
    assert_eq!(stored, ivers_oracle::stored_counter(image.path(), "/file").unwrap());
    assert!(said["change"].is_string() && said["semantics"]["persistent"] == true, "{said}");

    assert!(ivers(&["changed", image_word, "--save", state]).status.success());
    assert_eq!(ivers(&["changed", image_word, "--since", state]).stdout, b"");
    std::fs::write(source, "two").unwrap();
    assert!(ivers(&["cp", source, &file]).status.success());
    assert_eq!(ivers(&["changed", image_word, "--since", state, "-0"]).stdout, b"./file\0");
    image.check().unwrap();
    assert_eq!(ivers(&["ls", source]).status.code(), Some(4));
    assert_eq!(ivers(&["stat", "no-such-file"]).status.code(), Some(3));
    assert_eq!(ivers(&["nonsense"]).status.code(), Some(2));
}

#[test]
fn mkfs_images_are_clean_and_reproducible() {
    let dir = tempfile::tempdir().unwrap();
    let paths = [dir.path().join("one"), dir.path().join("two")];
    for path in &paths {
        let path = path.to_str().unwrap();
        let uuid = "12345678-9abc-4def-8123-456789abcdef";
        let fixed = ["--uuid", uuid, "--hash-seed", uuid, "--timestamp", "1700000000"];
        let mut args = vec!["mkfs", path, "--size", "40M", "--label", "proof"];
        args.extend(fixed);
        assert!(ivers(&args).status.success());
        assert_eq!(ivers(&["mkfs", path]).status.code(), Some(4), "overwrote an existing file");
        ivers_oracle::e2fsck(path.as_ref()).unwrap();
    }
    assert!(std::fs::read(&paths[0]).unwrap() == std::fs::read(&paths[1]).unwrap());
    let refused = dir.path().join("refused");
    let sized = |words: &[&'static str]| {
        let mut all = vec!["mkfs", refused.to_str().unwrap(), "--size"];
        all.extend(words);
        ivers(&all)
    };
    let bad: [&[&str]; 9] = [
        &["8K"],
        &["x"],
        &["64M", "-b", "512"],
        &["64M", "-I", "300"],
        &["64M", "-i", "7"],
        &["64M", "-m", "51"],
        &["64M", "-L", "a label that is too long"],
        &["64M", "--root-owner=me"],
        &["64M", "-U", "no uuid"],
    ];
    for words in bad {
        let output = sized(words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{words:?}: {said}");
        assert!(!refused.exists(), "a refused call created a file");
    }
}

#[test]
fn a_partition_is_written_by_its_offset() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let image = Image::new("ext4", 16 << 20, &[]).unwrap();
    let disk = image.dir().join("disk");
    let mut bytes = vec![0; 1 << 20];
    bytes[446 + 4] = 0x83;
    bytes[446 + 8..][..4].copy_from_slice(&2048u32.to_le_bytes());
    bytes[446 + 12..][..4].copy_from_slice(&32768u32.to_le_bytes());
    bytes[510..512].copy_from_slice(&[0x55, 0xAA]);
    bytes.extend(std::fs::read(image.path()).unwrap());
    std::fs::write(&disk, bytes).unwrap();
    let path = |name: &str| image.dir().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("file"), "in a partition").unwrap();
    let (disk, file) = (disk.to_str().unwrap(), format!("{}:/file", disk.display()));

    let option = "offset=1048576";
    let works = |words: &[&str]| {
        let (command, rest) = words.split_first().unwrap();
        let mut all = vec![*command, "-o", option];
        all.extend(rest);
        let output = ivers(&all);
        assert!(output.status.success(), "{all:?}: {}", ivers_oracle::said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    // The first session of ivers on an image vouches for nothing before it.
    works(&["cp", &path("file"), &format!("{disk}:/first")]);
    works(&["changed", disk, "--save", &path("state")]);
    works(&["cp", &path("file"), &file]);
    assert_eq!(works(&["changed", disk, "--since", &path("state")]), "C .\nN file\n");
    works(&["cp", &file, &path("back")]);
    assert_eq!(std::fs::read(path("back")).unwrap(), b"in a partition");
    assert_eq!(works(&["cat", &file]), "in a partition");
    assert_eq!(works(&["ls", disk]), "file\nfirst\nlost+found\n");
    assert!(works(&["tree", disk]).contains("── file"));
    assert!(works(&["stat", &file]).contains("size    14"));
    assert!(works(&["info", disk]).contains("fs: ext4"));
    let partition = &std::fs::read(disk).unwrap()[1 << 20..];
    std::fs::write(image.path(), partition).unwrap();
    image.check().unwrap();

    for option in ["offset=x", "nonsense", "iversion=off", "rw"] {
        assert_eq!(ivers(&["ls", "-o", option, disk]).status.code(), Some(2), "{option}");
    }
    assert_ne!(ivers(&["ls", "-o", "offset=99999999999", disk]).status.code(), Some(0));
    // The only filesystem needs no offset.
    assert!(ivers(&["ls", disk]).status.success());
}

#[test]
fn the_root_directory_gets_its_owner() {
    if !ivers_oracle::have_programs(&["e2fsck"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let me = format!("{}:{}", rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    for (option, owner) in
        [(None, "0:0"), (Some("--root-owner=70000:8"), "70000:8"), (Some("--root-owner"), &me)]
    {
        let image = dir.path().join("image");
        let place = image.to_str().unwrap();
        // The last argument before the image that is not the value of an option.
        let words: Vec<&str> =
            ["mkfs", "-F", "--size", "16M"].into_iter().chain(option).chain([place]).collect();
        let made = ivers(&words);
        assert!(made.status.success(), "{}", ivers_oracle::said(&made));
        let root = format!("{place}:/");
        let facts: serde_json::Value =
            serde_json::from_slice(&ivers(&["stat", "--json", &root]).stdout).unwrap();
        assert_eq!(format!("{}:{}", facts["uid"], facts["gid"]), owner);
        ivers_oracle::e2fsck(&image).unwrap();
        std::fs::remove_file(image).unwrap();
    }
}

#[test]
fn a_closed_standard_output_does_not_panic() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let (place, state) = (image.to_str().unwrap(), dir.path().join("state"));
    let commands: [&[&str]; 7] = [
        &["mkfs", place, "--size", "16M"],
        &["ls", place],
        &["tree", place],
        &["info", place],
        &["stat", &format!("{place}:/")],
        &["--help"],
        &["changed", place, "--save", state.to_str().unwrap()],
    ];
    for words in commands {
        let (from, into) = std::io::pipe().unwrap();
        drop(from);
        let child =
            Command::new(env!("CARGO_BIN_EXE_ivers")).args(words).stdout(into).stderr(Stdio::piped()).spawn();
        let output = child.unwrap().wait_with_output().unwrap();
        let said = ivers_oracle::said(&output);
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {said}");
    }
}

#[test]
fn unreadable_files_are_named_and_the_others_are_listed() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "debugfs"]) {
        return;
    }
    let image = Image::new("ext4", 16 << 20, &[]).unwrap();
    let source = image.dir().join("source");
    std::fs::create_dir_all(source.join("b/c")).unwrap();
    std::fs::write(source.join("z"), "last").unwrap();
    let name = image.path().to_str().unwrap();
    let inside = |path: &str| format!("{name}:{path}");
    let copied = ivers(&["cp", "-r", source.to_str().unwrap(), &inside("/s")]);
    assert!(copied.status.success(), "{}", ivers_oracle::said(&copied));
    let goes_on = |words: &[&str], code: i32, complaints: usize, rest: &str| {
        let output = ivers(words);
        let said = ivers_oracle::said(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), complaints, "{words:?}: {said}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(rest), "{words:?}: {said}");
    };
    goes_on(&["ls", &inside("/no"), &inside("/s")], 3, 1, "\nz\n");
    goes_on(&["cat", &inside("/no"), &inside("/s"), &inside("/s/z")], 1, 2, "last");
    goes_on(&["stat", &inside("/no"), &inside("/s/z")], 3, 1, "/s/z");

    // A directory with two names, which is invalid: a walk must neither loop nor visit it twice.
    let link = ["-w", "-R", "ln /s /s/b/round", name];
    assert!(ivers_oracle::output("debugfs", link).unwrap().status.success());
    goes_on(&["tree", name], 5, 1, "── z");
    let out = image.dir().join("out");
    goes_on(&["cp", "-r", &inside("/s"), out.to_str().unwrap()], 5, 1, "");
    assert_eq!(std::fs::read(out.join("z")).unwrap(), b"last");
    let state = image.dir().join("state");
    goes_on(&["changed", name, "--save", state.to_str().unwrap()], 5, 1, "");
    assert!(!state.exists());
}

#[test]
fn names_that_are_not_utf8_work() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    if !ivers_oracle::have_programs(&["e2fsck"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let odd = OsStr::from_bytes(b"odd \xff\n\x1b[31m name");
    let (image, file) = (dir.path().join("image").join(odd), dir.path().join(odd));
    std::fs::create_dir(dir.path().join("image")).unwrap();
    std::fs::write(&file, "text").unwrap();
    let inside = |path: &OsStr| {
        let mut word = image.clone().into_os_string().into_vec();
        word.extend_from_slice(b":/");
        word.extend_from_slice(path.as_bytes());
        OsString::from_vec(word)
    };
    let (state, back) = (dir.path().join("state"), dir.path().join("back"));
    let image = image.as_os_str();
    let [mkfs, size, cp, ls, tree, cat, stat, info, changed, save] =
        ["mkfs", "-s16M", "cp", "ls", "tree", "cat", "stat", "info", "changed", "--save"].map(OsStr::new);
    let commands: [&[&OsStr]; 10] = [
        &[mkfs, image, size],
        &[cp, file.as_os_str(), &inside(OsStr::new(""))],
        &[cp, &inside(odd), back.as_os_str()],
        &[ls, image],
        &[tree, image],
        &[cat, &inside(odd)],
        &[stat, &inside(odd)],
        &[info, image],
        &[changed, image, save, state.as_os_str()],
        &[changed, image, OsStr::new("--since"), state.as_os_str()],
    ];
    for words in commands {
        let run = |json: Option<&str>| {
            let output = Command::new(env!("CARGO_BIN_EXE_ivers")).args(words).args(json).output().unwrap();
            assert!(output.status.success(), "{words:?}: {}", ivers_oracle::said(&output));
            assert!(!output.stdout.contains(&0x1b) || words[0] == cat || words[0] == mkfs, "{words:?}");
            output.stdout
        };
        let told = run(Some("--json"));
        for line in told.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            serde_json::from_slice::<serde_json::Value>(line).unwrap();
        }
        if words[0] != mkfs {
            run(None);
        }
    }
    assert_eq!(std::fs::read(back).unwrap(), b"text");
}

#[test]
fn a_full_standard_output_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let place = image.to_str().unwrap();
    assert!(ivers(&["mkfs", place, "-s", "16M"]).status.success());
    let file = dir.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let inside = format!("{place}:/file");
    assert!(ivers(&["cp", file.to_str().unwrap(), &inside]).status.success());
    let commands: [&[&str]; 6] = [
        &["ls", place],
        &["ls", "--json", place],
        &["tree", place],
        &["cat", &inside, &inside],
        &["stat", &inside, &inside],
        &["info", place],
    ];
    for words in commands {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let child =
            Command::new(env!("CARGO_BIN_EXE_ivers")).args(words).stdout(full).stderr(Stdio::piped()).spawn();
        let output = child.unwrap().wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(said.lines().count() == 1 && said.contains("standard output: No space"), "{words:?}: {said}");
    }
}

/// The label is an escape sequence that sets a colour.
#[test]
fn text_from_an_image_is_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let image = image.to_str().unwrap();
    assert!(ivers(&["mkfs", image, "--size", "16M", "--label", "a\x1b[31m"]).status.success());
    let output = ivers(&["info", image]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("label: a\\x1b[31m"), "{shown:?}");
}
