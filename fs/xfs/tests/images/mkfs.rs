//! New filesystems: compared with those of mkfs.xfs byte for byte, checked by xfs_repair, written by the
//! kernel, read by the driver.

use crate::common;
use crate::common::*;
use ivers_block::{
    ByteOffset, CountedDevice, Device, FaultDevice, FileDevice, IoCounts, MemDevice, OpenMode,
};
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::{can_loop_mount, kernel_knows};
use ivers_vfs::Error;
use ivers_xfs::mkfs::{Features, MkfsOptions, MkfsReport, mkfs as make, plan};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const UUID: &str = "12345678-9abc-4def-8123-456789abcdef";
const UUID_BYTES: [u8; 16] =
    [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0x4d, 0xef, 0x81, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];

/// A kind of filesystem: how it is called, its size, our options, and the arguments of mkfs.xfs 6.1 for the
/// same. `None`: it does not make such a filesystem.
struct Kind {
    name: &'static str,
    bytes: u64,
    options: MkfsOptions,
    theirs: Option<&'static str>,
}

fn options() -> MkfsOptions {
    MkfsOptions { uuid: UUID_BYTES, timestamp: 1_700_000_000, ..MkfsOptions::default() }
}

/// Options with other features.
fn with(features: &str) -> MkfsOptions {
    MkfsOptions { features: Features::parse(features).unwrap(), ..options() }
}

/// The features that mkfs.xfs 6.1 does not have by default.
const DEFAULT: &str = "-m rmapbt=1 -i nrext64=1";

fn kinds() -> Vec<Kind> {
    let kind = |name, bytes, options, theirs| Kind { name, bytes, options, theirs };
    let all = |name, bytes, options| kind(name, bytes, options, Some(DEFAULT));
    let blocks = |block_size| MkfsOptions { block_size, ..options() };
    let none = "^finobt,^rmapbt,^reflink,^inobtcnt,^sparse,^bigtime,^nrext64";
    vec![
        all("default of 300 MiB", 300 * MIB, options()),
        all("default of 512 MiB", 512 * MIB, options()),
        all("a size that is no multiple of anything", 333_333_333, options()),
        all("4 GiB and a rest", 4 * GIB + 12_345, options()),
        kind("default of mkfs.xfs 6.1", 400 * MIB, with("^rmapbt,^nrext64"), Some("")),
        kind(
            "crc alone",
            400 * MIB,
            with(none),
            Some("-m finobt=0,reflink=0,inobtcount=0,bigtime=0 -i sparse=0"),
        ),
        kind("no finobt", 400 * MIB, with("^finobt"), Some("-m finobt=0,inobtcount=0,rmapbt=1 -i nrext64=1")),
        kind("no inobtcount", 400 * MIB, with("^inobtcount"), Some("-m inobtcount=0,rmapbt=1 -i nrext64=1")),
        kind("no reflink", 400 * MIB, with("^reflink"), Some("-m reflink=0,rmapbt=1 -i nrext64=1")),
        kind("no rmapbt", 400 * MIB, with("^rmapbt"), Some("-i nrext64=1")),
        kind(
            "neither reflink nor rmapbt",
            400 * MIB,
            with("^reflink,^rmapbt"),
            Some("-m reflink=0 -i nrext64=1"),
        ),
        kind("no bigtime", 400 * MIB, with("^bigtime"), Some("-m bigtime=0,rmapbt=1 -i nrext64=1")),
        kind("no nrext64", 400 * MIB, with("^nrext64"), Some("-m rmapbt=1")),
        kind("no sparse", 400 * MIB, with("^sparse"), Some("-m rmapbt=1 -i nrext64=1,sparse=0")),
        kind("blocks of 1 KiB", 400 * MIB, blocks(1024), Some("-b size=1024 -m rmapbt=1 -i nrext64=1")),
        kind("blocks of 2 KiB", 400 * MIB, blocks(2048), Some("-b size=2048 -m rmapbt=1 -i nrext64=1")),
        kind("blocks of 8 KiB", 400 * MIB, blocks(8192), Some("-b size=8192 -m rmapbt=1 -i nrext64=1")),
        kind("blocks of 16 KiB", GIB, blocks(16384), Some("-b size=16384 -m rmapbt=1 -i nrext64=1")),
        kind(
            "blocks of 64 KiB",
            4 * GIB,
            blocks(65536),
            Some("-b size=65536 -m rmapbt=1 -i nrext64=1 -l size=2816b"),
        ),
        kind(
            "blocks of 1 KiB, no sparse",
            400 * MIB,
            MkfsOptions { block_size: 1024, ..with("^sparse") },
            Some("-b size=1024 -m rmapbt=1 -i nrext64=1,sparse=0"),
        ),
        kind(
            "sectors of 4096",
            400 * MIB,
            MkfsOptions { sector_size: 4096, ..options() },
            Some("-s size=4096 -m rmapbt=1 -i nrext64=1"),
        ),
        kind(
            "sectors of 1024 and blocks of 2048",
            400 * MIB,
            MkfsOptions { sector_size: 1024, block_size: 2048, ..options() },
            Some("-s size=1024 -b size=2048 -m rmapbt=1 -i nrext64=1"),
        ),
        kind(
            "inodes of 1 KiB",
            400 * MIB,
            MkfsOptions { inode_size: 1024, ..options() },
            Some("-i size=1024,nrext64=1 -m rmapbt=1"),
        ),
        kind(
            "inodes of 2 KiB",
            400 * MIB,
            MkfsOptions { inode_size: 2048, ..options() },
            Some("-i size=2048,nrext64=1 -m rmapbt=1"),
        ),
        kind(
            "three groups",
            400 * MIB,
            MkfsOptions { groups: Some(3), ..options() },
            Some("-d agcount=3 -m rmapbt=1 -i nrext64=1"),
        ),
        kind(
            "seven groups",
            GIB,
            MkfsOptions { groups: Some(7), ..options() },
            Some("-d agcount=7 -m rmapbt=1 -i nrext64=1"),
        ),
        kind(
            "a log of 96 MiB and a label",
            512 * MIB,
            MkfsOptions { log_bytes: Some(96 * MIB), label: "twelve bytes".into(), ..options() },
            Some("-l size=96m -L twelve_bytes -m rmapbt=1 -i nrext64=1"),
        ),
        kind("parent and exchange", 400 * MIB, with("parent,exchange"), None),
        kind("small", 40 * MIB, MkfsOptions { small: true, ..options() }, None),
        kind("small, blocks of 1 KiB", 64 * MIB, MkfsOptions { small: true, ..blocks(1024) }, None),
    ]
}

