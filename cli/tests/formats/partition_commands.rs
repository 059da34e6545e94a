//! Commands that change a partition, serve it, or hold it open: the other partitions keep their bytes.

use crate::common::disk::{Disk, MIB, fails, have_tools};
use crate::common::served::Server;
use crate::common::*;
use ivers_oracle::affs::Amitools;
use ivers_oracle::{Image, LoopMount, fsck_fat, have_programs};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A disk whose partitions 1 and 3 are full of other bytes, and what is outside partition 2.
struct Neighbours {
    disk: Disk,
    before: Vec<u8>,
}

impl Neighbours {
    fn new() -> Self {
        let disk = Disk::with_gpt();
        for number in [1, 3] {
            let range = disk.range(number);
            disk.overwrite(range.start as u64, &vec![0xA0 + number as u8; range.len()]);
        }
        let before = disk.others(&disk.range(2));
        Self { disk, before }
    }

    fn assert_unchanged(&self, after: &str) {
        let range = self.disk.range(2);
        assert!(self.disk.others(&range) == self.before, "{after}: bytes outside the partition changed");
    }
}

#[test]
fn files_of_a_partition_are_changed() {
    if !have_tools() || !have_programs(&["tar"]) {
        return;
    }
    let all = Neighbours::new();
    let disk = &all.disk;
    let at = |path: &str| disk.name(&format!("@2:{path}"));
    works(&["mkfs", "-q", &disk.name("@2")]);
    fs::write(disk.path("text"), "in a partition").unwrap();

    works(&["mkdir", "-p", &at("/a/b"), &at("/c")]);
    works(&["cp", &disk.path("text"), &at("/a/text")]);
    works(&["touch", "-d", "@0", &at("/a/empty")]);
    works(&["ln", &at("/a/text"), &at("/a/hard")]);
    works(&["ln", "-s", &at("/a/text"), &at("/a/soft")]);
    works(&["chmod", "600", &at("/a/text")]);
    works(&["chown", "7:8", &at("/a/text")]);
    works(&["attr", "set", "user.x", "y", &at("/a/text")]);
    assert_eq!(works(&["attr", "get", "user.x", &at("/a/text")]).trim(), "y");
    works(&["mv", &at("/a/b"), &at("/c")]);
    works(&["rm", "-r", &at("/c")]);
    let listed = works(&["ls", "-l", &at("/a")]);
    for word in ["-rw-------", " 7 ", " 8 ", "empty", "hard", "soft -> /a/text"] {
        assert!(listed.contains(word), "no {word:?} in {listed}");
    }
    assert_eq!(works(&["ls", &at("/a/*t*")]).matches("text").count(), 1);
    assert!(works(&["du", &at("/")]).contains("/a"));
    works(&["label", &disk.name("@2"), "second"]);
    assert_eq!(works(&["label", &disk.name("@root")]), "second\n");

    // One shell, in a directory of the partition.
    let mut shell = Shell::start(&disk.name("@2"), "/a", &[]);
    shell.run("cp text copy");
    assert_eq!(shell.run("cat copy"), "in a partition");
    shell.run("rm copy hard");
    assert!(shell.end());
    assert_eq!(works(&["ls", &at("/a")]), "empty\nsoft\ntext\n");

    // An archive of it, by another program, and back.
    let archive = disk.path("all.tar");
    works(&["tar", "-c", "-f", &archive, &at("/a")]);
    let listed = ivers_oracle::run("tar", ["-tf", &archive]).unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("./text"), "{}", said(&listed));
    works(&["mkdir", &at("/again")]);
    works(&["tar", "-x", "-f", &archive, &at("/again")]);
    assert_eq!(works(&["cat", &at("/again/text")]), "in a partition");

    // Named in an option as well.
    works(&["rm", "-o", "partition=root", &disk.name(":/again/text")]);
    fails(&["cat", &at("/again/text")], 3, &["again/text"]);
    all.assert_unchanged("commands");
    disk.check(2);
}

