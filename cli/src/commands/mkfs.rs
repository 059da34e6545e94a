//! `mkfs`: makes an ext4 filesystem in a file or on a block device.

use std::fs::OpenOptions;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ivers_block::{ByteOffset, Device, OpenMode};
use ivers_ext4::mkfs::{MkfsOptions, MkfsReport};
use ivers_vfs::Error;
use serde_json::json;
use uuid::Uuid;

use crate::arguments::parse_size;
use crate::image::image_lock::open_when_closed;
use crate::output::failure::{FAILED, REFUSED, failure, usage};
use crate::output::print;
use crate::output::progress::{self, Progress};

const HELP: &str = "\
The features are those that e2fsprogs 1.47 enables by default. With --uuid, --hash-seed and --timestamp, \
equal calls on equal files make equal images, byte for byte. (A sparse file reads as zeros; the image \
records that.) Nothing is written before all checks have passed.

JSON: path, fs, uuid, block_size, blocks, inodes, groups, journal_blocks.

Examples:
  ivers mkfs disk.img --size 1G --root-owner
  ivers mkfs -L data -m 0 /dev/sdx1";

/// Options of `mkfs`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The image file or block device
    image: PathBuf,
    /// The format
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "ext4")]
    fs_type: String,
    /// Create the file with this size or grow it to this size, as 512M or 10G
    #[arg(short, long)]
    size: Option<String>,
    /// Block size: 1024, 2048 or 4096 (default: 1024 below 512 MiB, else 4096)
    #[arg(short, long, value_name = "BYTES")]
    block_size: Option<u32>,
    /// Inode size: 256 or a larger power of two up to the block size
    #[arg(short = 'I', long, value_name = "BYTES", default_value_t = 256)]
    inode_size: u32,
    /// Create one inode per this many bytes (default: by size)
    #[arg(short = 'i', long, value_name = "BYTES")]
    bytes_per_inode: Option<u32>,
    /// Reserve this part of the blocks for the superuser
    #[arg(short = 'm', long, value_name = "PERCENT", default_value_t = 5)]
    reserved_percent: u32,
    /// The label, at most 16 bytes
    #[arg(short = 'L', long, default_value = "", hide_default_value = true)]
    label: String,
    /// The UUID (default: random)
    #[arg(short = 'U', long)]
    uuid: Option<String>,
    /// The seed of hashed directories, as a UUID (default: random)
    #[arg(long, value_name = "UUID")]
    hash_seed: Option<String>,
    /// The time of creation in seconds since 1970 (default: now)
    #[arg(long, value_name = "SECONDS")]
    timestamp: Option<u32>,
    /// The owner of the root directory (default: 0:0; without a value: the calling user)
    #[arg(long, value_name = "UID:GID", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    root_owner: Option<String>,
    /// Make no journal
    #[arg(long)]
    no_journal: bool,
    /// Overwrite existing contents
    #[arg(short = 'F', long)]
    force: bool,
}

/// Bytes at the start of a device that must be zero: ISO 9660 starts at 32 KiB and btrfs at 64 KiB, with
/// zeros before; the labels of ZFS end at 512 KiB.
const HEAD_BYTES: u64 = 512 << 10;

fn uuid_of(text: Option<&str>, what: &str) -> Result<[u8; 16]> {
    match text {
        None => Ok(Uuid::new_v4().into_bytes()),
        Some(text) => {
            let uuid = Uuid::parse_str(text).map_err(|error| usage(format!("--{what} {text}: {error}")))?;
            Ok(uuid.into_bytes())
        }
    }
}

/// Parses `UID:GID`. Without a value: those of this process.
fn owner_of(text: Option<&str>) -> Result<(u32, u32)> {
    match text {
        None => Ok((0, 0)),
        Some("") => {
            use rustix::process::{getegid, geteuid};
            Ok((geteuid().as_raw(), getegid().as_raw()))
        }
        Some(text) => {
            let numbers =
                text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
            numbers.ok_or_else(|| usage(format!("--root-owner {text}: must be two numbers, as 1000:1000")))
        }
    }
}

fn options(args: &Args) -> Result<MkfsOptions> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    Ok(MkfsOptions {
        block_size: args.block_size,
        inode_size: args.inode_size,
        bytes_per_inode: args.bytes_per_inode,
        reserved_percent: args.reserved_percent,
        label: args.label.clone().into_bytes(),
        uuid: uuid_of(args.uuid.as_deref(), "uuid")?,
        hash_seed: uuid_of(args.hash_seed.as_deref(), "hash-seed")?,
        timestamp: args.timestamp.unwrap_or(u32::try_from(now).unwrap_or(u32::MAX)),
        root_owner: owner_of(args.root_owner.as_deref())?,
        journal: !args.no_journal,
        zeroed: false,
    })
}

/// Opens a device. Without `--force` it must contain only zeros at its start.
fn open(args: &Args) -> Result<Arc<dyn Device>> {
    let device: Arc<dyn Device> = Arc::new(open_when_closed(&args.image, OpenMode::ReadWrite)?);
    let mut head = vec![0; device.size_bytes().min(HEAD_BYTES) as usize];
    device.read_at(ByteOffset(0), &mut head)?;
    if !args.force && head.iter().any(|&byte| byte != 0) {
        let name = args.image.display();
        return Err(failure(FAILED, format!("{name} is not empty; --force overwrites it")));
    }
    Ok(device)
}

