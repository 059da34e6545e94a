//! What has left memory since it was changed is still in a batch: that its next change may have to wait for the last one must not be forgotten with it.

use ivers_block::{Device, FaultDevice, MemDevice};
use ivers_crash::states::States;
use ivers_fat::{Fat, OpenOptions};
use ivers_oracle::{FAT_PROGRAMS, FatImage, fsck_fat_after_crash, have_programs};
use ivers_vfs::*;
use std::sync::Arc;
use std::time::Duration;

/// Files that are looked at so that others leave a memory of `CACHE_BYTES`.
const OTHERS: usize = 200;
const CACHE_BYTES: u64 = 64 << 10;

/// Its name, and what is done in a small memory.
type Script = (&'static str, fn(&World));

struct World {
    vfs: Arc<Vfs>,
    cred: Cred,
}

impl World {
    fn mount(device: Arc<dyn Device>, cache_bytes: u64) -> Self {
        let options = OpenOptions { commit_interval: Duration::from_secs(3600), ..OpenOptions::default() };
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

    /// Looks at so many other files that this one leaves memory.
    fn evict(&self, path: &str) {
        let change = self.vfs.change(&self.find(path));
        for nth in (0..OTHERS).chain(0..OTHERS) {
            self.find(&format!("/others/{nth}"));
        }
        assert_ne!(self.vfs.change(&self.find(path)), change, "{path} is still in memory");
    }
}

#[test]
fn what_was_renamed_or_cut_may_leave_memory() {
    if !have_programs(FAT_PROGRAMS) {
        return;
    }
    let scripts: [Script; 2] = [
        ("renamed", |world| {
            world.rename(("/", "a"), ("/", "b"));
            world.evict("/b");
            world.rename(("/", "b"), ("/d", "a"));
        }),
        ("cut", |world| {
            world.truncate("/a", 100);
            world.evict("/a");
            world.append("/a", &[b'N'; 4000]);
        }),
    ];
    for (bits, sectors) in [("12", "4"), ("16", "1"), ("32", "1")] {
        let image = FatImage::mkfs(4 << 20, &["-F", bits, "-s", sectors]).unwrap();
        let base = Arc::new(MemDevice::from_bytes(&std::fs::read(image.path()).unwrap()));
        let world = World::mount(base.clone(), 32 << 20);
        for name in ["a", "b"] {
            world.make("/", name, &CreateSpec::file(0o644));
            world.append(&format!("/{name}"), &[b'O'; 9000]);
        }
        for name in ["d", "others"] {
            world.make("/", name, &CreateSpec::directory(0o755));
        }
        for nth in 0..OTHERS {
            world.make("/others", &nth.to_string(), &CreateSpec::file(0o644));
        }
        world.vfs.unmount().unwrap();
        for (what, script) in scripts {
            let device = Arc::new(FaultDevice::new(base.clone()));
            let world = World::mount(device.clone(), CACHE_BYTES);
            script(&world);
            world.vfs.unmount().unwrap();
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