#[test]
fn every_type_is_made_in_a_partition() {
    if !have_tools() || !have_programs(&["fsck.fat", "tar"]) {
        return;
    }
    let all = Neighbours::new();
    let disk = &all.disk;
    let size = disk.range(2).len() as u64;
    for fs_type in ["ext2", "ext3", "ext4", "fat16", "ffs"] {
        // Their bytes in the partition are those of a file with its size.
        let options = ["-q", "-F", "-t", fs_type, "--timestamp", "1000000000"].map(str::to_owned).to_vec();
        let identity: &[&str] = match fs_type {
            "fat16" => &["--volume-id", "1234-5678"],
            "ffs" => &[],
            _ => &["--uuid", "5c8a1f0e-0000-4000-8000-000000000001"],
        };
        let make = |more: &[&str]| {
            let words = ["mkfs"].into_iter().chain(options.iter().map(String::as_str));
            works(&words.chain(identity.iter().copied()).chain(more.iter().copied()).collect::<Vec<_>>());
        };
        make(&[&disk.name("@2")]);
        all.assert_unchanged(fs_type);
        let part = disk.extract(2);
        if fs_type == "fat16" {
            fsck_fat(&part).unwrap();
        } else if fs_type != "ffs" {
            ivers_oracle::e2fsck(&part).unwrap();
        }
        let (info, alone) = (works(&["info", &disk.name("@2")]), works(&["info", part.to_str().unwrap()]));
        assert_eq!(info, alone, "{fs_type}");
        assert_eq!(fs::metadata(&part).unwrap().len(), size);
        fs::write(disk.path("f"), fs_type).unwrap();
        works(&["cp", &disk.path("f"), &disk.name("@2:/f")]);
        assert_eq!(works(&["cat", &disk.name("@2:/f")]), fs_type);
    }
    // An existing filesystem is kept, and so is the table.
    fails(&["mkfs", &disk.name("@2")], 4, &["img@2 is not empty", "AmigaDOS", "--force"]);
    fails(&["mkfs", &disk.name("")], 4, &["partition table", "img@1"]);
    all.assert_unchanged("a refusal");

    // From a directory and from an archive.
    fs::create_dir_all(disk.path("tree/sub")).unwrap();
    fs::write(disk.path("tree/sub/file"), "of the tree").unwrap();
    let archive = disk.path("tree.tar");
    ivers_oracle::run("tar", ["-C", &disk.path("tree"), "-cf", &archive, "."]).unwrap();
    for source in [disk.path("tree"), archive] {
        works(&["mkfs", "-qF", &disk.name("@2"), "--from", &source]);
        assert_eq!(works(&["cat", &disk.name("@2:/sub/file")]), "of the tree", "{source}");
        all.assert_unchanged(&source);
        disk.check(2);
    }
    for size in ["auto", "8M"] {
        let words = ["mkfs", "-F", &disk.name("@2"), "--from", &disk.path("tree"), "--size", size];
        fails(&words, 2, &["fixed size", "remove --size"]);
    }
    // Too large for the partition.
    fs::write(disk.path("tree/large"), vec![1; 30 << 20]).unwrap();
    fails(&["mkfs", "-qF", &disk.name("@2"), "--from", &disk.path("tree")], 1, &["img@2", "size is fixed"]);
    all.assert_unchanged("a full partition");
}

