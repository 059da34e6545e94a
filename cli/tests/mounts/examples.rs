//! The programs of `docs/examples`: each tells a changed file from an unchanged one on a mount.

#[allow(dead_code, reason = "`main` is the program's")]
#[path = "../../../docs/examples/changed.rs"]
mod rust;

use crate::common::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples");

/// Compiles the program in C without any warning.
fn compile(dir: &Path) -> PathBuf {
    let program = dir.join("changed");
    let source = Path::new(EXAMPLES).join("changed.c");
    let options = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"];
    let output = Command::new("cc").args(options).args([&program, &source]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    program
}

/// Returns the programs in C and Python.
fn programs(dir: &Path) -> [Vec<PathBuf>; 2] {
    [vec![compile(dir)], vec!["python3".into(), Path::new(EXAMPLES).join("changed.py")]]
}

fn run(program: &[PathBuf], file: &Path, note: &Path) -> Output {
    Command::new(&program[0]).args(&program[1..]).args([file, note]).output().unwrap()
}

/// Asserts that all three programs print this answer and store the same note.
fn all_say(programs: &[Vec<PathBuf>], place: &Place, is_unchanged: bool, after: &str) {
    let file = place.path("file");
    let notes = ["c", "python", "rust"].map(|name| place.image.dir().join(name));
    for (program, note) in programs.iter().zip(&notes) {
        let output = run(program, &file, note);
        assert_eq!(output.status.code(), Some(i32::from(!is_unchanged)), "{after}: {}", said(&output));
    }
    assert_eq!(rust::is_unchanged(&file, &notes[2]).unwrap(), is_unchanged, "{after}");
    let [c, python, rust] = notes.map(|note| fs::read_to_string(note).unwrap());
    assert!(c == python && python == rust, "{after}: {c}{python}{rust}");
}

#[test]
fn examples_tell_whether_a_file_changed() {
    if !can_mount() || !ivers_oracle::have_programs(&["cc", "python3"]) {
        return;
    }
    let place = Place::new();
    let programs = programs(place.image.dir());
    let options = if is_root() { "" } else { "fakeroot" };
    place.mount(options);
    fs::write(place.path("file"), "one").unwrap();
    all_say(&programs, &place, false, "the first look");
    all_say(&programs, &place, true, "nothing");
    fs::write(place.path("file"), "two").unwrap();
    all_say(&programs, &place, false, "a write of the same length");
    fs::set_permissions(place.path("file"), fs::Permissions::from_mode(0o600)).unwrap();
    all_say(&programs, &place, false, "chmod");
    place.unmount();
    place.mount(options);
    all_say(&programs, &place, true, "a remount");
    fs::remove_file(place.path("file")).unwrap();
    fs::write(place.path("file"), "two").unwrap();
    all_say(&programs, &place, false, "another file of the same name and contents");
}

#[test]
fn examples_refuse_a_file_without_a_change_attribute() {
    if !ivers_oracle::have_programs(&["cc", "python3"]) {
        return;
    }
    let dir = tempfile::TempDir::new().unwrap();
    let (file, note) = (dir.path().join("file"), dir.path().join("note"));
    fs::write(&file, "one").unwrap();
    for program in programs(dir.path()) {
        let output = run(&program, &file, &note);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("must be on an ivers mount"), "{}", said(&output));
    }
    let error = rust::is_unchanged(&file, &note).unwrap_err().to_string();
    assert!(error.starts_with(file.to_str().unwrap()), "{error}");
    assert!(!note.exists());
}
