//! Damaged images: errors name the place, and nothing panics, loops, or takes memory without bound.

use crate::common::*;
use crate::old::{OLD, old_and_new};
use ivers_block::{Budget, ByteOffset, CountedDevice, Device, IoCounts, MemDevice, OverlayDevice};
use ivers_ufs::check::check;
use ivers_ufs::{OpenOptions, Ufs};
use ivers_vfs::check::Memory;
use ivers_vfs::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

const UFS2: &[&str] = &["-s", "16m", "-o", "version=2"];
const SB: usize = 8192;
/// Damaged images of each kind.
const ROUNDS: u64 = 150;
/// Reads of the device that a walk and a check of a small image may take.
const READS_MAX: u64 = 20_000;

fn refusal(image: &[u8]) -> Error {
    open(memory(image)).err().expect("it is refused")
}

#[test]
fn a_wrong_superblock_is_refused_by_its_field() {
    if !have_makefs() {
        return;
    }
    let image = small_image(UFS2);
    for (at, len, value, name) in [
        (48, 4, 3, "fs_bsize"),
        (48, 4, 1 << 17, "fs_bsize"),
        (52, 4, 100, "fs_fsize"),
        (56, 4, 4, "fs_frag"),
        (44, 4, 2, "fs_ncg"),
        (104, 4, 100_000, "fs_sbsize"),
        (156, 4, 0, "fs_cssize"),
        (156, 4, 1 << 20, "fs_cssize"),
        (160, 4, 1 << 20, "fs_cgsize"),
        (184, 4, 0, "fs_ipg"),
        (184, 4, 33, "fs_fpg or fs_ipg"),
        (184, 4, 1 << 20, "overlap"),
        (16, 4, 24, "overlap"),
        (188, 4, 0, "fs_fpg"),
        (1080, 8, 0, "fs_size"),
        (1080, 8, 1 << 62, "fs_size"),
        (1096, 8, 1 << 40, "fs_csaddr"),
        (1316, 4, 1000, "fs_contigsumsize"),
        (1320, 4, 121, "fs_maxsymlinklen"),
    ] {
        let mut wrong = image.clone();
        set(&mut wrong, SB + at, len, value);
        let error = refusal(&wrong);
        let text = error.to_string();
        assert!(matches!(error, Error::Corrupt { .. }), "{name}: {text}");
        assert!(text.contains(name) && text.contains("superblock at byte 8192"), "{name}: {text}");
    }
    let text = refusal(&image[..8 << 20]).to_string();
    assert!(text.contains("it is cut off"), "{text}");
    // A check hash, which the superblock says that it has.
    let mut hashed = image.clone();
    set(&mut hashed, SB + 1308, 4, 1);
    set(&mut hashed, SB + 1312, 4, 0x200);
    assert!(refusal(&hashed).to_string().contains("bad check hash"));
    let end = SB + get(&hashed, SB + 104, 4) as usize;
    let hash = !crc32c::crc32c(&hashed[SB..end]);
    set(&mut hashed, SB + 1304, 4, hash.into());
    open(memory(&hashed)).unwrap();
}

/// Damages an image, and expects that a call fails with words that name what and where.
fn fails<T>(damage: impl FnOnce(&mut Vec<u8>), call: fn(&Arc<Vfs>) -> ivers_vfs::Result<T>, words: &[&str]) {
    let mut image = small_image(UFS2);
    damage(&mut image);
    let vfs = mount_device(memory(&image)).unwrap();
    let error = call(&vfs).err().unwrap_or_else(|| panic!("no error of {words:?}"));
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}: {words:?}");
}

fn find(vfs: &Arc<Vfs>, path: &str) -> ivers_vfs::Result<InodeRef> {
    vfs.resolve(&Cred::root(), path, false)
}

#[test]
fn damaged_structures_are_errors_that_name_the_inode() {
    if !have_makefs() {
        return;
    }
    let large = |vfs: &Arc<Vfs>| read_all(vfs, &find(vfs, "/large")?);
    let field = |path: &'static str, at: usize, len: usize, value: u64| {
        move |image: &mut Vec<u8>| {
            let at = slot(image, path) + at;
            set(image, at, len, value);
        }
    };
    fails(field("/large", 112, 8, 1 << 50), large, &["outside the filesystem", "inode "]);
    fails(field("/large", 112 + 88, 8, 16_384), large, &["fragment 16384", "inode "]);
    fails(field("/large", 208, 8, u64::MAX), large, &["outside the filesystem", "inode "]);
    fails(field("/large", 16, 8, u64::MAX), large, &["more than a file can have", "inode ", "fragment "]);
    fails(field("/large", 0, 2, 0x7000), large, &["no known type", "inode "]);
    fails(field("/large", 88, 4, 0x20_0000), large, &["snapshot", "inode "]);
    fails(field("/dir", 16, 8, 100), |vfs| find(vfs, "/dir"), &["100 bytes", "inode "]);
    fails(field("/dir", 112, 8, 0), |vfs| find(vfs, "/dir/sub"), &["a hole", "inode "]);
    fails(
        |image| {
            let at = entry(image, "/dir", "sub");
            set(image, at + 4, 2, 0);
        },
        |vfs| find(vfs, "/dir/none"),
        &["impossible length, at byte", "inode "],
    );
    fails(
        |image| {
            let at = entry(image, "/dir", "sub");
            set(image, at, 4, 77_777);
        },
        |vfs| find(vfs, "/dir/sub"),
        &["refers to inode 77777, which does not exist", "inode "],
    );
    fails(
        field("/link", 16, 8, 5000),
        |vfs| vfs.read_link(&Cred::root(), &find(vfs, "/link")?),
        &["its target has 5000 bytes", "inode "],
    );
    let mut image = small_image(UFS2);
    let root = slot(&image, "/");
    set(&mut image, root, 2, 0x81A4);
    assert!(refusal(&image).to_string().contains("the root is no directory"));
    set(&mut image, root, 2, 0);
    assert!(refusal(&image).to_string().contains("there is no root directory"));
}

