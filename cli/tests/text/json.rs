//! Every name that docs/json.md documents appears in the output of its command.

use crate::common::*;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

type Names = BTreeSet<String>;

/// Returns the names that the document lists for a command.
fn documented(command: &str) -> Names {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json.md");
    let page = fs::read_to_string(page).unwrap();
    let row = page.lines().find_map(|line| line.strip_prefix(&format!("| `ivers {command}` |"))).unwrap();
    row.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn flatten(prefix: &str, value: &Value, names: &mut Names) {
    for (name, value) in value.as_object().unwrap() {
        let name = format!("{prefix}{name}");
        if value.is_object() {
            flatten(&format!("{name}."), value, names);
        } else {
            names.insert(name);
        }
    }
}

fn ask(words: &[&str]) -> Vec<Value> {
    let output = ivers(words.iter().copied().chain(["--json"]));
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Asserts that every answer has every name.
fn holds(command: &str, answers: &[Value]) {
    let documented = documented(command);
    assert!(!answers.is_empty() && !documented.is_empty(), "{command}");
    for answer in answers {
        let mut names = Names::new();
        flatten("", answer, &mut names);
        let missing: Vec<_> = documented.difference(&names).collect();
        assert!(missing.is_empty(), "{command}: {missing:?} not in {answer}");
    }
}

fn is_decimal(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.parse::<u64>().is_ok())
}

#[test]
fn json_of_commands_on_images_has_the_documented_names() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (image, host, state) = (path("image"), path("file"), path("state"));
    let file = format!("{image}:/file");
    fs::write(&host, "text").unwrap();
    holds("mkfs", &ask(&["mkfs", &image, "--size", "64M", "-I", "256"]));
    for (fs_type, size) in [("fat", "1M"), ("affs", "1M"), ("xfs", "300M")] {
        let made = ask(&["mkfs", &path(fs_type), "--size", size, "--type", fs_type]);
        holds(&format!("mkfs --type {fs_type}"), &made);
    }
    holds("resize", &ask(&["resize", &image, "80M"]));
    holds("label", &ask(&["label", &image]));
    holds("label", &ask(&["label", &image, "new"]));
    assert!(ask(&["changed", &image, "--save", &state]).is_empty());
    holds("cp", &ask(&["cp", &host, &file]));
    let facts = ask(&["stat", &file]);
    holds("stat", &facts);
    assert!(is_decimal(&facts[0]["change"]) && is_decimal(&facts[0]["stored"]), "{facts:?}");
    let changed = ask(&["changed", &image, "--since", &state]);
    holds("changed", &changed);
    let measured =
        ask(&["measure", &format!("{image}:/"), "--list", &path("list"), "--store", &path("store")]);
    let (end, files) = measured.split_last().unwrap();
    holds("measure", files);
    holds("measure (end)", std::slice::from_ref(end));
    assert!(changed[0]["path"] == "." && changed[0]["status"] == "changed", "{changed:?}");
    assert!(changed[1]["status"] == "new" && is_decimal(&changed[1]["change"]), "{changed:?}");
    holds("ls", &ask(&["ls", &image]));
    holds("cat", &ask(&["cat", &file]));
    holds("tar", &ask(&["tar", "-c", &image, "-f", &path("tar")]));
    let inside = |path: &str| format!("{image}:{path}");
    let (dir, moved, link) = (inside("/dir"), inside("/dir/moved"), inside("/dir/link"));
    let edits: [(&str, &[&str]); 9] = [
        ("mkdir", &[&dir]),
        ("touch", &[&moved]),
        ("ln", &[&moved, &link]),
        ("mv", &["-T", &link, &moved]),
        ("chmod", &["600", &moved]),
        ("chown", &["7", &moved]),
        ("attr set", &["user.x", "y", &moved]),
        ("attr get", &["user.x", &moved]),
        ("attr list", &[&moved]),
    ];
    for (command, words) in edits
        .into_iter()
        .chain([("attr remove", &["user.x", moved.as_str()][..]), ("rm", &["-r", dir.as_str()])])
    {
        let words: Vec<&str> = command.split(' ').chain(words.iter().copied()).collect();
        holds(command, &ask(&words));
    }
    holds("tree", &ask(&["tree", &image]));
    holds("info", &ask(&["info", &image]));
    let disk = path("disk");
    let mut table = vec![0; 4 << 20];
    table[450] = 0x83;
    table[454..462].copy_from_slice(&[0, 8, 0, 0, 0, 8, 0, 0]);
    table[510..512].copy_from_slice(&[0x55, 0xAA]);
    fs::write(&disk, table).unwrap();
    let answer = ask(&["info", &disk]);
    holds("info DISK", &answer);
    let names = ["number", "start", "size", "type", "type_id", "name", "uuid", "fs", "contents", "problem"];
    let partition = answer[0]["partitions"][0].as_object().unwrap();
    assert!(names.iter().all(|name| partition.contains_key(*name)), "{partition:?}");
    holds("check (end)", &ask(&["check", &image]));
}

