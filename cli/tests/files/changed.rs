//! `ivers changed`: which states it accepts, where it saves them, and what it reports about the root of the
//! tree.

use crate::common::*;
use ivers_oracle::Image;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A small image with a directory in it, made without a mount.
struct Made {
    dir: tempfile::TempDir,
    image: String,
}

impl Made {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image").to_str().unwrap().to_owned();
        fs::create_dir_all(dir.path().join("d")).unwrap();
        works(&["mkfs", "-q", &image, "--size", "16M"]);
        works(&["cp", "-r", dir.path().join("d").to_str().unwrap(), &format!("{image}:/")]);
        Self { dir, image }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn word(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

fn works(words: &[&str]) -> String {
    let output = ivers(words);
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Asserts this exit code and one line that contains `part`.
fn refused(words: &[&str], code: i32, part: &str) {
    let output = ivers(words);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
    assert!(text.lines().count() == 1 && text.contains(part), "{words:?}: no {part:?}: {text}");
    assert!(output.stdout.is_empty(), "{words:?}: {}", said(&output));
}

fn make(program: &str, words: &[&str]) {
    assert!(Command::new(program).args(words).status().unwrap().success(), "{program} {words:?}");
}

#[test]
fn only_regular_files_are_replaced() {
    let made = Made::new();
    works(&["changed", &made.image, "--save", &made.word("state")]);
    let state = fs::read(made.path("state")).unwrap();
    let save = |name: &str| works(&["changed", &made.image, "--save", &made.word(name)]);

    std::os::unix::fs::symlink("target", made.path("link")).unwrap();
    refused(&["changed", &made.image, "--save", &made.word("link")], 1, "dangling symbolic link");
    fs::write(made.path("target"), "older").unwrap();
    save("link");
    assert!(made.path("link").is_symlink());
    assert_eq!(fs::read(made.path("target")).unwrap(), state);

    make("mkfifo", &[&made.word("fifo")]);
    let reader = Command::new("cat").arg(made.path("fifo")).stdout(Stdio::piped()).spawn().unwrap();
    save("fifo");
    assert_eq!(reader.wait_with_output().unwrap().stdout, state);
    assert!(fs::symlink_metadata(made.path("fifo")).unwrap().file_type().is_fifo());

    // As root the test uses its own device, so that it cannot replace the system's.
    let null = if is_root() { made.word("null") } else { "/dev/null".to_owned() };
    if is_root() {
        make("mknod", &[&null, "c", "1", "3"]);
    }
    works(&["changed", &made.image, "--save", &null]);
    assert!(fs::symlink_metadata(&null).unwrap().file_type().is_char_device());

    // The target of /dev/stdout: first a pipe, then a file that the shell opened.
    let words = ["changed", &made.image, "--save", "/proc/self/fd/1"];
    assert_eq!(ivers(words).stdout, state);
    let mut out = fs::File::create(made.path("out")).unwrap();
    std::io::Write::write_all(&mut out, b"before").unwrap();
    assert!(Command::new(IVERS).args(words).stdout(out).status().unwrap().success());
    assert_eq!(fs::read(made.path("out")).unwrap(), [b"before", &*state].concat());

    let _socket = std::os::unix::net::UnixListener::bind(made.path("socket")).unwrap();
    refused(&["changed", &made.image, "--save", &made.word("socket")], 1, "is a socket");
    refused(&["changed", &made.image, "--save", &made.word("d")], 1, "is a directory");
    refused(&["changed", &made.image, "--save", &made.word("no/state")], 3, "no/state");
}

#[test]
fn files_that_are_not_states_are_refused_unread() {
    let made = Made::new();
    let word = made.word("state");
    works(&["changed", &made.image, "--save", &word]);
    let state = fs::read(&word).unwrap();
    make("mkfifo", &[&made.word("fifo")]);
    let since = |name: &str, part: &str| refused(&["changed", &made.image, "--since", name], 1, part);
    since("/dev/zero", "but a char device; name a regular file");
    since(&made.word("fifo"), "but a fifo");
    since(&made.word("d"), "but a directory");
    let other = made.word("other");
    fs::write(&other, "").unwrap();
    since(&other, "not a saved state");
    // 4 TiB of zeros: first without a header, then with the header of a state.
    fs::File::options().write(true).open(&other).unwrap().set_len(1 << 42).unwrap();
    since(&other, "not a saved state");
    fs::write(&other, &state[..8]).unwrap();
    fs::File::options().write(true).open(&other).unwrap().set_len(1 << 42).unwrap();
    since(&other, "longer than any");
    fs::write(&other, &state[..state.len() - 1]).unwrap();
    since(&other, "damaged");
    fs::write(&other, [b"ivstate1", &state[8..]].concat()).unwrap();
    since(&other, "another version");
}

#[test]
fn a_state_of_another_directory_is_refused() {
    let made = Made::new();
    let below = format!("{}:/d", made.image);
    let (whole, part) = (made.word("whole"), made.word("part"));
    works(&["changed", &made.image, "--save", &whole]);
    works(&["changed", &below, "--save", &part]);
    refused(&["changed", &below, "--since", &whole], 1, "of another directory");
    refused(&["changed", &made.image, "--since", &part], 1, "of another directory");
    assert_eq!(works(&["changed", &below, "--since", &part]), "");
    // The directory has the same identity through a mount.
    if can_mount() {
        let place = Place::of(Image::new("ext4", 16 << 20, &[]).unwrap());
        fs::copy(&made.image, place.image.path()).unwrap();
        place.mount("ro");
        let [dir, sub] = ["", "d"].map(|name| place.path(name).to_str().unwrap().to_owned());
        assert_eq!(works(&["changed", &dir, "--since", &whole]), "");
        assert_eq!(works(&["changed", &sub, "--since", &part]), "");
        refused(&["changed", &sub, "--since", &whole], 1, "of another directory");
        place.unmount();
    }
}

#[test]
fn the_trees_own_directory_is_reported() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount("rw");
    let state = place.image.dir().join("state");
    let dir = place.dir.to_str().unwrap();
    // A symbolic link on the command line is followed.
    let link = place.image.dir().join("link");
    std::os::unix::fs::symlink(&place.dir, &link).unwrap();
    let since = |words: &[&str]| {
        let all = ["changed", dir, "--since", state.to_str().unwrap()];
        works(&[&all, words].concat())
    };
    let changes: [&dyn Fn(&Path); 2] =
        [&|dir| fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).unwrap(), &|dir| {
            xattr::set(dir, "user.of-the-root", b"1").unwrap()
        }];
    for change in changes {
        works(&["changed", link.to_str().unwrap(), "--save", state.to_str().unwrap()]);
        assert_eq!(since(&[]), "");
        change(&place.dir);
        assert_eq!(since(&[]), "C .\n");
        assert_eq!(since(&["-0"]), ".\0");
        assert_eq!(since(&["--files-only"]), "");
        assert_eq!(since(&["--only", "new,removed"]), "");
        let told: serde_json::Value = serde_json::from_str(&since(&["--json"])).unwrap();
        assert!(told["path"] == "." && told["status"] == "changed" && told["ino"] == 2, "{told}");
        assert_eq!(told["change"], change_word(&place.dir));
    }
    place.unmount();
}

fn change_word(path: &Path) -> String {
    change(path).to_string()
}

/// Another writer, and the first session that writes, change every value: one warning says why.
#[test]
fn a_raised_epoch_is_named() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "debugfs"]) {
        return;
    }
    let image = ivers_oracle::Image::new("ext4", 32 << 20, &[]).unwrap();
    let (word, state) = (image.path().to_str().unwrap(), image.dir().join("state"));
    let state = state.to_str().unwrap();
    let now = || {
        let output = ivers(["changed", "--json", word, "--since", state]);
        assert!(output.status.success(), "{}", said(&output));
        let objects = |bytes: &[u8]| -> Vec<serde_json::Value> {
            bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
        };
        (objects(&output.stdout), objects(&output.stderr))
    };
    let warned = |part: &str| {
        let (files, errors) = now();
        assert!(files.len() > 1 && files.iter().all(|file| file["epoch_raised"] == true), "{files:?}");
        let [warning] = &errors[..] else { panic!("{errors:?}") };
        assert!(warning["error"] == "warning", "{warning}");
        assert!(warning["message"].as_str().unwrap().contains(part), "{warning}");
    };
    works(&["changed", word, "--save", state]);
    works(&["mkdir", &format!("{word}:/a")]);
    warned("before ivers wrote to the image for the first time");
    works(&["changed", word, "--save", state]);
    works(&["mkdir", &format!("{word}:/a/b")]);
    let (files, errors) = now();
    assert!(errors.is_empty() && files.iter().all(|file| file["epoch_raised"] == false), "{files:?}");
    assert_eq!(files.len(), 2, "{files:?}");
    // As another kernel does, which stores the time of each write.
    make("debugfs", &["-w", "-R", "set_super_value mnt_count 77", word]);
    warned("another system wrote to the image");
}