/// Makes an empty sparse file.
fn empty(path: &Path, bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

/// A device of zeros in memory, and what it is asked for.
fn sparse(bytes: u64) -> (Arc<dyn Device>, Arc<IoCounts>) {
    let counts = Arc::new(IoCounts::default());
    (Arc::new(CountedDevice::new(MemDevice::new(bytes), counts.clone())), counts)
}

fn written(counts: &IoCounts) -> u64 {
    counts.fields().into_iter().find(|(name, _)| *name == "device_written_bytes").unwrap().1
}

fn make_image(path: &Path, bytes: u64, options: &MkfsOptions) -> MkfsReport {
    empty(path, bytes);
    let device = FileDevice::open(path, OpenMode::ReadWrite).unwrap();
    make(&device, options).unwrap()
}

/// xfs_repair finds nothing. `false`: it does not know the features.
fn is_clean(image: &Path, what: &str) -> bool {
    let output = ivers_oracle::output("xfs_repair", ["-n".as_ref(), image.as_os_str()]).unwrap();
    let text = ivers_oracle::said(&output);
    if text.contains("unsupported filesystem features") {
        return false;
    }
    // Of a clean image it names only its phases, and what it does not do.
    let usual = [
        "Phase ",
        "        - ",
        "No modify flag set",
        "exit status",
        "Cannot get host",
        "Repair may fail",
        "the image and",
    ];
    let unusual: Vec<_> =
        text.lines().filter(|line| !usual.iter().any(|usual| line.starts_with(usual))).collect();
    assert!(output.status.success() && unusual.is_empty(), "{what}: {text}");
    true
}

/// Bytes of an image. Images are sparse, and too large to read them whole.
fn at(image: &Path, start: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    std::fs::File::open(image).unwrap().read_exact_at(&mut bytes, start as u64).unwrap();
    bytes
}

/// A big-endian number.
fn number(image: &Path, start: usize, len: usize) -> u64 {
    at(image, start, len).iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Replaces what may differ: a checksum, and what it is of.
fn blank(bytes: &mut [u8], fields: &[(usize, usize)]) {
    for (start, len) in fields {
        bytes[*start..start + len].fill(0);
    }
}

/// Names the first difference of two structures, but for some fields.
fn difference(mut ours: Vec<u8>, mut theirs: Vec<u8>, but: &[(usize, usize)]) -> Option<String> {
    blank(&mut ours, but);
    blank(&mut theirs, but);
    let at = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs)?;
    let near = |bytes: &[u8]| format!("{:02x?}", &bytes[at & !7..(at & !7) + 16]);
    Some(format!("at {at}: {} instead of {}", near(&ours), near(&theirs)))
}

/// Compares all structures of two filesystems. Differences that are intended are named here, and in
/// `docs/xfs.md`.
fn compare(ours: &Path, theirs: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |what: String, start: usize, len: usize, but: &[(usize, usize)]| {
        let difference = difference(at(ours, start, len), at(theirs, start, len), but);
        found.extend(difference.map(|difference| format!("{what}, {difference}")));
    };
    let field = |start, len| number(theirs, start, len) as usize;
    let (block, group_blocks, groups) = (field(4, 4), field(84, 4), field(88, 4));
    let (sector, inode, group_bits) = (field(102, 2), field(104, 2), field(124, 1));
    let (log_start, log_blocks, root) = (field(48, 8), field(96, 4), field(56, 8));
    check("superblock".into(), 0, sector, &[]);
    for group in 0..groups {
        let start = group * group_blocks * block;
        if group > 0 {
            // mkfs.xfs leaves most copies as they were before it made the root directory, and marked as
            // unfinished: root inodes, sb_inprogress, counts, checksum.
            let but = &[(56, 24), (126, 1), (128, 24), (224, 4)];
            check(format!("superblock of group {group}"), start, sector, but);
        }
        // All other headers, and the roots of all B-trees.
        let fixed = (log_start & ((1 << group_bits) - 1)) * block;
        check(format!("headers and roots of group {group}"), start + sector, fixed - sector, &[]);
    }
    let log = ((log_start >> group_bits) * group_blocks + (log_start & ((1 << group_bits) - 1))) * block;
    // The checksum, which mkfs.xfs leaves out, and the number of the transaction.
    check("log".into(), log, log_blocks * block, &[(32, 4), (44, 4)]);
    for index in 0..64.max(block / inode) {
        // di_atime to di_ctime, di_gen, di_crc, di_changecount, di_crtime
        let mut but = vec![(32, 24), (92, 4), (100, 12), (144, 8)];
        if index == 0 {
            // The generation of the root is 0 there.
            but.push((92, 4));
        }
        check(format!("inode {index} of the first chunk"), (root + index) * inode, inode, &but);
    }
    found
}

#[test]
fn filesystems_are_those_of_mkfs_xfs() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| dir.path().join(name));
    for kind in kinds() {
        let Some(args) = kind.theirs else { continue };
        make_image(&ours, kind.bytes, &kind.options);
        empty(&theirs, kind.bytes);
        let uuid = format!("uuid={UUID}");
        let mut words = vec!["-q".to_owned(), "-f".into(), "-K".into(), "-m".into(), uuid];
        words.extend(args.split_whitespace().map(|word| word.replace('_', " ")));
        words.push(theirs.to_str().unwrap().into());
        ivers_oracle::run("mkfs.xfs", &words).unwrap();
        let found = compare(&ours, &theirs);
        assert!(found.is_empty(), "{}:\n{}", kind.name, found.join("\n"));
    }
}

