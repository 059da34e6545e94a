//! Damaged images: errors name the place, and nothing panics, loops, or takes memory without bound.

use crate::common::*;
use ivers_block::{Budget, ByteOffset, CountedDevice, Device, IoCounts, MemDevice, OverlayDevice};
use ivers_ocfs2::check::check;
use ivers_ocfs2::layout::blockcheck;
use ivers_ocfs2::{Ocfs2, OpenOptions};
use ivers_vfs::check::Memory;
use ivers_vfs::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// Damaged images of each kind.
const ROUNDS: u64 = 150;
/// Reads of the device that a walk and a check of a small image may take.
const READS_MAX: u64 = 40_000;

/// Damages an image, and expects that a call fails with words that name what and where.
fn fails<T>(damage: impl FnOnce(&mut Vec<u8>), call: fn(&Arc<Vfs>) -> ivers_vfs::Result<T>, words: &[&str]) {
    let mut image = unpack(PLAIN);
    damage(&mut image);
    let error = call(&mount(&image)).err().unwrap_or_else(|| panic!("no error of {words:?}"));
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}: {words:?}");
}

#[test]
fn damaged_structures_are_errors_that_name_the_place() {
    let field = |path: &'static str, at: usize, len: usize, value: u64| {
        move |image: &mut Vec<u8>| {
            let at = slot(image, path) + at;
            set(image, at, len, value);
        }
    };
    let prefix = |vfs: &Arc<Vfs>| read_all(vfs, &find(vfs, "/prefix")?);
    fails(field("/prefix", 0, 1, 0), prefix, &["signature is missing", "block "]);
    fails(field("/prefix", 0x50, 8, 5), prefix, &["says that it is in block 5", "block "]);
    fails(field("/prefix", 0x60, 4, 0), prefix, &["generation 0x0", "block "]);
    fails(field("/prefix", 0x28, 2, 0x7000), prefix, &["no known type", "inode "]);
    fails(field("/prefix", 0x20, 8, 1 << 60), prefix, &["more than a file can have", "inode "]);
    fails(field("/prefix", 0xC0, 2, 6), prefix, &["l_tree_depth is 6", "inode "]);
    fails(field("/prefix", 0xC0, 2, 1), prefix, &["no extent block", "block "]);
    fails(field("/prefix", 0xC2, 2, 999), prefix, &["of 999 records", "inode "]);
    fails(field("/prefix", 0xD8, 8, u64::MAX), prefix, &["outside the filesystem", "inode "]);
    fails(field("/prefix", 0xD8, 8, 4097), prefix, &["inside a cluster", "inode "]);
    fails(field("/small", 0x20, 8, 5000), |vfs| find(vfs, "/small"), &["5000 bytes are inline", "inode "]);
    fails(field("/small", 0x12, 2, 900), |vfs| find(vfs, "/small"), &["i_xattr_inline_size", "inode "]);
    fails(field("/many", 0x20, 8, 100), |vfs| find(vfs, "/many"), &["100 bytes", "inode "]);
    fails(field("/many", 0xC4, 2, 0), |vfs| names(vfs, &find(vfs, "/many")?), &["a hole", "inode "]);
    let none = |vfs: &Arc<Vfs>| find(vfs, "/few/none");
    let entry_field = |at: usize, len: usize, value: u64| {
        move |image: &mut Vec<u8>| {
            let entry = entry(image, "/few", "below");
            set(image, entry + at, len, value);
        }
    };
    fails(entry_field(8, 2, 0), none, &["impossible length, at byte", "inode "]);
    fails(entry_field(10, 1, 255), none, &["longer than its entry", "inode "]);
    let below = |vfs: &Arc<Vfs>| find(vfs, "/few/below");
    fails(entry_field(0, 8, 1 << 50), below, &["which does not exist", "inode "]);
    let color = |vfs: &Arc<Vfs>| vfs.get_xattr(&Cred::root(), &find(vfs, "/small")?, b"user.color");
    fails(
        |image| {
            let area = slot(image, "/small") + 1024 - 256;
            set(image, area, 2, 60_000);
        },
        color,
        &["more extended attributes than fit", "inode "],
    );
    let mut image = unpack(PLAIN);
    let root = slot(&image, "/");
    set(&mut image, root + 0x28, 2, 0x81A4);
    let error = open(memory(&image)).err().unwrap().to_string();
    assert!(error.contains("the root is no directory"), "{error}");
}

