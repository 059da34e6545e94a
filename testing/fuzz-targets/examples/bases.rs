//! Makes the base images again: `cargo run -p ivers-fuzz-targets --example bases`. Inputs refer to places in
//! them, so existing inputs change their meaning.

use flate2::Compression;
use flate2::write::DeflateEncoder;
use ivers_block::{ByteOffset, Device, MemDevice};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const SMALL: u64 = 4 << 20;
/// Journals have at least 1,024 blocks.
const LARGE: u64 = 8 << 20;

/// The kinds of `fs/ext4/tests/mixed_workload.rs`, small. Checksums are disabled unless the kind is about
/// them.
const KINDS: &[(&str, u64, &str)] = &[
    ("ext4_defaults", LARGE, "-t ext4 -b 4096"),
    ("ext4_1k_blocks", SMALL, "-t ext4 -b 1024 -O ^metadata_csum"),
    ("ext4_2k_blocks", LARGE, "-t ext4 -b 2048 -O ^metadata_csum"),
    ("ext4_small_inodes", SMALL, "-t ext4 -b 1024 -I 128 -O ^metadata_csum"),
    ("ext4_without_journal", SMALL, "-t ext4 -b 1024 -O ^has_journal,^metadata_csum,^64bit"),
    ("ext4_meta_bg", SMALL, "-t ext4 -b 1024 -g 1024 -O meta_bg,^resize_inode,^metadata_csum"),
    ("ext4_sparse_super2", SMALL, "-t ext4 -b 1024 -O sparse_super2"),
    ("ext4_uninit_bg", SMALL, "-t ext4 -b 1024 -g 1024 -O ^metadata_csum,uninit_bg"),
    ("ext4_seed_large_dir_project", SMALL, "-t ext4 -b 1024 -O metadata_csum_seed,large_dir,project"),
    ("ext4_inline_data", SMALL, "-t ext4 -b 1024 -O inline_data,^metadata_csum"),
    ("ext4_ea_inode", SMALL, "-t ext4 -b 1024 -O ea_inode,^metadata_csum"),
    ("ext4_orphan_file", SMALL, "-t ext4 -b 1024 -O orphan_file,^metadata_csum"),
    ("ext3", SMALL, "-t ext3 -b 1024"),
    ("ext2", SMALL, "-t ext2 -b 1024"),
    ("dirty_ext4", SMALL, "-t ext4 -b 1024 -O ^metadata_csum"),
    ("dirty_ext3", SMALL, "-t ext3 -b 1024"),
];

fn mount(device: &Arc<dyn Device>) -> ivers_vfs::Result<Arc<Vfs>> {
    let fs = Ext4::open(device.clone(), OpenOptions::default())?;
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() })
}

