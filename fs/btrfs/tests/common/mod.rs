//! Helpers of the tests on images: making them, alone or of several devices.

#![allow(dead_code)]

pub mod damage;
pub mod fill;
#[path = "../../../xfs/tests/common/storm.rs"]
pub mod storm;
#[path = "../../../xfs/tests/common/trees.rs"]
pub mod trees;

use ivers_block::{ByteOffset, Device, FileDevice, MemDevice, OffsetDevice, OpenMode};
use ivers_btrfs::{Btrfs, OpenOptions};
use ivers_oracle::btrfs::Loops;
use ivers_oracle::{LoopMount, have_programs, kernel};
use ivers_vfs::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
pub use trees::*;

/// A kind of image: a name, arguments of mkfs.btrfs, options of the kernel's mount, and how many devices.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub mkfs: &'static [&'static str],
    pub mount: &'static str,
    pub devices: usize,
}

const fn kind(name: &'static str, mkfs: &'static [&'static str]) -> Kind {
    Kind { name, mkfs, mount: "", devices: 1 }
}

const fn mounted(name: &'static str, mount: &'static str) -> Kind {
    Kind { name, mkfs: &[], mount, devices: 1 }
}

const fn array(name: &'static str, mkfs: &'static [&'static str], devices: usize) -> Kind {
    Kind { name, mkfs, mount: "", devices }
}

pub const DEFAULT: Kind = kind("default", &[]);

/// Images that the kernel of the machine can mount.
pub const KINDS: &[Kind] = &[
    DEFAULT,
    kind("nodes of 4 KiB", &["-n", "4096"]),
    kind("nodes of 32 KiB", &["-n", "32768"]),
    kind("nodes of 64 KiB", &["-n", "65536"]),
    kind("xxhash64", &["--csum", "xxhash"]),
    kind("sha256", &["--csum", "sha256"]),
    kind("blake2b", &["--csum", "blake2"]),
    kind("mixed groups", &["-M"]),
    kind("old features", &["-O", "^no-holes,^extref,^skinny-metadata", "-R", "^free-space-tree"]),
    kind("all single", &["-m", "single", "-d", "single"]),
    kind("all DUP, a label", &["-m", "dup", "-d", "dup", "-L", "a label"]),
    kind("quotas", &["-R", "quota"]),
    mounted("zlib", "compress-force=zlib"),
    mounted("LZO", "compress-force=lzo"),
    mounted("zstd", "compress-force=zstd"),
    mounted("no checksums of data", "nodatasum"),
    mounted("data in place", "nodatacow"),
    mounted("no inline data", "max_inline=0"),
    Kind { name: "LZO in nodes of 4 KiB", mkfs: &["-n", "4096"], mount: "compress-force=lzo", devices: 1 },
    array("two devices", &["-d", "single", "-m", "raid1"], 2),
    array("RAID0", &["-d", "raid0", "-m", "raid0"], 3),
    array("RAID1", &["-d", "raid1", "-m", "raid1"], 2),
    array("RAID1C3", &["-d", "raid1c3", "-m", "raid1c3"], 3),
    array("RAID1C4", &["-d", "raid1c4", "-m", "raid1c4"], 4),
    array("RAID10", &["-d", "raid10", "-m", "raid10"], 4),
    Kind {
        name: "RAID0 and zstd",
        mkfs: &["-d", "raid0", "-m", "raid1"],
        mount: "compress-force=zstd",
        devices: 2,
    },
];

/// Returns the kinds with these names. `IVERS_KIND` selects one of them, or all.
pub fn kinds_named(names: &[&str]) -> Vec<&'static Kind> {
    let named =
        |name: &&str| KINDS.iter().find(|kind| kind.name == *name).unwrap_or_else(|| panic!("{name}"));
    let only = std::env::var("IVERS_KIND").ok();
    let is_chosen = |kind: &&Kind| only.as_deref().is_none_or(|only| only == "all" || only == kind.name);
    names.iter().map(named).filter(is_chosen).collect()
}

/// The size of each image in bytes.
pub const IMAGE_BYTES: u64 = 256 << 20;

/// Returns whether tests with images that the kernel fills can run.
pub fn can_fill() -> bool {
    have_programs(&["mkfs.btrfs", "btrfs", "losetup", "fallocate", "setfattr"])
        && kernel::can_loop_mount()
        && kernel::kernel_knows("btrfs")
}

/// Images of the devices of a filesystem.
pub struct Images {
    pub paths: Vec<PathBuf>,
}

impl Images {
    /// Makes a filesystem.
    pub fn make(dir: &Path, kind: &Kind) -> Self {
        Self::make_of(dir, kind, IMAGE_BYTES)
    }

    /// Makes a filesystem on devices of a size.
    pub fn make_of(dir: &Path, kind: &Kind, bytes: u64) -> Self {
        let paths: Vec<_> = (0..kind.devices).map(|number| dir.join(format!("image-{number}"))).collect();
        for path in &paths {
            let _ = std::fs::remove_file(path);
            std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
        }
        let mut args = vec!["-q", "-f"];
        args.extend(kind.mkfs);
        if paths.len() == 1 {
            args.push(paths[0].to_str().unwrap());
            ivers_oracle::run("mkfs.btrfs", args).unwrap();
        } else {
            let loops = Loops::attach(&paths).unwrap();
            ivers_oracle::run("mkfs.btrfs", args.into_iter().map(str::to_owned).chain(loops.names()))
                .unwrap();
        }
        Self { paths }
    }

    /// Runs something with the filesystem mounted by the kernel.
    pub fn with_kernel<T>(&self, options: &str, run: impl FnOnce(&Path) -> T) -> T {
        if let [path] = &self.paths[..] {
            let mounted = LoopMount::new(path, options).unwrap();
            let result = run(mounted.path());
            mounted.unmount().unwrap();
            return result;
        }
        self.with_loops(|loops| {
            let dir = tempfile::tempdir().unwrap();
            let options = if options.is_empty() { "rw" } else { options };
            ivers_oracle::run("mount", ["-o", options, &loops[0], dir.path().to_str().unwrap()]).unwrap();
            let result = run(dir.path());
            ivers_oracle::run("umount", [dir.path()]).unwrap();
            result
        })
    }

    /// Runs something with loop devices of all images, which the kernel and btrfs-progs know as one array.
    pub fn with_loops<T>(&self, run: impl FnOnce(&[String]) -> T) -> T {
        let loops = Loops::attach(&self.paths).unwrap();
        loops.scan().unwrap();
        run(&loops.names())
    }

    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        let open = |path| Arc::new(FileDevice::open(path, OpenMode::ReadOnly).unwrap()) as Arc<dyn Device>;
        self.paths.iter().map(open).collect()
    }

    /// The images as bytes.
    pub fn bytes(&self) -> Vec<Vec<u8>> {
        self.paths.iter().map(|path| ivers_oracle::read_image(path).unwrap()).collect()
    }
}

