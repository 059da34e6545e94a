//! A device that refuses the data of one file: an error of that file, reported once to every descriptor;
//! everything else goes on, and no change attribute vouches for what was lost.

use crate::common::*;
use ivers_block::{BlockError, Budget, ByteOffset, Device, MemDevice};
use ivers_vfs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BAD: u8 = 0xBD;

/// Refuses writes that contain a run of [`BAD`] bytes, and all writes while the switch is on.
struct Picky {
    device: Arc<dyn Device>,
    switch: Arc<Switch>,
}

#[derive(Default)]
struct Switch {
    on: AtomicBool,
    refused: AtomicU64,
}

impl Switch {
    /// Runs `f` while the device refuses all writes. Returns its result and how many writes were refused.
    fn refusing<T>(&self, f: impl FnOnce() -> T) -> (T, u64) {
        self.refused.store(0, Ordering::Relaxed);
        self.on.store(true, Ordering::Relaxed);
        let result = f();
        self.on.store(false, Ordering::Relaxed);
        (result, self.refused.load(Ordering::Relaxed))
    }
}

impl Picky {
    fn on(device: Arc<dyn Device>) -> Arc<dyn Device> {
        Self::with_switch(device, Arc::default())
    }

    fn with_switch(device: Arc<dyn Device>, switch: Arc<Switch>) -> Arc<dyn Device> {
        Arc::new(Self { device, switch })
    }
}

impl Device for Picky {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> std::result::Result<(), BlockError> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> std::result::Result<(), BlockError> {
        if self.switch.on.load(Ordering::Relaxed) || buf.windows(64).any(|run| run == [BAD; 64]) {
            self.switch.refused.fetch_add(1, Ordering::Relaxed);
            let source = Arc::new(std::io::Error::other("refused"));
            return Err(BlockError::Io {
                what: "write",
                device: self.describe(),
                offset,
                len: buf.len() as u64,
                source,
            });
        }
        self.device.write_at(offset, buf)
    }

