//! Partitions of disk images: tables that others' tools make, in every command.

use crate::common::disk::{Disk, MIB, fails, have_tools};
use crate::common::*;
use ivers_oracle::{Image, have_programs};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file to copy.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

/// Compares `info` with what sfdisk reads.
fn same_as_sfdisk(disk: &Disk) {
    let output = Command::new("sfdisk").arg("--json").arg(disk.file()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let theirs: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let theirs = &theirs["partitiontable"];
    let ours = disk.json();
    let table = if theirs["label"] == "dos" { "mbr" } else { "gpt" };
    assert_eq!(ours["table"], table);
    assert!(theirs["id"].as_str().unwrap().to_lowercase().ends_with(ours["id"].as_str().unwrap()));
    let (ours, theirs) = (ours["partitions"].as_array().unwrap(), theirs["partitions"].as_array().unwrap());
    assert_eq!(ours.len(), theirs.len());
    for (our, their) in ours.iter().zip(theirs) {
        let text = |name: &str| their[name].as_str().unwrap_or_default().to_lowercase();
        assert!(text("node").ends_with(&format!("img{}", our["number"])), "{our} {their}");
        assert_eq!(our["start"].as_u64(), their["start"].as_u64().map(|sector| sector * 512));
        assert_eq!(our["size"].as_u64(), their["size"].as_u64().map(|sectors| sectors * 512));
        let same_type = text("type") == our["type_id"].as_str().unwrap().trim_start_matches('0');
        assert!(same_type || text("type") == our["type_id"].as_str().unwrap(), "{our} {their}");
        assert_eq!(our["name"].as_str().unwrap().to_lowercase(), text("name"));
        if table == "gpt" {
            assert_eq!(our["uuid"].as_str().unwrap(), text("uuid"));
        }
        assert!(our["problem"].is_null(), "{our}");
    }
}

#[test]
fn tables_are_read_as_sfdisk_reads_them() {
    if !have_tools() {
        return;
    }
    same_as_sfdisk(&Disk::with_gpt());
    let mbr = Disk::with_mbr();
    same_as_sfdisk(&mbr);
    let text = works(&["info", &mbr.name("")]);
    for word in ["table: mbr", "1234abcd", "FAT32 (LBA)", "extended", "logical partitions", "@NUMBER"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_partition_is_named_in_every_command() {
    if !have_tools() {
        return;
    }
    let disk = Disk::with_gpt();
    let uuid = disk.json()["partitions"][1]["uuid"].as_str().unwrap().to_uppercase();
    // The neighbours have contents.
    for number in [1, 3] {
        let range = disk.range(number);
        disk.overwrite(range.start as u64, &vec![number as u8; range.len()]);
    }
    let range = disk.range(2);
    let before = disk.others(&range);
    fs::write(disk.path("file"), "in a partition").unwrap();
    let file = disk.path("file");

    assert!(works(&["mkfs", &disk.name("@2"), "-L", "root"]).contains("ext4"));
    fails(&["mkfs", &disk.name("@2"), "--size", "1M"], 2, &["fixed size"]);
    works(&["cp", &file, &disk.name("@2:/f")]);
    for named in ["@2", "@root", "", &format!("@{uuid}")] {
        assert_eq!(works(&["cat", &disk.name(&format!("{named}:/f"))]), "in a partition", "{named}");
        assert_eq!(works(&["ls", &disk.name(named)]), "f\nlost+found\n", "{named}");
    }
    assert_eq!(works(&["cat", "-o", "partition=2", &disk.name(":/f")]), "in a partition");
    assert!(works(&["info", &disk.name("@root")]).contains("label: root"));
    assert!(works(&["info", "-o", "partition=root", &disk.name("")]).contains("fs: ext4"));
    assert!(works(&["info", &disk.name("")]).contains("ext4"));
    assert!(works(&["tree", &disk.name("@2")]).contains("── f"));
    assert!(works(&["stat", &disk.name("@2:/f")]).contains("size    14"));
    works(&["changed", &disk.name("@2"), "--save", &disk.path("state")]);
    works(&["cp", &file, &disk.name("@2:/g")]);
    assert_eq!(works(&["changed", &disk.name("@2"), "--since", &disk.path("state")]), "C .\nN g\n");
    works(&["cp", &disk.name("@2:/g"), &disk.path("back")]);
    assert_eq!(fs::read(disk.path("back")).unwrap(), b"in a partition");
    assert!(disk.others(&range) == before, "bytes of the neighbours changed");
    disk.check(2);

    // A second filesystem: which one is meant must be said.
    works(&["mkfs", "--force", &disk.name("@my data")]);
    let list =
        ["2 partitions", "img@2", "2: 24", "at byte", "\"root\", ext4", "3: 16", "\"my data\"", "EFI system"];
    fails(&["ls", &disk.name("")], 4, &list);
    works(&["cp", &disk.name("@2:/f"), &disk.name("@my data:/copy")]);
    assert_eq!(works(&["cat", &disk.name("@3:/copy")]), "in a partition");
    disk.check(2);
    disk.check(3);

    fails(&["ls", &disk.name("@4")], 3, &["no partition \"4\":\n  1: 8", "\n  3: 16"]);
    fails(&["ls", &disk.name("@boot")], 3, &["no partition \"boot\""]);
    fails(&["ls", &disk.name("@1")], 4, &["img@1 contains no ext2"]);
    fails(&["ls", "-o", "partition=3", &disk.name("@2")], 2, &["partition=3 names another"]);
    fails(&["ls", "-o", "partition=3,offset=1M", &disk.name("")], 2, &["remove one"]);
    fails(&["ls", &disk.name("@2"), "-o", "partition=3"], 2, &["names another"]);
    // A file of this name is that file.
    fs::copy(disk.dir.path().join("part"), disk.name("@2")).unwrap();
    assert_eq!(works(&["ls", &disk.name("@2:/")]), "copy\nlost+found\n");
}

#[test]
fn logical_partitions_and_large_sectors_are_used() {
    if !have_tools() {
        return;
    }
    let mbr = Disk::with_mbr();
    for number in [5, 6] {
        let range = mbr.range(number);
        let before = mbr.others(&range);
        works(&["mkfs", &mbr.name(&format!("@{number}"))]);
        works(&["cp", FILE, &mbr.name(&format!("@{number}:/f"))]);
        assert!(mbr.others(&range) == before, "{number}");
        mbr.check(number);
    }
    fails(&["ls", &mbr.name("@2")], 2, &["is extended", "5: 8", "6: 8"]);
    fails(&["ls", &mbr.name("")], 4, &["2 partitions", "img@5"]);
    assert_eq!(works(&["ls", &mbr.name("@1234abcd-06")]), "f\nlost+found\n");

    // GPT: the position of the header tells the size of a sector.
    let gpt = Disk::with_large_sectors("g\nn\n1\n\n+16M\nn\n2\n\n+24M\nw\n");
    let range = gpt.range(2);
    assert_eq!(range.len(), 24 << 20);
    works(&["mkfs", &gpt.name("@2")]);
    works(&["cp", FILE, &gpt.name(":/f")]);
    assert_eq!(gpt.json()["sector_bytes"], 4096);
    gpt.check(2);

    // MBR: a filesystem where the numbers say.
    let mbr = Disk::with_large_sectors("o\nn\np\n1\n\n+16M\nn\ne\n2\n\n\nn\n\n+8M\nn\n\n+8M\nw\n");
    assert_eq!(mbr.json()["sector_bytes"], 512, "nothing tells the size of a sector");
    let image = Image::new("ext4", 8 << 20, &[]).unwrap();
    // fdisk makes the first logical partition at sector 4608.
    mbr.overwrite(4608 * 4096, &fs::read(image.path()).unwrap());
    let json = mbr.json();
    let numbers: Vec<_> =
        json["partitions"].as_array().unwrap().iter().map(|one| one["number"].as_u64().unwrap()).collect();
    assert_eq!((json["sector_bytes"].as_u64(), &numbers[..]), (Some(4096), &[1, 2, 5, 6][..]));
    works(&["cp", FILE, &mbr.name(":/f")]);
    mbr.check(5);
}

#[test]
fn a_damaged_primary_table_is_replaced_by_its_backup() {
    if !have_tools() {
        return;
    }
    let disk = Disk::with_gpt();
    works(&["mkfs", &disk.name("@root")]);
    let whole = disk.json();
    disk.overwrite(512, &[0; 512]);
    let damaged = disk.json();
    assert_eq!(damaged["partitions"], whole["partitions"]);
    assert!(damaged["damage"][0].as_str().unwrap().contains("backup was used"), "{damaged}");
    works(&["cp", FILE, &disk.name("@root:/f")]);
    // sgdisk, which repairs, finds the same table.
    disk.run("sgdisk", &["-e"], "");
    disk.overwrite(64 * MIB - 512, &[0; 512]);
    let text = works(&["info", &disk.name("")]);
    assert!(text.contains("damaged: the backup of the table"), "{text}");
    disk.overwrite(512, &[0; 512]);
    fails(&["ls", &disk.name("@root")], 5, &["GPT partition table is damaged"]);
    fails(&["info", &disk.name("")], 5, &["GPT partition table is damaged"]);
}

/// Writes an entry of a boot record at byte `at`.
fn entry(disk: &Disk, at: u64, nth: u64, kind: u8, first: u32, sectors: u32) {
    let mut bytes = [0; 16];
    bytes[4] = kind;
    bytes[8..12].copy_from_slice(&first.to_le_bytes());
    bytes[12..].copy_from_slice(&sectors.to_le_bytes());
    disk.overwrite(at + 446 + nth * 16, &bytes);
    disk.overwrite(at + 510, &[0x55, 0xAA]);
}

#[test]
fn hostile_tables_are_refused() {
    let disk = Disk::new(16);
    entry(&disk, 0, 0, 0x83, 2048, 8192);
    entry(&disk, 0, 1, 0x83, 4096, 8192);
    entry(&disk, 0, 2, 0x83, 30000, u32::MAX);
    entry(&disk, 0, 3, 0x05, 20480, 8192);
    // A chain that returns to its start.
    entry(&disk, 20480 * 512, 0, 0x83, 8, 8000);
    entry(&disk, 20480 * 512, 1, 0x05, 0, 1);
    let before = fs::read(disk.file()).unwrap();
    let json = disk.json();
    let problems: Vec<_> = json["partitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["problem"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(problems[..2], ["it overlaps partition 2", "it overlaps partition 1"]);
    assert!(problems[2].contains("the image at byte 16777216"), "{problems:?}");
    assert!(json["damage"][0].as_str().unwrap().contains("returns to an earlier record"), "{json}");
    for number in [1, 2, 3] {
        let name = disk.name(&format!("@{number}"));
        for words in [vec!["ls", &name], vec!["mkfs", "-F", &name], vec!["cp", FILE, &*format!("{name}:/f")]]
        {
            fails(&words, 5, &[&format!("partition {number} cannot be used")]);
        }
    }
    assert!(fs::read(disk.file()).unwrap() == before, "written to");
    // What is not damaged is usable.
    works(&["mkfs", &disk.name("@5")]);
    works(&["cp", FILE, &disk.name("@5:/f")]);

    let disk = Disk::new(1);
    fails(&["ls", &disk.name("@1")], 4, &["has no partition table", "sfdisk"]);
    let image = Image::new("ext4", 8 << 20, &[]).unwrap();
    let name = format!("{}@1", image.path().display());
    fails(&["ls", &name], 4, &["has no partition table", "ext4"]);
    fails(&["ls", &disk.path("missing@1")], 3, &["missing@1"]);
}

/// A mount of a partition. Unmounted when the test ends.
struct Mounted(PathBuf);

impl Mounted {
    fn of(disk: &Disk, suffix: &str, options: &str) -> Self {
        let dir = disk.dir.path().join(format!("mnt{}", suffix.replace('@', "-")));
        fs::create_dir_all(&dir).unwrap();
        let (log, image) = (disk.path("log"), disk.name(suffix));
        works(&["mount", "--log", &log, "-o", options, &image, dir.to_str().unwrap()]);
        Self(dir)
    }

    fn unmount(&self) {
        works(&["unmount", self.0.to_str().unwrap()]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
        let _ = Command::new("fusermount3").args(["-q", "-u", "-z"]).arg(&self.0).output();
    }
}

#[test]
fn two_partitions_are_mounted_at_the_same_time() {
    if !can_mount() || !have_tools() {
        return;
    }
    let disk = Disk::with_gpt();
    works(&["mkfs", &disk.name("@2")]);
    works(&["mkfs", &disk.name("@3")]);
    let outside = disk.others(&disk.range(2));
    let root = Mounted::of(&disk, "@root", "rw");
    let data = Mounted::of(&disk, "", "rw,partition=3");
    for mount in [&root, &data] {
        fs::write(mount.0.join("file"), mount.0.as_os_str().as_encoded_bytes()).unwrap();
        fs::File::open(mount.0.join("file")).unwrap().sync_all().unwrap();
    }
    // The name of a mount in the system's table has the partition if the operand had it.
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let source = |mount: &Mounted| {
        let dir = mount.0.to_str().unwrap();
        let line = table.lines().find(|line| line.split(' ').nth(1) == Some(dir));
        line.and_then(|line| line.split(' ').next()).unwrap_or_default().to_owned()
    };
    assert!(source(&root).ends_with("disk.img@root"), "{table}");
    assert!(source(&data).ends_with("disk.img"), "{table}");
    // Used partitions and the whole image are refused, the third partition is free.
    let busy = |words: &[&str]| fails(words, 6, &["in use"]);
    busy(&["ls", &disk.name("@2")]);
    busy(&["cp", FILE, &disk.name("@3:/x")]);
    busy(&["ls", "-o", "offset=1M", &disk.name("")]);
    works(&["mkfs", &disk.name("@1")]);
    works(&["cp", FILE, &disk.name("@1:/x")]);

    root.unmount();
    let other = Mounted::of(&disk, "@2", "ro");
    assert!(fs::read(other.0.join("file")).unwrap().ends_with(b"mnt-root"));
    other.unmount();
    data.unmount();
    assert!(disk.others(&disk.range(2)) != outside, "the other partitions were written to");
    assert_eq!(works(&["cat", &disk.name("@3:/file")]), data.0.to_str().unwrap());
    for number in [1, 2, 3] {
        disk.check(number);
    }
}

/// umount(8) returns before the image is closed.
#[test]
fn a_partition_that_is_being_closed_is_waited_for() {
    if !can_mount() || !have_tools() || !have_programs(&["fusermount3"]) {
        return;
    }
    let disk = Disk::with_gpt();
    works(&["mkfs", &disk.name("@2")]);
    works(&["mkfs", &disk.name("@3")]);
    let _other = Mounted::of(&disk, "@3", "rw");
    for round in 0..3 {
        let mount = Mounted::of(&disk, "@2", "rw");
        for file in 0..20 {
            fs::write(mount.0.join(format!("{round}-{file}")), vec![1; 200_000]).unwrap();
        }
        let output = Command::new("fusermount3").arg("-u").arg(&mount.0).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        works(&["cat", &disk.name(&format!("@2:/{round}-0"))]);
    }
}

fn qemu_img(args: &[&str]) -> Output {
    Command::new("qemu-img").args(args).output().unwrap()
}

#[test]
fn other_image_formats_are_refused_with_the_command_that_converts() {
    if !have_programs(&["qemu-img", "mkfs.ext4", "gzip", "xz"]) {
        return;
    }
    let image = Image::new("ext4", 8 << 20, &[]).unwrap();
    let raw = image.path().to_str().unwrap();
    let path = |name: &str| image.dir().join(name).to_str().unwrap().to_owned();
    for (format, title) in
        [("qcow2", "qcow2"), ("vmdk", "VMDK"), ("vdi", "VDI"), ("vhdx", "VHDX"), ("vpc", "VHD")]
    {
        let other = path(format);
        let made = qemu_img(&["convert", "-O", format, raw, &other]);
        assert!(made.status.success(), "{format}: {}", said(&made));
        let command = format!("qemu-img convert -O raw {other} out.img");
        let before = fs::read(&other).unwrap();
        fails(&["ls", &other], 4, &[title, &command]);
        fails(&["cp", FILE, &format!("{other}:/f")], 4, &[&command]);
        fails(&["ls", &format!("{other}@1")], 4, &[title, &command]);
        assert!(fs::read(&other).unwrap() == before, "{format}: written to");
        // The command of the error works.
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let converted = Command::new("qemu-img").args(words).current_dir(image.dir()).output().unwrap();
        assert!(converted.status.success(), "{}", said(&converted));
        assert!(works(&["ls", &path("out.img")]).contains("lost+found"));
    }
    // A backing file is not opened.
    let made = qemu_img(&["create", "-q", "-f", "qcow2", "-F", "raw", "-b", raw, &path("backed")]);
    assert!(made.status.success(), "{}", said(&made));
    fails(&["ls", &path("backed")], 4, &["qcow2"]);
    for (program, suffix) in [("gzip", "gz"), ("xz", "xz")] {
        let packed = Command::new(program).args(["-k", "-f", raw]).output().unwrap();
        assert!(packed.status.success(), "{}", said(&packed));
        fails(&["ls", &format!("{raw}.{suffix}")], 4, &[&format!("{program} -dc {raw}.{suffix} > out.img")]);
    }
    assert!(Path::new(raw).exists());
}
