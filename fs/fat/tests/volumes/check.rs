//! The checker: volumes that other tools made give no finding, and one planted defect gives exactly its own.

use ivers_block::MemDevice;
use ivers_fat::check::check;
use ivers_oracle::each_defect_is_found;
use ivers_oracle::fat::FatImage;
use ivers_vfs::check::Memory;
use std::collections::BTreeSet;
use std::sync::Arc;

fn codes(image: &[u8]) -> BTreeSet<&'static str> {
    let found = check(Arc::new(MemDevice::from_bytes(image)), Memory::unlimited(), "image").unwrap();
    found.counts().keys().copied().collect()
}

fn fill(image: &FatImage) {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::write(&source, vec![7; 10_000]).unwrap();
    let source = source.display().to_string();
    image.mtools("mmd", &["::/DIR"]).unwrap();
    for name in ["::/A.TXT", "::/B.TXT", "::/DIR/a long name.text"] {
        image.mtools("mcopy", &[&source, name]).unwrap();
    }
}

#[test]
fn clean_volumes_have_no_findings() {
    for (bytes, bits) in [(1 << 20, "12"), (16 << 20, "16"), (64 << 20, "32")] {
        let image = FatImage::mkfs(bytes, &["-F", bits, "-n", "LABEL"]).unwrap();
        fill(&image);
        let found = codes(&std::fs::read(image.path()).unwrap());
        assert!(found.is_empty(), "FAT{bits}: {found:?}");
    }
}

/// A FAT16 volume with one sector a cluster.
#[derive(Clone)]
struct Image {
    bytes: Vec<u8>,
}

impl Image {
    fn get16(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Sets the entry of a cluster in both tables.
    fn put_fat(&mut self, cluster: usize, value: u16) {
        let (start, len) = (self.get16(14) * 512, self.get16(22) * 512);
        self.put16(start + cluster * 2, value);
        self.put16(start + len + cluster * 2, value);
    }

    fn root(&self) -> usize {
        (self.get16(14) + 2 * self.get16(22)) * 512
    }

    /// The offset of the entry with a short name in the root directory.
    fn entry(&self, name: &[u8; 11]) -> usize {
        let slots = (self.root()..).step_by(32);
        slots.take(64).find(|&at| &self.bytes[at..at + 11] == name).unwrap()
    }

    fn first(&self, name: &[u8; 11]) -> usize {
        self.get16(self.entry(name) + 26)
    }

    /// The offset of a cluster.
    fn cluster(&self, cluster: usize) -> usize {
        self.root() + self.get16(17) * 32 + (cluster - 2) * 512 * usize::from(self.bytes[13])
    }
}

const A: &[u8; 11] = b"A       TXT";
const B: &[u8; 11] = b"B       TXT";
const DIR: &[u8; 11] = b"DIR        ";

#[test]
fn each_planted_defect_gives_exactly_its_finding() {
    type Plant = fn(&mut Image);
    let planted: &[(&str, &[&'static str], Plant)] = &[
        ("geometry", &["boot-sector-invalid"], |i| i.put16(17, 3)),
        ("dirty", &["volume-not-clean"], |i| i.bytes[37] = 1),
        ("first entry", &["fat-first-entry-wrong"], |i| i.put_fat(0, 0x1234)),
        ("copies", &["fat-copies-differ"], |i| {
            let at = (i.get16(14) + i.get16(22)) * 512 + 1000;
            i.put16(at, 7);
        }),
        ("a lost cluster", &["cluster-lost"], |i| i.put_fat(5000, 0xFFFF)),
        ("a shared chain", &["chain-too-short", "cluster-claimed-twice", "cluster-lost"], |i| {
            let (a, at) = (i.first(A) as u16, i.entry(B));
            i.put16(at + 26, a);
        }),
        ("a circle", &["cluster-claimed-twice", "cluster-lost", "chain-too-short"], |i| {
            let a = i.first(A);
            i.put_fat(a, a as u16);
        }),
        ("a free cluster", &["chain-to-free-cluster", "chain-too-short", "cluster-lost"], |i| {
            let a = i.first(A);
            i.put_fat(a, 0);
        }),
        ("out of range", &["cluster-out-of-range", "chain-too-short", "cluster-lost"], |i| {
            let a = i.first(A);
            i.put_fat(a, 0xFF00);
        }),
        ("too long", &["chain-too-long"], |i| {
            let at = i.entry(A);
            i.put16(at + 28, 1);
        }),
        ("a name", &["name-invalid"], |i| {
            let at = i.entry(A);
            i.bytes[at] = b'*';
        }),
        ("a name twice", &["name-twice"], |i| {
            let at = i.entry(B);
            i.bytes[at] = b'A';
        }),
        ("size of a directory", &["directory-size-wrong"], |i| {
            let at = i.entry(DIR);
            i.put16(at + 28, 9);
        }),
        ("..", &["directory-dots-wrong"], |i| {
            let at = i.cluster(i.first(DIR)) + 32;
            i.put16(at + 26, 9);
        }),
        ("a long name", &["long-name-invalid"], |i| {
            let at = i.cluster(i.first(DIR)) + 64;
            i.bytes[at + 13] ^= 1;
        }),
        ("label", &["label-differs"], |i| i.bytes[43] = b'X'),
    ];
    let image = FatImage::mkfs(16 << 20, &["-F", "16", "-n", "LABEL"]).unwrap();
    fill(&image);
    let bytes = std::fs::read(image.path()).unwrap();
    assert!(codes(&bytes).is_empty());
    each_defect_is_found(&Image { bytes }, planted.iter().copied(), |image| codes(&image.bytes));
}
