//! Damaged volumes: each test plants one damage and expects an error that names its block. Nothing panics,
//! loops, or allocates without bound.

use crate::common::*;
use ivers_affs::layout::{dirc, get32, head, put_tail32, put32, set_checksum, tail, tail32};
use ivers_block::MemDevice;
use ivers_vfs::*;
use std::sync::Arc;

const BLOCK: usize = 512;

struct Image {
    bytes: Vec<u8>,
}

impl Image {
    fn new(low_byte: u8) -> Self {
        let device = fresh(low_byte, 512, DD);
        let vfs = mount(&device);
        make(&vfs, "/dir", &CreateSpec::directory(0o755));
        // Three names of one hash chain, from the FAQ.
        for name in ["/file_1a", "/file_24", "/file_5u"] {
            put(&vfs, name, &pattern(1, 2000));
        }
        put(&vfs, "/dir/large", &pattern(2, 100_000));
        put(&vfs, "/plain", &pattern(3, 1000));
        link(&vfs, "/plain", "/dir/linked");
        vfs.unmount().unwrap();
        Self { bytes: device.to_bytes() }
    }

    /// Returns the header block of a path.
    fn header(&self, path: &str) -> usize {
        let device = Arc::new(MemDevice::from_bytes(&self.bytes));
        let vfs = mount(&device);
        find(&vfs, path).ino.0 as usize
    }

    fn block(&mut self, block: usize) -> &mut [u8] {
        &mut self.bytes[block * BLOCK..(block + 1) * BLOCK]
    }

    fn change(mut self, block: usize, change: impl FnOnce(&mut [u8])) -> Self {
        change(self.block(block));
        set_checksum(self.block(block), head::CHECKSUM);
        self
    }

    fn vfs(&self, options: ivers_affs::OpenOptions) -> Arc<Vfs> {
        mount_fs(open(&Arc::new(MemDevice::from_bytes(&self.bytes)), options).unwrap())
    }

    /// Expects that a call fails with `Error::Corrupt` and that its text contains `words`.
    fn fails<T>(&self, words: &[&str], call: impl FnOnce(&Arc<Vfs>) -> ivers_vfs::Result<T>) {
        let error = call(&self.vfs(writable())).err().unwrap_or_else(|| panic!("no error of {words:?}"));
        let text = error.to_string();
        assert!(matches!(error, Error::Corrupt { .. }), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}: {words:?}");
    }
}

fn resolve(path: &str) -> impl FnOnce(&Arc<Vfs>) -> ivers_vfs::Result<InodeRef> + '_ {
    move |vfs| vfs.resolve(&root(), path, false)
}

#[test]
fn cycles_in_hash_chains_are_detected() {
    let image = Image::new(1);
    let (first, second) = (image.header("/file_1a"), image.header("/file_24"));
    let image = image.change(second, |block| put_tail32(block, tail::HASH_CHAIN, first as u32));
    image.fails(&["hash chain has a cycle", "block "], resolve("/file_5u"));
    let image = Image::new(1).change(first, |block| put_tail32(block, tail::HASH_CHAIN, first as u32));
    image.fails(&["hash chain has a cycle"], |vfs| vfs.list(&Cred::root(), &vfs.root().unwrap(), 0, 100));
}

#[test]
fn invalid_headers_are_errors_that_name_the_block() {
    let place = |path: &str| Image::new(0).header(path);
    let file = place("/file_24");
    let out = Image::new(0).change(place("/file_1a"), |block| put_tail32(block, tail::HASH_CHAIN, 1_000_000));
    out.fails(&["block 1000000"], resolve("/file_24"));
    let root_as_entry =
        Image::new(0).change(place("/file_1a"), |block| put_tail32(block, tail::HASH_CHAIN, 880));
    root_as_entry.fails(&["block 880"], resolve("/file_24"));
    let other_parent = Image::new(0).change(file, |block| put_tail32(block, tail::PARENT, 7));
    other_parent.fails(&["names 7 as its directory", &format!("block {file}")], resolve("/file_24"));
    let key = Image::new(0).change(file, |block| put32(block, head::OWN_KEY, 99));
    key.fails(&["names 99 as its own block"], resolve("/file_24"));
    let kind = Image::new(0).change(file, |block| put_tail32(block, tail::SEC_TYPE, 17));
    kind.fails(&["unknown type 17"], resolve("/file_24"));
    let name = Image::new(0).change(file, |block| {
        let at = block.len() - tail::NAME;
        block[at] = 31;
    });
    name.fails(&["name is invalid", &format!("block {file}")], resolve("/file_5u"));
    let mut sum = Image::new(0);
    sum.block(file)[100] ^= 1;
    sum.fails(&["bad checksum", &format!("block {file}")], resolve("/file_24"));
}

