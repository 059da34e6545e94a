//! What the command says: one form of errors, errors in JSON, hints, familiar words, and who uses an image.

use crate::common::*;
use ivers_oracle::Image;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn image() -> Option<Image> {
    ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]).then(|| Image::new("ext4", 32 << 20, &[]).unwrap())
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn refused(words: &[&str], code: i32) -> String {
    let output = ivers(words);
    let text = errors(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
    text
}

#[test]
fn all_errors_have_one_form() {
    let wrong = [
        (&["ls", "no-such-image"][..], 3),
        (&["nonsense"], 2),
        (&["ls", "--nonsense", "x"], 2),
        (&["mount", "-t", "nonsense", "/dev/null", "/"], 2),
        (&["stat", "/no/such/file"], 3),
        (&["cp", "x"], 2),
    ];
    for (words, code) in wrong {
        let text = refused(words, code);
        assert!(text.starts_with("ivers: ") && !text.contains("error:"), "{words:?}: {text}");
        assert!(!text.contains("os error") && !text.contains('\u{1b}'), "{words:?}: {text}");
    }
}

#[test]
fn errors_in_json_are_objects() {
    let Some(image) = image() else { return };
    let word = image.path().to_str().unwrap();
    let missing = format!("{word}:/missing");
    let unused = format!("{word}:/x");
    let cases = [
        (vec!["ls", "--json", "no-such-image"], 3, "not_found", Some("no-such-image")),
        (vec!["cat", "--json", &missing], 3, "not_found", Some(&missing[..])),
        (vec!["--json", "nonsense"], 2, "usage", Some("nonsense")),
        (vec!["ls", "--json", "--nonsense"], 2, "usage", None),
        (vec!["cp", "--json", "no-such-file", &unused], 3, "not_found", Some("no-such-file")),
    ];
    for (words, code, name, path) in cases {
        let text = refused(&words, code);
        let objects: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        let object = &objects[0];
        assert_eq!(
            (object["error"].as_str(), object["code"].as_i64()),
            (Some(name), Some(code.into())),
            "{text}"
        );
        assert!(object["message"].as_str().is_some_and(|text| !text.is_empty()), "{text}");
        assert!(name == "usage" || object["path"].as_str() == path, "{text}");
    }
}

/// Errors of single entries, after which a command goes on, and of the lines of a script.
#[test]
fn errors_of_entries_and_lines_are_objects() {
    let Some(image) = image() else { return };
    let word = image.path().to_str().unwrap();
    let path = |name: &str| image.dir().join(name).to_str().unwrap().to_owned();
    let (archive, spec, fat) = (path("a.tar"), path("spec"), path("fat"));
    fs::create_dir(path("tree")).unwrap();
    std::os::unix::fs::symlink("target", path("tree/link")).unwrap();
    ivers_oracle::run("tar", ["-cf", &archive, "-C", &path("tree"), "."]).unwrap();
    fs::write(&spec, "").unwrap();
    works(&["mkfs", "-q", "-t", "fat", "--size", "8M", &fat]);
    let new = path("new");
    let filled = |from: &str| {
        let _ = fs::remove_file(&new);
        let output =
            ivers(["mkfs", "--json", "-t", "fat", "--size", "8M", &new, "--from", from, "--spec", &spec]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let ran = |words: &[&str]| {
        let output = ivers(words);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let inside = format!("{fat}:/");
    let cases = [
        ("link", filled(&path("tree"))),
        ("link", filled(&archive)),
        ("link", ran(&["tar", "--json", "-x", &inside, "-f", &archive])),
        ("link", ran(&["cp", "--json", "-r", &path("tree"), &inside])),
    ];
    for (part, (code, text)) in cases {
        assert_eq!(code, Some(1), "{text}");
        let object: serde_json::Value = serde_json::from_str(text.trim()).expect(&text);
        assert_eq!(object["error"], "failed", "{text}");
        assert!(object["message"].as_str().unwrap().contains(part), "{text}");
    }
    for (line, code, kind) in [("rm /none", 3, "not_found"), ("nonsense", 2, "usage"), ("rm 'a", 2, "usage")]
    {
        let (found, text) = ran(&["shell", "--json", word, "-c", "ls", "-c", line]);
        assert_eq!(found, Some(code), "{text}");
        let objects: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert_eq!(objects.len(), 2, "{text}");
        assert!(objects.iter().all(|object| object["error"] == kind && object["code"] == code), "{text}");
        assert!(objects[0].get("line").is_none() && objects[1]["line"] == 2, "{text}");
    }
}

#[test]
fn the_missing_operand_and_the_missing_directory_are_named() {
    let Some(image) = image() else { return };
    let word = image.path().to_str().unwrap();
    let text = refused(&["cp", &format!("{word}:/a")], 2);
    assert!(text.contains("<TO>") && !text.lines().nth(1).unwrap().contains("FROM"), "{text}");
    let dir = format!("{word}:/nosuchdir/");
    let text = refused(&["cp", "/etc/hosts", &dir], 3);
    assert!(text.contains(&format!("{dir}: no such file or directory")), "{text}");
}

#[test]
fn a_truncated_and_a_damaged_image_are_told_apart() {
    let Some(image) = image() else { return };
    let [short, damaged] = ["short", "damaged"].map(|name| image.dir().join(name));
    for copy in [&short, &damaged] {
        fs::copy(image.path(), copy).unwrap();
    }
    fs::File::options().write(true).open(&short).unwrap().set_len(20 << 20).unwrap();
    let text = refused(&["ls", short.to_str().unwrap()], 5);
    assert!(text.contains("truncated") && text.contains("get a complete copy"), "{text}");
    // The descriptor of the first group: after a superblock at 1024 in blocks of 1024 or 4096 bytes.
    let file = fs::File::options().write(true).open(&damaged).unwrap();
    for offset in [2048, 4096] {
        std::os::unix::fs::FileExt::write_all_at(&file, &[0x55; 64], offset).unwrap();
    }
    let word = damaged.to_str().unwrap();
    let state = image.dir().join("state");
    for words in [&["ls", word][..], &["changed", word, "--save", state.to_str().unwrap()]] {
        let text = refused(words, 5);
        assert!(text.contains(word) && text.contains("e2fsck"), "{words:?}: {text}");
    }
}

#[test]
fn measure_takes_an_image_for_its_root() {
    let Some(image) = image() else { return };
    let word = image.path().to_str().unwrap();
    assert!(ivers(["cp", "/etc/hosts", &format!("{word}:/file")]).status.success());
    let (list, store) = (image.dir().join("list"), image.dir().join("store"));
    let output = ivers(
        ["measure", "--json", word, "--list", list.to_str().unwrap(), "--store", store.to_str().unwrap()]
            .iter(),
    );
    let first: serde_json::Value =
        serde_json::from_str(String::from_utf8_lossy(&output.stdout).lines().next().unwrap()).unwrap();
    assert_eq!(first["path"], "/file", "{}", said(&output));
}

#[test]
fn swapped_operands_of_mount_get_a_hint() {
    let Some(image) = image() else { return };
    let (word, dir) = (image.path().to_str().unwrap(), image.dir().join("mnt"));
    fs::create_dir(&dir).unwrap();
    let text = refused(&["mount", dir.to_str().unwrap(), word], 2);
    assert!(text.contains(&format!("ivers mount {word} {}", dir.display())), "{text}");
}

#[test]
fn familiar_words_mount_read_only_and_unmount() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (image, dir) = (place.image.path().to_str().unwrap(), place.dir.to_str().unwrap());
    for option in ["-r", "--ro", "--read-only"] {
        let output = ivers(["mount", option, image, dir]);
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(about(&place.dir)["read_only"], true);
        wait_until("the mount is no longer busy", || ivers(["umount", dir]).status.success());
    }
}

#[test]
fn an_image_in_use_names_its_mount_and_the_way_out() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let pid = place.mount("");
    let text = refused(&["ls", place.image.path().to_str().unwrap()], 6);
    let dir = place.dir.canonicalize().unwrap();
    for part in
        [format!("mounted on {}", dir.display()), format!("process {pid}"), "ivers unmount".to_owned()]
    {
        assert!(text.contains(&part), "{part}: {text}");
    }
    place.unmount();
}

/// The log of a mount: each line has a date, also those about errors.
#[test]
fn every_line_of_the_log_is_dated() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let pid = place.mount("");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(children(pid)[0]).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    wait_until("the supervisor has ended", || !runs(pid));
    assert!(ivers(["unmount", place.dir.to_str().unwrap()]).status.success());
    place.mount("");
    place.unmount();
    let log = place.log();
    assert!(!log.is_empty());
    for line in log.lines() {
        let is_dated = line.len() > 20 && line[..4].parse::<u32>().is_ok() && &line[4..5] == "-";
        assert!(is_dated && !line.contains(" { "), "{line:?} in:\n{log}");
    }
}

#[test]
fn info_has_units_and_says_how_an_image_was_closed() {
    let Some(image) = image() else { return };
    let info = |path: &Path| {
        let output = ivers([Path::new("info"), path]);
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = info(image.path());
    assert!(text.contains("state: closed cleanly") && text.contains(" MiB ("), "{text}");
    assert_eq!(text.matches("\nblocks:").count() + text.matches("  blocks:").count(), 0, "{text}");
    // s_state: without the flag of a clean unmount.
    let debugfs = ["-w", "-R", "set_super_value state 0", image.path().to_str().unwrap()];
    if ivers_oracle::have_programs(&["debugfs"]) && Command::new("debugfs").args(debugfs).output().is_ok() {
        let text = info(image.path());
        assert!(text.contains("state: not closed cleanly"), "{text}");
    }
    if ivers_oracle::have_programs(&["mkfs.fat"]) {
        let fat = image.dir().join("fat");
        fs::File::create(&fat).unwrap().set_len(8 << 20).unwrap();
        assert!(Command::new("mkfs.fat").arg(&fat).output().unwrap().status.success());
        let text = info(&fat);
        assert!(!text.contains("inodes:") && text.contains("state: closed cleanly"), "{text}");
    }
}

#[test]
fn shells_complete_values_of_options() {
    for shell in ["bash", "zsh", "fish"] {
        let output = ivers(["completions", shell]);
        let text = String::from_utf8(output.stdout).unwrap();
        for value in ["affs", "iversion=lazy", "offset=", "norecovery"] {
            assert!(text.contains(value), "{shell} does not complete {value}");
        }
    }
}

#[test]
fn a_server_warns_if_no_client_can_create_a_file() {
    let Some(image) = image() else { return };
    let warning = "no client can create a file";
    let log = |options: &str| {
        let state = tempfile::tempdir().unwrap();
        let export = format!("{},rw{options}", image.path().display());
        let server = served::Server::start(state.path(), [export]);
        // Warnings come before the addresses.
        wait_until("the log says where it serves", || server.log().contains("serving"));
        let log = server.log();
        server.stop();
        log
    };
    assert!(log("").contains(warning), "{}", log(""));
    assert!(!log(",no_root_squash").contains(warning));
    // A directory that clients may write to.
    let dir = image.dir().join("dir");
    fs::create_dir(&dir).unwrap();
    let to = format!("{}:/", image.path().display());
    assert!(ivers(["cp", "-r", dir.to_str().unwrap(), &to]).status.success());
    assert!(!log("").contains(warning));
}

#[test]
fn errors_say_what_to_do() {
    let Some(image) = image() else { return };
    let word = image.path().to_str().unwrap();
    let text = refused(&["attr", "set", "origin", "x", &format!("{word}:/lost+found")], 2);
    assert!(text.contains("names begin with user.") && text.contains("did you mean user.origin?"), "{text}");
    let archive = image.dir().join("empty.tar");
    fs::write(&archive, [0; 1024]).unwrap();
    let dir = format!("{word}:/no/dir");
    let text = refused(&["tar", "-x", "-f", archive.to_str().unwrap(), &dir], 3);
    assert!(
        text.contains(&format!("{dir}: no such directory; make it first: ivers mkdir -p {dir}")),
        "{text}"
    );
    let text = refused(&["shell", "-c", "nonsense", word], 2);
    assert!(text.starts_with("ivers: ") && !text.contains("error:"), "{text}");
    let empty = image.dir().join("empty");
    fs::write(&empty, "").unwrap();
    let text = refused(&["ls", empty.to_str().unwrap()], 4);
    assert!(text.contains("is empty: make a filesystem in it first (ivers mkfs)"), "{text}");
    fs::File::create(&empty).unwrap().set_len(1 << 20).unwrap();
    let text = refused(&["ls", &format!("{}@esp", empty.display())], 4);
    assert!(text.contains("no partition table") && text.contains("sfdisk"), "{text}");
    let state = image.dir().join("state");
    let words = ["changed", "--save", state.to_str().unwrap(), image.dir().to_str().unwrap()];
    assert!(errors(&ivers(words)).contains("compared by ctime"));
    assert_eq!(errors(&ivers(words.iter().chain(&["-q"]))), "");
}

#[test]
fn a_page_is_shown_and_no_directory_of_its_name_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let run = |word: &str| Command::new(IVERS).args(["man", word]).current_dir(&dir).output().unwrap();
    for word in ["mount", "umount", "ivers"] {
        let output = run(word);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("Usage: "), "{word}: {}", said(&output));
    }
    let output = run("nonsense");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    assert!(run("./pages").status.success() && dir.path().join("pages/ivers-mount.1").exists());
    fs::create_dir(dir.path().join("mount")).unwrap();
    assert!(run("mount").status.success() && dir.path().join("mount/ivers.1").exists(), "a directory");
}

#[test]
fn the_help_of_a_command_is_about_its_operands() {
    for (command, operands) in [
        ("rm", "The files to remove"),
        ("mkdir", "The directories to create"),
        ("mv", "then the destination"),
        ("ln", "then LINK"),
        ("chmod", "whose permissions change"),
    ] {
        for flag in ["-h", "--help"] {
            let text = works(&[command, flag]);
            assert!(text.contains(operands) && !text.contains("of mv and ln"), "{command}: {text}");
            assert!(!text.contains("of mkfs"), "{command}: {text}");
        }
    }
}
