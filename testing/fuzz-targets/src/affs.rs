//! AFFS volumes: damages blocks, then opens, walks and uses the volume.
//!
//! The volumes are generated here. They are small, so that a number refers to a used block. [`crate::input`]
//! describes the form of an input. The class of a patch is ignored; checksums are corrected according to the
//! type of the damaged block.

use crate::input::{Flags, Input, Patch};
use crate::work::{driver_options, memory, mount_twice, on_vfs};
use ivers_affs::layout::{head, put_tail32, put32, set_checksum, tail};
use ivers_affs::{Affs, OpenOptions, mkfs};
use ivers_block::{ByteOffset, Device, MemDevice, OverlayDevice};
use ivers_vfs::*;
use std::sync::{Arc, LazyLock};

const BLOCK: usize = 512;
/// The offset of the volume in the image with partitions.
const CYLINDER: usize = 32;

struct Base {
    device: Arc<MemDevice>,
    /// The used blocks.
    blocks: Vec<usize>,
    root: usize,
}

static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let mut bases: Vec<Base> = (0..4).map(|low| base(volume(low), 0)).collect();
    bases.push(base(disk(&volume(1), &volume(0)), CYLINDER));
    // With directory caches.
    bases.extend((4..6).map(|low| base(volume(low), 0)));
    bases
});

/// Makes a volume with entries of every kind.
fn volume(low: u8) -> Vec<u8> {
    let device = Arc::new(MemDevice::new(200 << 10));
    let now = Timestamp { sec: 1_763_766_000, nsec: 0 };
    mkfs::format(&*device, low, BLOCK as u32, "Fuzz", now).expect("it is made");
    let options = OpenOptions::default();
    let fs = Affs::open(device.clone(), options).expect("it opens");
    let vfs =
        Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).expect("it mounts");
    fill(&vfs).expect("it is filled");
    vfs.unmount().expect("it closes");
    device.to_bytes()
}

fn fill(vfs: &Arc<Vfs>) -> Result<()> {
    let (cred, root) = (Cred::root(), vfs.root()?);
    let file = |dir: &InodeRef, name: &str, len: usize| -> Result<InodeRef> {
        let (file, _) = vfs.create(&cred, dir, name.as_bytes(), &CreateSpec::file(0o644), false)?;
        vfs.write(&cred, &file, 0, &vec![b'f'; len], WriteFlags::empty())?;
        Ok(file)
    };
    let (dir, _) = vfs.create(&cred, &root, b"Dir", &CreateSpec::directory(0o755), false)?;
    let (below, _) = vfs.create(&cred, &dir, b"Below", &CreateSpec::directory(0o700), false)?;
    // Three names of one hash chain, from the FAQ.
    let chained = ["file_1a", "file_24", "file_5u"].map(|name| file(&root, name, 900));
    let first = chained.into_iter().next().expect("there are three")?;
    let large = file(&below, "large", 40_000)?;
    file(&dir, "empty", 0)?;
    vfs.link(&cred, &large, &dir, b"link", false)?;
    vfs.link(&cred, &large, &root, b"another link", false)?;
    vfs.create(&cred, &dir, b"soft", &CreateSpec::symlink("Below/large"), false)?;
    vfs.set_xattr(&cred, &first, "user.amiga.comment", b"a comment", XattrMode::Any)
}

/// Makes a disk with two partitions.
fn disk(first: &[u8], second: &[u8]) -> Vec<u8> {
    let unit = CYLINDER * BLOCK;
    let mut image = vec![0; unit];
    let mut begin = 1;
    let mut tell = |nth: usize, name: &[u8], bytes: &[u8], image: &mut Vec<u8>| {
        let cylinders = bytes.len().div_ceil(unit);
        let mut part = vec![0; 256];
        part[..4].copy_from_slice(b"PART");
        let next = if nth == 0 { 2 } else { u32::MAX };
        put32(&mut part, 4, 64);
        put32(&mut part, 16, next);
        part[36] = name.len() as u8;
        part[37..37 + name.len()].copy_from_slice(name);
        let vector = [16, 128, 0, 1, 1, CYLINDER, 2, 0, 0, begin, begin + cylinders - 1, 30, 0, 0, 0, 0];
        vector.iter().enumerate().for_each(|(at, word)| put32(&mut part, 128 + at * 4, *word as u32));
        part[192..195].copy_from_slice(b"DOS");
        set_checksum(&mut part, 8);
        image[(nth + 1) * BLOCK..(nth + 1) * BLOCK + 256].copy_from_slice(&part);
        image.extend_from_slice(bytes);
        image.resize(image.len().next_multiple_of(unit), 0);
        begin += cylinders;
    };
    tell(0, b"DH0", first, &mut image);
    tell(1, b"DH1", second, &mut image);
    let mut rdb = vec![0; 256];
    rdb[..4].copy_from_slice(b"RDSK");
    for (at, word) in [(4, 64), (16, BLOCK as u32), (28, 1)] {
        put32(&mut rdb, at, word);
    }
    set_checksum(&mut rdb, 8);
    image[..256].copy_from_slice(&rdb);
    image
}