#[test]
fn json_of_subvolumes_has_the_documented_names() {
    let place = tempfile::tempdir().unwrap();
    let image = place.path().join("image").to_str().unwrap().to_owned();
    works(&["mkfs", "-q", "--type", "btrfs", "--size", "128M", &image]);
    let [root, own, copy] = ["/", "/own", "/copy"].map(|path| format!("{image}:{path}"));
    for (command, words) in [
        ("subvolume create", &[own.as_str()][..]),
        ("subvolume snapshot", &["-r", &own, &copy]),
        ("subvolume list", &[&root]),
        ("subvolume delete", &[&own]),
    ] {
        let words: Vec<&str> = command.split(' ').chain(words.iter().copied()).collect();
        holds(command, &ask(&words));
    }
}

/// A name that is not UTF-8 has all of its bytes in a second field. Other names have no such field.
#[test]
fn names_that_are_not_text_are_lossless() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (image, state, tree) = (path("image"), path("state"), place.path().join("tree"));
    let raw = OsStr::from_bytes(b"raw\xFF\xE4");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join(raw), "text").unwrap();
    fs::write(tree.join("plain"), "text").unwrap();
    std::os::unix::fs::symlink(raw, tree.join("link")).unwrap();
    works(&["mkfs", "-q", "--size", "16M", &image]);
    works(&["mkdir", &format!("{image}:/early")]);
    ask(&["changed", &image, "--save", &state]);
    let copied = ask(&["cp", "-v", "-r", tree.to_str().unwrap(), &format!("{image}:/d")]);
    let inside = format!("{image}:/d");
    let pattern = format!("{image}:/d/raw*");
    works(&["attr", "set", "user.x", "y", &pattern]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let end = [hex(b"/raw"), "ffe4".to_owned()].concat();
    let cases: [(Vec<Value>, &str); 9] = [
        (copied, "to"),
        (ask(&["ls", &inside]), "path"),
        (ask(&["tree", &inside]), "path"),
        (ask(&["du", "-a", &inside]), "path"),
        (ask(&["stat", &pattern]), "path"),
        (ask(&["cat", &pattern]), "path"),
        (ask(&["attr", "get", "user.x", &pattern]), "path"),
        (ask(&["chmod", "-v", "600", &pattern]), "path"),
        (ask(&["changed", &image, "--since", &state]), "path"),
    ];
    for (answers, key) in cases {
        let mut seen = 0;
        for answer in answers.iter().filter(|answer| answer.get(key).is_some()) {
            let (text, bytes) = (answer[key].as_str().unwrap(), answer.get(format!("{key}_hex")));
            assert_eq!(text.contains('\u{FFFD}'), bytes.is_some(), "{answer}");
            if let Some(bytes) = bytes.and_then(Value::as_str) {
                assert!(bytes.ends_with(&end) || hex(text.as_bytes()).len() == bytes.len() + 8, "{answer}");
                seen += 1;
            }
        }
        assert!(seen > 0, "{key}: {answers:?}");
    }
    let listed = ask(&["ls", &inside]);
    assert!(listed.iter().any(|file| file["name_hex"] == hex(raw.as_bytes())), "{listed:?}");
    assert!(listed.iter().any(|file| file["target_hex"] == hex(raw.as_bytes())), "{listed:?}");
}

