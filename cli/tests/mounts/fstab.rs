//! mount(8) and umount(8) with the type fuse.ivers, from a table like /etc/fstab and by hand.
//!
//! mount(8) looks for helper programs in system directories only, so the test shows the command in one of
//! them, in a mount namespace.

use crate::common::*;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

const SYSTEM_DIR: &str = "/usr/local/sbin";

fn may_run() -> bool {
    if !is_root() {
        ivers_oracle::skipped("mount(8) with a table of one's own is root's");
        return false;
    }
    let needed = ["mount", "umount", "unshare", "mount.fuse3", "getfattr"];
    can_mount() && ivers_oracle::have_programs(&needed)
}

/// Runs a script with `$IMAGE`, `$DIR` and `$TABLE` (one line, with these options), where `ivers` is
/// installed. `gone` unmounts with umount(8) and waits for the serving process.
fn script(place: &Place, options: &str, script: &str) -> Output {
    let bin = place.image.dir().join("bin");
    let table = place.image.dir().join("fstab");
    if !bin.exists() {
        fs::create_dir(&bin).unwrap();
        symlink(IVERS, bin.join("ivers")).unwrap();
    }
    let (image, dir) = (place.image.path().display(), place.dir.display());
    fs::write(&table, format!("{image} {dir} fuse.ivers {options} 0 0\n")).unwrap();
    let whole = format!(
        r#"mount --bind "$BIN" {SYSTEM_DIR}
        gone() {{
            pid=$(getfattr --only-values -n system.ivers.mount "$DIR" | sed 's/.*"pid":\([0-9]*\).*/\1/')
            umount "$DIR"
            while [ -e "/proc/$pid" ] && ! grep -q '^State:.*Z' "/proc/$pid/status"; do sleep 0.01; done
        }}
        {script}"#
    );
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-ec", &whole])
        .envs([("BIN", bin.as_os_str()), ("IMAGE", place.image.path().as_os_str())])
        .envs([("DIR", place.dir.as_os_str()), ("TABLE", table.as_os_str())])
        .env("HOME", OsStr::new(place.image.dir()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    place.image.check().unwrap();
    output
}

#[test]
fn an_fstab_line_mounts() {
    if !may_run() {
        return;
    }
    let place = Place::new();
    for (options, shown, work) in [
        ("defaults", " rw,", "echo defaults > $DIR/f"),
        (
            "rw,dev,suid,noauto,user,nofail,_netdev,x-systemd.automount,comment=x,allow_other",
            " rw,.*allow_other",
            "echo again > $DIR/f; getfattr --only-values -n system.ivers.change $DIR/f",
        ),
        (
            "ro,noexec,nodev,nosuid,noatime,iversion=eager,cache=64M",
            " ro,nosuid,nodev,noexec,",
            "test $(cat $DIR/f) = again",
        ),
    ] {
        let output = script(
            &place,
            options,
            &format!(
                r#"mount -T "$TABLE" "$DIR"
                grep "^$IMAGE $DIR fuse.ivers{shown}" /proc/self/mounts
                {work}
                gone"#
            ),
        );
        assert!(output.status.success(), "{options}: {}", said(&output));
    }
    // A partition: as an option, and in the name of the image.
    let disk = place.image.dir().join("disk.img");
    let mut bytes = vec![0; 1 << 20];
    bytes[450] = 0x83;
    bytes[454..462].copy_from_slice(&[0, 8, 0, 0, 0, 0, 2, 0]);
    bytes[510..512].copy_from_slice(&[0x55, 0xAA]);
    bytes.extend(fs::read(place.image.path()).unwrap());
    fs::write(&disk, bytes).unwrap();
    let output = script(
        &place,
        "defaults",
        r#"disk=$(dirname "$IMAGE")/disk.img
        echo "$disk $DIR fuse.ivers partition=1 0 0" > "$TABLE"
        mount -T "$TABLE" "$DIR"
        grep "^$disk $DIR fuse.ivers rw," /proc/self/mounts
        echo partition > "$DIR/p"
        gone
        echo "$disk@1 $DIR fuse.ivers ro 0 0" > "$TABLE"
        mount -T "$TABLE" "$DIR"
        grep "^$disk@1 $DIR fuse.ivers ro," /proc/self/mounts
        test "$(cat "$DIR/p")" = partition
        gone"#,
    );
    assert!(output.status.success(), "{}", said(&output));
    let output = script(&place, "nonsense", r#"mount -T "$TABLE" "$DIR""#);
    assert!(!output.status.success() && said(&output).contains("nonsense"), "{}", said(&output));
}

#[test]
fn mount_by_type_and_umount_by_hand() {
    if !may_run() {
        return;
    }
    let place = Place::new();
    let by_type = r#"mount -t fuse.ivers "$IMAGE" "$DIR"; head -c 5000000 /dev/zero > "$DIR/f"; gone"#;
    let output = script(&place, "defaults", by_type);
    assert!(output.status.success(), "{}", said(&output));
    // umount(8) also unmounts a mount of `ivers mount`.
    let supervisor = place.mount("rw");
    assert_eq!(fs::metadata(place.path("f")).unwrap().len(), 5_000_000);
    assert!(Command::new("umount").arg(&place.dir).status().unwrap().success());
    wait_until("the process ends", || !runs(supervisor));
    place.image.check().unwrap();
}
