//! `ivers mkfs`: make a filesystem in a file or on a block device.

use std::fs::OpenOptions;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ivers_block::{Device, OpenMode};
use ivers_ext4::mkfs::{MkfsOptions, MkfsReport};
use ivers_vfs::Error;
use serde_json::json;
use uuid::Uuid;

use crate::args::Mkfs;
use crate::failure::{FAILED, REFUSED, failure, usage};
use crate::holder::open_when_closed;
use crate::progress::{self, Progress};
use crate::show::{self, parse_size};

/// Bytes at the start of a device that tell what lies there: ISO 9660 begins at 32 KiB and btrfs at 64 KiB, with zeros before;
/// the labels of ZFS end at 512 KiB.
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

/// `UID:GID`; without a value those of who calls.
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
            numbers.ok_or_else(|| usage(format!("--root-owner {text}: not two numbers, as 1000:1000")))
        }
    }
}

fn options(args: &Mkfs) -> Result<MkfsOptions> {
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

/// Open a device that may be written over.
fn open(args: &Mkfs) -> Result<Arc<dyn Device>> {
    let device: Arc<dyn Device> = Arc::new(open_when_closed(&args.image, OpenMode::ReadWrite)?);
    let mut head = vec![0; device.size_bytes().min(HEAD_BYTES) as usize];
    device.read_at(0, &mut head)?;
    if !args.force && head.iter().any(|&byte| byte != 0) {
        let place = args.image.display();
        return Err(failure(FAILED, format!("{place} is not empty: --force overwrites it")));
    }
    Ok(device)
}

/// What does not fit is the caller's to mend.
fn plan(bytes: u64, options: &MkfsOptions, args: &Mkfs) -> Result<()> {
    ivers_ext4::mkfs::plan(bytes, options).map_err(|error| match error {
        Error::Incompatible(why) => {
            usage(format!("{}: {}", args.image.display(), why.trim_start_matches("mkfs: ")))
        }
        error => error.into(),
    })
}

/// Shows how much has been written: inode tables and the journal of a device take a while.
struct Watched {
    device: Arc<dyn Device>,
    progress: Progress,
}

impl Device for Watched {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> ivers_block::Result<()> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> ivers_block::Result<()> {
        self.progress.step(buf.len() as u64, |written| format!("{} written", progress::bytes(written)));
        self.device.write_at(offset, buf)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> ivers_block::Result<()> {
        self.device.write_fua(offset, buf)
    }

    fn flush(&self) -> ivers_block::Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> ivers_block::Result<()> {
        self.device.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn describe(&self) -> String {
        self.device.describe()
    }
}

/// Make the filesystem, in a file that is first made as large as `grows` says.
fn write(
    args: &Mkfs,
    options: &MkfsOptions,
    grows: Option<u64>,
    holds_something: bool,
) -> Result<MkfsReport> {
    let place = args.image.display();
    if let Some(bytes) = grows {
        if holds_something {
            // Looked at before it grows: what is refused stays as it was.
            open(args)?;
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&args.image);
        file.and_then(|file| file.set_len(bytes)).with_context(|| format!("cannot make {place}"))?;
    }
    let device = open(args)?;
    plan(device.size_bytes(), options, args)?;
    let watched: Arc<dyn Device> = Arc::new(Watched { device, progress: Progress::unbounded() });
    ivers_ext4::mkfs::mkfs(&watched, options).with_context(|| place.to_string())
}

/// Run `ivers mkfs`.
pub fn mkfs(args: &Mkfs, json: bool, quiet: bool) -> Result<()> {
    if args.fs_type != "ext4" {
        return Err(failure(REFUSED, format!("cannot make {:?}; there is ext4", args.fs_type)));
    }
    let place = args.image.display();
    let mut options = options(args)?;
    let size = match &args.size {
        None => None,
        Some(text) => Some(
            parse_size(text).ok_or_else(|| usage(format!("--size {text}: not a size, as 512M or 10G")))?,
        ),
    };
    let found = std::fs::metadata(&args.image).ok();
    if found.as_ref().is_some_and(std::fs::Metadata::is_dir) {
        return Err(usage(format!("{place} is a directory")));
    }
    let is_device = found.as_ref().is_some_and(|meta| meta.file_type().is_block_device());
    let old_len = found.as_ref().map_or(0, std::fs::Metadata::len);
    match (&found, size) {
        (None, None) => return Err(usage(format!("{place} is not there: --size says how large to make it"))),
        (Some(_), Some(_)) if is_device => {
            return Err(usage(format!("{place} is a device: it has its size")));
        }
        (Some(_), Some(size)) if size < old_len => {
            return Err(usage(format!(
                "{place} has {old_len} bytes: --size makes a file larger, not smaller"
            )));
        }
        _ => {}
    }
    // Planned on the size that will be, before the file is made or touched.
    let bytes = size.unwrap_or(old_len);
    if !is_device {
        plan(bytes, &options, args)?;
    }
    // What was never written reads as zeros: neither tables nor journal need zeroing.
    options.zeroed = old_len == 0 && !is_device;
    let grows = (bytes > old_len && !is_device).then_some(bytes);
    let made = write(args, &options, grows, old_len > 0).inspect_err(|_| {
        if found.is_none() && !args.image.is_symlink() {
            // Half a filesystem in a file that nobody else knows yet is of no use.
            let _ = std::fs::remove_file(&args.image);
        }
    })?;
    if quiet && !json {
        return Ok(());
    }
    let uuid = Uuid::from_bytes(options.uuid);
    if json {
        let report = json!({
            "path": args.image.to_string_lossy(), "fs": "ext4", "uuid": uuid.to_string(), "block_size": made.block_size,
            "blocks": made.blocks, "inodes": made.inodes, "groups": made.groups, "journal_blocks": made.journal_blocks,
        });
        show::json_line(&report)
    } else {
        show::line(format_args!(
            "{place}: ext4, {} blocks of {} bytes, {} inodes, {} groups, journal of {} blocks, UUID {uuid}",
            made.blocks, made.block_size, made.inodes, made.groups, made.journal_blocks
        ))
    }
}