#[test]
fn a_check_of_a_filesystem_that_claims_to_be_huge_ends() {
    if !have_makefs() {
        return;
    }
    let image = small_image(UFS2);
    let bytes: u64 = 1 << 60;
    let huge = MemDevice::new(bytes);
    huge.write_at(ByteOffset(0), &image).unwrap();
    let mut head = image[..16_384].to_vec();
    // Groups of 2^31 - 8 fragments each, with the inodes that they have.
    let per_group: u64 = (1 << 31) - 8;
    let groups = (bytes / 1024).div_ceil(per_group);
    for (at, len, value) in
        [(188, 4, per_group), (44, 4, groups), (1080, 8, bytes / 1024), (156, 4, groups * 16)]
    {
        set(&mut head, SB + at, len, value);
    }
    huge.write_at(ByteOffset(0), &head).unwrap();
    let device: Arc<dyn Device> = Arc::new(huge);
    let opened = Ufs::open(device.clone(), OpenOptions::default());
    assert!(opened.is_ok(), "{:?}", opened.err());
    let memory = Memory::new(Arc::new(Budget::new(64 << 20)), "allow more");
    let error = check(device, memory, "image").unwrap_err().to_string();
    assert!(error.contains("more than 64 MiB of memory; allow more"), "{error}");
}

/// Parts of an image that damage is likely to matter in: start and length in bytes.
fn parts(image: &[u8]) -> Vec<(u64, u64)> {
    let sb = superblock(image);
    let size = u64::from(sb.fragment_size);
    let mut parts = vec![
        (SB as u64, 1376),
        (sb.structure(0, 1) * size, sb.block_size.into()),
        (sb.structure(0, 2) * size, 12 * u64::from(sb.inode_size())),
        // The first data: directories, indirect blocks, contents.
        (sb.structure(0, 3) * size, 64 << 10),
    ];
    // Pointers of the first inodes.
    parts.extend((2..8).map(|nth| (sb.structure(0, 2) * size + nth * u64::from(sb.inode_size()), 256)));
    parts
}

#[test]
fn damaged_images_never_panic_loop_or_grow() {
    if !have_makefs() {
        return;
    }
    let old = OLD.into_iter().map(|format| (format.0, old_and_new(format).0));
    let images = KINDS.iter().map(|(name, options)| (*name, small_image(options))).chain(old);
    for (number, (name, image)) in (0u64..).zip(images) {
        let (base, parts) = (memory(&image), parts(&image));
        let mut opened = 0;
        for round in 0..ROUNDS {
            let mut random = StdRng::seed_from_u64(number << 32 | round);
            let counts = Arc::new(IoCounts::default());
            let overlay = OverlayDevice::new(base.clone());
            for _ in 0..random.random_range(1..12) {
                let (start, len) = parts[random.random_range(0..parts.len())];
                let at = ByteOffset(start + random.random_range(0..len));
                let mut byte = [0];
                overlay.read_at(at, &mut byte).unwrap();
                byte[0] ^= 1 << random.random_range(0..8);
                overlay.write_at(at, &byte).unwrap();
            }
            let device: Arc<dyn Device> = Arc::new(CountedDevice::new(overlay, counts.clone()));
            let budget = Arc::new(Budget::new(4 << 20));
            let common = DriverOptions { budget: budget.clone(), ..DriverOptions::default() };
            if let Ok(fs) = Ufs::open(device.clone(), OpenOptions { common }) {
                let options = MountOptions { background: false, read_only: true, ..MountOptions::default() };
                if let Ok(vfs) = Vfs::mount(fs, options) {
                    walk_all(&vfs);
                    opened += 1;
                }
            }
            let _ = check(device, Memory::new(budget.clone(), ""), "image");
            let reads = counts.fields()[0].1;
            assert!(reads < READS_MAX, "{name}, round {round}: {reads} reads");
            // A check ends above its bound, and drops what it kept.
            assert!(budget.used() < 5 << 20, "{name}, round {round}: {} bytes", budget.used());
        }
        assert!(opened > ROUNDS / 2, "{name}: {opened}");
    }
}