#[test]
fn a_filesystem_grows_to_the_end_of_its_partition_and_no_further() {
    if !have_tools() {
        return;
    }
    let all = Neighbours::new();
    let disk = &all.disk;
    let small = Image::new("ext4", 8 << 20, &[]).unwrap();
    disk.overwrite(disk.range(2).start as u64, &fs::read(small.path()).unwrap());
    let before = fs::read(disk.file()).unwrap();
    for name in ["@2", ""] {
        fails(
            &["resize", &disk.name(name), "25M"],
            4,
            &["img@2", "25165824 bytes", "sfdisk", "--grow-to-fill"],
        );
        assert!(fs::read(disk.file()).unwrap() == before, "{name:?}: written to");
    }
    works(&["resize", &disk.name("@2"), "16M"]);
    disk.check(2);
    // The only partition with a filesystem needs no name.
    works(&["resize", "--grow-to-fill", &disk.name("")]);
    disk.check(2);
    let json: serde_json::Value =
        serde_json::from_str(&works(&["resize", "--json", "--grow-to-fill", &disk.name("@2")])).unwrap();
    let bytes = json["blocks"].as_u64().unwrap() * json["block_size"].as_u64().unwrap();
    assert_eq!(bytes, disk.range(2).len() as u64);
    all.assert_unchanged("resize");
    fails(&["resize", &disk.name("@3"), "--grow-to-fill"], 4, &["img@3 contains"]);
}

#[test]
fn partitions_are_served() {
    if !have_tools() || !have_programs(&["nfs-cat"]) {
        return;
    }
    let disk = Disk::with_gpt();
    for name in ["@2", "@3"] {
        works(&["mkfs", "-q", &disk.name(name)]);
        fs::write(disk.path("who"), name).unwrap();
        works(&["cp", &disk.path("who"), &disk.name(&format!("{name}:/who"))]);
    }
    let read = |server: &Server, export: &str| {
        let address = server.address();
        let url = format!("nfs://{}/{export}/who?version=4&nfsport={}", address.ip(), address.port());
        ivers_oracle::output("nfs-cat", [url]).unwrap().stdout
    };
    let state = disk.dir.path().join("state");
    let export = |name: &str, image: &str| ["--export".to_owned(), format!("{name}={image}")];
    let words =
        [export("two", &disk.name("@root")), export("three", &format!("{},partition=3", disk.name("")))];
    let server = Server::start(&state, words.concat());
    assert_eq!(read(&server, "two"), b"@2", "{}", server.log());
    assert_eq!(read(&server, "three"), b"@3", "{}", server.log());
    // The server holds both, and the rest is free.
    fails(&["ls", &disk.name("@2")], 6, &["in use", "ivers serve"]);
    works(&["mkfs", "-q", &disk.name("@1")]);
    assert!(server.stop().success());

    let config = disk.path("serve.toml");
    let text = format!(
        "[[export]]\nname = \"/two\"\nimage = {:?}\n[[export]]\nname = \"/three\"\nimage = {:?}\n\
         options = \"partition=my data\"\n",
        disk.name("@2"),
        disk.name("")
    );
    fs::write(&config, text).unwrap();
    let server = Server::start(&state, ["--config", &config]);
    assert_eq!(read(&server, "two"), b"@2", "{}", server.log());
    assert_eq!(read(&server, "three"), b"@3", "{}", server.log());
    assert!(server.stop().success());
    disk.check(2);
    disk.check(3);
}

#[test]
fn a_partition_is_measured() {
    if !have_tools() || !have_programs(&["sha256sum"]) {
        return;
    }
    let disk = Disk::with_gpt();
    works(&["mkfs", "-q", &disk.name("@3")]);
    fs::write(disk.path("file"), "measured").unwrap();
    works(&["cp", &disk.path("file"), &disk.name("@3:/file")]);
    let theirs = ivers_oracle::run("sha256sum", [disk.path("file")]).unwrap();
    let digest = String::from_utf8_lossy(&theirs.stdout)[..64].to_owned();
    for name in ["@3:/", "@my data:/file", ":/"] {
        let said = works(&["measure", "--json", "--list", &disk.path("list"), &disk.name(name)]);
        fs::remove_file(disk.path("list")).unwrap();
        assert!(said.contains(&digest), "{name}: no {digest} in {said}");
    }
}

/// A shell that runs, and holds its image open.
struct Shell {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    dir: &'static str,
}

