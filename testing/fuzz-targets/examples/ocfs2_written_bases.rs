//! Makes the OCFS2 images again that ivers fills: `cargo run -p ivers-fuzz-targets --example
//! ocfs2_written_bases` (package ocfs2-tools). Inputs refer to places in them, so existing inputs change
//! their meaning.

use anyhow::Result;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use ivers_block::{Device, MemDevice};
use ivers_ocfs2::{Ocfs2, OpenOptions};
use ivers_oracle::mkfs_ocfs2;
use ivers_vfs::*;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// The images: their name, bytes, and options of mkfs.ocfs2: checksums and indexed directories; neither.
const KINDS: [(&str, u64, &[&str]); 2] = [
    (
        "ocfs2_written_sums",
        10 << 20,
        &["-N", "1", "-b", "1K", "-C", "4K", "-J", "size=4M", "--fs-features=metaecc"],
    ),
    (
        "ocfs2_written_linear",
        14 << 20,
        &[
            "-N",
            "2",
            "-b",
            "1K",
            "-C",
            "4K",
            "-J",
            "size=4M",
            "--fs-feature-level=max-compat",
            "--fs-features=sparse,xattr,unwritten",
        ],
    ),
];

/// Makes a tree with indexes and trees of several levels.
fn fill(vfs: &Arc<Vfs>) -> Result<()> {
    let (cred, root) = (Cred::root(), vfs.root()?);
    let make = |dir: &InodeRef, name: &str, spec: &CreateSpec| {
        vfs.create(&cred, dir, name.as_bytes(), spec, true).map(|(inode, _)| inode)
    };
    let file = CreateSpec::file(0o644);
    let write = |inode: &InodeRef, at: u64, byte: u8, len: usize| {
        vfs.write(&cred, inode, at, &vec![byte; len], WriteFlags::default())
    };
    for dir in ["few", "many"] {
        make(&root, dir, &CreateSpec::directory(0o755))?;
    }
    let (few, many) = (vfs.resolve(&cred, "/few", true)?, vfs.resolve(&cred, "/many", true)?);
    make(&few, "below", &CreateSpec::directory(0o700))?;
    let text = make(&few, "file", &file)?;
    write(&text, 0, b't', 300)?;
    for number in 0..300 {
        let name = format!("a-name-of-some-length-{number}");
        vfs.link(&cred, &text, &many, name.as_bytes(), true)?;
    }
    write(&make(&root, "large", &file)?, 0, b'l', 150_000)?;
    let holes = make(&root, "holes", &file)?;
    for nth in 0..120 {
        write(&holes, nth * 8192, b'h', 10)?;
    }
    let ahead = make(&root, "ahead", &file)?;
    vfs.fallocate(&cred, &ahead, FallocateMode::empty(), 0, 65_536)?;
    for (name, len) in [("short", 8), ("long", 1000)] {
        make(&root, name, &CreateSpec::symlink(vec![b'x'; len]))?;
    }
    for (name, len) in [("user.color", 4), ("trusted.middle", 200)] {
        vfs.set_xattr(&cred, &text, name.as_bytes(), &vec![b'v'; len], XattrMode::Any)?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("bases");
    let dir = tempfile::tempdir()?;
    for (name, bytes, options) in KINDS {
        let path = dir.path().join(name);
        mkfs_ocfs2(&path, bytes, options)?;
        let memory = Arc::new(MemDevice::from_bytes(&std::fs::read(&path)?));
        let device: Arc<dyn Device> = memory.clone();
        let fs = Ocfs2::open(device, OpenOptions::default())?;
        let vfs = Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() })?;
        fill(&vfs)?;
        vfs.unmount()?;
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&memory.to_bytes())?;
        std::fs::write(to.join(format!("{name}.z")), packed.finish()?)?;
    }
    Ok(())
}