/// Checks the options against the size. An option that does not fit is a usage error.
fn plan(bytes: u64, options: &MkfsOptions, args: &Args) -> Result<()> {
    ivers_ext4::mkfs::plan(bytes, options).map_err(|error| match error {
        Error::Incompatible(why) => usage(format!("{}: {why}", args.image.display())),
        error => error.into(),
    })
}

/// A device that shows how much was written: inode tables and the journal take a while.
struct WithProgress {
    device: Arc<dyn Device>,
    progress: Progress,
}

impl Device for WithProgress {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> ivers_block::Result<()> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> ivers_block::Result<()> {
        self.progress.step(buf.len() as u64, |written| format!("{} written", progress::bytes(written)));
        self.device.write_at(offset, buf)
    }

    fn write_fua(&self, offset: ByteOffset, buf: &[u8]) -> ivers_block::Result<()> {
        self.device.write_fua(offset, buf)
    }

    fn flush(&self) -> ivers_block::Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> ivers_block::Result<()> {
        self.device.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn describe(&self) -> String {
        self.device.describe()
    }
}

/// Makes the filesystem. `new_len`: first creates the file with this length, or extends it.
fn write(args: &Args, options: &MkfsOptions, new_len: Option<u64>, has_contents: bool) -> Result<MkfsReport> {
    let name = args.image.display();
    if let Some(bytes) = new_len {
        if has_contents {
            // Checked before the file grows: a refused file stays as it was.
            open(args)?;
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&args.image);
        file.and_then(|file| file.set_len(bytes)).with_context(|| format!("cannot make {name}"))?;
    }
    let device = open(args)?;
    plan(device.size_bytes(), options, args)?;
    let with_progress: Arc<dyn Device> = Arc::new(WithProgress { device, progress: Progress::unbounded() });
    ivers_ext4::mkfs::mkfs(&with_progress, options).with_context(|| name.to_string())
}

/// Runs `ivers mkfs`.
pub fn run(args: &Args, json: bool, quiet: bool) -> Result<()> {
    if args.fs_type != "ext4" {
        return Err(failure(REFUSED, format!("type {:?} is not supported: choose ext4", args.fs_type)));
    }
    let name = args.image.display();
    let mut options = options(args)?;
    let size = match &args.size {
        None => None,
        Some(text) => Some(
            parse_size(text)
                .ok_or_else(|| usage(format!("--size {text}: must be a size, as 512M or 10G")))?,
        ),
    };
    let found = std::fs::metadata(&args.image).ok();
    if found.as_ref().is_some_and(std::fs::Metadata::is_dir) {
        return Err(usage(format!("{name} is a directory")));
    }
    let is_device = found.as_ref().is_some_and(|meta| meta.file_type().is_block_device());
    // Opening a FIFO would wait for its other end.
    if found.as_ref().is_some_and(|meta| !meta.is_file()) && !is_device {
        return Err(usage(format!("{name} is neither a file nor a block device")));
    }
    let old_len = found.as_ref().map_or(0, std::fs::Metadata::len);
    match (&found, size) {
        (None, None) => return Err(usage(format!("{name} does not exist; --size SIZE creates it"))),
        (Some(_), Some(_)) if is_device => {
            return Err(usage(format!("{name} is a device, which has a fixed size; remove --size")));
        }
        (Some(_), Some(size)) if size < old_len => {
            return Err(usage(format!("{name} has {old_len} bytes: --size cannot shrink a file")));
        }
        _ => {}
    }
    // Checked for the final size before the file is created or changed.
    let bytes = size.unwrap_or(old_len);
    if !is_device {
        plan(bytes, &options, args)?;
    }
    // A new file reads as zeros, so tables and journal need no zeroing.
    options.zeroed = old_len == 0 && !is_device;
    let new_len = (bytes > old_len && !is_device).then_some(bytes);
    let made = write(args, &options, new_len, old_len > 0).inspect_err(|_| {
        if found.is_none() && !args.image.is_symlink() {
            // This command created the file. Half a filesystem is of no use.
            let _ = std::fs::remove_file(&args.image);
        }
    })?;
    if quiet && !json {
        return Ok(());
    }
    let uuid = Uuid::from_bytes(options.uuid);
    if json {
        let report = json!({
            "path": args.image.to_string_lossy(),
            "fs": "ext4",
            "uuid": uuid.to_string(),
            "block_size": made.block_size,
            "blocks": made.blocks,
            "inodes": made.inodes,
            "groups": made.groups,
            "journal_blocks": made.journal_blocks,
        });
        print::json_line(&report)
    } else {
        print::line(format_args!(
            "{name}: ext4, {} blocks of {} bytes, {} inodes, {} groups, journal of {} blocks, UUID {uuid}",
            made.blocks, made.block_size, made.inodes, made.groups, made.journal_blocks
        ))
    }
}
