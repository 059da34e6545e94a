//! `ivers changed`: exit code, renamed files, and directories that are not on a mount of ivers.

use crate::common::*;
use ivers_oracle::Image;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

fn changed(tree: &Path, state: &Path, more: &[&str]) -> Output {
    let words = ["changed", tree.to_str().unwrap(), "--since", state.to_str().unwrap()];
    ivers(words.iter().chain(more))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn save(tree: &Path, state: &Path) {
    let output = ivers(["changed", tree.to_str().unwrap(), "--save", state.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
}

/// Waits until the times of files are not those of this moment: see `changed --help`.
fn let_the_clock_tick() {
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn a_directory_of_the_host_is_compared_by_times() {
    let place = tempfile::tempdir().unwrap();
    let (tree, state) = (place.path().join("tree"), place.path().join("state"));
    fs::create_dir_all(tree.join("sub")).unwrap();
    for name in ["same", "touched", "sub/gone", "before"] {
        fs::write(tree.join(name), "text").unwrap();
    }
    let_the_clock_tick();
    let output = ivers(["changed", tree.to_str().unwrap(), "--save", state.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(warning.starts_with("ivers: ") && warning.contains("ctime"), "{warning}");
    let same = changed(&tree, &state, &["--exit-code"]);
    assert_eq!((text(&same).as_str(), same.status.code()), ("", Some(0)));

    fs::write(tree.join("touched"), "TEXT").unwrap();
    let file = fs::File::options().write(true).open(tree.join("touched")).unwrap();
    // The old time of modification does not hide the change.
    file.set_modified(fs::metadata(tree.join("same")).unwrap().modified().unwrap()).unwrap();
    fs::remove_file(tree.join("sub/gone")).unwrap();
    fs::rename(tree.join("before"), tree.join("sub/after")).unwrap();
    let now = changed(&tree, &state, &["--exit-code"]);
    assert_eq!(text(&now), "C .\nC sub\nM before -> sub/after\nR sub/gone\nC touched\n");
    assert_eq!(now.status.code(), Some(1));
    assert_eq!(changed(&tree, &state, &[]).status.code(), Some(0));
    // An error is not taken for a change.
    let failed = ["--save", "/dev/full"];
    assert_eq!(changed(&tree, &state, &failed).status.code(), Some(1));
    assert_eq!(changed(&tree, &state, &[&failed[..], &["--exit-code"]].concat()).status.code(), Some(8));
    let apart = changed(&tree, &state, &["--no-renames", "--only", "new,removed", "--exit-code"]);
    assert_eq!(text(&apart), "R before\nN sub/after\nR sub/gone\n");
    let moved = changed(&tree, &state, &["--only", "renamed", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text(&moved)).unwrap();
    assert_eq!((json["path"].as_str(), json["from"].as_str()), (Some("sub/after"), Some("before")), "{json}");
    assert!(json["status"] == "renamed" && json["change"].is_null(), "{json}");
    let null = changed(&tree, &state, &["-0", "--files-only"]);
    assert_eq!(text(&null), "./sub/after\0./touched\0");
}

/// A file that is written just before it is saved could change again at the same time: it counts as changed.
#[test]
fn a_change_at_the_moment_of_saving_is_not_missed() {
    let place = tempfile::tempdir().unwrap();
    let (tree, state) = (place.path().join("tree"), place.path().join("state"));
    fs::create_dir(&tree).unwrap();
    for round in 0..20 {
        fs::write(tree.join("file"), format!("{round:02}")).unwrap();
        save(&tree, &state);
        fs::write(tree.join("file"), format!("{:02}", round + 50)).unwrap();
        let now = text(&changed(&tree, &state, &[]));
        assert!(now.contains("C file\n"), "round {round}: {now}");
    }
}

#[test]
fn a_file_moved_in_an_image_is_one_change() {
    if !can_mount() {
        return;
    }
    let place = Place::of(Image::new("ext4", 32 << 20, &[]).unwrap());
    place.mount("");
    fs::create_dir(place.path("dir")).unwrap();
    for name in ["dir/one", "two"] {
        fs::write(place.path(name), name).unwrap();
    }
    let state = place.image.dir().join("state");
    save(&place.dir, &state);
    fs::rename(place.path("dir"), place.path("moved")).unwrap();
    fs::hard_link(place.path("two"), place.path("three")).unwrap();
    let now = changed(&place.dir, &state, &[]);
    let expected = "C .\nM dir -> moved\nM dir/one -> moved/one\nN three\nC two\n";
    assert_eq!(text(&now), expected, "{}", said(&now));
    place.unmount();
    let now = changed(place.image.path(), &state, &["--exit-code"]);
    assert_eq!((text(&now).as_str(), now.status.code()), (expected, Some(1)));
}
