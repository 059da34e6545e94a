//! Makes the UFS images again: `cargo run -p ivers-fuzz-targets --example ufs_bases` (package makefs). Inputs
//! refer to places in them, so existing inputs change their meaning.

use anyhow::Result;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The images: their name, and options of makefs.
const KINDS: [(&str, &[&str]); 3] = [
    ("ufs1", &["-s", "1m", "-o", "version=1,bsize=4096,fsize=512"]),
    ("ufs2", &["-s", "2m", "-o", "version=2,bsize=8192,fsize=1024"]),
    ("ufs2_big_endian", &["-s", "1m", "-B", "be", "-o", "version=2,bsize=4096,fsize=512"]),
];

/// Makes a tree with directories of several blocks, indirect blocks, and links of both kinds.
fn fill(root: &Path) -> Result<()> {
    std::fs::create_dir_all(root.join("few/below"))?;
    std::fs::create_dir(root.join("many"))?;
    std::fs::write(root.join("few/file"), "text")?;
    for number in 0..120 {
        std::fs::hard_link(root.join("few/file"), root.join(format!("many/a-name-of-some-length-{number}")))?;
    }
    std::fs::write(root.join("large"), vec![b'l'; 150_000])?;
    symlink("few/file", root.join("short"))?;
    symlink("x".repeat(900), root.join("long"))?;
    ivers_oracle::run("mkfifo", [root.join("pipe")])?;
    Ok(())
}

fn main() -> Result<()> {
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("bases");
    let dir = tempfile::tempdir()?;
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    fill(&tree)?;
    for (name, options) in KINDS {
        let mut words = vec!["-t".as_ref(), "ffs".as_ref()];
        words.extend(options.iter().map(std::ffi::OsStr::new));
        words.extend([image.as_os_str(), tree.as_os_str()]);
        ivers_oracle::run("makefs", words)?;
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&std::fs::read(&image)?)?;
        std::fs::write(to.join(format!("{name}.z")), packed.finish()?)?;
    }
    Ok(())
}