#[test]
fn xfs_repair_finds_nothing() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for kind in kinds() {
        make_image(&image, kind.bytes, &kind.options);
        let known = is_clean(&image, kind.name);
        assert!(known || kind.name == "parent and exchange", "{}", kind.name);
    }
}

/// The kernel writes to each kind, and xfs_repair finds nothing after it.
#[test]
fn the_kernel_writes_to_new_filesystems() {
    if !have_xfsprogs() || !can_loop_mount() {
        return;
    }
    if !kernel_knows("xfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for kind in kinds() {
        make_image(&image, kind.bytes, &kind.options);
        let mount = match LoopMount::new(&image, "") {
            Ok(mount) => mount,
            // Kernels before 6.12 have blocks of up to a page, and those before 6.10 no parent pointers.
            Err(_) if kind.options.block_size > 4096 || kind.name.starts_with("parent") => {
                ivers_oracle::skipped(&format!("the kernel does not mount {}", kind.name));
                continue;
            }
            Err(error) => panic!("{}: {error:#}", kind.name),
        };
        for number in 0..200 {
            let sub = mount.path().join(format!("directory-{}", number % 7));
            std::fs::create_dir_all(&sub).unwrap();
            std::fs::write(sub.join(format!("file-{number}")), vec![number as u8; number * 500]).unwrap();
        }
        std::fs::remove_dir_all(mount.path().join("directory-3")).unwrap();
        mount.unmount().unwrap();
        is_clean(&image, kind.name);
        // The driver reads what the kernel wrote. A mount for writing would change access times.
        let mount = LoopMount::new(&image, "ro").unwrap();
        let theirs = kernel_tree(mount.path());
        mount.unmount().unwrap();
        let vfs = common::mount(&image);
        assert_same(&our_tree(&vfs, true).unwrap(), &theirs, kind.name);
        vfs.unmount().unwrap();
    }
}