#[test]
fn damaged_file_tables_are_detected() {
    let read = |path: &'static str| {
        move |vfs: &Arc<Vfs>| {
            let file = vfs.resolve(&root(), path, false)?;
            vfs.read(&Cred::root(), &file, 0, &mut [0; 200_000])
        }
    };
    for low_byte in [0, 1] {
        let large = Image::new(low_byte).header("/dir/large");
        let huge = Image::new(low_byte).change(large, |block| put_tail32(block, tail::BYTE_SIZE, u32::MAX));
        huge.fails(&["larger than the volume", &format!("block {large}")], read("/dir/large"));
        let first = head::TABLE + 71 * 4;
        for wrong in [0, 1, 880, 881, 1760, u32::MAX] {
            let image = Image::new(low_byte).change(large, |block| put32(block, first, wrong));
            image.fails(&[&format!("refers to invalid block {wrong}")], read("/dir/large"));
        }
        let image = Image::new(low_byte);
        let extension = tail32(&image.bytes[large * BLOCK..(large + 1) * BLOCK], tail::EXTENSION) as usize;
        let round = image.change(extension, |block| put_tail32(block, tail::EXTENSION, extension as u32));
        round.fails(&["form a cycle"], read("/dir/large"));
        let other = Image::new(low_byte).change(extension, |block| put_tail32(block, tail::PARENT, 900));
        other.fails(&["not an extension block", &format!("block {extension}")], read("/dir/large"));
    }
    // OFS: a damaged data block, and a data block with a wrong number.
    let mut image = Image::new(0);
    let large = image.header("/dir/large");
    let data = get32(image.block(large), head::FIRST_DATA) as usize;
    image.block(data)[200] ^= 1;
    image.fails(&[&format!("block {data}"), "bad checksum"], read("/dir/large"));
    let other = Image::new(0).change(data, |block| put32(block, head::HIGH_SEQ, 3));
    other.fails(&["data block 3 of file"], read("/dir/large"));
}

#[test]
fn damaged_chains_of_links_are_detected() {
    let mut image = Image::new(1);
    let plain = image.header("/plain");
    let link = tail32(image.block(plain), tail::NEXT_LINK) as usize;
    let round = image.change(link, |block| put_tail32(block, tail::NEXT_LINK, link as u32));
    round.fails(&["not a hard link to block"], resolve("/plain"));
    let elsewhere = Image::new(1).change(link, |block| put_tail32(block, tail::REAL_ENTRY, 880));
    elsewhere.fails(&["not a hard link to block"], resolve("/plain"));
    let itself = Image::new(1).change(link, |block| put_tail32(block, tail::REAL_ENTRY, link as u32));
    itself.fails(&["which is not in use"], resolve("/dir/linked"));
}

/// If the bitmap is at an impossible place, has a bad checksum or marks itself as free, the volume is
/// read-only with that reason. If it marks another used block as free, using that block is an error.
#[test]
fn damaged_bitmap_makes_the_volume_read_only() {
    let mut image = Image::new(1);
    let page = tail32(image.block(880), tail::BM_PAGES) as usize;
    image.block(page)[50] ^= 1;
    let vfs = image.vfs(writable());
    assert!(vfs.is_read_only());
    let why = vfs.health().read_only.unwrap();
    assert!(why.contains("bitmap") && why.contains(&format!("block {page}")), "{why}");
    let outside = Image::new(1).change(880, |block| put_tail32(block, tail::BM_PAGES, 5000));
    assert!(outside.vfs(writable()).health().read_only.unwrap().contains("block 5000"));
    let mut all_free = Image::new(1);
    all_free.block(page)[4..].fill(0xff);
    set_checksum(all_free.block(page), 0);
    assert!(all_free.vfs(writable()).health().read_only.unwrap().contains("as free"));
    let mut one_free = Image::new(1);
    let plain = one_free.header("/file_24");
    let (word, bit) = (4 + (plain - 2) / 32 * 4, (plain - 2) % 32);
    let old = get32(one_free.block(page), word);
    put32(one_free.block(page), word, old | 1 << bit);
    set_checksum(one_free.block(page), 0);
    let device = Arc::new(MemDevice::from_bytes(&one_free.bytes));
    let vfs = mount(&device);
    assert!(matches!(vfs.resolve(&root(), "/file_24", false), Err(Error::Corrupt { .. })));
}