    fn flush(&self) -> std::result::Result<(), BlockError> {
        self.device.flush()
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> std::result::Result<(), BlockError> {
        self.device.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn describe(&self) -> String {
        "picky".to_owned()
    }
}

fn write(vfs: &Vfs, file: &InodeRef, offset: u64, data: &[u8]) {
    assert_eq!(vfs.write(&Cred::root(), file, offset, data, WriteFlags::empty()).unwrap(), data.len());
}

fn read(vfs: &Vfs, file: &InodeRef) -> Vec<u8> {
    let mut bytes = vec![0; vfs.stat(file).size as usize];
    assert_eq!(vfs.read(&Cred::root(), file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn is_data_error(result: Result<()>) -> bool {
    matches!(result, Err(Error::FileData(_)))
}

fn mount(open: Open, device: Arc<dyn Device>) -> Arc<Vfs> {
    let budget = Arc::new(Budget::new(64 << 20));
    let options = MountOptions { background: false, budget: Some(budget.clone()), ..MountOptions::default() };
    Vfs::mount(open(device, budget), options).unwrap()
}

/// Calls `f` with the name, an empty image and the driver of every format.
fn for_all_formats(f: impl Fn(&str, Vec<u8>, Open)) {
    for (name, kind, args) in KINDS {
        f(name, image(kind, args), open_ext4);
    }
    for (low, name) in AMIGAS {
        f(name, amiga(low), open_affs);
    }
    f("examplefs", example(), open_example);
    for (name, args) in FATS {
        f(name, vfat(args), open_fat);
    }
}

/// `flags` are those of the write that is refused.
fn loses_data_of_one_file(name: &str, image: Vec<u8>, open: Open, flags: WriteFlags) {
    let root_user = Cred::root();
    let plain: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(&image));
    let mount = |device| mount(open, device);
    let vfs = mount(Picky::on(plain.clone()));
    let root = vfs.root().unwrap();
    let create = |name: &str| {
        vfs.create(&root_user, &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0
    };
    let (bad, good) = (create("bad"), create("good"));
    write(&vfs, &bad, 0, &[1; 10_000]);
    vfs.fsync(&bad, false).unwrap();

    let cursors = [vfs.error_cursor(&bad), vfs.error_cursor(&bad)];
    assert_eq!(vfs.write(&root_user, &bad, 4096, &[BAD; 40_000], flags).unwrap(), 40_000);
    write(&vfs, &good, 0, &[2; 50_000]);
    let seq = vfs.writeback_error_seq();
    let before = vfs.change(&bad).unwrap();
    let available = vfs.stat_fs().unwrap().blocks_available;
    assert!(is_data_error(vfs.fsync_descriptor(&bad, false, &cursors[0])), "{name}");
    let freed = vfs.stat_fs().unwrap().blocks_available.saturating_sub(available);
    let reserved = 50_000_u64.div_ceil(u64::from(vfs.info().block_size));
    assert!(freed < reserved, "{name}: the other file has lost its reservation");
    assert!(vfs.writeback_error_seq() > seq, "{name}");
    assert!(vfs.fsync_descriptor(&bad, false, &cursors[0]).is_ok(), "{name}: once");
    assert!(is_data_error(vfs.fsync_descriptor(&bad, false, &cursors[1])), "{name}: to each");
    assert!(vfs.fsync_descriptor(&bad, false, &cursors[1]).is_ok(), "{name}");
    assert!(vfs.fsync_descriptor(&bad, false, &vfs.error_cursor(&bad)).is_ok(), "{name}: it was reported");

    // The file shows what the device has, and that is a change.
    let lost = vfs.change(&bad).unwrap();
    assert!(lost != before, "{name}: {before} vouches for what was lost");
    let now = read(&vfs, &bad);
    assert!(now[..4096] == [1; 4096] && !now.contains(&BAD), "{name}");
    assert_eq!(vfs.dirty_bytes(), 50_000_u64.next_multiple_of(4096), "{name}: only the other file is dirty");

    // Everything else goes on, with this file too.
    assert_eq!(vfs.health().read_only, None, "{name}");
    vfs.fsync(&good, false).unwrap();
    write(&vfs, &create("later"), 0, &[3; 9000]);
    write(&vfs, &bad, 8192, &[4; 20_000]);
    vfs.fsync_descriptor(&bad, false, &cursors[0]).unwrap();
    assert!(is_data_error(vfs.fsync(&bad, false)), "{name}: a caller without a descriptor is told once too");
    vfs.fsync(&bad, false).unwrap();
    vfs.sync().unwrap();
    let (shown, value) = (read(&vfs, &bad), vfs.change(&bad).unwrap());
    assert!(shown[8192..28_192].iter().all(|byte| *byte == 4), "{name}");
    let persistent = vfs.info().semantics.persistent;
    drop((bad, good, root));
    vfs.unmount().unwrap();
    drop(vfs);

    let vfs = mount(plain);
    let at = |name: &str| vfs.resolve(&root_user, name, true).unwrap();
    assert_eq!(read(&vfs, &at("good")), vec![2; 50_000], "{name}");
    assert_eq!(read(&vfs, &at("later")), vec![3; 9000], "{name}");
    let bad = at("bad");
    assert_eq!(read(&vfs, &bad)[..28_192], shown[..28_192], "{name}");
    assert!(!persistent || vfs.change(&bad).unwrap() > value, "{name}: the epoch rises after a loss");
    vfs.unmount().unwrap();
}

#[test]
fn a_failed_write_of_data_is_an_error_of_its_file_on_every_format() {
    for_all_formats(|name, image, open| loses_data_of_one_file(name, image, open, WriteFlags::empty()));
}

/// The device refuses the data of a write around the cache. The cache takes it, and reports it as any other.
#[test]
fn a_failed_write_around_the_cache_is_reported_like_any_other() {
    let flags = WriteFlags::CACHED_BY_CALLER;
    for_all_formats(|name, image, open| loses_data_of_one_file(name, image, open, flags));
}

const OLD_SIZE: u64 = 10_000;
const PUNCH: FallocateMode = FallocateMode::PUNCH_HOLE.union(FallocateMode::KEEP_SIZE);

/// A change of a file that may write data to the device at once.
#[derive(Debug, Clone, Copy)]
enum Direct {
    Resize(u64),
    Fallocate(FallocateMode),
    /// Creates a file of this size.
    Create(u64),
}

impl Direct {
    fn run(self, vfs: &Vfs, dir: &InodeRef, file: &InodeRef) -> Result<()> {
        let cred = Cred::root();
        match self {
            Direct::Resize(size) => {
                vfs.set_attr(&cred, file, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
            }
            // Both ends lie within a block.
            Direct::Fallocate(mode) => vfs.fallocate(&cred, file, mode, 100, 9800),
            Direct::Create(size) => {
                let spec = CreateSpec { size, ..CreateSpec::file(0o644) };
                vfs.create(&cred, dir, b"new", &spec, false).map(drop)
            }
        }
    }
}

/// The device refuses to write while `change` runs. Returns whether the format wrote data in it.
fn one_change_fails(name: &str, image: &[u8], open: Open, change: Direct) -> bool {
    let cred = Cred::root();
    let plain: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(image));
    let switch = Arc::new(Switch::default());
    let vfs = mount(open, Picky::with_switch(plain.clone(), switch.clone()));
    let root = vfs.root().unwrap();
    let create = |name: &[u8]| vfs.create(&cred, &root, name, &CreateSpec::file(0o644), false).unwrap().0;
    let file = create(b"file");
    write(&vfs, &file, 0, &[1; OLD_SIZE as usize]);
    vfs.sync().unwrap();
    // Marks that precede a first change are on the device before it fails.
    let other = create(b"other");
    let (free, before) = (vfs.stat_fs().unwrap().blocks_free, vfs.change(&file).unwrap());
    let (result, refused) = switch.refusing(|| change.run(&vfs, &root, &file));
    let failed = refused > 0;
    let result = match change {
        // The file is cut, and the zeros past its end are missing: its next fsync reports that, once.
        Direct::Resize(size) if size < OLD_SIZE => {
            result.unwrap();
            let reported = vfs.fsync(&file, false);
            vfs.fsync(&file, false).unwrap();
            reported
        }
        _ => result,
    };
    assert_eq!(is_data_error(result.clone()), failed, "{name}: {change:?}: {result:?}");
    assert_eq!(vfs.health().read_only, None, "{name}: {change:?}: an error of one file");
    if failed {
        let mut expected = vec![1; OLD_SIZE as usize];
        if let Direct::Resize(size) = change {
            expected.truncate(size as usize);
            if size < OLD_SIZE {
                assert!(vfs.change(&file).unwrap() != before, "{name}: {change:?}: the cut is visible");
            }
        }
        assert!(read(&vfs, &file) == expected, "{name}: {change:?}: {} bytes", vfs.stat(&file).size);
        vfs.sync().unwrap();
        assert!(vfs.stat_fs().unwrap().blocks_free >= free, "{name}: {change:?}: blocks are lost");
        // The same change succeeds as soon as the device does.
        change.run(&vfs, &root, &file).unwrap();
    }
    // Bytes that were cut off do not come back.
    let grown = SetAttr { size: Some(OLD_SIZE + 8192), ..SetAttr::default() };
    vfs.set_attr(&cred, &file, &grown).unwrap();
    write(&vfs, &other, 0, &[2; 5000]);
    let shown = read(&vfs, &file);
    if let Direct::Resize(size) = change {
        let ones = size.min(OLD_SIZE) as usize;
        assert!(
            shown.iter().enumerate().all(|(at, byte)| *byte == u8::from(at < ones)),
            "{name}: {change:?}"
        );
    }
    vfs.sync().unwrap();
    drop((file, other, root));
    vfs.unmount().unwrap();
    drop(vfs);

    let vfs = mount(open, plain);
    let at = |name: &str| read(&vfs, &vfs.resolve(&cred, name, true).unwrap());
    assert!(at("file") == shown && at("other") == [2; 5000], "{name}: {change:?}");
    vfs.unmount().unwrap();
    failed
}

#[test]
fn a_failed_write_in_a_change_of_the_size_or_a_range_is_an_error_of_its_file_on_every_format() {
    for_all_formats(|name, image, open| {
        let fails = |change| one_change_fails(name, &image, open, change);
        let is_ext = name.starts_with("ext");
        assert!(fails(Direct::Resize(30_000)), "{name}: growing writes zeros");
        assert_eq!(fails(Direct::Resize(5000)), is_ext, "{name}: ext zeroes the rest of the last block");
        assert_eq!(fails(Direct::Fallocate(PUNCH)), is_ext, "{name}");
        assert_eq!(fails(Direct::Fallocate(FallocateMode::ZERO_RANGE)), name.starts_with("ext4"), "{name}");
        let fills = ["OFS", "FFS", "FAT"].iter().any(|format| name.starts_with(format));
        assert_eq!(fails(Direct::Create(30_000)), fills, "{name}: formats without holes write zeros");
    });
}

#[test]
fn each_descriptor_reports_an_error_once_through_fuse() {
    use std::io::Write;
    if !can_mount() {
        return;
    }
    let plain: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(&image("ext4", &[])));
    let budget = LAZY.budget();
    let fs = open_ext4(Picky::on(plain), budget.clone());
    let mut mount = FuseMount::new(LAZY.mount(fs, budget));
    let top = mount.top();
    let path = top.join("f");
    let open = || {
        std::fs::OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).unwrap()
    };
    let (mut first, second) = (open(), open());
    first.write_all(&[BAD; 20_000]).unwrap();
    let told = |file: &std::fs::File| file.sync_all().err().and_then(|error| error.raw_os_error());
    const EIO: i32 = 5;
    assert_eq!([told(&first), told(&first)], [Some(EIO), None]);
    assert_eq!([told(&second), told(&second)], [Some(EIO), None]);
    assert_eq!(told(&open()), None, "it was reported before this one was opened");
    // The kernel can still show what was lost, so no value stands for it.
    let change = || xattr::get(&path, "system.ivers.change").unwrap().unwrap();
    assert_ne!(change(), change());
    std::fs::write(top.join("g"), [1; 20_000]).unwrap();
    assert_eq!(told(&std::fs::File::open(top.join("g")).unwrap()), None);
    drop((first, second));
    mount.end();
}
