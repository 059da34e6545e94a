//! A device that refuses the data of one file: an error of that file, reported once to every descriptor;
//! everything else goes on, and no change attribute vouches for what was lost.

mod common;

use common::*;
use ivers_block::{BlockError, Budget, ByteOffset, Device, MemDevice};
use ivers_vfs::*;
use std::sync::Arc;

const BAD: u8 = 0xBD;

/// Refuses writes that contain a run of [`BAD`] bytes.
struct Picky(Arc<dyn Device>);

impl Device for Picky {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> std::result::Result<(), BlockError> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> std::result::Result<(), BlockError> {
        if buf.windows(64).any(|run| run == [BAD; 64]) {
            let source = Arc::new(std::io::Error::other("refused"));
            return Err(BlockError::Io {
                what: "write",
                device: self.describe(),
                offset,
                len: buf.len() as u64,
                source,
            });
        }
        self.0.write_at(offset, buf)
    }

    fn flush(&self) -> std::result::Result<(), BlockError> {
        self.0.flush()
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> std::result::Result<(), BlockError> {
        self.0.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
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
    assert_eq!(vfs.read(file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn is_data_error(result: Result<()>) -> bool {
    matches!(result, Err(Error::FileData(_)))
}

fn loses_data_of_one_file(name: &str, image: Vec<u8>, open: Open) {
    let root_user = Cred::root();
    let plain: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(&image));
    let mount = |device: Arc<dyn Device>| {
        let budget = Arc::new(Budget::new(64 << 20));
        let options =
            MountOptions { background: false, budget: Some(budget.clone()), ..MountOptions::default() };
        Vfs::mount(open(device, budget), options).unwrap()
    };
    let vfs = mount(Arc::new(Picky(plain.clone())));
    let root = vfs.root().unwrap();
    let create = |name: &str| {
        vfs.create(&root_user, &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0
    };
    let (bad, good) = (create("bad"), create("good"));
    write(&vfs, &bad, 0, &[1; 10_000]);
    vfs.fsync(&bad, false).unwrap();

    let cursors = [vfs.error_cursor(&bad), vfs.error_cursor(&bad)];
    write(&vfs, &bad, 4096, &[BAD; 40_000]);
    write(&vfs, &good, 0, &[2; 50_000]);
    let seq = vfs.writeback_error_seq();
    let before = vfs.change(&bad).unwrap();
    assert!(is_data_error(vfs.fsync_descriptor(&bad, false, &cursors[0])), "{name}");
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
    for (name, kind, args) in KINDS {
        loses_data_of_one_file(name, image(kind, args), open_ext4);
    }
    for (low, name) in AMIGAS {
        loses_data_of_one_file(name, amiga(low), open_affs);
    }
    loses_data_of_one_file("examplefs", example(), open_example);
    for (name, args) in FATS {
        loses_data_of_one_file(name, vfat(args), open_fat);
    }
}

#[test]
fn through_fuse_every_descriptor_is_told_once() {
    use std::io::Write;
    if !can_mount() {
        return;
    }
    let plain: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(&image("ext4", &[])));
    let budget = LAZY.budget();
    let fs = open_ext4(Arc::new(Picky(plain)), budget.clone());
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
    // The kernel may still show what was lost, so no value stands for it.
    let change = || xattr::get(&path, "system.ivers.change").unwrap().unwrap();
    assert_ne!(change(), change());
    std::fs::write(top.join("g"), [1; 20_000]).unwrap();
    assert_eq!(told(&std::fs::File::open(top.join("g")).unwrap()), None);
    drop((first, second));
    mount.end();
}