/// A damaged volume after a crash is readable, and is not written.
#[test]
fn damage_after_a_crash_makes_the_volume_read_only() {
    let file = Image::new(1).header("/file_24");
    let crashed = |image: Image| image.change(880, |block| put_tail32(block, tail::BM_FLAG, 0));
    assert!(!crashed(Image::new(1)).vfs(writable()).is_read_only());
    let twice = crashed(Image::new(1).change(file, |block| {
        let first = head::TABLE + 71 * 4;
        let again = get32(block, first);
        put32(block, first - 4, again);
    }));
    let vfs = twice.vfs(writable());
    let why = vfs.health().read_only.unwrap();
    assert!(why.contains("not closed") && why.contains("belongs to two"), "{why}");
    assert_eq!(get(&vfs, &find(&vfs, "/plain")), pattern(3, 1000));
}

/// A directory whose cache has a cycle, belongs to another directory or is no cache can be read. A change
/// of it is refused with the block number.
#[test]
fn damaged_directory_cache_is_readable_and_refuses_changes() {
    let mut image = Image::new(5);
    let root_page = tail32(image.block(880), tail::EXTENSION) as usize;
    let dir = image.header("/dir");
    let page = tail32(image.block(dir), tail::EXTENSION) as usize;
    let create = |vfs: &Arc<Vfs>| {
        let dir = vfs.resolve(&root(), "/dir", false)?;
        vfs.create(&root(), &dir, b"new", &CreateSpec::file(0o600), false)
    };
    let place = format!("block {page}");
    let cases: &[(&[&str], usize, usize, u32)] = &[
        (&["form a cycle", &place], page, dirc::NEXT, page as u32),
        (&["not a cache block of directory", "block 880"], page, dirc::NEXT, 880),
        (&["leads outside the volume", "block 5000000"], page, dirc::NEXT, 5_000_000),
        (&["leads outside the volume", "block 1"], page, dirc::NEXT, 1),
        (&["not a cache block of directory", "block "], page, dirc::NEXT, root_page as u32),
        (&["not a cache block of directory", &place], page, dirc::PARENT, 880),
        (&["not a cache block of directory", &place], page, head::OWN_KEY, 3),
        (&["not a cache block of directory", &place], page, head::TYPE, 2),
        (&["not a cache block of directory"], dir, BLOCK - tail::EXTENSION, dir as u32),
    ];
    for &(words, block, at, value) in cases {
        let damaged = Image::new(5).change(block, |block| put32(block, at, value));
        damaged.fails(words, create);
        let vfs = damaged.vfs(writable());
        assert_eq!(names(&vfs, &find(&vfs, "/dir")), ["large", "linked"]);
        // After a crash, nothing is written.
        let crashed = damaged.change(880, |block| put_tail32(block, tail::BM_FLAG, 0)).vfs(writable());
        assert!(crashed.is_read_only(), "{words:?}");
        assert_eq!(names(&crashed, &find(&crashed, "/dir")), ["large", "linked"]);
    }
    let mut sum = Image::new(5);
    sum.block(page)[100] ^= 1;
    sum.fails(&["bad checksum", &place], create);
    // Two directories with one cache: a change of the directory that does not own it is refused.
    let shared = Image::new(5).change(880, |block| put_tail32(block, tail::EXTENSION, page as u32));
    shared.fails(&["not a cache block of directory 880"], |vfs| {
        vfs.create(&root(), &vfs.root().unwrap(), b"new", &CreateSpec::file(0o600), false)
    });
    // More records than possible, each of the greatest length.
    let full = Image::new(5).change(page, |block| {
        put32(block, dirc::RECORDS, u32::MAX);
        block[dirc::LIST..].fill(0xff);
    });
    let vfs = full.vfs(writable());
    create(&vfs).unwrap();
    assert_eq!(names(&vfs, &find(&vfs, "/dir")), ["large", "linked", "new"]);
}
