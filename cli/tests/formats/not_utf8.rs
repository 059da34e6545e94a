//! Names that are not UTF-8: of images, of files in them and of files of the host. All commands take them
//! byte for byte, and show them escaped.

use crate::common::*;
use ivers_oracle::have_programs;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory with the image `i\xff`, in which words are run.
struct Desk {
    dir: tempfile::TempDir,
}

/// Turns `%` into the byte 0xff and `~` into 0xfe.
fn bytes(text: &str) -> OsString {
    let byte = |byte| match byte {
        b'%' => 0xff,
        b'~' => 0xfe,
        byte => byte,
    };
    OsString::from_vec(text.bytes().map(byte).collect())
}

impl Desk {
    fn new() -> Self {
        let desk = Self { dir: tempfile::tempdir().unwrap() };
        desk.ok("mkfs -q --size 16M i%");
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(bytes(name))
    }

    fn command(&self, program: &str, words: &str) -> Command {
        let mut command = Command::new(program);
        let words = words.split_whitespace().map(bytes);
        command.args(words).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &str) -> Output {
        self.command(IVERS, words).output().unwrap()
    }

    fn ok(&self, words: &str) -> String {
        let output = self.run(words);
        assert!(output.status.success() && output.stderr.is_empty(), "{words}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn fails(&self, words: &str, code: i32, message: &str) {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(code), "{words}: {}", said(&output));
        assert_eq!(String::from_utf8_lossy(&output.stderr), format!("ivers: {message}\n"), "{words}");
    }

    fn names(&self, dir: &str) -> Vec<OsString> {
        let entries = fs::read_dir(self.path(dir)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }
}

fn os(names: &[&str]) -> Vec<OsString> {
    names.iter().copied().map(bytes).collect()
}

#[test]
fn files_are_looked_at_and_found_by_patterns() {
    let desk = Desk::new();
    desk.ok("mkdir i%:/d% i%:/d~");
    desk.ok("touch -d @0 i%:/d%/a% i%:/d%/b~ i%:/d%/\u{fffd}");
    assert_eq!(desk.ok("ls i%:/d%"), "a\\xff\nb\\xfe\n\u{fffd}\n");
    assert_eq!(desk.ok("ls -d i%:/d?"), "i\\xff:/d\\xfe\ni\\xff:/d\\xff\n");
    assert_eq!(desk.ok("ls -d i%:/*%"), "d\\xff\n");
    assert_eq!(desk.ok("ls -d i%:/d[~-%]/[!a]~"), "b\\xfe\n");
    assert_eq!(desk.ok("ls -d i%:/d%/?"), "\u{fffd}\n", "one character, not one byte");
    assert!(desk.ok("tree i%:/d%").contains(" a\\xff\n"));
    assert!(desk.ok("du -s i%:/d%").ends_with("\ti\\xff:/d\\xff\n"));
    assert!(desk.ok("stat i%:/d%/a%").starts_with("i\\xff:/d\\xff/a\\xff\n"));
    let listed: serde_json::Value = serde_json::from_str(&desk.ok("ls --json i%:/d%/a%")).unwrap();
    assert_eq!(listed["path_hex"], "2f64ff2f61ff");
    desk.fails("ls i%:/d%/\u{fffd}%", 3, "i\\xff:/d\\xff/\\xef\\xbf\\xbd\\xff: no such file or directory");
    desk.fails("ls i%:/c*%", 3, "i\\xff:/c*\\xff: no such file or directory");
    desk.fails("ls i%:/[%", 2, "i\\xff:/[\\xff: a [ without its ]");
    desk.fails("ls j%:/", 3, "cannot open j\\xff: No such file or directory");
}

#[test]
fn files_are_changed() {
    let desk = Desk::new();
    desk.ok("mkdir -p i%:/d%/e~");
    assert_eq!(desk.ok("mkdir -v i%:/d%/f~"), "created i\\xff:/d\\xff/f\\xfe\n");
    desk.ok("touch -d @0 i%:/a%");
    assert_eq!(desk.ok("mv -v i%:/a% i%:/d%/b%"), "moved i\\xff:/a\\xff to i\\xff:/d\\xff/b\\xff\n");
    desk.ok("ln i%:/d%/b% i%:/hard%");
    assert_eq!(desk.ok("ln -sv to% i%:/soft%"), "linked i\\xff:/soft\\xff -> to\\xff\n");
    desk.ok("chmod 640 i%:/hard%");
    desk.ok("chown 7:8 i%:/h*%");
    desk.ok("attr set user.a% v% i%:/hard%");
    assert_eq!(desk.ok("attr list -l i%:/hard%"), "user.a\\xff 0x76ff\n");
    assert_eq!(desk.ok("attr get user.a% i%:/d%/b%"), "0x76ff\n");
    desk.ok("attr set --hex user.b 0x00ff i%:/hard%");
    assert_eq!(desk.ok("attr get user.b i%:/hard%"), "0x00ff\n");
    desk.ok("attr remove user.a% i%:/hard%");
    assert_eq!(desk.ok("attr list i%:/hard%"), "user.b\n");
    let listed = desk.ok("ls -l i%:/");
    assert!(listed.contains("-rw-r-----   2     7     8") && listed.contains("soft\\xff -> to\\xff\n"));
    assert_eq!(desk.ok("rm -rv i%:/d%/[e]?"), "removed i\\xff:/d\\xff/e\\xfe\n");
    assert_eq!(desk.ok("ls i%:/d%"), "b\\xff\nf\\xfe\n");
    desk.fails("rm i%:/e~", 3, "i\\xff:/e\\xfe: no such file or directory");
    let output = desk.run("rm --json i%:/e~");
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(
        (&error["path_hex"], &error["path"]),
        (&"69ff3a2f65fe".into(), &"i\u{fffd}:/e\u{fffd}".into())
    );
}

#[test]
fn files_are_copied_both_ways() {
    let desk = Desk::new();
    fs::create_dir(desk.path("tree~")).unwrap();
    fs::write(desk.path("tree~/f%"), "contents").unwrap();
    assert_eq!(desk.ok("cp -v tree~/f% i%:/g%"), "tree\\xfe/f\\xff -> i\\xff:/g\\xff\n");
    desk.ok("cp -r tree~ i%:/");
    desk.ok("cp i%:/tree~/f% i%:/g% tree~");
    desk.ok("cp -r i%:/tree? out%");
    assert_eq!((desk.names("tree~"), desk.names("out%")), (os(&["f%", "g%"]), os(&["f%"])));
    assert_eq!(desk.ok("cat i%:/g%"), "contents");
    let printed = desk.ok("cp --json -v tree~/f% i%:/g%");
    let action: serde_json::Value = serde_json::from_str(printed.lines().next().unwrap()).unwrap();
    assert_eq!(action["from_hex"], "74726565fe2f66ff");
    assert_eq!(action["to_hex"], "69ff3a2f67ff");
    desk.fails("cp i%:/tree~ copy%", 2, "i\\xff:/tree\\xfe: is a directory: use --recursive");
    desk.fails("cp none% i%:/", 3, "none\\xff: No such file or directory");
}

#[test]
fn archives_have_such_names_and_are_filtered_by_them() {
    let desk = Desk::new();
    desk.ok("mkdir i%:/d%");
    desk.ok("touch i%:/d%/a% i%:/d%/b~ i%:/d%/c");
    desk.ok("tar -c i%:/d% -f a%.tar --exclude b~");
    assert_eq!(desk.ok("tar -t -f a%.tar"), "./\n./a\\xff\n./c\n");
    assert_eq!(desk.ok("tar -t -f a%.tar --exclude ?%"), "./\n./c\n");
    desk.ok("mkdir i%:/e~");
    desk.ok("tar -x i%:/e~ -f a%.tar");
    assert_eq!(desk.ok("ls i%:/e~"), "a\\xff\nc\n");
    desk.ok("mkfs -q from%.img --from a%.tar --size auto --exclude a%");
    assert_eq!(desk.ok("ls from%.img:/"), "c\nlost+found\n");
    desk.fails("tar -t -f none%.tar", 3, "cannot open none\\xff.tar: No such file or directory");
}

#[test]
fn lines_of_the_shell_have_such_names() {
    let desk = Desk::new();
    fs::write(desk.path("host%"), "from the host").unwrap();
    let lines = "mkdir d%\ncd d%\npwd\nput host% h%\nget h% back~\nln h% hard%\nmv hard% moved%\nls ?%\n\
                 ls moved%\nstat h%\ncat h%\ncp h% other%\nchmod 600 o*%\nattr set user.x% y% h%\n\
                 attr get user.x% h%\nrm other%\nls\n";
    let mut child = self::piped(desk.command(IVERS, "shell i%"));
    child.stdin.take().unwrap().write_all(bytes(lines).as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.starts_with("/d\\xff\nh\\xff\nmoved\\xff\ni\\xff:/d\\xff/h\\xff\n"), "{printed}");
    assert!(printed.ends_with("from the host0x79ff\nh\\xff\nmoved\\xff\n"), "{printed}");
    assert_eq!(fs::read(desk.path("back~")).unwrap(), b"from the host");
    let mut command = desk.command(IVERS, "shell i% -c");
    let output = command.arg(bytes("ls /d%/moved%")).output().unwrap();
    assert_eq!(output.stdout, b"moved\\xff\n", "{}", said(&output));
    let output = desk.command(IVERS, "shell i% -c").arg(bytes("rm /none%")).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("i\\xff:/none\\xff: no such") && text.contains("line 1: rm /none\\xff:"), "{text}");
}

fn piped(mut command: Command) -> std::process::Child {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    pipes.spawn().unwrap()
}

#[test]
fn states_filesystems_and_labels_are_named_so() {
    let desk = Desk::new();
    desk.ok("touch i%:/a% i%:/b%");
    desk.ok("changed i% --save state~");
    desk.ok("touch -d @0 i%:/a%");
    desk.ok("mv i%:/b% i%:/c%");
    let changed = desk.ok("changed i% --since state~");
    assert!(changed.contains("C a\\xff\n") && changed.contains("M b\\xff -> c\\xff\n"), "{changed}");
    assert!(desk.run("changed i% --since state~ -0").stdout.ends_with(b"./a\xff\0./c\xff\0"));
    desk.ok("info i%");
    desk.ok("label i% name");
    for (words, key) in [("label --json i%", "path_hex"), ("check --json i%", "image_hex")] {
        let printed: serde_json::Value = serde_json::from_str(&desk.ok(words)).unwrap();
        assert_eq!(printed[key], "69ff", "{words}");
    }
    assert!(desk.ok("resize i% 20M").starts_with("i\\xff: "));
    assert_eq!(desk.ok("check i%"), "i\\xff: ext4: clean\n");
}

#[test]
fn a_partition_has_a_name_of_text() {
    if !have_programs(&["sfdisk"]) {
        return;
    }
    let desk = Desk::new();
    fs::File::create(desk.path("disk%")).unwrap().set_len(64 << 20).unwrap();
    let mut child = piped(desk.command("sfdisk", "-q disk%"));
    // The name is the character that stands for invalid bytes elsewhere.
    let table = "label: gpt\nsize=24M,type=L,name=root\ntype=L,name=\u{fffd}\n";
    child.stdin.take().unwrap().write_all(table.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    for name in ["disk%@root", "disk%@\u{fffd}"] {
        desk.ok(&format!("mkfs -q {name}"));
        desk.ok(&format!("touch {name}:/in%"));
        assert_eq!(desk.ok(&format!("ls {name}:/in?")), "in\\xff\n");
    }
    desk.fails("ls disk%@%:/", 3, "cannot open disk\\xff@\\xff: No such file or directory");
}

#[test]
fn images_are_mounted_on_such_directories() {
    if !can_mount() {
        return;
    }
    let desk = Desk::new();
    desk.ok("touch i%:/a%");
    fs::create_dir(desk.path("mnt~")).unwrap();
    // As mount(8) calls the program.
    desk.ok("i% ./mnt~ -o rw");
    assert_eq!(desk.names("mnt~"), os(&["a%", "lost+found"]));
    let dir = desk.path("mnt~").canonicalize().unwrap();
    let shown = |path: &Path| path.as_os_str().as_bytes().escape_ascii().to_string();
    let output = desk.run("rm i%:/a%");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(6) && text.contains(&format!("mounted on {}", shown(&dir))),
        "{text}"
    );
    desk.ok("changed mnt~ --save state~");
    fs::write(desk.path("mnt~/b%"), "x").unwrap();
    assert!(desk.ok("changed mnt~ --since state~").contains("N b\\xff\n"));
    assert!(desk.ok("stat mnt~/b%").starts_with("mnt\\xfe/b\\xff\n"));
    let printed: serde_json::Value = serde_json::from_str(&desk.ok("unmount --json mnt~")).unwrap();
    let hex: String = dir.as_os_str().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(printed["dir_hex"], hex.as_str());
    assert_eq!(desk.ok("ls i%:/?%"), "i\\xff:/a\\xff\ni\\xff:/b\\xff\n");
}

#[test]
fn each_format_takes_or_refuses_such_names() {
    let desk = Desk::new();
    desk.ok("mkfs -q --type xfs xfs% --size 300M");
    desk.ok("touch xfs%:/a%");
    assert_eq!(desk.ok("ls xfs%:/?%"), "a\\xff\n");
    desk.ok("mkfs -q --type fat32 fat% --size 64M");
    desk.fails("touch fat%:/a%", 1, "fat\\xff:/a\\xff: invalid argument");
    assert_eq!(desk.ok("ls fat%:/"), "");
    if have_programs(&["debugfs"]) {
        desk.ok("touch i%:/a%");
        let listed = desk.command("debugfs", "-R").args(["ls -p /"]).arg(bytes("i%")).output().unwrap();
        assert!(listed.stdout.windows(4).any(|name| name == b"/a\xff/"), "{}", said(&listed));
    }
}