/// The driver reads each kind: an empty root directory, with the owner and the time that were asked for.
#[test]
fn the_driver_reads_new_filesystems() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for kind in kinds() {
        let options = MkfsOptions { root_owner: (1000, 70_000), ..kind.options };
        let report = make_image(&image, kind.bytes, &options);
        let vfs = common::mount(&image);
        assert_eq!(our_tree(&vfs, true).unwrap(), Tree::new(), "{}", kind.name);
        let root = vfs.stat(&vfs.root().unwrap());
        assert_eq!(
            (root.mode(), root.uid, root.gid, root.nlink),
            (0o040755, 1000, 70_000, 2),
            "{}",
            kind.name
        );
        for time in [root.atime, root.mtime, root.ctime] {
            assert_eq!((time.sec, time.nsec), (1_700_000_000, 0), "{}", kind.name);
        }
        let (info, space) = (vfs.info(), vfs.stat_fs().unwrap());
        assert_eq!(info.label, options.label, "{}", kind.name);
        assert_eq!((info.uuid, info.block_size), (UUID_BYTES, report.block_size), "{}", kind.name);
        assert_eq!(space.blocks, report.blocks - u64::from(report.log_blocks), "{}", kind.name);
        // All groups agree with the superblock: its copies, lengths, counts.
        assert!(space.blocks_free < space.blocks && space.blocks_free > space.blocks / 2, "{}", kind.name);
        vfs.unmount().unwrap();
    }
}

/// A device that starts with other contents gives the same filesystem, where it is used.
#[test]
fn old_contents_do_not_matter_and_calls_are_reproducible() {
    let dir = tempfile::tempdir().unwrap();
    let [fresh, again, used] = ["fresh", "again", "used"].map(|name| dir.path().join(name));
    let options = MkfsOptions { small: true, ..options() };
    let bytes = 40 * MIB;
    make_image(&fresh, bytes, &MkfsOptions { zeroed: true, ..options.clone() });
    make_image(&again, bytes, &options);
    assert!(std::fs::read(&fresh).unwrap() == std::fs::read(&again).unwrap());
    std::fs::write(&used, vec![0xA5; bytes as usize]).unwrap();
    let device = FileDevice::open(&used, OpenMode::ReadWrite).unwrap();
    make(&device, &options).unwrap();
    let [fresh_bytes, used_bytes] = [&fresh, &used].map(|image| std::fs::read(image).unwrap());
    for (number, (fresh, used)) in fresh_bytes.chunks(512).zip(used_bytes.chunks(512)).enumerate() {
        assert!(fresh == used || used.iter().all(|byte| *byte == 0xA5), "sector {number}");
    }
    if have_xfsprogs() {
        is_clean(&used, "over other contents");
    }
}

/// After a crash the old filesystem, no filesystem, or the whole new one is found.
#[test]
fn an_incomplete_filesystem_is_not_recognized() {
    let base = Arc::new(MemDevice::new(80 * MIB));
    let old = MkfsOptions { small: true, label: "old".into(), ..options() };
    make(&*base, &old).unwrap();
    let device = FaultDevice::new(base);
    make(&device, &MkfsOptions { label: "new".into(), groups: Some(2), ..old }).unwrap();
    for prefix in 0..=device.len() {
        for seed in 0..4 {
            let image = device.image_where(prefix, |index| (index * 7 + seed) % 4 < seed).unwrap();
            let mut head = [0; 120];
            image.read_at(ByteOffset(0), &mut head).unwrap();
            match (&head[..4], &head[108..111]) {
                (b"XFSB", b"old") => assert!(prefix < device.len(), "{prefix} {seed}"),
                (b"XFSB", name) => {
                    assert_eq!(name, b"new", "{prefix} {seed}");
                    let vfs = mount_device(Arc::new(image)).unwrap();
                    assert_eq!(our_tree(&vfs, false).unwrap(), Tree::new(), "{prefix} {seed}");
                    vfs.unmount().unwrap();
                }
                _ => assert!(prefix < device.len(), "{prefix} {seed}"),
            }
        }
    }
}

