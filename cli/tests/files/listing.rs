//! `ls`, `du` and `tree`: orders, sizes, recursion, colours, and memory.

use crate::common::*;
use ivers_oracle::Image;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

fn lines(words: &[&str]) -> Vec<String> {
    let output = ivers(words);
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// An image with files of different sizes and times, hard links and a sparse file.
fn image() -> Option<Image> {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return None;
    }
    let image = Image::new("ext4", 32 << 20, &[]).unwrap();
    let tree = image.dir().join("tree");
    fs::create_dir_all(tree.join("d/deep")).unwrap();
    for (name, len, second) in [("b", 3000, 30), ("a", 200_000, 10), (".hidden", 1, 40), ("c", 70, 20)] {
        fs::write(tree.join(name), vec![b'x'; len]).unwrap();
        let file = fs::File::options().write(true).open(tree.join(name)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(second)).unwrap();
    }
    fs::write(tree.join("d/deep/file"), vec![b'x'; 100_000]).unwrap();
    fs::hard_link(tree.join("d/deep/file"), tree.join("d/link")).unwrap();
    fs::hard_link(tree.join("d/deep/file"), tree.join("link")).unwrap();
    fs::File::create(tree.join("d/sparse")).unwrap().set_len(1 << 30).unwrap();
    let words = ["cp", "-a", tree.to_str().unwrap(), &format!("{}:/", image.path().display())];
    assert!(ivers(words).status.success());
    Some(image)
}

#[test]
fn ls_sorts_recurses_and_shows_sizes_for_people() {
    let Some(image) = image() else { return };
    let tree = format!("{}:/tree", image.path().display());
    let names = |options: &str| lines(&["ls", options, &tree]);
    assert_eq!(names("-1"), ["a", "b", "c", "d", "link"]);
    assert_eq!(names("-1a")[0], ".hidden");
    assert_eq!(names("-r"), ["link", "d", "c", "b", "a"]);
    let by = |options: &str| -> Vec<String> {
        names(options).into_iter().filter(|name| ["a", "b", "c"].contains(&name.as_str())).collect()
    };
    assert_eq!(by("-t"), ["b", "c", "a"]);
    assert_eq!(by("-tr"), ["a", "c", "b"]);
    assert_eq!(by("-S"), ["a", "b", "c"]);
    assert_eq!(by("-Sr"), ["c", "b", "a"]);
    assert_eq!(names("-d"), ["tree"]);
    let long = names("-lh");
    let sizes: Vec<_> = long.iter().map(|line| line.split_whitespace().nth(4).unwrap()).collect();
    assert_eq!((sizes[0], sizes[1], sizes[2]), ("196K", "3.0K", "70"), "{long:?}");
    // Files before directories, with names that tell them apart.
    let (deep, d) = (format!("{tree}/d/deep"), format!("{tree}/d"));
    let several = lines(&["ls", &deep, &format!("{tree}/*k"), &format!("{d}/link")]);
    let files =
        [format!("{tree}/link"), format!("{d}/link"), String::new(), format!("{deep}:"), "file".into()];
    assert_eq!(several, files);
    let shell = lines(&["shell", image.path().to_str().unwrap(), "-c", "ls /tree/d/deep /tree/link"]);
    assert_eq!(shell, [files[0].as_str(), "", &files[3], "file"]);
    let all = names("-R");
    let deep = format!("{tree}/d/deep:");
    assert!(
        all[0] == format!("{tree}:") && all.contains(&deep) && all.ends_with(&["file".to_owned()]),
        "{all:?}"
    );
    let json = lines(&["ls", "-R", "--json", &tree]);
    let paths: Vec<serde_json::Value> = json.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(paths.iter().any(|object| object["path"] == "/tree/d/deep/file"), "{json:?}");
    // -h is no question for help here, and --help is.
    assert!(lines(&["ls", "--help"]).iter().any(|line| line.contains("Usage: ivers ls")));
    assert!(lines(&["cp", "-h"]).iter().any(|line| line.contains("Usage: ivers cp")));
}

