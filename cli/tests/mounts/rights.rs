//! Permissions on a mounted ext4 image, and the privileges that a change removes: set-id bits, capabilities,
//! access control lists, sticky and set-gid directories, append-only and immutable files, access times.
//!
//! Other users are simulated with setpriv, so these tests require root.

use crate::common::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output, Stdio};

const OWNER: u32 = 1000;
const OTHER: u32 = 1001;
const GROUP: u32 = 2000;

/// Returns a mount that every user may enter, or `None` where no other user can be simulated.
fn shared(options: &str) -> Option<Place> {
    if !can_mount() || !ivers_oracle::have_programs(&["setpriv", "setfacl", "getfacl", "setcap", "chattr"]) {
        return None;
    }
    if !is_root() {
        eprintln!("not root: other users cannot be played here");
        return None;
    }
    let place = Place::new();
    for path in [place.image.dir(), &place.dir] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let comma = if options.is_empty() { "" } else { "," };
    place.mount(&format!("allow_other{comma}{options}"));
    fs::set_permissions(&place.dir, fs::Permissions::from_mode(0o777)).unwrap();
    Some(place)
}

fn shell(place: &Place, uid: u32, groups: &[u32], script: &str) -> Output {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={uid}")]);
    if groups.is_empty() {
        command.arg("--clear-groups");
    } else {
        command.arg(format!("--groups={}", groups.iter().map(u32::to_string).collect::<Vec<_>>().join(",")));
    }
    command.args(["--", "sh", "-c", script]).current_dir(&place.dir).stdin(Stdio::null()).output().unwrap()
}