pub fn reading() -> OpenOptions {
    let common = DriverOptions { read_only: true, ..DriverOptions::default() };
    OpenOptions { common, ..OpenOptions::default() }
}

pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> ivers_vfs::Result<Arc<Vfs>> {
    let mount = MountOptions { background: false, read_only: true, ..MountOptions::default() };
    Vfs::mount(Btrfs::open(devices, options)?, mount)
}

pub fn mount(images: &Images) -> Arc<Vfs> {
    open(images.devices(), reading()).unwrap_or_else(|error| panic!("{:?}: {error}", images.paths))
}

pub fn memory(bytes: &[u8]) -> Arc<dyn Device> {
    Arc::new(MemDevice::from_bytes(bytes))
}

/// Devices of equal size that lie one after the other in another one.
pub fn parts(whole: Arc<dyn Device>, count: usize) -> Vec<Arc<dyn Device>> {
    let len = whole.size_bytes() / count as u64;
    let part = |start| OffsetDevice::with_len(whole.clone(), ByteOffset(start), len).unwrap();
    (0..count as u64).map(|nth| Arc::new(part(nth * len)) as Arc<dyn Device>).collect()
}

pub fn fact(vfs: &Arc<Vfs>, name: &str) -> String {
    let facts = vfs.fs().describe();
    facts.into_iter().find(|(found, _)| found == name).map(|(_, value)| value).unwrap()
}

