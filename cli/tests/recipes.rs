//! The recipes of the README do what it says.

mod common;

use common::*;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The lines of the section that begin with a prompt.
fn recipes() -> String {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = fs::read_to_string(readme).unwrap();
    let section = text.split("\n## Recipes\n").nth(1).unwrap().split("\n## ").next().unwrap();
    section.lines().filter_map(|line| line.strip_prefix("    $ ")).map(|line| format!("{line}\n")).collect()
}

/// Run in the shell of the README's reader, in `dir`.
fn sh(dir: &Path, script: &str) {
    let programs = Path::new(IVERS).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-e", "-o", "pipefail", "-c", script])
        .current_dir(dir)
        .env("PATH", path)
        .env("RESTIC_PASSWORD", "test")
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}\n{script}", said(&output));
}

#[test]
fn rsync_restic_and_tar_get_what_changed_and_deleted_files_go() {
    let programs = ["rsync", "restic", "tar", "xargs", "diff", "bash"];
    if !can_mount() || !ivers_oracle::have_programs(&programs) {
        return;
    }
    let place = Place::new();
    place.mount("rw");
    let dir = place.image.dir();
    sh(
        dir,
        "rmdir mnt/lost+found
         mkdir mnt/d mnt/was-dir; echo 1 > mnt/same; echo 1 > mnt/d/changed; echo 1 > mnt/d/gone; echo 1 > mnt/was-dir/f
         touch -d 2001-01-01 mnt/same
         cp -a mnt copy; cp -a mnt restored; restic init -q -r repo
         ivers changed mnt --save state
         echo 2 > mnt/d/changed; rm mnt/d/gone; rm -r mnt/was-dir; echo 2 > mnt/was-dir; mkdir mnt/new; ln -s same mnt/new/link
         echo 2 > $'mnt/new/odd \\n name'",
    );
    let lines = recipes();
    for part in ["rsync", "restic", "tar", "--only removed"] {
        assert!(lines.contains(part), "{part} is missing:\n{lines}");
    }
    sh(dir, &lines);
    sh(
        dir,
        "diff -r --no-dereference mnt copy
         ! tar -tf changed.tar | grep -x same
         (cd restored && xargs -0r rm -rf -- < ../removed && tar -xf ../changed.tar)
         diff -r --no-dereference mnt restored
         restic -q -r repo restore latest --target unpacked
         test \"$(cat unpacked/d/changed)\" = 2; test -L unpacked/new/link; test ! -e unpacked/same
         test -z \"$(ivers changed mnt --since state)\"",
    );
    place.unmount();
    place.image.check().unwrap();
}