#[test]
fn a_group_in_a_chain_that_does_not_exist_is_damage() {
    for name in ["//global_bitmap", "//inode_alloc:0000", "//extent_alloc:0000"] {
        let mut image = unpack(PLAIN);
        let group = first_group(&image, name);
        set(&mut image, group + 0x0E, 2, 255);
        let vfs = mount_writable(memory(&image));
        let (cred, root) = (Cred::root(), vfs.root().unwrap());
        let work = || -> Result<()> {
            for nth in 0..40 {
                let name = format!("new {nth}");
                let file = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false)?.0;
                vfs.write(&cred, &file, 0, &[1; 5000], WriteFlags::default())?;
                vfs.set_xattr(&cred, &file, "user.a", &[2; 600], XattrMode::Any)?;
                vfs.fsync(&file, false)?;
            }
            Ok(())
        };
        let error = work().unwrap_err().to_string();
        assert!(error.contains("chain 255") && error.contains("block "), "{name}: {error}");
    }
}

#[test]
fn a_damaged_index_hides_no_name() {
    let many = mount(&unpack(PLAIN));
    let expected = names(&many, &find(&many, "/many").unwrap()).unwrap();
    let root = |image: &[u8]| byte_of(image, get(image, slot(image, "/many") + 0x88, 8));
    let damages: [fn(&mut Vec<u8>, usize); 3] = [
        |image, root| set(image, root, 1, 0),
        |image, root| set(image, root + 0xC4, 2, 999),
        |image, root| add(image, root + 0x30, 8, 1),
    ];
    for damage in damages {
        let mut image = unpack(PLAIN);
        let root = root(&image);
        damage(&mut image, root);
        let vfs = mount(&image);
        for name in &expected {
            find(&vfs, &format!("/many/{}", name.escape_ascii())).unwrap();
        }
        assert!(matches!(find(&vfs, "/many/none"), Err(Error::Name(NameError::NotFound))));
    }
}

#[test]
fn a_tree_that_leads_to_one_block_again_and_again_ends() {
    // The root of attributes leads to one extent block 60 times, and so do the blocks of four levels below.
    let mut image = unpack(PLAIN);
    let xattrs = byte_of(&image, get(&image, slot(&image, "/few/file") + 0x78, 8));
    assert_eq!(get(&image, xattrs + 0x20, 2), 1, "the attributes are in a tree");
    let blocks: Vec<u64> = (0..5).map(|nth| superblock(&image).blocks() - 8 + nth).collect();
    let generation = get(&image, 2048 + 0x60, 4);
    let list = |image: &mut Vec<u8>, at: usize, depth: u64, to: u64| {
        set(image, at, 8, depth | 55 << 16 | 55 << 32);
        for nth in 0..55 {
            set(image, at + 16 + nth * 16, 8, nth as u64);
            set(image, at + 24 + nth * 16, 8, to);
        }
    };
    list(&mut image, xattrs + 0x40, 5, blocks[0]);
    for (nth, &block) in blocks.iter().enumerate() {
        let at = byte_of(&image, block);
        image[at..at + 8].copy_from_slice(b"EXBLK01\0");
        set(&mut image, at + 0x14, 4, generation);
        set(&mut image, at + 0x18, 8, block);
        let next = blocks.get(nth + 1).copied().unwrap_or(blocks[0] - 4);
        list(&mut image, at + 0x30, 4 - nth as u64, next);
        if nth == 4 {
            (0..55).for_each(|nth| set(&mut image, at + 0x30 + 20 + nth * 16, 4, 1));
        }
    }
    let vfs = mount(&image);
    let error = vfs.list_xattr(&Cred::root(), &find(&vfs, "/few/file").unwrap()).unwrap_err().to_string();
    assert!(error.contains("more than 4096 extents of attributes") && error.contains("inode "), "{error}");
}

#[test]
fn a_check_of_a_filesystem_that_claims_to_be_huge_ends() {
    let image = unpack(PLAIN);
    let clusters: u64 = u32::MAX.into();
    let huge = MemDevice::new(clusters * 4096);
    let mut head = image.clone();
    set(&mut head, 2048 + 0x14, 4, clusters);
    huge.write_at(ByteOffset(0), &head).unwrap();
    let device: Arc<dyn Device> = Arc::new(huge);
    assert!(open(device.clone()).is_ok());
    let error = check(device.clone(), Memory::new(Arc::new(Budget::new(1 << 20)), "allow more"), "image");
    assert!(error.unwrap_err().to_string().contains("more than 1 MiB of memory; allow more"));
    let found = check(device, Memory::new(Arc::new(Budget::new(64 << 20)), "allow more"), "image").unwrap();
    assert!(found.counts().contains_key("bitmap-size-wrong"));
}

