//! `info`: format, size, features and promises of an image or a mount.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_vfs::Vfs;
use serde_json::{Value, json};

use crate::arguments::{Operand, is_server};
use crate::file_info;
use crate::image::images::Images;
use crate::image::mount_options::ImageArgs;
use crate::image::partitions::Disk;
use crate::output::format::Shown;
use crate::output::{format, print, progress};

const HELP: &str = "\
`space for files` is what statfs(2) counts: without the structures of the format. For an image, `state` says \
whether it was closed cleanly.

JSON: fs, uuid, label, block_size (in bytes), blocks and blocks_free (of that size, as statfs(2) counts \
them), files and files_free (inodes; null if the format has no table of them), semantics (as of stat), \
details; for a mount also instance, pid, read_only, sandbox, iversion, lazytime, lazyversion. Of a disk with \
partitions: table (gpt, mbr or rdb), sector_bytes, id, damage, and partitions: number, start, size, type, \
type_id, name, uuid, fs (null if it is not supported), contents, problem (why it cannot be used).

Examples:
  ivers info disk.img
  ivers info nfs://server/export
  ivers info disk-with-partitions.img@2
  ivers info mnt";

/// Options of `info`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// An image, or a directory on a mount. Of an image with partitions: the partition table
    target: PathBuf,
    #[command(flatten)]
    image: ImageArgs,
}

/// Runs `ivers info`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let mut info = if args.target.is_dir() {
        mount_info(args)?
    } else {
        let (image, path) = match Operand::parse(&args.target) {
            // The path chooses the filesystem of a server.
            Operand::Image { image, path } if is_server(&image) => (image, path),
            _ => (args.target.clone(), Vec::new()),
        };
        let mut images = Images::open([image.as_path()], &args.image.options()?)?;
        images.note_path(&image, &path);
        if let Some(disk) = images.disk(&image)? {
            return if json { print::json_line(&disk.json()) } else { print_disk(&disk, &args.target) };
        }
        image_info(images.get(&image)?.as_ref())?
    };
    // FAT has no table of files, and so no number of them.
    if info["files"] == 0 {
        (info["files"], info["files_free"]) = (Value::Null, Value::Null);
    }
    // AFFS has no UUID.
    if info["uuid"] == uuid::Uuid::nil().to_string() {
        info["uuid"] = Value::Null;
    }
    if json { print::json_line(&info) } else { print_text(&for_people(info), 0) }
}

/// Puts the figures of a filesystem into words: sizes with units, and how it was closed on a line of its own.
fn for_people(mut info: Value) -> Value {
    let Some(fields) = info.as_object_mut() else { return info };
    let mut take = |name: &str| fields.remove(name).and_then(|value| value.as_u64());
    let (block_size, blocks, free) = (take("block_size"), take("blocks"), take("blocks_free"));
    let (files, files_free) = (take("files"), take("files_free"));
    if let (Some(block_size), Some(blocks), Some(free)) = (block_size, blocks, free) {
        let space = |blocks: u64| {
            let bytes = progress::bytes(blocks.saturating_mul(block_size));
            format!("{bytes} ({} of {block_size} bytes)", format::count(blocks, "block"))
        };
        fields.insert("space for files".to_owned(), space(blocks).into());
        fields.insert("space free".to_owned(), space(free).into());
    }
    if let (Some(files), Some(free)) = (files, files_free) {
        let text = format!("{} used, {free} free", files.saturating_sub(free));
        fields.insert("inodes".to_owned(), text.into());
    }
    let state = fields.get_mut("details").and_then(|details| details.as_object_mut()?.remove("state"));
    if let Some(state) = state {
        // A mount is open now.
        let name = if fields.contains_key("pid") { "state before the mount" } else { "state" };
        fields.insert(name.to_owned(), state);
    }
    info
}

fn mount_info(args: &Args) -> Result<Value> {
    let mut info = file_info::served_json(&args.target, ivers_fuse::MOUNT)?;
    info["semantics"] = file_info::served_json(&args.target, ivers_fuse::SEMANTICS)?;
    let space = rustix::fs::statvfs(&args.target).with_context(|| args.target.shown())?;
    let space = [
        ("block_size", space.f_frsize),
        ("blocks", space.f_blocks),
        ("blocks_free", space.f_bfree),
        ("files", space.f_files),
        ("files_free", space.f_ffree),
    ];
    for (name, value) in space {
        info[name] = value.into();
    }
    Ok(info)
}

fn print_disk(disk: &Disk, image: &Path) -> Result<()> {
    disk.lines().into_iter().try_for_each(print::line)?;
    let image = format::name(image.as_os_str().as_encoded_bytes());
    print::line(format_args!("Name a partition as {image}@NUMBER, {image}@NAME or {image}@UUID."))
}

fn image_info(vfs: &Vfs) -> Result<Value> {
    let info = vfs.info();
    let space = vfs.stat_fs()?;
    let details = vfs.fs().describe().into_iter().map(|(key, value)| (key, Value::from(value)));
    Ok(json!({
        "fs": info.fs_type,
        "uuid": uuid::Uuid::from_bytes(info.uuid).to_string(),
        "label": info.label,
        "block_size": space.block_size,
        "blocks": space.blocks,
        "blocks_free": space.blocks_free,
        "files": space.files,
        "files_free": space.files_free,
        "semantics": ivers_fuse::semantics(vfs),
        "details": details.collect::<serde_json::Map<_, _>>(),
    }))
}

fn print_text(value: &Value, indent: usize) -> Result<()> {
    let mut fields: Vec<_> = value.as_object().into_iter().flatten().collect();
    // The format comes first, and objects last.
    fields.sort_by_key(|(key, value)| (value.is_object(), *key != "fs"));
    let pad = " ".repeat(indent);
    for (key, value) in fields {
        match value {
            Value::Null => {}
            Value::String(text) if text.is_empty() => {}
            Value::Object(fields) if fields.is_empty() => {}
            Value::Object(_) => {
                print::line(format_args!("{pad}{key}:"))?;
                print_text(value, indent + 2)?;
            }
            Value::String(text) => {
                print::line(format_args!("{pad}{key}: {}", format::name(text.as_bytes())))?;
            }
            other => print::line(format_args!("{pad}{key}: {other}"))?,
        }
    }
    Ok(())
}
