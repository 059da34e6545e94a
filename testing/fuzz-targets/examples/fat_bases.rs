//! Makes the FAT images again: `cargo run -p ivers-fuzz-targets --example fat_bases`. Inputs refer to places
//! in them, so existing inputs change their meaning.

use anyhow::Result;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use ivers_block::{FileDevice, OpenMode};
use ivers_fat::{Fat, OpenOptions};
use ivers_oracle::FatImage;
use ivers_vfs::{CreateSpec, Cred, MountOptions, Vfs, WriteFlags};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

const KINDS: &[(&str, u64, &[&str])] = &[
    ("fat12", 200 << 10, &["-F", "12", "-s", "1", "-i", "12121212", "--invariant"]),
    ("fat16", 2200 << 10, &["-F", "16", "-s", "1", "-r", "32", "-i", "16161616", "--invariant"]),
    ("fat32", 300 << 10, &["-F", "32", "-s", "1", "-i", "32323232", "--invariant"]),
];

fn main() -> Result<()> {
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("bases");
    let cred = Cred::root();
    for (name, bytes, args) in KINDS {
        let image = FatImage::mkfs(*bytes, args)?;
        // Written by ivers: mtools takes a small FAT32 for FAT16.
        let device = Arc::new(FileDevice::open(image.path(), OpenMode::ReadWrite)?);
        let vfs = Vfs::mount(Fat::open(device, OpenOptions::default())?, MountOptions::default())?;
        let copy = |name: &str, len: usize, dir: &str| -> Result<()> {
            let dir = vfs.resolve(&cred, dir, true)?;
            let (file, _) = vfs.create(&cred, &dir, name.as_bytes(), &CreateSpec::file(0o644), false)?;
            vfs.write(&cred, &file, 0, &vec![b'f'; len], WriteFlags::empty())?;
            Ok(())
        };
        for (dir, name) in [
            ("/", "DIR"),
            ("/", "a directory with a long name"),
            ("/DIR", "inner"),
            ("/DIR/inner", "innermost"),
        ] {
            let dir = vfs.resolve(&cred, dir, true)?;
            vfs.create(&cred, &dir, name.as_bytes(), &CreateSpec::directory(0o755), false)?;
        }
        copy("SHORT.TXT", 10, "/")?;
        copy("a file of some clusters", 9000, "/DIR")?;
        copy("empty", 0, "/DIR/inner")?;
        for nth in 0..30 {
            copy(
                &format!("number {nth} of many with names of two parts"),
                nth,
                "/a directory with a long name",
            )?;
        }
        copy(&"x".repeat(250), 700, "/DIR/inner/innermost")?;
        vfs.unmount()?;
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&std::fs::read(image.path())?)?;
        std::fs::write(to.join(format!("{name}.z")), packed.finish()?)?;
    }
    Ok(())
}
