//! Names of unsupported formats, so that an error says what an image contains and what to do.

use std::fs::{File, FileType};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use ivers_block::{ByteOffset, Device};

use super::formats;

/// The name of a disk image that is not raw, and what to do.
macro_rules! convert {
    ($what:literal) => {
        concat!($what, ": convert it first (qemu-img convert -O raw {} out.img)")
    };
}

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
    (0, b"QFI\xfb", convert!("a qcow2 image")),
    (0, b"KDMV", convert!("a VMDK image")),
    (0, b"COWD", convert!("a VMDK image")),
    (0, b"# Disk DescriptorFile", convert!("a VMDK description")),
    (0, b"conectix", convert!("a VHD image")),
    (0, b"vhdxfile", convert!("a VHDX image")),
    (0x40, b"\x7f\x10\xda\xbe", convert!("a VDI image")),
];

/// Compressed files, which often contain images.
const PACKED: &[(usize, &[u8], &str)] = &[
    (0, b"\x1f\x8b", "a gzip file: unpack it first (gzip -dc {} > out.img)"),
    (0, b"\xfd7zXZ\0", "an xz file: unpack it first (xz -dc {} > out.img)"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file: unpack it first (zstd -dc {} > out.img)"),
    (0, b"BZh", "a bzip2 file: unpack it first (bzip2 -dc {} > out.img)"),
    (0, b"\x04\x22\x4d\x18", "an LZ4 file: unpack it first (lz4 -dc {} > out.img)"),
];

/// A shorter mark occurs by chance too often.
const RELIABLE_MARK_BYTES: usize = 4;

/// Bytes of an image in which all marks lie.
const HEAD_BYTES: u64 = 0x1_0048;

/// Names the contents of a device by its first bytes, and says what to do. `image_name` names it in commands.
pub fn recognise(device: &dyn Device, image_name: &str) -> Option<String> {
    let head = read_head(device)?;
    if let Some(what) = mark(&head) {
        return Some(what.replace("{}", image_name));
    }
    if head.is_empty() {
        return Some("no data: the file is empty".into());
    }
    if head.iter().all(|&byte| byte == 0) {
        return Some("zeros at its start: make a filesystem in it first (ivers mkfs)".into());
    }
    table(&head).map(|what| format!("{what}: give the start of the filesystem with -o offset=BYTES"))
}

/// Returns whether the start of a device is no known format: it may have been one before.
pub fn may_be_destroyed(device: &dyn Device) -> bool {
    read_head(device).is_some_and(|head| !head.is_empty() && mark(&head).is_none() && table(&head).is_none())
}

/// Returns whether a device starts like a disk with partitions, and not with a filesystem.
pub fn has_table(device: &dyn Device) -> bool {
    let starts_so = |head: Vec<u8>| mark(&head).is_none() && table(&head).is_some();
    matches!(formats::recognise(device), Ok(None)) && read_head(device).is_some_and(starts_so)
}

fn table(head: &[u8]) -> Option<&'static str> {
    // Boot loaders and kernels have the mark of a boot sector too.
    let is_program = has_at(head, 0, b"MZ") || has_at(head, 514, b"HdrS");
    if has_at(head, 512, b"EFI PART") {
        Some("a GPT partition table")
    } else if is_program {
        None
    } else if has_at(head, 510, &[0x55, 0xAA]) {
        Some("a boot sector (perhaps of a disk with partitions)")
    } else {
        None
    }
}

/// Returns the name of the contents of a device, for a list. `None` without a known mark.
pub fn short_name(device: &dyn Device) -> Option<&'static str> {
    let what = mark(&read_head(device)?)?.split([':', ',']).next()?;
    Some(what.trim_start_matches("an ").trim_start_matches("a "))
}

fn read_head(device: &dyn Device) -> Option<Vec<u8>> {
    let mut head = vec![0; device.size_bytes().min(HEAD_BYTES) as usize];
    device.read_at(ByteOffset(0), &mut head).ok()?;
    Some(head)
}

fn has_at(head: &[u8], at: usize, magic: &[u8]) -> bool {
    head.get(at..).is_some_and(|rest| rest.starts_with(magic))
}

fn mark(head: &[u8]) -> Option<&'static str> {
    let known = MAGICS.iter().chain(PACKED);
    known.copied().find(|(at, magic, _)| has_at(head, *at, magic)).map(|(_, _, what)| what)
}

/// Names the contents of a device that is not empty, without a hint.
pub fn contents(device: &dyn Device) -> String {
    if let Ok(Some(format)) = formats::recognise(device) {
        return format.in_words();
    }
    let found = recognise(device, "").unwrap_or_default();
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
    let number = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    // The magic of ext4 has two bytes only: s_log_block_size and s_rev_level must be plausible too.
    let is_ext = ivers_ext4::probe(head)
        && number(1024 + 24).is_some_and(|log| log <= 6)
        && number(1024 + 76).is_some_and(|revision| revision <= 1);
    is_ext
        || MAGICS.iter().any(|(at, magic, _)| magic.len() >= RELIABLE_MARK_BYTES && has_at(head, *at, magic))
        || table(head).is_some()
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
            assert_eq!(recognise(&device, "x.img"), Some(what.replace("{}", "x.img")));
        }
        let recognise = |device: &MemDevice| recognise(device, "x.img");
        let device = MemDevice::new(1 << 20);
        assert!(recognise(&device).unwrap().contains("zeros"));
        device.write_at(ByteOffset(510), &[0x55, 0xAA]).unwrap();
        assert!(recognise(&device).unwrap().starts_with("a boot sector"));
        device.write_at(ByteOffset(512), b"EFI PART").unwrap();
        assert!(recognise(&device).unwrap().ends_with("-o offset=BYTES"));
        device.write_at(ByteOffset(0), b"XFSB").unwrap();
        assert_eq!(short_name(&device), Some("XFS filesystem"));
        device.write_at(ByteOffset(0), b"QFI\xfb").unwrap();
        assert_eq!(short_name(&device), Some("qcow2 image"));
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
        for (at, magic) in [(0, &b"MZ"[..]), (514, b"HdrS")] {
            let mut kernel = marked(510, &[0x55, 0xAA]);
            kernel[at..at + magic.len()].copy_from_slice(magic);
            assert!(!is_filesystem(&kernel), "a program that firmware starts");
        }
        assert!(!is_filesystem(&ext[..1080]) && !is_filesystem(b""));
        assert!(!contains_filesystem(Path::new("/dev/zero")));
    }
}
