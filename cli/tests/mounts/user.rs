//! An ordinary user mounts, uses and unmounts without root, with the help of fusermount3 alone.
//!
//! Run as root, the tests act as user 65534 and open /dev/fuse to every user while they run.

use crate::common::*;
use rustix::fs::{FileType, Mode};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};

const DEVICE: &str = "/dev/fuse";
const USER: u32 = 65534;

/// An image and a mount point that belong to an ordinary user.
struct Home {
    place: Place,
    program: PathBuf,
    user: u32,
    device_mode: Option<u32>,
    _one_at_a_time: MutexGuard<'static, ()>,
}

impl Home {
    fn new() -> Option<Self> {
        static DEVICE_MODE: Mutex<()> = Mutex::new(());
        let guard = DEVICE_MODE.lock().unwrap_or_else(|failed| failed.into_inner());
        let needed = ["fusermount3", "setpriv", "mkfs.ext4", "debugfs"];
        if !ivers_oracle::have_programs(&needed) || (!is_root() && !can_mount()) {
            return None;
        }
        let place = Place::new();
        let dir = place.image.dir();
        // Other users may not be able to enter the build directory.
        let program = dir.join("ivers");
        fs::copy(IVERS, &program).unwrap();
        let user = if is_root() { USER } else { rustix::process::geteuid().as_raw() };
        for path in [dir, &place.dir, &program] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut device_mode = None;
        if is_root() {
            for path in [dir, &place.dir, place.image.path()] {
                std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
            }
            let mode = fs::metadata(DEVICE).expect("/dev/fuse is needed (modprobe fuse)").mode() & 0o7777;
            if mode & 0o006 != 0o006 {
                fs::set_permissions(DEVICE, fs::Permissions::from_mode(0o666))
                    .expect("an ordinary user must be able to open /dev/fuse");
                device_mode = Some(mode);
            }
        }
        Some(Self { place, program, user, device_mode, _one_at_a_time: guard })
    }