fn does(place: &Place, uid: u32, script: &str) -> String {
    let output = shell(place, uid, &[], script);
    assert!(output.status.success(), "{script} as {uid}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn fails(place: &Place, uid: u32, script: &str) {
    let output = shell(place, uid, &[], script);
    assert!(!output.status.success(), "{script} as {uid} succeeded");
}

/// Queries the mode alone, so that the kernel returns its cached mode, which execve(2) uses. A query of all
/// attributes can make it ask the mount.
fn perm(place: &Place, name: &str) -> u32 {
    let flags = rustix::fs::AtFlags::empty();
    let found = rustix::fs::statx(rustix::fs::CWD, place.path(name), flags, rustix::fs::StatxFlags::MODE);
    u32::from(found.unwrap().stx_mode) & 0o7777
}

/// Remounts, so that the kernel's caches are empty.
fn remount(place: &Place) {
    place.unmount();
    place.mount("allow_other");
}

#[test]
fn changes_of_data_and_owner_remove_privileges() {
    let Some(place) = shared("") else { return };
    let changes = [
        ("write", "printf x | dd of=f conv=notrunc status=none"),
        ("append", "printf x >> f"),
        ("direct", "dd if=/dev/zero of=f bs=4096 count=1 oflag=direct conv=notrunc status=none"),
        ("truncate", "truncate -s 3 f"),
        ("empty", ": > f"),
        ("allocate", "fallocate -l 8192 f"),
        ("punch", "fallocate -p -o 0 -l 4 f"),
        ("zero", "fallocate -z -o 0 -l 4 f"),
    ];
    for (what, script) in changes {
        let fresh = || {
            does(&place, 0, "rm -f f; printf 'hello world' > f");
            does(&place, 0, &format!("chown {OWNER}:{OWNER} f; chmod 6777 f; setcap cap_net_raw+ep f"));
        };
        fresh();
        does(&place, 0, script);
        assert_eq!(perm(&place, "f"), 0o6777, "{what} by root");
        assert_eq!(does(&place, 0, "getcap f"), "", "{what} by root");
        for who in [OWNER, OTHER] {
            fresh();
            does(&place, who, script);
            assert_eq!(perm(&place, "f"), 0o777, "{what} by {who}");
            assert_eq!(does(&place, 0, "getcap f"), "", "{what} by {who}");
        }
        fresh();
        does(&place, OTHER, script);
        remount(&place);
        assert_eq!(perm(&place, "f"), 0o777, "{what}, after a remount");
    }
    does(&place, 0, &format!("rm f; touch f; chmod 6755 f; setcap cap_net_raw+ep f; chown {OWNER} f"));
    assert_eq!((perm(&place, "f"), does(&place, 0, "getcap f")), (0o755, String::new()), "a new owner");
    does(&place, 0, "chmod 2745 f; chown 0 f");
    assert_eq!(perm(&place, "f"), 0o2745, "without execution for the group it is no privilege");
    for script in ["printf x >> f", "fallocate -l 8192 f", "truncate -s 3 f", ": > f"] {
        does(&place, 0, &format!("chown {OWNER}:{GROUP} f; chmod 2766 f"));
        let output = shell(&place, OTHER, &[GROUP], script);
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(perm(&place, "f"), 0o2766, "nor is it for the group: {script}");
        does(&place, OTHER, script);
        assert_eq!(perm(&place, "f"), 0o766, "but others cannot set it: {script}");
    }
    fails(&place, OTHER, "chown 1001 f");
    fails(&place, OTHER, "setcap cap_net_raw+ep f");
    place.unmount();
}

#[test]
fn append_only_files_permit_only_appends() {
    let Some(place) = shared("") else { return };
    does(&place, 0, "printf one > f; chmod 666 f; chattr +a f");
    let before = change(&place.path("f"));
    for who in [0, OTHER] {
        does(&place, who, "printf two >> f && sync f");
        for script in [
            ": > f",
            "printf x 1<> f",
            "truncate -s 1 f",
            "dd if=/dev/null of=f oflag=append status=none",
            "chmod 600 f",
            "touch -d 2001-01-01 f",
            "mv f g",
            "ln f g",
            "rm -f f",
            "fallocate -p -l 1 f",
        ] {
            fails(&place, who, script);
        }
        does(&place, who, "touch f");
    }
    assert!(change(&place.path("f")) > before);
    // Not synced: data that write(2) accepted must not be lost either.
    does(&place, OTHER, "printf three >> f");
    remount(&place);
    // The kernel does not know yet whether the file has capabilities that a write would remove.
    does(&place, OTHER, "printf four >> f && sync f");
    assert_eq!(fs::read_to_string(place.path("f")).unwrap(), "onetwotwothreefour");

    // Data in the kernel's cache when the file becomes immutable was written before.
    let open = fs::OpenOptions::new().read(true).write(true).open(place.path("g"));
    assert!(open.is_err());
    let file = fs::File::create(place.path("g")).unwrap();
    std::io::Write::write_all(&mut &file, b"before").unwrap();
    does(&place, 0, "chattr +i g");
    file.sync_all().unwrap();
    drop(file);
    for script in [
        ": > g",
        "printf x >> g",
        "chmod 600 g",
        "touch g",
        "mv g h",
        "ln g h",
        "rm -f g",
        "setfattr -n user.a g",
    ] {
        fails(&place, 0, script);
    }
    fails(&place, OTHER, "chattr -i g");
    remount(&place);
    assert_eq!(fs::read_to_string(place.path("g")).unwrap(), "before");
    does(&place, 0, "chattr -a f; chattr -i g; : > f; rm f g");
    place.unmount();
}

#[test]
fn access_control_lists_are_enforced() {
    let Some(place) = shared("") else { return };
    let list = |name: &str| does(&place, 0, &format!("getfacl -cnp {name} | tr -s '\\n' ' '"));
    does(&place, 0, &format!("mkdir d; chmod 777 d; setfacl -d -m u:{OTHER}:rwx,g:{GROUP}:r,o::- d"));
    // A default ACL replaces the umask.
    does(&place, OWNER, "umask 077; touch d/f; mkdir d/sub");
    assert_eq!(perm(&place, "d/f"), 0o660);
    let named = format!(
        "user::rw- user:{OTHER}:rwx #effective:rw- group::rwx #effective:rw- group:{GROUP}:r-- mask::rw- \
         other::---"
    );
    assert_eq!(list("d/f").split_whitespace().collect::<Vec<_>>().join(" "), named);
    let default = does(&place, 0, "getfacl -cnpd d");
    assert!(!default.is_empty());
    assert_eq!(does(&place, 0, "getfacl -cnpd d/sub"), default, "directories hand it on");
    does(&place, OTHER, "printf x >> d/f");
    fails(&place, OTHER + 1, "cat d/f");
    let output = shell(&place, OTHER + 1, &[GROUP], "cat d/f");
    assert!(output.status.success(), "a supplementary group: {}", said(&output));
    // chmod of a file with an ACL changes the mask.
    does(&place, OWNER, "chmod 640 d/f");
    does(&place, OTHER, "cat d/f");
    fails(&place, OTHER, "printf x >> d/f");
    assert!(list("d/f").contains("mask::r--"));
    fails(&place, OTHER, "setfacl -m u:1001:rwx d/f");
    remount(&place);
    fails(&place, OTHER, "printf x >> d/f");
    does(&place, OWNER, "setfacl -b d/f");
    fails(&place, OTHER, "cat d/f");
    does(&place, 0, "setfacl -k d; setfacl -k d; setfattr -x system.posix_acl_default d");
    assert_eq!(does(&place, 0, "getfacl -cnpd d"), "");
    does(&place, OWNER, "umask 077; touch d/g");
    assert_eq!(perm(&place, "d/g"), 0o600);
    // Set-gid is removed when a user outside the group sets an ACL.
    does(&place, 0, &format!("touch s; mkdir t; chown {OWNER}:{GROUP} s t; chmod 2770 s t"));
    does(&place, OWNER, "setfacl -m u:1001:r s t");
    assert_eq!((perm(&place, "s"), perm(&place, "t")), (0o770, 0o770));
    place.unmount();
}

#[test]
fn set_gid_and_sticky_directories_follow_linux() {
    let Some(place) = shared("") else { return };
    does(&place, 0, &format!("mkdir d; chgrp {GROUP} d; chmod 3777 d"));
    does(&place, OWNER, "umask 0; touch d/f; mkdir d/sub; ln -s x d/l; mkfifo d/p");
    for name in ["d/f", "d/sub", "d/l", "d/p"] {
        assert_eq!(fs::symlink_metadata(place.path(name)).unwrap().gid(), GROUP, "{name}");
    }
    assert_eq!((perm(&place, "d/f"), perm(&place, "d/sub")), (0o666, 0o2777));
    // A user cannot give a file set-gid for another group.
    does(&place, OWNER, "chmod 2775 d/f");
    assert_eq!(perm(&place, "d/f"), 0o775);
    let output = shell(&place, OWNER, &[GROUP], "chmod 2775 d/f");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(perm(&place, "d/f"), 0o2775);
    does(&place, OTHER, "touch d/mine");
    for script in ["rm -f d/f", "mv d/f d/g", "mv -f d/mine d/f", "rmdir d/sub"] {
        fails(&place, OTHER, script);
    }
    does(&place, OWNER, "mv d/f d/g; rm -f d/g; rmdir d/sub");
    does(&place, 0, "rm d/mine");
    place.unmount();
}

/// Reads that the kernel answers from its cache do not reach the mount, so each check uses a new mount.
#[test]
fn access_times_follow_the_options() {
    const OLD: i64 = 946_684_800;
    for (options, first, second) in [
        ("relatime", true, false),
        ("noatime", false, false),
        ("strictatime", true, true),
        ("strictatime,lazytime", true, true),
    ] {
        let Some(place) = shared(options) else { return };
        does(&place, 0, &format!("echo x > f; mkdir d; touch -ad @{OLD} f d"));
        let options = format!("allow_other,{options}");
        let atimes = || ["f", "d"].map(|name| fs::metadata(place.path(name)).unwrap().atime());
        let look = || {
            place.unmount();
            place.mount(&options);
            let number = change(&place.path("f"));
            does(&place, 0, "cat f; ls d");
            assert_eq!(change(&place.path("f")), number, "{options}: an access is no change");
            atimes()
        };
        let now = look();
        assert_eq!(now.map(|time| time != OLD), [first; 2], "{options}: {now:?}");
        // Newer than the other times and less than a day old.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        let then = look();
        assert_eq!([then[0] != now[0], then[1] != now[1]], [second; 2], "{options}: {now:?} {then:?}");
        place.unmount();
        place.mount(&options);
        assert_eq!(atimes(), then, "{options}: kept over a remount");
        place.unmount();
    }
}

/// If a format has neither owners nor ACLs, the mount's bits apply to every user: the kernel must not ask for
/// an ACL.
#[test]
fn formats_without_owners_use_the_modes_of_the_mount() {
    if !can_mount() || !is_root() || !ivers_oracle::have_programs(&["setpriv", "mkfs.fat"]) {
        return;
    }
    let image = ivers_oracle::Image::new("ext4", 16 << 20, &[]).unwrap();
    ivers_oracle::run("mkfs.fat", [image.path()]).unwrap();
    let place = Place::of(image);
    for path in [place.image.dir(), &place.dir] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    place.mount("allow_other");
    fs::write(place.path("f"), "x").unwrap();
    assert_eq!(does(&place, OTHER, "cat f; ls"), "xf");
    let refused = shell(&place, OTHER, &[], "echo y > f");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Permission denied"), "{}", said(&refused));
    place.unmount();
    place.mount(&format!("allow_other,umask=0,uid={OWNER}"));
    assert_eq!(does(&place, OTHER, "echo y > f; mkdir d; mv f d; cat d/f"), "y");
    assert_eq!(fs::metadata(place.path("d/f")).unwrap().uid(), OWNER);
    place.unmount();
}