impl Shell {
    /// Starts in directory `dir` of an image.
    fn start(image: &str, dir: &'static str, options: &[&str]) -> Self {
        let mut child = Command::new(IVERS)
            .arg("shell")
            .args(options)
            .arg(format!("{image}:{dir}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut shell = Self { child, output, dir };
        // It has opened the image when it answers.
        shell.run("ls");
        shell
    }

    /// Runs a command; returns what it prints.
    fn run(&mut self, command: &str) -> String {
        writeln!(self.child.stdin.as_ref().unwrap(), "{command}\npwd").unwrap();
        // The answer of `pwd` is the last line, after contents that do not end in a newline.
        let last = format!("{}\n", self.dir);
        let mut said = String::new();
        while !said.ends_with(&last) {
            assert!(self.output.read_line(&mut said).unwrap() > 0, "{command}: the shell has ended: {said}");
        }
        said.truncate(said.len() - last.len());
        said
    }

    fn end(mut self) -> bool {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().success()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn two_processes_write_two_partitions_and_the_whole_disk_is_refused() {
    if !have_tools() {
        return;
    }
    let disk = Disk::with_gpt();
    for name in ["@2", "@3"] {
        works(&["mkfs", "-q", &disk.name(name)]);
    }
    let start = format!("offset={}", disk.range(2).start);
    let mut two = Shell::start(&disk.name("@2"), "/", &[]);
    let mut three = Shell::start(&disk.name("@my data"), "/", &[]);
    for round in 0..3 {
        two.run(&format!("mkdir two-{round}"));
        three.run(&format!("mkdir three-{round}"));
        two.run("sync");
        three.run("sync");
    }
    // The same partition under another name, and the whole disk.
    fails(&["rm", &disk.name("@root:/two-0")], 6, &["img@root", "in use"]);
    fails(&["ls", "-o", "partition=3", &disk.name("")], 6, &["in use"]);
    fails(&["ls", "-o", &start, &disk.name("")], 6, &["in use"]);
    fails(&["mkfs", "-F", &disk.name("")], 6, &["in use"]);
    fails(&["resize", "--grow-to-fill", &disk.name("@2")], 6, &["in use"]);
    works(&["mkfs", "-q", &disk.name("@1")]);
    assert!(two.end());
    assert!(three.end());

    // While the whole disk is written, no partition of it can be opened.
    let mut whole = Shell::start(&disk.name(""), "/", &["-o", &start]);
    whole.run("mkdir whole");
    for name in ["@1", "@2", "@3"] {
        fails(&["ls", &disk.name(name)], 6, &["in use"]);
    }
    assert!(whole.end());
    assert_eq!(works(&["ls", &disk.name("@2")]), "lost+found\ntwo-0\ntwo-1\ntwo-2\nwhole\n");
    assert_eq!(works(&["ls", &disk.name("@3")]), "lost+found\nthree-0\nthree-1\nthree-2\n");
    for number in [1, 2, 3] {
        disk.check(number);
    }
}

#[test]
fn names_with_the_separators_are_names_of_files() {
    if !have_tools() {
        return;
    }
    let disk = Disk::with_gpt();
    works(&["mkfs", "-q", &disk.name("@2")]);
    fs::write(disk.path("f"), "x").unwrap();
    // Each is the disk under another name; the partition and the path follow the last separator.
    fs::create_dir(disk.path("dir:")).unwrap();
    for name in ["me@work.img", "a:b.img", "a@1:2.img", "dir:/c@d.img", "@.img", ":.img"] {
        let image = disk.path(name);
        fs::copy(disk.file(), &image).unwrap();
        works(&["cp", &disk.path("f"), &format!("{image}@2:/in")]);
        assert_eq!(works(&["ls", &format!("{image}@2")]), "in\nlost+found\n", "{name}");
        assert_eq!(works(&["cat", &format!("{image}@root:/in")]), "x", "{name}");
        assert_eq!(works(&["cat", &format!("{image}:/in")]), "x", "{name}");
        assert_eq!(works(&["cat", "-o", "partition=2", &format!("{image}:/in")]), "x", "{name}");
        works(&["mkdir", &format!("{image}@2:/a@b:c")]);
        assert_eq!(works(&["ls", &image]), "a@b:c\nin\nlost+found\n", "{name}");
        works(&["label", &format!("{image}@2"), "named"]);
    }
    // A filesystem without a table, whose name looks like a partition of the disk.
    let twin = disk.name("@2");
    fs::File::create(&twin).unwrap().set_len(8 * MIB).unwrap();
    works(&["mkfs", "-q", &twin]);
    works(&["mkdir", &format!("{twin}:/twin")]);
    assert_eq!(works(&["ls", &twin]), "lost+found\ntwin\n");
    // The partition has other names.
    assert_eq!(works(&["ls", "-o", "partition=2", &disk.name("")]), "lost+found\n");
    assert_eq!(works(&["ls", &disk.name("@root")]), "lost+found\n");
}

#[test]
fn partitions_of_an_amiga_disk_are_written_and_not_formatted() {
    if !have_programs(&["python3", "pip3"]) {
        return;
    }
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../oracles/amitools");
    let tools = Amitools::new(&work).unwrap();
    let disk = Disk { dir: tempfile::tempdir().unwrap() };
    let words = "create size=20Mi + init + add start=2 end=300 name=DH0 dostype=ffs+intl \
                 + add start=301 end=600 name=Work dostype=ofs";
    tools.rdbtool(&disk.file(), &words.split_whitespace().collect::<Vec<_>>()).unwrap();
    for (part, kind) in [("DH0", "ffs+intl"), ("Work", "ofs")] {
        let with = format!("part={part}");
        tools.xdftool(&disk.file(), &["open", &with, "+", "format", part, kind]).unwrap();
    }
    let before = fs::read(disk.file()).unwrap();
    fails(&["mkfs", "-F", "-t", "ffs", &disk.name("@DH0")], 4, &["Rigid Disk Block"]);
    fails(&["resize", "--grow-to-fill", &disk.name("@1")], 4, &["AmigaDOS", "only ext2"]);
    fails(&["ls", &disk.name("")], 4, &["2 partitions", "img@1"]);
    assert!(fs::read(disk.file()).unwrap() == before, "written to");
    let mut one = Shell::start(&disk.name("@dh0"), "/", &[]);
    let mut two = Shell::start(&disk.name("@2"), "/", &[]);
    one.run("mkdir first");
    two.run("mkdir second");
    fails(&["ls", &disk.name("@1")], 6, &["in use"]);
    assert!(one.end());
    assert!(two.end());
    works(&["label", &disk.name("@Work"), "Games"]);
    let listed = tools.xdftool(&disk.file(), &["open", "part=DH0", "+", "list"]).unwrap();
    assert!(listed.contains("first"), "{listed}");
    let listed = tools.xdftool(&disk.file(), &["open", "part=Work", "+", "list"]).unwrap();
    assert!(listed.contains("second") && listed.contains("Games"), "{listed}");
}

#[test]
fn the_kernel_mounts_a_partition_that_was_filled() {
    if !have_tools() || !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    let disk = Disk::with_gpt();
    works(&["mkfs", "-q", &disk.name("@2")]);
    fs::write(disk.path("f"), "x").unwrap();
    works(&["cp", &disk.path("f"), &disk.name("@2:/in")]);
    let range = disk.range(2);
    let options = format!("offset={},sizelimit={}", range.start, range.len());
    let mount = LoopMount::new(&disk.file(), &options).unwrap();
    assert_eq!(fs::read(mount.path().join("in")).unwrap(), b"x");
    fs::write(mount.path().join("back"), "y").unwrap();
    mount.unmount().unwrap();
    assert_eq!(works(&["cat", &disk.name("@2:/back")]), "y");
    disk.check(2);
}
