//! The recipes of docs/recipes.md do what it says.

use crate::common::*;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the commands of a section: each from a prompt to the next, with its continuation lines.
fn recipes(section: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/recipes.md");
    let text = fs::read_to_string(page).unwrap();
    let start = format!("\n## {section}\n");
    let section = text.split(&start).nth(1).unwrap().split("\n## ").next().unwrap();
    let code: String = section
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .fold(String::new(), |code, line| code + line + "\n");
    code.split("$ ").filter(|recipe| !recipe.is_empty()).map(str::to_owned).collect()
}

/// Returns the example of `changed --help` that copies.
fn of_help() -> String {
    let help = String::from_utf8(ivers(["changed", "--help"]).stdout).unwrap();
    let lines: Vec<&str> = help.lines().collect();
    let at = lines.iter().position(|line| line.contains("rsync")).unwrap();
    lines[at - 1..=at].join("\n")
}

/// Runs a script in bash, in `dir`.
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
fn recipes_without_a_mount_make_an_image_and_look_into_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    sh(dir, "mkdir tree; echo one > tree/note; ln -s note tree/link");
    let code = |section| {
        let recipes = recipes(section);
        assert!(recipes.len() > 2, "{section}: {recipes:?}");
        recipes.concat()
    };
    sh(dir, &code("Make an image without root"));
    sh(dir, &code("Look into an image that you do not trust"));
    sh(dir, "diff -r --no-dereference tree out; echo two > tree/note");
    let changes = code("See what changed in an image");
    sh(dir, &format!("({changes}) > said; test \"$(cat said)\" = 'C tree/note'"));
    if ivers_oracle::have_programs(&["e2fsck"]) {
        ivers_oracle::e2fsck(&dir.join("disk.img")).unwrap();
    }
    if ivers_oracle::have_programs(&["sfdisk"]) {
        let disk = code("Make a disk with partitions, without root");
        sh(dir, &format!("({disk}) > said; tail -n 3 said | grep -v lost+found | diff - <(ls tree)"));
        // No system and no boot loader, but files in their places.
        sh(
            dir,
            "mkdir -p root/boot; echo kernel > root/boot/vmlinuz-6.1; echo start > root/boot/initrd.img-6.1
             tar -cf rootfs.tar -C root .; echo loader > systemd-bootx64.efi",
        );
        sh(dir, &code("Make a disk that boots, in a CI job"));
        sh(
            dir,
            "test \"$(ivers cat boot.img@esp:/vmlinuz boot.img@esp:/initrd)\" = $'kernel\\nstart'
             test \"$(ivers cat boot.img@esp:/EFI/BOOT/BOOTX64.EFI)\" = loader
             ivers cat boot.img@esp:/loader/entries/linux.conf | grep -q '^options root=PARTLABEL=root'
             ivers ls boot.img@root:/boot | diff - <(ls root/boot)",
        );
    }
}

#[test]
fn recipes_of_rsync_restic_and_tar_copy_changes_and_deletions() {
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
         mkdir mnt/d mnt/was-dir; echo 1 > mnt/same; echo 1 > mnt/d/changed
         echo 1 > mnt/d/gone; echo 1 > mnt/was-dir/f
         touch -d 2001-01-01 mnt/same
         cp -a mnt copy; cp -a mnt restored; cp -a mnt helped; restic init -q -r repo
         ivers changed mnt --save state; cp state first
         echo 2 > mnt/d/changed; rm mnt/d/gone; rm -r mnt/was-dir; echo 2 > mnt/was-dir
         mkdir mnt/new; ln -s same mnt/new/link
         echo 2 > $'mnt/new/odd \\n name'
         for odd in '#' ';' -; do echo 2 > \"mnt/$odd\"; mkdir \"mnt/$odd d\"; done
         chmod 750 mnt",
    );
    let recipes = recipes("Back up only what changed");
    let programs = ["rsync", "restic", "tar"];
    assert_eq!(recipes.len(), programs.len(), "{recipes:?}");
    for (recipe, program) in recipes.iter().zip(programs) {
        assert!(recipe.contains(program), "{program} is not in {recipe}");
        // If one step fails the state stays, and the next run reports everything again.
        sh(
            dir,
            &format!(
                "cp first state; {program}() {{ false; }}; if {recipe} then false; fi
                 cmp first state; unset {program}
                 {recipe}
                 test -z \"$(ivers changed mnt --since state)\""
            ),
        );
    }
    sh(
        dir,
        &format!(
            "cp first state; mkdir all; mv copy all/; cp -a helped copy; {}
             mv copy helped.new; mv all/copy copy",
            of_help()
        ),
    );
    sh(
        dir,
        "diff -r --no-dereference mnt copy
         test \"$(stat -c %a copy)\" = 750
         for odd in '#' ';' -; do test -f \"helped.new/$odd\"; done
         if tar -tf changed.tar | grep -x ./same; then false; fi
         (cd restored && xargs -0r rm -rf -- < ../removed && tar -xf ../changed.tar)
         diff -r --no-dereference mnt restored; test \"$(stat -c %a restored)\" = 750
         restic -q -r repo restore latest --target unpacked
         test \"$(cat unpacked/d/changed)\" = 2; test -L unpacked/new/link
         test ! -e unpacked/same; test -f 'unpacked/#'",
    );
    place.unmount();
    place.image.check().unwrap();
}
