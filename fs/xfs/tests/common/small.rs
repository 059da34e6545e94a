//! Small images with entries of every kind, and damage to them.

use ivers_block::{ByteOffset, Device, MemDevice, OverlayDevice};
use ivers_xfs::layout::checksum::{SelfDescription, seal_inode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fmt::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const SECTOR: usize = 512;
const INODE: usize = 512;

/// The size of a small image in bytes: mkfs.xfs makes it with a flag for testers.
pub const SMALL_BYTES: u64 = 40 << 20;

/// Makes a small image with files, links, a device node, a FIFO, and a directory of each form.
pub fn make_small(path: &Path, args: &[&str]) {
    std::fs::File::create(path).unwrap().set_len(SMALL_BYTES).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::write(&source, vec![b'f'; 10_000]).unwrap();
    let mut text = "/\n0 0\nd--755 0 0\n".to_owned();
    for name in ["a", "b", "c", "attrs", "remote"] {
        writeln!(text, "{name} ---644 0 0 {}", source.display()).unwrap();
    }
    text += "short l--777 0 0 target\nnull c--600 0 0 1 3\npipe p--600 0 0\n";
    for (name, count) in [("few", 5), ("block", 60), ("leaf", 250), ("node", 1100)] {
        writeln!(text, "{name} d--755 0 0").unwrap();
        for number in 0..count {
            writeln!(text, "entry-{number}-{} l--777 0 0 x", "n".repeat(number % 40)).unwrap();
        }
        text += "sub d--755 0 0\n$\n$\n";
    }
    text += "$\n";
    let proto = dir.path().join("proto");
    std::fs::write(&proto, text).unwrap();
    let mut all = vec!["--unsupported", "-q", "-f", "-K", "-d", "agcount=2", "-l", "size=13m"];
    all.extend(args);
    all.extend(["-p", proto.to_str().unwrap(), path.to_str().unwrap()]);
    ivers_oracle::run("mkfs.xfs", &all).unwrap();
}

/// Changes a structure, and makes its checksum right again.
pub fn change_sealed(structure: &mut [u8], change: impl FnOnce(&mut [u8])) {
    let kind = SelfDescription::of(structure);
    let lsn = kind.and_then(|kind| kind.lsn(structure)).unwrap_or(0);
    change(structure);
    match kind {
        Some(kind) => kind.seal(structure, lsn),
        None => seal_inode(structure),
    }
}

/// Damages structures of an image at random.
pub struct Damager {
    base: Arc<dyn Device>,
    /// Offsets of sectors that are not zero.
    used: Vec<usize>,
    /// Offsets that are damaged less often.
    rare: Range<usize>,
    random: SmallRng,
}

impl Damager {
    pub fn new(bytes: &[u8], rare: Range<usize>, seed: u64) -> Self {
        let in_use = |at: &usize| bytes[*at..at + SECTOR].iter().any(|byte| *byte != 0);
        Self {
            base: Arc::new(MemDevice::from_bytes(bytes)),
            used: (0..bytes.len()).step_by(SECTOR).filter(in_use).collect(),
            rare,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    /// Returns a copy of the image with up to five damaged structures. Most have a right checksum.
    pub fn damage(&mut self) -> Arc<dyn Device> {
        let device: Arc<dyn Device> = Arc::new(OverlayDevice::new(self.base.clone()));
        let random = &mut self.random;
        for _ in 0..random.random_range(1..6) {
            let sector = self.used[random.random_range(0..self.used.len())];
            if self.rare.contains(&sector) && random.random_bool(0.7) {
                continue;
            }
            let unit = [SECTOR, 1024, 4096][random.random_range(0..3)];
            let at = sector / unit * unit;
            let mut structure = vec![0; unit];
            device.read_at(ByteOffset(at as u64), &mut structure).unwrap();
            let kind = SelfDescription::of(&structure);
            for _ in 0..random.random_range(1..5) {
                let place = random.random_range(0..unit);
                let flipped = structure[place] ^ 1 << random.random_range(0..8);
                let values = [0, 0xFF, 0x80, random.random(), flipped];
                structure[place] = values[random.random_range(0..values.len())];
            }
            match kind {
                Some(kind) if random.random_bool(0.9) => kind.seal(&mut structure, 1 << 32),
                None if structure.starts_with(b"IN") && random.random_bool(0.9) => {
                    let inodes = structure.chunks_mut(INODE);
                    inodes.filter(|inode| inode.starts_with(b"IN")).for_each(seal_inode);
                }
                _ => {}
            }
            device.write_at(ByteOffset(at as u64), &structure).unwrap();
        }
        device
    }
}