    fn run(&self, program: &OsStr, args: &[&OsStr]) -> Output {
        let mut command = if is_root() {
            let user = self.user;
            let mut command = Command::new("setpriv");
            command.args([format!("--reuid={user}"), format!("--regid={user}")]);
            command.args(["--clear-groups", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.args(args).env("HOME", self.place.image.dir()).env_remove("XDG_STATE_HOME");
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a script in the mounted directory.
    fn shell(&self, script: &str) -> Output {
        let script = format!("cd {} && {script}", self.place.dir.display());
        self.run("sh".as_ref(), &["-c".as_ref(), script.as_ref()])
    }

    fn does(&self, script: &str) {
        let output = self.shell(script);
        assert!(output.status.success(), "{script}: {}", said(&output));
    }

    fn cannot(&self, script: &str, why: &str) {
        let output = self.shell(script);
        assert!(!output.status.success() && said(&output).contains(why), "{script}: {}", said(&output));
    }

    fn try_mount(&self, options: &str) -> Output {
        let words: [&OsStr; 5] = [
            "mount".as_ref(),
            "-o".as_ref(),
            options.as_ref(),
            self.place.image.path().as_ref(),
            self.place.dir.as_ref(),
        ];
        self.run(self.program.as_ref(), &words)
    }

    fn mount(&self, options: &str) {
        let output = self.try_mount(options);
        assert!(output.status.success(), "{}", said(&output));
    }

    fn unmount(&self) {
        let output = self.run(self.program.as_ref(), &["unmount".as_ref(), self.place.dir.as_os_str()]);
        assert!(output.status.success(), "{}", said(&output));
        assert!(mount_line(&self.place.dir).is_none());
        self.place.image.check().unwrap();
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(mode) = self.device_mode {
            let _ = fs::set_permissions(DEVICE, fs::Permissions::from_mode(mode));
        }
    }
}

fn inside(image: &Path, path: &str) -> String {
    ivers_oracle::debugfs(image, &format!("stat {path}")).unwrap()
}

#[test]
fn an_ordinary_user_can_mount_use_and_unmount() {
    let Some(home) = Home::new() else { return };
    let user = home.user;
    // The root of the filesystem belongs to the user.
    let owner = format!("set_inode_field / uid {user}\nset_inode_field / gid {user}\n");
    let requests = home.place.image.dir().join("requests");
    fs::write(&requests, owner).unwrap();
    let image = home.place.image.path().as_os_str();
    let made = ivers_oracle::output("debugfs", ["-w".as_ref(), "-f".as_ref(), requests.as_os_str(), image]);
    assert!(made.unwrap().status.success());

    home.mount("rw");
    let line = mount_line(&home.place.dir).unwrap();
    assert!(line.starts_with(&format!("{} ", home.place.image.path().display())), "{line}");
    assert!(line.contains(" fuse.ivers rw,nosuid,nodev,"), "{line}");
    assert!(line.contains(&format!("user_id={user},")), "{line}");
    home.does("mkdir d && echo one > d/f && mv d/f g && ln g h && ln -s g s && chmod 600 g");
    home.does("test \"$(cat s)\" = one && mkfifo p && setfattr -n user.a -v b g");
    // A query while the file is open and dirty: the supervisor, which runs as this user too, flushes it.
    home.does(
        "exec 3> o; echo dirty >&3; a=$(getfattr --only-values -n system.ivers.change o); \
         b=$(getfattr --only-values -n system.ivers.change o); test \"$a\" = \"$b\"",
    );
    home.cannot("chown 7 g", "not permitted");
    home.cannot("mknod n c 1 3", "not permitted");
    if is_root() {
        assert!(fs::read(home.place.path("g")).is_err(), "without allow_other even root is kept out");
    }
    home.unmount();
    assert!(inside(home.place.image.path(), "/g").contains(&format!("User: {user}")));
}

#[test]
fn fakeroot_makes_the_user_root_in_the_image() {
    let Some(home) = Home::new() else { return };
    home.mount("rw");
    home.cannot("echo x > f", "denied");
    home.unmount();

    home.mount("fakeroot");
    home.does("mkdir d && echo x > d/f && chown 7:8 d/f && chmod 4755 d/f && mkfifo d/p");
    home.does("test \"$(stat -c %u:%g:%a d/f)\" = 7:8:4755");
    home.does("chmod 000 d/f && echo y >> d/f && test \"$(cat d/f | wc -l)\" = 2");
    home.does("chmod 700 d && chown 9 d && ls d && rm d/p");
    // The kernel refuses these on every such mount.
    home.cannot("mknod n c 1 3", "not permitted");
    home.cannot("setfattr -n trusted.a -v b d/f", "not permitted");
    home.unmount();
    let said = inside(home.place.image.path(), "/d/f");
    assert!(said.contains("User:     7") && said.contains("Group:     8"), "{said}");
}

#[test]
fn allow_other_follows_fuse_conf() {
    let Some(home) = Home::new() else { return };
    let allowed = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    let allowed = allowed.lines().any(|line| line.trim() == "user_allow_other");
    if allowed || home.user == 0 {
        home.mount("allow_other");
        assert!(mount_line(&home.place.dir).unwrap().contains("allow_other"));
        fs::read_dir(&home.place.dir).unwrap();
        home.unmount();
    } else {
        let output = home.try_mount("allow_other");
        assert!(said(&output).contains("user_allow_other"), "{}", said(&output));
        home.place.image.check().unwrap();
    }
}

#[test]
fn other_users_of_a_fakeroot_mount_keep_their_ids() {
    if !is_root() {
        return;
    }
    let Some(home) = Home::new() else { return };
    home.place.mount("fakeroot,allow_other");
    let place = &home.place;
    fs::create_dir(place.path("shared")).unwrap();
    fs::set_permissions(place.path("shared"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(place.path("closed")).unwrap();
    fs::set_permissions(place.path("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(place.path("closed/f"), b"secret").unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, place.path("null"), FileType::CharacterDevice, Mode::RUSR, 0x103)
        .unwrap();
    // The kernel has the path in its cache; another user still must not follow it.
    assert_eq!(fs::read(place.path("closed/f")).unwrap(), b"secret");
    home.cannot("cat closed/f", "denied");
    home.cannot("echo x > f", "denied");
    home.does("echo mine > shared/f");
    assert_eq!(fs::metadata(place.path("shared/f")).unwrap().uid(), USER);
    place.unmount();
    place.image.check().unwrap();
}

#[test]
fn a_user_copies_all_but_files_that_only_root_may_create() {
    if !is_root() {
        return;
    }
    let Some(home) = Home::new() else { return };
    let dir = home.place.image.dir();
    let (source, out) = (dir.join("source"), dir.join("out"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("program"), "x").unwrap();
    std::os::unix::fs::chown(source.join("program"), Some(7), Some(8)).unwrap();
    fs::set_permissions(source.join("program"), fs::Permissions::from_mode(0o6755)).unwrap();
    xattr::set(source.join("program"), "trusted.note", b"root's").unwrap();
    xattr::set(source.join("program"), "user.note", b"anybody's").unwrap();
    let special = |name, kind| {
        rustix::fs::mknodat(rustix::fs::CWD, source.join(name), kind, Mode::RUSR, 0x103).unwrap()
    };
    special("device", FileType::CharacterDevice);
    special("fifo", FileType::Fifo);
    let inside = format!("{}:/source", home.place.image.path().display());
    let into = ivers(["cp".as_ref(), "-a".as_ref(), source.as_os_str(), inside.as_ref()]);
    assert!(into.status.success(), "{}", said(&into));

    let output =
        home.run(home.program.as_ref(), &["cp".as_ref(), "-a".as_ref(), inside.as_ref(), out.as_ref()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.lines().count() == 1 && told.contains("out/device: not copied: only root"), "{told}");
    let meta = fs::metadata(out.join("program")).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (home.user, 0o755), "set-id bits of another owner");
    assert_eq!(xattr::get(out.join("program"), "user.note").unwrap().unwrap(), b"anybody's");
    assert_eq!(xattr::get(out.join("program"), "trusted.note").unwrap(), None);
    assert!(fs::symlink_metadata(out.join("fifo")).unwrap().mode() & 0o170000 == 0o010000);
    assert!(!out.join("device").exists());
    home.place.image.check().unwrap();
}

#[test]
fn unreadable_directories_are_neither_new_nor_removed() {
    let Some(home) = Home::new() else { return };
    home.mount("fakeroot");
    home.does("mkdir -p own/sub && echo 1 > own/sub/f && echo 1 > own-not && chmod 777 . own own/sub");
    home.unmount();
    home.mount("rw");
    let state = home.place.image.dir().join("state");
    let changed = |word: &str| {
        let [tree, state] = [home.place.dir.as_os_str(), state.as_os_str()];
        let output = home.run(home.program.as_ref(), &["changed".as_ref(), tree, word.as_ref(), state]);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let quiet = |text: &str| (0, text.to_owned(), String::new());
    // lost+found belongs to root and is closed to others.
    assert_eq!(changed("--save"), quiet(""));
    assert_eq!(changed("--since"), quiet(""));
    home.unmount();
    home.mount("fakeroot");
    home.does("echo 2 > own/sub/f && chmod 700 own/sub");
    home.unmount();
    home.mount("rw");
    if home.user == USER {
        let (code, found, told) = changed("--since");
        assert_eq!((code, found.as_str()), (1, "C own/sub\n"), "{told}");
        assert!(told.lines().count() == 1 && told.contains("own/sub: Permission denied"), "{told}");
    }
    home.unmount();
    home.mount("fakeroot");
    home.does("chmod 777 own/sub");
    home.unmount();
    home.mount("rw");
    assert_eq!(changed("--since"), quiet("C own/sub\nC own/sub/f\n"));
    home.unmount();
}

#[test]
fn an_unwritable_image_mounts_read_only_with_a_message() {
    let Some(home) = Home::new() else { return };
    let image = home.place.image.path();
    fs::set_permissions(image, fs::Permissions::from_mode(0o444)).unwrap();
    if home.user == 0 {
        return;
    }
    let output = home.try_mount("rw");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(4) && told.lines().count() == 1, "{told}");
    assert!(told.contains("Permission denied") && told.contains("omit rw"), "{told}");
    let output = home.try_mount("noatime");
    let told = said(&output);
    assert!(
        output.status.success() && told.contains("mounted read-only: cannot open it for writing"),
        "{told}"
    );
    home.cannot("touch x", "Read-only");
    home.unmount();
    let output = home.try_mount("ro");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    home.unmount();
    fs::set_permissions(image, fs::Permissions::from_mode(0o000)).unwrap();
    let output = home.try_mount("rw");
    assert!(!said(&output).contains("read-only"), "it cannot be read either: {}", said(&output));
}

#[test]
fn a_mount_of_memory_belongs_to_the_user_and_that_of_root_does_not() {
    let Some(home) = Home::new() else { return };
    let dir = home.place.dir.as_os_str();
    let mount = ["mount", "-t", "mem", "none"].map(OsStr::new);
    let words: Vec<_> = mount.into_iter().chain([dir]).collect();
    let output = home.run(home.program.as_ref(), &words);
    assert!(output.status.success(), "{}", said(&output));
    home.does("test -O . && test -z \"$(find . -maxdepth 0 -mmin +60)\" && echo x > f && rm f");
    let again = home.run(home.program.as_ref(), &words);
    assert_eq!(again.status.code(), Some(6), "{}", said(&again));
    assert!(said(&again).contains("mem is mounted there already"), "{}", said(&again));
    let output = home.run(home.program.as_ref(), &["unmount".as_ref(), dir]);
    assert!(output.status.success(), "{}", said(&output));
    if !is_root() {
        return;
    }
    for options in ["rw", "allow_other"] {
        home.place.mount(options);
        let output = home.run(home.program.as_ref(), &["unmount".as_ref(), dir]);
        assert_eq!(output.status.code(), Some(1), "{options}: {}", said(&output));
        assert!(
            said(&output).contains("mounted by user root: only root may"),
            "{options}: {}",
            said(&output)
        );
        home.place.unmount();
    }
}