#[test]
fn du_agrees_with_du() {
    let Some(image) = image() else { return };
    let tree = format!("{}:/tree", image.path().display());
    let sizes = |words: &[&str]| -> Vec<(String, String)> {
        let split = |line: String| line.split_once('\t').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        lines(words).into_iter().map(split).collect()
    };
    let all = sizes(&["du", "-a", &tree]);
    let of = |path: &str| all.iter().find(|(_, at)| at.strip_prefix(&tree) == Some(path));
    // A hard link counts where it is met first, and a hole takes no space.
    assert!(of("/d/deep/file").unwrap().0.parse::<u64>().unwrap() >= 98, "{all:?}");
    assert_eq!(
        (of("/d/link").unwrap().0.as_str(), of("/d/sparse").unwrap().0.as_str()),
        ("0", "0"),
        "{all:?}"
    );
    assert!(all.last().unwrap().1 == tree && of("/d").is_some(), "{all:?}");
    assert!(sizes(&["du", &tree]).iter().all(|(_, path)| !path.ends_with("link")));
    let sum = sizes(&["du", "-s", &tree]);
    assert_eq!((sum.len(), &sum[0]), (1, all.last().unwrap()));
    let apparent = sizes(&["du", "-sh", "--apparent-size", &tree]);
    assert_eq!(apparent[0].0, "1.1G", "{apparent:?}");
    let json: serde_json::Value = serde_json::from_str(&lines(&["du", "-s", "--json", &tree])[0]).unwrap();
    assert_eq!(json["bytes"].as_u64().unwrap().div_ceil(1024).to_string(), sum[0].0);
    if !can_mount() {
        return;
    }
    // The oracle: du(1) on a mount of the same image.
    let place = Place::of(image);
    place.mount("ro");
    let du = |options: &[&str]| {
        let mut command = Command::new("du");
        let output = command.args(options).arg(place.path("tree")).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().last().unwrap().split('\t').next().unwrap().to_owned()
    };
    assert_eq!(du(&["-sk"]), sum[0].0);
    place.unmount();
}

#[test]
fn tree_of_no_levels_is_one_line_and_counts_have_a_number() {
    let Some(image) = image() else { return };
    let deep = format!("{}:/tree/d/deep", image.path().display());
    assert_eq!(lines(&["tree", "-L", "0", &deep]), [&deep[..], "", "0 directories, 0 files"]);
    assert_eq!(lines(&["tree", &deep]), [&deep[..], "└── file", "", "0 directories, 1 file"]);
    let tree = lines(&["tree", "-L", "1", &format!("{}:/tree", image.path().display())]);
    assert_eq!(tree.last().unwrap(), "1 directory, 5 files");
}

#[test]
fn names_have_colours_on_a_terminal_only() {
    if !ivers_oracle::have_programs(&["script"]) {
        return;
    }
    let Some(image) = image() else { return };
    let shown = |command: &str, no_color: &str| {
        let line = format!("{IVERS} {command} {}:/tree", image.path().display());
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("LS_COLORS", "di=01;35");
        let output = script.env("NO_COLOR", no_color).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for command in ["ls", "ls -l", "tree"] {
        let text = shown(command, "");
        assert!(text.contains("\u{1b}[1;35md\u{1b}[0m"), "{command}: {text:?}");
        assert!(!shown(command, "1").contains("\u{1b}[1;35m"), "{command}");
    }
    let piped = lines(&["ls", &format!("{}:/tree", image.path().display())]);
    assert!(piped.iter().all(|line| !line.contains('\u{1b}')), "{piped:?}");
}

/// The peak of resident memory of a command in KiB.
fn peak_kib(words: &[&str]) -> u64 {
    let output = Command::new("/usr/bin/time").args(["-f", "%M", IVERS]).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.lines().last().and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("{}", said(&output)))
}

/// Memory of a walk does not grow with the number of files: 40 directories take no more than one of them.
#[test]
fn memory_of_du_does_not_grow_with_the_number_of_files() {
    if !Path::new("/usr/bin/time").exists() || !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let image = Image::new("ext4", 256 << 20, &[]).unwrap();
    let tree = image.dir().join("tree");
    for dir in 0..40 {
        let dir = tree.join(format!("d{dir}"));
        fs::create_dir_all(&dir).unwrap();
        (0..500).for_each(|file| fs::write(dir.join(format!("file{file}")), "x").unwrap());
    }
    let root = format!("{}:/", image.path().display());
    assert!(ivers(["cp", "-r", tree.to_str().unwrap(), &root]).status.success());
    let one = peak_kib(&["du", "-o", "cache=4M", &format!("{root}tree/d1")]);
    let all = peak_kib(&["du", "-o", "cache=4M", &root]);
    assert!(all < one + (12 << 10), "{one} KiB for 500 files, {all} KiB for 20,000");
}
