//! `cat`: the contents of files of an image.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_vfs::{Cred, FileType, InodeRef, NameError, Vfs};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::arguments::{image_path, image_path_bytes};
use crate::image::directory::resolve;
use crate::image::images::Images;
use crate::image::mount_options::ImageArgs;
use crate::output::failure::{FAILED, Problems, StdoutError, failure, usage};
use crate::output::format;

const HELP: &str = "\
JSON, one object per file: path, contents (text only).

Examples:
  ivers cat disk.img:/etc/fstab
  ivers cat disk.img:/var/log/syslog.1 disk.img:/var/log/syslog | less";

/// Options of `cat`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// IMAGE:/path
    #[arg(required = true)]
    #[serde(skip)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    image: ImageArgs,
}

impl Args {
    /// Returns the operands.
    pub fn paths(&self) -> &[PathBuf] {
        &self.files
    }
}

/// Runs `ivers cat`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let (paths, mut images) = Images::of_operands(&args.files, &args.image)?;
    let mut out = std::io::stdout().lock();
    let mut problems = Problems::default();
    for (image, path) in &paths {
        let copied = images.get(image).and_then(|vfs| copy(&vfs, image, path, json, &mut out));
        problems.report(copied)?;
    }
    out.flush().map_err(StdoutError)?;
    problems.into_result()
}

/// Writes a file to `out`.
pub fn copy(vfs: &Vfs, image: &Path, path: &[u8], json: bool, out: &mut impl Write) -> Result<()> {
    let inode = resolve(vfs, image, path, true)?;
    let name = image_path(image, path);
    if inode.kind != FileType::Regular {
        if inode.kind == FileType::Directory {
            return Err(anyhow::Error::from(ivers_vfs::Error::from(NameError::IsDirectory)).context(name));
        }
        let kind = format::kind_in_words(inode.kind);
        return Err(failure(FAILED, format!("{name}: a {kind} has no contents in the image")));
    }
    if !json {
        return read_all(vfs, &inode, |bytes| Ok(out.write_all(bytes).map_err(StdoutError)?)).context(name);
    }
    let mut contents = Vec::new();
    read_all(vfs, &inode, |bytes| {
        contents.extend_from_slice(bytes);
        Ok(())
    })?;
    let text = String::from_utf8(contents)
        .map_err(|_| usage(format!("{name} is not UTF-8 text: use cat without --json")))?;
    let path = image_path_bytes(image, path);
    let object = format::with_names(json!({ "contents": text }), [("path", Some(&path[..]))]);
    Ok(writeln!(out, "{object}").map_err(StdoutError)?)
}

/// Passes the contents of a file to `sink`, chunk by chunk.
fn read_all(vfs: &Vfs, inode: &InodeRef, mut sink: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    loop {
        match vfs.read(&Cred::root(), inode, offset, &mut buffer)? {
            0 => return Ok(()),
            n => {
                sink(&buffer[..n])?;
                offset += n as u64;
            }
        }
    }
}