/// Fills an image with a tree of names, maps with inner nodes, attributes of every size, links and special
/// files.
fn fill(vfs: &Arc<Vfs>) -> ivers_vfs::Result<()> {
    let cred = Cred::root();
    let root = vfs.root()?;
    let make = |dir: &InodeRef, name: &str, spec: &CreateSpec| {
        vfs.create(&cred, dir, name.as_bytes(), spec, false).map(|(inode, _)| inode)
    };
    let write = |file: &InodeRef, at: u64, data: &[u8]| {
        vfs.write(&cred, file, at, data, WriteFlags::empty()).map(drop)
    };
    let tree = make(&root, "tree", &CreateSpec::directory(0o755))?;
    for n in 0..90 {
        let name = format!("{n:03}-{}", "name".repeat(n % 12));
        // Links, so that few inodes are used.
        if n % 30 == 0 {
            make(&tree, &name, &CreateSpec::file(0o644))?;
        } else {
            let first = vfs.lookup(&cred, &tree, format!("000-{}", "name".repeat(0)).as_bytes())?;
            vfs.link(&cred, &first, &tree, name.as_bytes(), false)?;
        }
    }
    let deep = make(&tree, "deep", &CreateSpec::directory(0o700))?;
    make(&deep, "deeper", &CreateSpec::directory(0o700))?;
    make(&root, "short", &CreateSpec::symlink("tree/deep"))?;
    make(&root, "long", &CreateSpec::symlink("x".repeat(300)))?;
    make(&root, "pipe", &CreateSpec { kind: FileType::Fifo, ..CreateSpec::file(0o600) })?;
    make(
        &root,
        "device",
        &CreateSpec { kind: FileType::CharDevice, rdev: 0x103, ..CreateSpec::file(0o600) },
    )?;
    let pieces = make(&root, "pieces", &CreateSpec::file(0o644))?;
    for n in 0..40u64 {
        write(&pieces, n * 8192, &[n as u8; 100])?;
    }
    let far = make(&root, "far", &CreateSpec::file(0o644))?;
    for at in [0, 20 << 10, 280 << 10, 70 << 20] {
        write(&far, at, b"here")?;
    }
    let reserved = make(&root, "reserved", &CreateSpec::file(0o644))?;
    // Block maps have no unwritten blocks.
    let _ = vfs.fallocate(&cred, &reserved, FallocateMode::empty(), 0, 64 << 10);
    write(&reserved, 10_000, b"written")?;
    let tagged = make(&root, "tagged", &CreateSpec::file(0o644))?;
    vfs.set_xattr(&cred, &tagged, "user.small", b"value", XattrMode::Any)?;
    vfs.set_xattr(&cred, &tagged, "user.medium", &[1; 300], XattrMode::Any)?;
    vfs.set_xattr(&cred, &tagged, "user.other", &[2; 150], XattrMode::Any)?;
    let acl: &[u8] = &[
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255,
        255, 255,
    ];
    vfs.set_xattr(&cred, &tagged, "system.posix_acl_access", acl, XattrMode::Any)?;
    vfs.set_xattr(&cred, &deep, "user.dir", b"value", XattrMode::Any)?;
    let heavy = make(&root, "heavy", &CreateSpec::file(0o644))?;
    // Only ea_inode has space for this.
    let _ = vfs.set_xattr(&cred, &heavy, "user.large", &[3; 5000], XattrMode::Any);
    Ok(())
}

fn base(path: &Path, kind: &str, bytes: u64, options: &str) -> anyhow::Result<Vec<u8>> {
    let source = path.with_extension("d");
    // Small enough for inline data, which only mkfs makes.
    std::fs::create_dir_all(source.join("inline"))?;
    std::fs::write(source.join("inline/a"), "inline data")?;
    std::fs::write(source.join("inline/b"), "x".repeat(90))?;
    std::os::unix::fs::symlink("target", source.join("inline/link"))?;
    std::fs::File::create(path)?.set_len(bytes)?;
    let status = Command::new("mke2fs")
        .args(["-q", "-F", "-N", "96", "-m", "0", "-U", "01234567-89ab-cdef-0123-456789abcdef"])
        .args(["-E", "hash_seed=01234567-89ab-cdef-0123-456789abcdef", "-d"])
        .arg(&source)
        .args(options.split(' '))
        .arg(path)
        .status()?;
    if !status.success() {
        anyhow::bail!("{kind}: mke2fs failed");
    }
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(&std::fs::read(path)?));
    let vfs = mount(&device)?;
    fill(&vfs)?;
    if kind.starts_with("dirty") {
        // A crash with a full log and an orphan.
        let cred = Cred::root();
        let orphan = vfs.resolve(&cred, "far", false)?;
        vfs.unlink(&cred, &vfs.root()?, b"far", false)?;
        let truncated = vfs.resolve(&cred, "pieces", false)?;
        vfs.set_attr(&cred, &truncated, &SetAttr { size: Some(50_000), ..SetAttr::default() })?;
        vfs.sync()?;
        let mut image = vec![0; bytes as usize];
        device.read_at(ByteOffset(0), &mut image)?;
        drop(orphan);
        return Ok(image);
    }
    vfs.unmount()?;
    let mut image = vec![0; bytes as usize];
    device.read_at(ByteOffset(0), &mut image)?;
    std::fs::write(path, &image)?;
    let output = Command::new("e2fsck").arg("-fn").arg(path).output()?;
    if !output.status.success() {
        anyhow::bail!("{kind}: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(image)
}

fn main() -> anyhow::Result<()> {
    let bases = Path::new(env!("CARGO_MANIFEST_DIR")).join("bases");
    let tmp = tempfile::tempdir()?;
    for (kind, bytes, options) in KINDS {
        let image = base(&tmp.path().join(kind), kind, *bytes, options)?;
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&image)?;
        let packed = packed.finish()?;
        println!("{kind}: {} bytes", packed.len());
        std::fs::write(bases.join(format!("{kind}.z")), packed)?;
    }
    Ok(())
}
