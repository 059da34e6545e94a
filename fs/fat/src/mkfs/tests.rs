use super::*;
use ivers_block::{FileDevice, OpenMode};
use ivers_vfs::Timestamp;
use std::fs::File;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn options() -> MkfsOptions {
    MkfsOptions {
        label: "Proof 1".into(),
        volume_id: 0x1234_ABCD,
        time: Timestamp { sec: 1_700_000_000, nsec: 0 },
        zeroed: true,
        ..MkfsOptions::default()
    }
}

fn make(path: &Path, size: u64, options: &MkfsOptions) -> MkfsReport {
    File::create(path).unwrap().set_len(size).unwrap();
    let device = FileDevice::open(path, OpenMode::ReadWrite).unwrap();
    mkfs(&device, options).unwrap()
}

/// Runs fsck.fat, which must print its name, the summary, and nothing else.
fn check(image: &Path) {
    let output = ivers_oracle::output("fsck.fat", ["-n".as_ref(), image.as_os_str()]).unwrap();
    let text = ivers_oracle::said(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert!(output.status.success() && lines.len() == 2, "{text}");
    assert!(lines[0].starts_with("fsck.fat ") && lines[1].contains(" files, "), "{text}");
}

/// The parameters of a volume, from its boot sector. mkfs.fat leaves an incomplete track at the end unused,
/// so the number of sectors is that of whole tracks.
fn parameters(image: &Path) -> Vec<u32> {
    let mut head = vec![0; 512];
    std::io::Read::read_exact(&mut File::open(image).unwrap(), &mut head).unwrap();
    let number =
        |at: usize, len: usize| head[at..at + len].iter().rev().fold(0, |n, &b| n << 8 | u32::from(b));
    let is_32 = number(22, 2) == 0;
    let (fat, drive) = if is_32 { (number(36, 4), 64) } else { (number(22, 2), 36) };
    let fields = [(11, 2), (13, 1), (14, 2), (16, 1), (17, 2), (21, 1), (24, 2), (26, 2)];
    let sectors = number(19, 2) + number(32, 4);
    let sectors = sectors - sectors % number(24, 2);
    let all = fields.iter().map(|&(at, len)| number(at, len));
    let of_32 = [(40, 2), (42, 2), (44, 4), (48, 2), (50, 2)].iter().map(|&(at, len)| number(at, len));
    all.chain([sectors, fat, number(drive, 1)]).chain(of_32.filter(|_| is_32)).collect()
}

#[test]
fn volumes_have_the_sizes_of_mkfs_fat() {
    if !ivers_oracle::have_programs(&["mkfs.fat", "fsck.fat"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| dir.path().join(name));
    let kib = 1024;
    let auto: &[u64] = &[
        360 * kib,
        720 * kib,
        1200 * kib,
        1440 * kib,
        2880 * kib,
        MIB,
        2 * MIB,
        4 * MIB,
        7 * MIB,
        8 * MIB,
        9 * MIB,
        16 * MIB,
        17 * MIB,
        33 * MIB,
        64 * MIB,
        100 * MIB,
        128 * MIB,
        200 * MIB,
        256 * MIB,
        257 * MIB,
        400 * MIB,
        511 * MIB,
        512 * MIB,
        1000 * MIB,
        2048 * MIB,
        5000 * MIB,
        9 << 30,
        33 << 30,
    ];
    let of_type: &[(FatType, u64)] = &[
        (FatType::Fat12, 8 * MIB),
        (FatType::Fat12, 16 * MIB),
        (FatType::Fat12, 33 * MIB),
        (FatType::Fat12, 64 * MIB),
        (FatType::Fat16, 9 * MIB),
        (FatType::Fat16, 512 * MIB),
        (FatType::Fat16, 1024 * MIB),
        (FatType::Fat32, 34 * MIB),
        (FatType::Fat32, 128 * MIB),
        (FatType::Fat32, 256 * MIB),
        (FatType::Fat32, 300 * MIB),
    ];
    let all = auto.iter().map(|&size| (None, size));
    for (fat_type, size) in all.chain(of_type.iter().map(|&(kind, size)| (Some(kind), size))) {
        let report = make(&ours, size, &MkfsOptions { fat_type, ..options() });
        File::create(&theirs).unwrap().set_len(size).unwrap();
        let width = fat_type.map(|kind| format!("-F{}", kind.bits()));
        let words: Vec<String> = width.into_iter().chain([theirs.display().to_string()]).collect();
        ivers_oracle::run("mkfs.fat", words).unwrap();
        assert_eq!(parameters(&ours), parameters(&theirs), "{fat_type:?}, {size} bytes: {report:?}");
        check(&ours);
    }
}

#[test]
fn tools_read_label_and_serial_number() {
    if !ivers_oracle::have_programs(&["mdir", "fsck.fat"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for size in [MIB, 20 * MIB, 600 * MIB] {
        make(&image, size, &options());
        let text = ivers_oracle::run("mdir", ["-i".as_ref(), image.as_os_str(), "::".as_ref()]).unwrap();
        let text = ivers_oracle::said(&text);
        assert!(text.contains("PROOF 1") && text.contains("1234-ABCD"), "{text}");
    }
}

#[test]
fn old_contents_are_not_visible() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (fat_type, size) in
        [(FatType::Fat12, 2 * MIB), (FatType::Fat16, 24 * MIB), (FatType::Fat32, 40 * MIB)]
    {
        std::fs::write(&image, vec![0xA5; size as usize]).unwrap();
        let device = FileDevice::open(&image, OpenMode::ReadWrite).unwrap();
        mkfs(&device, &MkfsOptions { fat_type: Some(fat_type), zeroed: false, ..options() }).unwrap();
        drop(device);
        check(&image);
    }
}

#[test]
fn equal_options_make_equal_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    for size in [MIB, 20 * MIB] {
        make(&one, size, &options());
        make(&two, size, &options());
        assert!(std::fs::read(&one).unwrap() == std::fs::read(&two).unwrap());
    }
}

#[test]
fn invalid_options_are_refused_before_the_first_write() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (size, options) in [
        (4 << 10, options()),
        (MIB, MkfsOptions { fat_type: Some(FatType::Fat16), ..options() }),
        (20 * MIB, MkfsOptions { fat_type: Some(FatType::Fat32), ..options() }),
        (400 * MIB, MkfsOptions { fat_type: Some(FatType::Fat12), ..options() }),
        (MIB, MkfsOptions { cluster_bytes: Some(700), ..options() }),
        (MIB, MkfsOptions { label: "more than eleven".into(), ..options() }),
        (MIB, MkfsOptions { label: "a/b".into(), ..options() }),
        (MIB, MkfsOptions { label: "\u{4e00}".into(), ..options() }),
        (3 << 40, options()),
    ] {
        File::create(&image).unwrap().set_len(size).unwrap();
        let device = FileDevice::open(&image, OpenMode::ReadWrite).unwrap();
        mkfs(&device, &options).unwrap_err();
        plan(size, &options).unwrap_err();
        drop(device);
        let mut head = vec![1; 4 << 10];
        std::io::Read::read_exact(&mut File::open(&image).unwrap(), &mut head).unwrap();
        assert!(head.iter().all(|&byte| byte == 0), "{size} bytes");
    }
}