/// A tree without its times, which a replay by Linux changes.
pub fn without_times(tree: Tree) -> Tree {
    let cut = |line: String| match line.split_once(" times=") {
        Some((head, tail)) => format!("{head}{}", tail.split_once(']').map_or("", |(_, xattrs)| xattrs)),
        None => line,
    };
    tree.into_iter().map(|(path, line)| (path, cut(line))).collect()
}

/// Whether the superblock of an image leads to a log tree.
pub fn has_log(image: &[u8]) -> bool {
    const LOG_ROOT: usize = (64 << 10) + 0x60;
    image[LOG_ROOT..LOG_ROOT + 8] != [0; 8]
}

/// Writes an image, without its zeros.
pub fn write_image(dir: &Path, name: &str, bytes: &[u8]) -> Images {
    const PART: usize = 64 << 10;
    let path = dir.join(name);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (index, part) in bytes.chunks(PART).enumerate() {
        if part.iter().any(|byte| *byte != 0) {
            std::os::unix::fs::FileExt::write_all_at(&file, part, (index * PART) as u64).unwrap();
        }
    }
    Images { paths: vec![path] }
}

/// Opens images for writing.
pub fn mount_writable(images: &Images) -> Arc<Vfs> {
    mount_writable_with(images, OpenOptions::default())
}

pub fn mount_writable_with(images: &Images, options: OpenOptions) -> Arc<Vfs> {
    let open = |path| Arc::new(FileDevice::open(path, OpenMode::ReadWrite).unwrap()) as Arc<dyn Device>;
    mount_devices(images.paths.iter().map(open).collect(), options)
}

/// Opens devices for writing.
pub fn mount_devices(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Arc<Vfs> {
    let fs = Btrfs::open(devices, options);
    let fs = fs.unwrap_or_else(|error| panic!("open: {error}"));
    assert_eq!(fs.health().read_only, None);
    Vfs::mount(fs, MountOptions::default()).unwrap_or_else(|error| panic!("mount: {error}"))
}

/// `btrfs check` finds nothing, also not in the data.
pub fn assert_clean(images: &Images, what: &str) {
    let check = |device: &str| {
        // It looks at all devices, and misses some of an array if loop devices of other tests come and go.
        // With `--force` it does not check what they mount.
        let mut tries = 0;
        let (output, said) = loop {
            let output =
                ivers_oracle::output("btrfs", ["check", "--force", "--check-data-csum", device]).unwrap();
            let said = ivers_oracle::said(&output);
            tries += 1;
            if !said.contains("is missing") || tries == 50 {
                break (output, said);
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        };
        assert!(output.status.success(), "{what}: {said}");
        let words = ["ERROR", "error:", "mismatch", "wrong", "bad ", "invalid"];
        let odd: Vec<_> = said
            .lines()
            .filter(|line| words.iter().any(|word| line.contains(word)))
            // A loop device of another test; the old cache of free space, which nobody uses then.
            .filter(|line| !line.contains("cannot scan") && !line.contains("space cache will be invalidated"))
            .collect();
        assert!(odd.is_empty(), "{what}: {odd:?}");
    };
    match &images.paths[..] {
        [path] => check(path.to_str().unwrap()),
        _ => images.with_loops(|loops| check(&loops[0])),
    }
}

/// What does not compare: the times of a directory in place of a subvolume are those of the kernel's mount.
pub fn comparable(mut tree: Tree) -> Tree {
    for placeholder in ["/snapshot/nested", "/d/fixed/nested"] {
        let line = tree.remove(placeholder).expect("a snapshot shows the subvolume in its source");
        tree.insert(placeholder.into(), line.split(" times=").next().unwrap().into());
    }
    tree
}
