//! A file's block count does not wait for write-back: programs that copy sparse files (tar --sparse) take a
//! file without blocks for a hole and do not read it.

use crate::common::*;
use ivers_block::{Budget, Device, MemDevice};
use ivers_mem::Mem;
use ivers_vfs::{CreateSpec, Cred, InodeRef, MountOptions, SetAttr, Vfs, WriteFlags};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// A file and its contents, in sectors of 512 bytes.
struct Grown<'a> {
    vfs: &'a Vfs,
    file: InodeRef,
    rng: StdRng,
    written: Vec<bool>,
}

impl Grown<'_> {
    fn write(&mut self, offset: u64, len: usize) {
        self.vfs.write(&Cred::root(), &self.file, offset, &vec![7; len], WriteFlags::empty()).unwrap();
        let (first, end) = ((offset / 512) as usize, (offset + len as u64).div_ceil(512) as usize);
        self.written.resize(self.written.len().max(end), false);
        self.written[first..end].fill(true);
    }

    fn truncate(&mut self, size: u64) {
        let size_alone = SetAttr { size: Some(size), ..SetAttr::default() };
        self.vfs.set_attr(&Cred::root(), &self.file, &size_alone).unwrap();
        self.written.truncate(size.div_ceil(512) as usize);
    }

    fn step(&mut self) {
        let size = self.vfs.stat(&self.file).size;
        let (inside, beyond) = (self.rng.random_range(0..=size), self.rng.random_range(0..=size + 50_000));
        match self.rng.random_range(0..8) {
            0 => self.truncate(inside),
            1 => self.write(beyond, 1),
            _ => self.write(size, beyond as usize % 20_000 + 1),
        }
    }

    fn blocks(&self) -> u64 {
        self.vfs.stat(&self.file).blocks_512
    }
}

/// `nodes`: the format counts blocks of its map, which are not known before.
fn shown_at_once(name: &str, vfs: &Vfs, nodes: bool) {
    for seed in 0..12 {
        let root = vfs.root().unwrap();
        let spec = CreateSpec::file(0o644);
        let (file, _) =
            vfs.create(&Cred::root(), &root, format!("f{seed}").as_bytes(), &spec, false).unwrap();
        let mut grown = Grown { vfs, file, rng: StdRng::seed_from_u64(seed), written: Vec::new() };
        for step in 0..40 {
            grown.step();
            let data = grown.written.iter().filter(|&&written| written).count() as u64;
            let before = grown.blocks();
            assert!(before >= data, "{name}, seed {seed}, step {step}: {before} blocks for {data} of data");
            if step % 3 == 0 {
                vfs.fsync(&grown.file, false).unwrap();
                let after = grown.blocks();
                let more = if nodes { 1 + after / 4 } else { 0 };
                assert!(
                    (before..=before + more).contains(&after),
                    "{name}, seed {seed}, step {step}: {before} blocks, and {after} once they are written"
                );
            }
        }
    }
}

fn quiet(fs: Arc<dyn ivers_vfs::FileSystem>) -> Arc<Vfs> {
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

fn on(bytes: &[u8]) -> (Arc<dyn Device>, Arc<Budget>) {
    (Arc::new(MemDevice::from_bytes(bytes)), LAZY.budget())
}

#[test]
fn block_counts_do_not_wait_for_write_back() {
    shown_at_once("mem", &quiet(Arc::new(Mem::default())), false);
    for (low, name) in AMIGAS {
        let (device, budget) = on(&amiga(low));
        shown_at_once(name, &quiet(open_affs(device, budget)), false);
    }
    if ivers_oracle::have_programs(&["mkfs.fat"]) {
        for (name, args) in FATS {
            let (device, budget) = on(&vfat(args));
            shown_at_once(name, &quiet(open_fat(device, budget)), false);
        }
    }
    if ivers_oracle::have_programs(&["mkfs.ext4"]) {
        for (name, kind, args) in KINDS {
            let (device, budget) = on(&image(kind, args));
            shown_at_once(name, &quiet(open_ext4(device, budget)), true);
        }
    }
}

/// The kernel reads the count once and keeps it.
#[test]
fn a_mount_shows_block_counts_after_a_copy() {
    if !can_mount() {
        return;
    }
    let base = image("ext4", &["-b", "1024"]);
    let (device, budget) = on(&base);
    let mount = FuseMount::new((quiet(open_ext4(device, budget.clone())), budget));
    for size in [1, 1000, 5000, 300_000] {
        let path = mount.top().join(size.to_string());
        std::fs::write(&path, vec![7; size]).unwrap();
        let blocks = std::fs::metadata(&path).unwrap().blocks();
        assert_eq!(blocks, (size as u64).div_ceil(1024) * 2, "of {size} bytes");
    }
}
