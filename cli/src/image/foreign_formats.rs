//! Names of unsupported formats, so that an error says what an image contains and what to do.

use std::fs::{File, FileType};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use ivers_block::{ByteOffset, Device};

use super::formats;

/// Byte offset and bytes of the mark of each format, and its name.
const MAGICS: &[(usize, &[u8], &str)] = &[
    (0, b"XFSB", "an XFS filesystem"),
    (0x1_0040, b"_BHRfS_M", "a btrfs filesystem"),
    (1024, &[0x10, 0x20, 0xF5, 0xF2], "an f2fs filesystem"),
    (1024, &[0xE2, 0xE1, 0xF5, 0xE0], "an EROFS filesystem"),
    (3, b"NTFS    ", "an NTFS filesystem"),
    (3, b"EXFAT   ", "an exFAT filesystem"),
    (0x36, b"FAT", "a damaged FAT filesystem, or the rest of one"),
    (0x52, b"FAT32", "a damaged FAT filesystem, or the rest of one"),
    (0, b"hsqs", "a squashfs image"),
    (0x8001, b"CD001", "an ISO 9660 image"),
    (0, b"LUKS\xba\xbe", "a LUKS container: open it first (cryptsetup)"),
    (536, b"LVM2 001", "an LVM volume: mount a logical volume of it"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0, b"QFI\xfb", "a qcow2 image: convert it first (qemu-img convert -O raw)"),
    (0, b"KDMV", "a VMDK image: convert it first (qemu-img convert -O raw)"),
];

/// Compressed files, which often contain images.
const PACKED: &[(usize, &[u8], &str)] = &[
    (0, b"\x1f\x8b", "a gzip file: unpack it first"),
    (0, b"\xfd7zXZ\0", "an xz file: unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file: unpack it first"),
];

/// A shorter mark occurs by chance too often.
const RELIABLE_MARK_BYTES: usize = 4;

/// Bytes of an image in which all marks lie.
const HEAD_BYTES: u64 = 0x1_0048;

/// Names the contents of a device by its first bytes.
pub fn recognise(device: &dyn Device) -> Option<String> {
    let mut head = vec![0; device.size_bytes().min(HEAD_BYTES) as usize];
    device.read_at(ByteOffset(0), &mut head).ok()?;
    let has = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(magic));
    if let Some((_, _, what)) = MAGICS.iter().chain(PACKED).find(|(at, magic, _)| has(*at, magic)) {
        return Some((*what).to_owned());
    }
    if has(512, b"EFI PART") {
        return Some(choose_partition("a disk with a GPT partition table", &gpt_partitions(&head)));
    }
    if head.is_empty() {
        return Some("no data: the file is empty".into());
    }
    if head.iter().all(|&byte| byte == 0) {
        return Some("zeros at its start: make a filesystem in it first (ivers mkfs)".into());
    }
    partitions(&head)
}

/// Names the contents of a device that is not empty, without a hint.
pub fn contents(device: &dyn Device) -> String {
    if let Ok(Some(format)) = formats::recognise(device) {
        let article = if format.title.starts_with(['a', 'e', 'A', 'E']) { "an" } else { "a" };
        return format!("{article} {}", format.title);
    }
    let found = recognise(device).unwrap_or_default();
    let what = found.split(':').next().unwrap_or_default();
    // Zeros at the start, and something after them.
    if what.is_empty() || what.starts_with("zeros") { "data".to_owned() } else { what.to_owned() }
}

/// Returns whether a file or device of the host starts like a filesystem or a disk with partitions. False if
/// it cannot be read.
pub fn contains_filesystem(path: &Path) -> bool {
    // Nothing else is opened: a FIFO would block.
    let is_image = |kind: FileType| kind.is_file() || kind.is_block_device();
    if !std::fs::metadata(path).is_ok_and(|meta| is_image(meta.file_type())) {
        return false;
    }
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    read.is_ok() && is_filesystem(&head)
}

fn is_filesystem(head: &[u8]) -> bool {
    let has = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(magic));
    let number = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    // The magic of ext4 has two bytes only: s_log_block_size and s_rev_level must be plausible too.
    let is_ext = ivers_ext4::probe(head)
        && number(1024 + 24).is_some_and(|log| log <= 6)
        && number(1024 + 76).is_some_and(|revision| revision <= 1);
    is_ext
        || MAGICS.iter().any(|(at, magic, _)| magic.len() >= RELIABLE_MARK_BYTES && has(*at, magic))
        || has(512, b"EFI PART")
        || partitions(head).is_some()
}

/// Returns a hint to choose one of the partitions that start at these bytes.
fn choose_partition(what: &str, starts: &[u64]) -> String {
    let starts: Vec<String> = starts.iter().map(|byte| format!("-o offset={byte}")).collect();
    match &starts[..] {
        [] => format!("{what}: give the start of the filesystem with -o offset=BYTES"),
        starts => format!("{what}: choose a partition with {}", starts.join(" or ")),
    }
}