fn base(bytes: Vec<u8>, start: usize) -> Base {
    let holds = |block: &usize| bytes[block * BLOCK..(block + 1) * BLOCK].iter().any(|&byte| byte != 0);
    let blocks = (0..bytes.len() / BLOCK).filter(holds).collect();
    let root = start + (2 + (200 << 10) / BLOCK - 1) / 2;
    Base { device: Arc::new(MemDevice::from_bytes(&bytes)), blocks, root }
}

/// Runs an input.
pub fn run(input: &[u8]) {
    let mut rest = Input::new(input);
    let base = &BASES[usize::from(rest.byte()) % BASES.len()];
    let flags = Flags(rest.byte());
    let device: Arc<dyn Device> = Arc::new(OverlayDevice::new(base.device.clone()));
    if flags.no_replay() {
        // Not closed: the driver checks all of it.
        change(&*device, base.root, |block| put_tail32(block, tail::BM_FLAG, 0), true);
    }
    for patch in rest.patches() {
        let block = base.blocks[usize::from(patch.place) % base.blocks.len()];
        let at = usize::from(patch.offset) % BLOCK;
        let len = patch.bytes.len().min(BLOCK - at);
        let write = |block: &mut [u8]| block[at..at + len].copy_from_slice(&patch.bytes[..len]);
        change(&*device, block, write, !flags.keep_checksums());
    }
    for partition in [None, Some("DH0")] {
        let _ = ivers_affs::check::check(device.clone(), partition, memory(), "image");
    }
    let calls = rest.calls();
    for partition in ["DH0", "2"] {
        mount_twice(flags, &calls, |flags| mount(&device, flags, partition));
    }
}

fn change(device: &dyn Device, block: usize, write: impl Fn(&mut [u8]), sealed: bool) {
    let mut bytes = vec![0; BLOCK];
    let at = (block * BLOCK) as u64;
    device.read_at(ByteOffset(at), &mut bytes).expect("places lie in the image");
    // Bitmap blocks have the checksum in front, the partition list after its length; data blocks have none.
    let checksum = match &bytes[..4] {
        [0, 0, 0, 0..=33] => Some(head::CHECKSUM),
        b"RDSK" | b"PART" => Some(8),
        [b'D', b'O', b'S', _] | [b'f', ..] => None,
        _ => Some(0),
    };
    write(&mut bytes);
    if let (Some(checksum), true) = (checksum, sealed) {
        let len = if checksum == 8 { 256 } else { BLOCK };
        set_checksum(&mut bytes[..len], checksum);
    }
    device.write_at(ByteOffset(at), &bytes).expect("places lie in the image");
}

fn mount(device: &Arc<dyn Device>, flags: Flags, partition: &str) -> Option<Arc<Vfs>> {
    let common = driver_options(flags.read_only());
    let budget = common.budget.clone();
    let mut magic = [0; 4];
    device.read_at(ByteOffset(0), &mut magic).ok()?;
    let options = OpenOptions { common, partition: (magic == *b"RDSK").then(|| partition.to_owned()) };
    let fs = Affs::open(device.clone(), options).ok()?;
    on_vfs(fs, flags, budget)
}

/// Returns the fuzz inputs: each block of each volume patched with its own first bytes, and all calls.
pub fn inputs() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (number, base) in BASES.iter().enumerate() {
        for (index, block) in base.blocks.iter().enumerate().step_by(base.blocks.len().div_ceil(24)) {
            let mut bytes = vec![0; 96];
            base.device
                .read_at(ByteOffset((block * BLOCK) as u64), &mut bytes)
                .expect("places lie in the image");
            let mut input = vec![number as u8, [0, 4, 8, 12][index % 4], 1];
            Patch { class: 0, place: index as u16, offset: 0, bytes: &bytes }.encode(&mut input);
            crate::inputs::all_calls(&mut input);
            inputs.push(input);
        }
    }
    inputs
}