/// Each copy of the superblock restores a lost one.
#[test]
fn copies_of_the_superblock_are_complete() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make_image(&image, 300 * MIB, &options());
    let device = FileDevice::open(&image, OpenMode::ReadWrite).unwrap();
    let superblock = at(&image, 0, 512);
    for group in 1..4 {
        assert_eq!(at(&image, group * (75 << 20), 512), superblock);
    }
    device.write_at(ByteOffset(0), &[0; 512]).unwrap();
    drop(device);
    ivers_oracle::run("xfs_repair", [&image]).unwrap();
    is_clean(&image, "restored");
    assert_eq!(number(&image, 0, 4), 0x5846_5342);
    common::mount(&image).unmount().unwrap();
}

/// Sizes from the least to 16 TiB: few bytes are written, and the geometry is that of mkfs.xfs.
#[test]
fn sizes_up_to_16_tib_are_those_of_mkfs_xfs() {
    // Size, groups, blocks of a group, blocks, blocks of the log, percentage of inodes: found with mkfs.xfs
    // 6.1 and 7.2.
    for (bytes, groups, group_blocks, blocks, log_blocks, percent) in [
        (300 * MIB, 4, 19_200, 76_800, 16_384, 25),
        (310 * MIB, 4, 19_840, 79_360, 16_384, 25),
        (2 * GIB, 4, 131_072, 524_288, 16_384, 25),
        (128 * GIB, 4, 8_388_608, 33_554_432, 16_384, 25),
        (129 * GIB, 4, 8_454_144, 33_816_576, 16_512, 25),
        (1023 * GIB, 4, 67_043_328, 268_173_312, 130_944, 25),
        (TIB, 4, 67_108_864, 268_435_456, 131_072, 5),
        (4095 * GIB, 4, 268_369_920, 1_073_479_680, 521_728, 5),
        // What is too small for a group is not used.
        (4 * TIB, 4, 268_435_455, 1_073_741_820, 521_728, 5),
        (4097 * GIB, 5, 268_435_455, 1_074_003_968, 521_728, 5),
        (16 * TIB, 16, 268_435_455, 4_294_967_280, 521_728, 5),
        (50 * TIB, 50, 268_435_455, 13_421_772_750, 521_728, 5),
        (51 * TIB, 51, 268_435_455, 13_690_208_205, 521_728, 1),
    ] {
        let (device, counts) = sparse(bytes);
        let report = make(&*device, &MkfsOptions { zeroed: true, ..options() }).unwrap();
        assert_eq!(
            (report.groups, report.blocks, report.log_blocks),
            (groups, blocks, log_blocks),
            "{bytes}"
        );
        let mut head = [0; 512];
        device.read_at(ByteOffset(0), &mut head).unwrap();
        let field = |start: usize, len| {
            head[start..start + len].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        assert_eq!((field(84, 4), field(127, 1)), (group_blocks, percent), "{bytes}");
        assert!(written(&counts) < 64 * 1024 * (u64::from(groups) + 1), "{bytes}: {}", written(&counts));
        let vfs = mount_device(device).unwrap();
        assert_eq!(our_tree(&vfs, false).unwrap(), Tree::new(), "{bytes}");
        vfs.unmount().unwrap();
    }
}

#[test]
fn silly_options_are_refused() {
    let cases: Vec<(u64, MkfsOptions, &str)> = vec![
        (299 * MIB, options(), "300 MiB"),
        (0, options(), "300 MiB"),
        (0, MkfsOptions { small: true, ..options() }, "smaller than 16 MiB"),
        (16 * MIB, MkfsOptions { small: true, ..options() }, "smaller than 16 MiB"),
        (32 * MIB, MkfsOptions { small: true, ..options() }, "too small for a log"),
        (GIB, MkfsOptions { block_size: 512, ..options() }, "block size 512"),
        (GIB, MkfsOptions { block_size: 0, ..options() }, "block size 0"),
        (GIB, MkfsOptions { block_size: 131_072, ..options() }, "block size 131072"),
        (GIB, MkfsOptions { block_size: 5000, ..options() }, "block size 5000"),
        (300 * MIB, MkfsOptions { block_size: 65_536, ..options() }, "smaller blocks"),
        (GIB, MkfsOptions { sector_size: 256, ..options() }, "sector size 256"),
        (GIB, MkfsOptions { sector_size: 8192, ..options() }, "512 to 4096"),
        (GIB, MkfsOptions { inode_size: 256, ..options() }, "inode size 256"),
        (GIB, MkfsOptions { inode_size: 4096, ..options() }, "512 to 2048"),
        (GIB, MkfsOptions { inode_size: 1024, block_size: 1024, ..options() }, "512 to 512"),
        (GIB, MkfsOptions { groups: Some(0), ..options() }, "at least two"),
        (GIB, MkfsOptions { groups: Some(1), ..options() }, "at least two"),
        (GIB, MkfsOptions { groups: Some(64), ..options() }, "too small for a log"),
        (GIB, MkfsOptions { groups: Some(65), ..options() }, "smaller than 16 MiB"),
        (GIB, MkfsOptions { groups: Some(u32::MAX), ..options() }, "smaller than 16 MiB"),
        (16 * TIB, MkfsOptions { groups: Some(15), ..options() }, "not smaller than 1 TiB"),
        (GIB, MkfsOptions { log_bytes: Some(0), ..options() }, "between"),
        (GIB, MkfsOptions { log_bytes: Some(63 * MIB), ..options() }, "between 67108864 and 2136997888"),
        (GIB, MkfsOptions { log_bytes: Some(100 * MIB + 1), ..options() }, "multiple of the block size"),
        (GIB, MkfsOptions { log_bytes: Some(600 * MIB), ..options() }, "too small for a log"),
        (GIB, MkfsOptions { log_bytes: Some(3 * GIB), ..options() }, "between"),
        (GIB, MkfsOptions { log_bytes: Some(u64::MAX), ..options() }, "multiple"),
        (GIB, MkfsOptions { label: "x".repeat(13), ..options() }, "at most 12 bytes"),
        (GIB, MkfsOptions { label: "a\0b".into(), ..options() }, "NUL"),
        (GIB, MkfsOptions { uuid: [0; 16], ..options() }, "all zeros"),
        (GIB, MkfsOptions { timestamp: 1 << 31, ..with("^bigtime") }, "2038"),
        (u64::MAX, MkfsOptions { block_size: 1024, ..options() }, "too many"),
    ];
    for (bytes, options, named) in cases {
        let error = plan(bytes, &options).expect_err(named);
        let Error::Incompatible(why) = &error else { panic!("{bytes} {options:?}: {error}") };
        assert!(why.contains(named), "{bytes} {options:?}: {why}");
        if bytes <= GIB {
            let (device, counts) = sparse(bytes);
            assert!(make(&*device, &options).is_err() && written(&counts) == 0, "{options:?}");
        }
    }
}

/// No options of any value make it panic, and what it plans is readable.
#[test]
fn random_options_are_refused_or_readable() {
    let mut random = SmallRng::seed_from_u64(20_261_125);
    let mut made = 0;
    for _ in 0..3_000 {
        let power = |random: &mut SmallRng, from: u32, to: u32| 1u32 << random.random_range(from..to);
        let bytes = 1u64 << random.random_range(20..50);
        let bytes = bytes + random.random_range(0..bytes);
        let features = [
            "^finobt",
            "^rmapbt",
            "^reflink",
            "^inobtcount",
            "^sparse",
            "^bigtime",
            "^nrext64",
            "parent",
            "exchange",
        ];
        let list: Vec<_> = features.into_iter().filter(|_| random.random_bool(0.3)).collect();
        let options = MkfsOptions {
            block_size: power(&mut random, 9, 18),
            sector_size: power(&mut random, 8, 14),
            inode_size: power(&mut random, 8, 13),
            groups: random.random_bool(0.3).then(|| random.random_range(0..40)),
            log_bytes: random.random_bool(0.3).then(|| random.random_range(0..1u64 << 31) & !0xFFFF),
            small: random.random(),
            zeroed: true,
            ..with(&list.join(","))
        };
        let (device, counts) = sparse(bytes);
        match make(&*device, &options) {
            Ok(report) => {
                made += 1;
                let vfs = mount_device(device).unwrap_or_else(|error| panic!("{bytes} {options:?}: {error}"));
                assert_eq!(our_tree(&vfs, false).unwrap(), Tree::new(), "{bytes} {options:?}");
                assert_eq!(vfs.info().block_size, report.block_size);
                vfs.unmount().unwrap();
            }
            Err(Error::Incompatible(why)) => assert!(!why.is_empty() && written(&counts) == 0),
            Err(error) => panic!("{bytes} {options:?}: {error}"),
        }
    }
    assert!(made > 100, "{made}");
}