/// Returns the byte offsets of the first partitions of a GPT with sectors of 512 bytes.
fn gpt_partitions(head: &[u8]) -> Vec<u64> {
    let number = |at: usize, len: usize| {
        let bytes = head.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte)))
    };
    let table = number(512 + 72, 8).and_then(|sector| usize::try_from(sector.checked_mul(512)?).ok());
    let (Some(table), Some(entry)) = (table, number(512 + 84, 4).filter(|&len| (128..=4096).contains(&len)))
    else {
        return Vec::new();
    };
    let rest = head.get(table..).unwrap_or_default();
    let entries = rest.chunks_exact(entry as usize).take(16);
    // The first 16 bytes are the type: zeros in an unused entry.
    let used = entries.filter(|entry| entry[..16].iter().any(|&byte| byte != 0));
    used.filter_map(|entry| u64::from_le_bytes(entry[32..40].try_into().ok()?).checked_mul(512)).collect()
}

/// Returns a hint for the four entries of a DOS partition table.
fn partitions(head: &[u8]) -> Option<String> {
    if head.get(510..512)? != [0x55, 0xAA] {
        return None;
    }
    let starts = head[446..510].chunks_exact(16).filter_map(|slot| {
        let sector = u32::from_le_bytes(slot[8..12].try_into().ok()?);
        // A boot sector without a table has code there, so that the flag byte is invalid.
        (slot[4] != 0 && sector != 0 && slot[0] & 0x7F == 0).then(|| u64::from(sector) * 512)
    });
    let starts: Vec<u64> = starts.collect();
    let what = if starts.is_empty() {
        "a boot sector (perhaps of a disk with partitions)"
    } else {
        "a disk with partitions"
    };
    Some(choose_partition(what, &starts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_block::{ByteOffset, MemDevice};

    #[test]
    fn foreign_formats_are_named() {
        for (at, magic, what) in MAGICS.iter().chain(PACKED) {
            let device = MemDevice::new(1 << 20);
            device.write_at(ByteOffset(*at as u64), magic).unwrap();
            assert_eq!(recognise(&device).as_deref(), Some(*what));
        }
        let device = MemDevice::new(1 << 20);
        assert!(recognise(&device).unwrap().contains("zeros"));
        let mut slot = [0; 16];
        slot[4] = 0x83;
        slot[8..12].copy_from_slice(&2048u32.to_le_bytes());
        device.write_at(ByteOffset(446), &slot).unwrap();
        device.write_at(ByteOffset(510), &[0x55, 0xAA]).unwrap();
        assert!(recognise(&device).unwrap().ends_with("-o offset=1048576"));
        let device = MemDevice::new(1 << 20);
        device.write_at(ByteOffset(512), b"EFI PART").unwrap();
        assert!(recognise(&device).unwrap().ends_with("-o offset=BYTES"));
        for (at, value) in [
            (584, 2u64),
            (596, 128),
            (1024 + 128, 7),
            (1024 + 128 + 32, 2048),
            (1024 + 384, 7),
            (1024 + 416, u64::MAX),
        ] {
            device.write_at(ByteOffset(at), &value.to_le_bytes()).unwrap();
        }
        assert!(recognise(&device).unwrap().ends_with("choose a partition with -o offset=1048576"));
        for short in [1, 100, 511, 4096] {
            let device = MemDevice::new(short);
            device.write_at(ByteOffset(0), &[0x55]).unwrap();
            assert_eq!(recognise(&device), None, "{short} bytes");
        }
        assert!(recognise(&MemDevice::new(0)).unwrap().contains("empty"));
    }

    #[test]
    fn a_filesystem_is_recognised_and_text_is_not() {
        let marked = |at: usize, magic: &[u8]| {
            let mut head = vec![b'x'; HEAD_BYTES as usize];
            head[at..at + magic.len()].copy_from_slice(magic);
            head
        };
        for (at, magic, what) in MAGICS {
            assert_eq!(is_filesystem(&marked(*at, magic)), magic.len() >= RELIABLE_MARK_BYTES, "{what}");
        }
        for (at, magic, what) in PACKED {
            assert!(!is_filesystem(&marked(*at, magic)), "{what}");
        }
        let mut ext = marked(1024 + 56, &[0x53, 0xEF]);
        assert!(!is_filesystem(&ext), "two bytes of a text");
        ext[1024 + 24..][..4].fill(0);
        ext[1024 + 76..][..4].copy_from_slice(&1u32.to_le_bytes());
        assert!(is_filesystem(&ext));
        assert!(is_filesystem(&marked(510, &[0x55, 0xAA])) && is_filesystem(&marked(512, b"EFI PART")));
        assert!(!is_filesystem(&ext[..1080]) && !is_filesystem(b""));
        assert!(!contains_filesystem(Path::new("/dev/zero")));
    }
}