/// Parts of an image that damage is likely to matter in: start and length in bytes, and the offset of the
/// checksum if it is a block.
fn parts(image: &[u8]) -> Vec<(u64, u64, Option<usize>)> {
    let size = u64::from(superblock(image).block_size);
    let inode = |path: &str| (slot(image, path) as u64, size.min(512), Some(0x80));
    let mut parts = vec![(2 * size, 512, Some(0x80))];
    let paths = ["/", "/few", "/many", "/large", "/clone", "/holes", "/few/file", "/small", "/long"];
    parts.extend(paths.map(inode));
    for name in
        ["global_bitmap", "inode_alloc:0000", "extent_alloc:0000", "journal:0000", "slot_map", "heartbeat"]
    {
        parts.push(inode(&format!("//{name}")));
    }
    parts.push((superblock(image).system_dir * size, size, Some(0x80)));
    let blocks = [
        (byte_of(image, get(image, slot(image, "/many") + 0x88, 8)), 8),
        (byte_of(image, get(image, slot(image, "/large") + 0x90, 8)), 0x20),
        (byte_of(image, get(image, slot(image, "/few/file") + 0x78, 8)), 0x18),
        (byte_of(image, get(image, slot(image, "//extent_alloc:0000") + 0xD8, 8)), 0x30),
        (first_extent(image, slot(image, "/many")), size as usize - 8),
        (first_extent(image, slot(image, "//journal:0000")), 0),
    ];
    parts
        .extend(blocks.map(|(at, check)| (at as u64, size.min(512), Some(check).filter(|check| *check > 0))));
    parts
}

#[test]
fn damaged_images_never_panic_loop_or_grow() {
    for (number, packed) in (0u64..).zip([PLAIN, SUMS, DIRTY]) {
        let image = unpack(packed);
        let (base, parts, sb) =
            (memory(&image), parts(&unpack(if number == 2 { PLAIN } else { packed })), superblock(&image));
        // The image that is not unmounted cleanly has blocks of another size: damage it anywhere.
        let anywhere = [(0, 8 << 20, None)];
        let parts = if number == 2 { &anywhere[..] } else { &parts[..] };
        let mut opened = 0;
        for round in 0..ROUNDS {
            let mut random = StdRng::seed_from_u64(number << 32 | round);
            let counts = Arc::new(IoCounts::default());
            let overlay = OverlayDevice::new(base.clone());
            for _ in 0..random.random_range(1..12) {
                let (start, len, sum) = parts[random.random_range(0..parts.len())];
                let at = ByteOffset(start + random.random_range(0..len));
                let mut byte = [0];
                overlay.read_at(at, &mut byte).unwrap();
                byte[0] ^= 1 << random.random_range(0..8);
                overlay.write_at(at, &byte).unwrap();
                // Three times of four, the checksum does not show it.
                if let (Some(check_at), true) = (sum, random.random_range(0..4) > 0) {
                    let mut block = vec![0; sb.block_size as usize];
                    overlay.read_at(ByteOffset(start), &mut block).unwrap();
                    let check = blockcheck::compute(&block, check_at);
                    overlay.write_at(ByteOffset(start + check_at as u64), &check).unwrap();
                }
            }
            let device: Arc<dyn Device> = Arc::new(CountedDevice::new(overlay, counts.clone()));
            let budget = Arc::new(Budget::new(4 << 20));
            let common = DriverOptions { budget: budget.clone(), ..DriverOptions::default() };
            if let Ok(fs) = Ocfs2::open(device.clone(), OpenOptions { common, no_replay: false }) {
                let options = MountOptions { background: false, read_only: true, ..MountOptions::default() };
                if let Ok(vfs) = Vfs::mount(fs, options) {
                    walk_all(&vfs);
                    opened += 1;
                }
            }
            let _ = check(device, Memory::new(budget.clone(), ""), "image");
            let reads = counts.fields()[0].1;
            assert!(reads < READS_MAX, "{number}, round {round}: {reads} reads");
            // A check ends above its bound, and drops what it kept.
            assert!(budget.used() < 5 << 20, "{number}, round {round}: {} bytes", budget.used());
        }
        assert!(opened > ROUNDS / 2, "{number}: {opened}");
    }
}