#[test]
fn json_of_commands_on_a_mount_has_the_documented_names() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let [image, dir] = [place.image.path(), &place.dir].map(|path| path.to_str().unwrap());
    holds("mount", &ask(&["mount", image, dir]));
    fs::write(place.path("file"), "text").unwrap();
    let mut facts = ask(&["stat", &format!("{dir}/file")]);
    assert!(is_decimal(&facts[0]["change"]) && is_decimal(&facts[0]["stored"]), "{facts:?}");
    // FUSE reports no birth time.
    assert!(facts[0]["btime"].is_null());
    facts[0]["btime"] = facts[0]["mtime"].clone();
    holds("stat", &facts);
    let info = ask(&["info", dir]);
    holds("info", &info);
    assert!(info[0]["details"]["features"].as_str().unwrap().contains("extent"), "{info:?}");
    assert_eq!(info[0]["iversion"], "lazy");
    let stats = ask(&["stats", dir]);
    holds("stats", &stats);
    assert!(stats[0].as_object().unwrap().values().all(Value::is_u64), "{stats:?}");
    let prometheus = ivers(["stats", dir, "--prometheus"]);
    let text = String::from_utf8(prometheus.stdout).unwrap();
    for name in documented("stats") {
        assert!(text.contains(&format!("\nivers_{name}_total{{mount=\"{dir}\"}} ")), "{name}: {text}");
    }
    let relative =
        Command::new(IVERS).args(["stats", ".", "--prometheus"]).current_dir(dir).output().unwrap();
    assert!(said(&relative).contains(&format!("{{mount=\"{dir}\"}}")), "{}", said(&relative));
    holds("unmount", &ask(&["unmount", dir]));
    place.image.check().unwrap();

    // Without a change attribute its promises are absent, but every name is present.
    place.mount("iversion=off");
    let facts = ask(&["stat", &format!("{dir}/file")]);
    assert!(facts[0]["change"].is_null() && facts[0]["stored"].is_null(), "{facts:?}");
    let info = ask(&["info", dir]);
    assert_eq!(info[0]["iversion"], "off");
    for answer in [&facts[0], &info[0]] {
        let semantics = answer["semantics"].as_object().unwrap();
        assert_eq!(semantics["no_change_attribute"], "iversion=off");
        assert!(semantics.values().all(|value| value == false || value.is_string()), "{semantics:?}");
    }
    let state = place.image.dir().join("state");
    let state = state.to_str().unwrap();
    assert!(ask(&["changed", dir, "--save", state]).is_empty());
    let changed = ask(&["changed", dir, "--since", state]);
    assert!(!changed.is_empty() && changed.iter().all(|line| line["change"].is_null()), "{changed:?}");
    place.unmount();
}

/// In the foreground the answer is printed when the mount serves, not when it ends.
#[test]
fn json_of_a_foreground_mount_has_the_documented_names() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mut serving = Command::new(IVERS)
        .args(["mount", "-f", "--json"])
        .args([place.image.path(), &place.dir])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(serving.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let answer: Value = serde_json::from_str(&line).unwrap();
    holds("mount", std::slice::from_ref(&answer));
    assert_eq!((&answer["pid"], &answer["read_only"]), (&serving.id().into(), &false.into()));
    fs::write(place.path("f"), "it serves").unwrap();
    place.unmount();
    assert!(serving.wait().unwrap().success());
}

#[test]
fn json_of_a_server_has_the_documented_names() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let image = served::image_with_file();
    let state = image.dir().join("state");
    let server = served::Server::start(&state, [image.path()]);
    holds("serve", std::slice::from_ref(&server.told));
    let stats = ask(&["stats", state.to_str().unwrap()]);
    holds("stats STATE", &stats);
    for part in ["now", "total"] {
        assert!(stats[0][part].as_object().unwrap().values().all(Value::is_u64), "{stats:?}");
    }
    assert!(server.stop().success());
}