#[test]
fn contradictory_arguments_are_refused() {
    let made = Made::new();
    let state = made.word("state");
    works(&["changed", &made.image, "--save", &state]);
    refused(&["changed", &made.image, "--since", &state, "-0", "--json"], 2, "--json");
    let output = ivers(["changed", &made.image]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--since <STATE>|--save <STATE>"), "{text}");
    if can_mount() {
        let place = Place::new();
        place.mount("rw");
        fs::write(place.path("a"), "no image").unwrap();
        let file = place.path("a").to_str().unwrap().to_owned();
        refused(&["changed", &file, "--save", &state], 4, "name a directory of the mount");
        // An image may be a file on a mount.
        fs::copy(&made.image, place.path("image")).unwrap();
        let inner = place.path("image").to_str().unwrap().to_owned();
        assert_eq!(works(&["changed", &inner, "--since", &state]), "");
        place.unmount();
    }
}

#[test]
fn damage_found_by_a_mount_has_the_exit_code_of_damage() {
    if !can_mount() || !ivers_oracle::have_programs(&["debugfs"]) {
        return;
    }
    let place = Place::new();
    let source = place.image.dir().join("d");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), "lost").unwrap();
    let image = place.image.path().to_str().unwrap();
    works(&["cp", "-r", source.to_str().unwrap(), &format!("{image}:/")]);
    let zapped =
        ivers_oracle::output("debugfs", ["-w", "-R", "zap_block -f /d -o 0 -l 200 0", image].map(OsStr::new));
    assert!(zapped.unwrap().status.success());
    place.mount("ro");
    let state = place.image.dir().join("state");
    let output = ivers(["changed", place.dir.to_str().unwrap(), "--save", state.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("mnt/d: "), "{}", said(&output));
    place.unmount();
}
