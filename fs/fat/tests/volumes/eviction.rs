//! Eviction of an inode whose last change is still in a batch. Its next change may have to wait for that
//! batch, also after the inode is loaded again.

use ivers_block::{Device, FaultDevice, MemDevice};
use ivers_crash::states::States;
use ivers_fat::{Fat, OpenOptions};
use ivers_oracle::{FAT_PROGRAMS, FatImage, fsck_fat_after_crash, have_programs};
use ivers_vfs::*;
use std::sync::Arc;
use std::time::Duration;

/// Looking up this many files evicts other inodes from a cache of `CACHE_BYTES`.
const OTHERS: usize = 200;
const CACHE_BYTES: u64 = 64 << 10;

/// A name, and the changes made with a small cache.
type Script = (&'static str, fn(&Fixture));

struct Fixture {
    vfs: Arc<Vfs>,
    cred: Cred,
}

impl Fixture {
    fn mount(device: Arc<dyn Device>, cache_bytes: u64) -> Self {
        let options = OpenOptions::from(DriverOptions {
            commit_interval: Duration::from_secs(3600),
            ..DriverOptions::default()
        });
        let fat = Fat::open(device, options).unwrap();
        let options = MountOptions { background: false, cache_bytes, ..MountOptions::default() };
        Self { vfs: Vfs::mount(fat, options).unwrap(), cred: Cred::root() }
    }

    fn find(&self, path: &str) -> InodeRef {
        self.vfs.resolve(&self.cred, path, false).unwrap()
    }

    fn make(&self, dir: &str, name: &str, spec: &CreateSpec) -> InodeRef {
        self.vfs.create(&self.cred, &self.find(dir), name.as_bytes(), spec, false).unwrap().0
    }

    fn append(&self, path: &str, bytes: &[u8]) {
        self.vfs.write(&self.cred, &self.find(path), 0, bytes, WriteFlags::APPEND).unwrap();
    }

    fn truncate(&self, path: &str, size: u64) {
        let size = SetAttr { size: Some(size), ..SetAttr::default() };
        self.vfs.set_attr(&self.cred, &self.find(path), &size).unwrap();
    }

    fn rename(&self, from: (&str, &str), to: (&str, &str)) {
        let (old, new) = (self.find(from.0), self.find(to.0));
        let (old_name, new_name) = (from.1.as_bytes(), to.1.as_bytes());
        self.vfs.rename(&self.cred, &old, old_name, &new, new_name, RenameFlags::empty(), false).unwrap();
    }

    /// Looks up other files until this one is evicted.
    fn evict(&self, path: &str) {
        let change = self.vfs.change(&self.find(path));
        for nth in (0..OTHERS).chain(0..OTHERS) {
            self.find(&format!("/others/{nth}"));
        }
        assert_ne!(self.vfs.change(&self.find(path)), change, "{path} is still in memory");
    }
}

#[test]
fn a_renamed_or_truncated_inode_may_be_evicted_before_its_batch_is_written() {
    if !have_programs(FAT_PROGRAMS) {
        return;
    }
    let scripts: [Script; 2] = [
        ("renamed", |fixture| {
            fixture.rename(("/", "a"), ("/", "b"));
            fixture.evict("/b");
            fixture.rename(("/", "b"), ("/d", "a"));
        }),
        ("truncated", |fixture| {
            fixture.truncate("/a", 100);
            fixture.evict("/a");
            fixture.append("/a", &[b'N'; 4000]);
        }),
    ];
    for (bits, sectors) in [("12", "4"), ("16", "1"), ("32", "1")] {
        let image = FatImage::mkfs(4 << 20, &["-F", bits, "-s", sectors]).unwrap();
        let base = Arc::new(MemDevice::from_bytes(&std::fs::read(image.path()).unwrap()));
        let fixture = Fixture::mount(base.clone(), 32 << 20);
        for name in ["a", "b"] {
            fixture.make("/", name, &CreateSpec::file(0o644));
            fixture.append(&format!("/{name}"), &[b'O'; 9000]);
        }
        for name in ["d", "others"] {
            fixture.make("/", name, &CreateSpec::directory(0o755));
        }
        for nth in 0..OTHERS {
            fixture.make("/others", &nth.to_string(), &CreateSpec::file(0o644));
        }
        fixture.vfs.unmount().unwrap();
        for (what, script) in scripts {
            let device = Arc::new(FaultDevice::new(base.clone()));
            let fixture = Fixture::mount(device.clone(), CACHE_BYTES);
            script(&fixture);
            fixture.vfs.unmount().unwrap();
            let states = States::new(base.clone(), &device.record(), 1)
                .each_content(|state, bytes| {
                    std::fs::write(image.path(), bytes).unwrap();
                    let whole = fsck_fat_after_crash(&image.path());
                    assert!(whole.is_ok(), "FAT{bits}, {what}, {state:?}: {whole:?}");
                })
                .unwrap();
            println!("FAT{bits}, {what}: {states} states");
        }
    }
}

#[test]
fn a_remembered_inode_keeps_its_number_and_value_when_it_is_renamed() {
    if !have_programs(FAT_PROGRAMS) {
        return;
    }
    let image = FatImage::mkfs(16 << 20, &[]).unwrap();
    let device = Arc::new(MemDevice::from_bytes(&std::fs::read(image.path()).unwrap()));
    let fixture = Fixture::mount(device, CACHE_BYTES);
    let (file, dir) = (CreateSpec::file(0o644), CreateSpec::directory(0o755));
    fixture.make("/", "others", &dir);
    for nth in 0..OTHERS {
        fixture.make("/others", &nth.to_string(), &file);
    }
    fixture.make("/", "d", &dir);
    // The entry is at a position that another file had.
    fixture.make("/", "gone", &file);
    fixture.vfs.unlink(&fixture.cred, &fixture.find("/"), b"gone", false).unwrap();
    let inode = fixture.make("/", "a", &file);
    let (ino, generation) = (inode.ino, inode.generation);
    fixture.vfs.remember(&inode, fixture.find("/").ino);
    drop(inode);
    fixture.rename(("/", "a"), ("/d", "b"));
    let change = fixture.vfs.change(&fixture.find("/d/b"));
    for nth in (0..OTHERS).chain(0..OTHERS) {
        fixture.find(&format!("/others/{nth}"));
    }
    assert!(!fixture.vfs.is_in_memory(ino));
    let inode = fixture.vfs.recall(ino).unwrap();
    assert_eq!((inode.generation, fixture.vfs.change(&inode)), (generation, change));
    assert_eq!(fixture.find("/d/b").ino, ino);
    drop(inode);
    assert!(fixture.vfs.forget(ino, 1));
    fixture.vfs.release_forgotten(ino);
}
