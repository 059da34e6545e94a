//! Blocks smaller and larger than a page. The driver asserts that reads and write-back come in whole units.
//! File contents agree with a model after cached and direct writes, writes around the cache, truncation,
//! holes and eviction.

use ivers_mem::MemWithBlocks;
use ivers_vfs::*;
use std::sync::Arc;

/// The size of the tested part of the file: three of the largest blocks.
const REACH: u64 = 3 * 65536;

/// A xorshift generator: a seed gives one sequence on every machine.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn random_work<const BLOCK: usize>(seed: u64) {
    let options = || MountOptions { background: false, cache_bytes: 1 << 20, ..MountOptions::default() };
    let vfs = Vfs::mount(Arc::new(MemWithBlocks::<BLOCK>::new(1 << 30)), options()).unwrap();
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let file = vfs.create(&cred, &root, b"f", &CreateSpec::file(0o600), false).unwrap().0;
    let mut draw = Draw(seed);
    let mut model: Vec<u8> = Vec::new();
    for step in 0..600u64 {
        let at = draw.below(REACH);
        let longest = [10, 5000, 70000][draw.below(3) as usize];
        let len = 1 + draw.below(longest);
        let byte = step as u8 | 1;
        match draw.below(10) {
            0..=4 => {
                let (at, flags) = match draw.below(6) {
                    0 => (at - at % BLOCK as u64, WriteFlags::DIRECT),
                    1 => (at, WriteFlags::DIRECT),
                    2 => (at - at % BLOCK as u64, WriteFlags::CACHED_BY_CALLER),
                    3 => (at, WriteFlags::CACHED_BY_CALLER),
                    _ => (at, WriteFlags::empty()),
                };
                let bytes = vec![byte; len as usize];
                assert_eq!(vfs.write(&cred, &file, at, &bytes, flags).unwrap(), bytes.len());
                let end = (at + len) as usize;
                model.resize(model.len().max(end), 0);
                model[at as usize..end].fill(byte);
            }
            5 | 6 => {
                let set = SetAttr { size: Some(at), ..SetAttr::default() };
                vfs.set_attr(&cred, &file, &set).unwrap();
                model.resize(at as usize, 0);
            }
            7 => {
                let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                vfs.fallocate(&cred, &file, punch, at, len).unwrap();
                let end = (at + len).min(model.len() as u64) as usize;
                if (at as usize) < end {
                    model[at as usize..end].fill(0);
                }
            }
            8 => vfs.fsync(&file, false).unwrap(),
            // Another file takes the memory: clean pages are evicted one by one, not unit by unit.
            _ => {
                let other =
                    vfs.create(&cred, &root, step.to_string().as_bytes(), &CreateSpec::file(0o600), false);
                let other = other.unwrap().0;
                vfs.fsync(&file, false).unwrap();
                vfs.write(&cred, &other, 0, &vec![7; 1 << 20], WriteFlags::empty()).unwrap();
                vfs.fsync(&other, false).unwrap();
                vfs.unlink(&cred, &root, step.to_string().as_bytes(), false).unwrap();
            }
        }
        let (at, mut bytes) = (draw.below(REACH), vec![0; 1 + draw.below(90000) as usize]);
        let got = match draw.below(4) {
            0 => vfs.read_direct(&cred, &file, at, &mut bytes),
            1 => vfs.read_for_cache(&cred, &file, at, &mut bytes),
            _ => vfs.read(&cred, &file, at, &mut bytes),
        };
        let expected = model.get(at as usize..).unwrap_or_default();
        let expected = &expected[..expected.len().min(bytes.len())];
        assert_eq!(got.unwrap(), expected.len(), "seed {seed} step {step} block {BLOCK}");
        let differs = bytes.iter().zip(expected).position(|(got, want)| got != want);
        assert_eq!(differs, None, "seed {seed} step {step} block {BLOCK} from {at}");
    }
    assert_eq!(file.size(), model.len() as u64);
    vfs.fsync(&file, false).unwrap();
    assert_eq!(vfs.dirty_bytes(), 0);
    vfs.unlink(&cred, &root, b"f", false).unwrap();
    drop(file);
    let free = vfs.stat_fs().unwrap();
    assert_eq!(free.blocks_free, free.blocks, "seed {seed} block {BLOCK}: space stays reserved");
}

#[test]
fn contents_agree_with_a_model_at_every_block_size() {
    for seed in 1..=6 {
        random_work::<1024>(seed);
        random_work::<4096>(seed);
        random_work::<16384>(seed);
        random_work::<65536>(seed);
    }
}

#[test]
fn a_small_write_dirties_and_writes_its_whole_block() {
    let options = MountOptions { background: false, ..MountOptions::default() };
    let vfs = Vfs::mount(Arc::new(MemWithBlocks::<65536>::new(1 << 30)), options).unwrap();
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let file = vfs.create(&cred, &root, b"f", &CreateSpec::file(0o600), false).unwrap().0;
    let write = |at, bytes: &[u8]| vfs.write(&cred, &file, at, bytes, WriteFlags::empty()).unwrap();
    write(2 * 65536 - 1, b"x");
    vfs.fsync(&file, false).unwrap();
    let before = vfs.stats().written_back_bytes;
    write(70000, b"y");
    assert_eq!(vfs.dirty_bytes(), 65536);
    vfs.fsync(&file, false).unwrap();
    assert_eq!(vfs.stats().written_back_bytes - before, 65536);
}

#[test]
fn mount_refuses_a_unit_that_is_no_power_of_two() {
    let mounted = Vfs::mount(Arc::new(MemWithBlocks::<12288>::new(1 << 30)), MountOptions::default());
    assert!(matches!(mounted, Err(Error::Incompatible(_))));
}
