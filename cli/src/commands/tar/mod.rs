//! `tar`: archives of trees in images.
//!
//! | module | contents |
//! |---|---|
//! | [`exclude`] | the patterns of `--exclude` |
//! | [`owners`] | owners that replace those of the source |
//! | [`pack`] | writing an archive |
//! | [`unpack`] | reading an archive |
//!
//! This process opens the image and the archive, enters the sandbox, and then parses both. An archive can be
//! as hostile as an image. One that took this process over would have the image that it may fill anyway, the
//! archive, and standard output and error: it could open no other file.

pub mod exclude;
pub mod owners;
mod pack;
pub mod unpack;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use ivers_vfs::{FileType, MountOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::archive::member::{Kind, Member, NewOwners};
use crate::archive::reader::Reader;
use crate::arguments::{image_path, is_server, source_date_epoch};
use crate::image::directory::resolve;
use crate::image::filler::Filler;
use crate::image::foreign_formats::contains_filesystem;
use crate::image::images::{self, Source};
use crate::image::mount_options::ImageArgs;
use crate::image::open::parse_image_path;
use crate::image::sandbox;
use crate::output::failure::{FAILED, NOT_FOUND, Problems, code, failure, say, usage};
use crate::output::format::Shown;
use crate::output::{format, print};
use exclude::Excludes;
use owners::OwnerArgs;

/// Bytes that are read and written at a time.
const BUFFER: usize = 256 << 10;

const HELP: &str = "\
Archives have the pax format: GNU tar, bsdtar and others read them. They contain owners, permissions, times \
to the nanosecond, hard links, holes, device nodes, FIFOs, ACLs and extended attributes; sockets are left \
out. Owners are numbers. Members are sorted by name, so equal trees make equal archives.

-c: the paths of members start at IMAGE:/path, as those of \"tar -C path -c .\" do.

-x: creates members below the directory IMAGE:/path, all with the attributes that the archive has. Needs no \
root, also for owners and device nodes. Reads ustar, pax and GNU archives and their sparse files. An \
existing file is replaced, an existing directory stays. A path with \"..\" or through a symbolic link is \
refused; a leading slash is removed. With --keep-directory-symlink, a symbolic link to a directory is \
followed and stays. Such a link never leads out of IMAGE:/path, which is its root directory. What cannot be \
created is named on standard error, the rest is created, and the exit code is not 0. A truncated or damaged \
archive is an error that names member and byte.

A compressed archive is decompressed or compressed by a pipe.

JSON: members (number), problems.

Examples:
  ivers tar -c disk.img:/ -f disk.tar
  ivers tar -c disk.img:/etc --exclude '*.bak' | zstd > etc.tar.zst
  ivers tar -x disk.img:/srv -f tree.tar
  zstd -dc rootfs.tar.zst | ivers tar -x disk.img:/
  ivers tar -x disk.img:/ -f modules.tar --keep-directory-symlink --all-root
  ivers tar -t -v -f tree.tar";

/// Options of `tar`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
#[command(group = clap::ArgGroup::new("action").required(true).args(["create", "extract", "list"]))]
pub struct Args {
    /// IMAGE:/path; IMAGE alone is its root
    #[arg(required_unless_present = "list", conflicts_with = "list")]
    path: Option<PathBuf>,
    /// Write an archive of a file or directory of the image
    #[arg(short, long)]
    create: bool,
    /// Create the members of an archive in a directory of the image
    #[arg(short = 'x', long)]
    extract: bool,
    /// List the members of an archive
    #[arg(short = 't', long)]
    list: bool,
    /// The archive; -: standard input or output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Leave out members that match a pattern, and what is below them
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<OsString>,
    /// With -x: remove this many names from the start of each path
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true)]
    strip_components: usize,
    /// With -x: follow and keep symbolic links to directories, such as lib -> usr/lib
    #[arg(long)]
    keep_directory_symlink: bool,
    #[command(flatten)]
    owners: OwnerArgs,
    /// With -c: later modification times become this one, in seconds since 1970 (default: SOURCE_DATE_EPOCH)
    #[arg(long, value_name = "SECONDS")]
    timestamp: Option<i64>,
    /// Owners are numbers; this is always so
    #[arg(long, hide = true)]
    numeric_owner: bool,
    /// Show each member; with -t: also modes, owners, sizes and times
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    image: ImageArgs,
}

/// Runs `ivers tar`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let excludes = Excludes::new(&args.exclude)?;
    if args.strip_components > 0 && !args.extract {
        return Err(usage("--strip-components: only with -x"));
    }
    if args.keep_directory_symlink && !args.extract {
        return Err(usage("--keep-directory-symlink: only with -x"));
    }
    if let Some(option) = args.owners.given().filter(|_| args.list) {
        return Err(usage(format!("{option}: only with -c and -x")));
    }
    if args.timestamp.is_some() && !args.create {
        return Err(usage("--timestamp: only with -c"));
    }
    let (members, problems) = match &args.path {
        Some(word) if args.create => create(args, word, &excludes)?,
        Some(word) => extract(args, word, &excludes)?,
        None => (list(args, &excludes, json)?, Problems::default()),
    };
    if json && !(args.create && is_standard(&args.file)) {
        print::json_line(&serde_json::json!({ "members": members, "problems": problems.count }))?;
    }
    problems.into_result()
}

fn is_standard(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn create(args: &Args, word: &Path, excludes: &Excludes) -> Result<(u64, Problems)> {
    let (image, path) = parse_image_path(word)?;
    let latest = args.timestamp.map_or_else(source_date_epoch, |seconds| Ok(Some(seconds)))?;
    let options = args.image.options()?;
    let source = Source::open(&image, &path, &options)?;
    let out = open_output(&args.file)?;
    sandbox::enter(options.sandbox);
    let mount_options = MountOptions { background: false, ..MountOptions::default() };
    let vfs = source.parse(&image, &options, mount_options)?;
    let to_stderr = is_standard(&args.file);
    let show = |path: &[u8]| match args.verbose {
        true if to_stderr => {
            say(format::name(path));
            Ok(())
        }
        true => print::line(format::name(path)),
        false => Ok(()),
    };
    let options = pack::Options { excludes, owners: args.owners.owners(), latest, show: &show };
    let packed = pack::pack(&vfs, &image, &path, &options, BufWriter::with_capacity(BUFFER, out));
    if is_server(&image) {
        // Tells the server that the client leaves. Errors are logged; the archive is complete.
        let _ = vfs.unmount();
    }
    packed
}

/// Opens the archive for writing, before this process enters the sandbox.
fn open_output(file: &Path) -> Result<File> {
    if is_standard(file) {
        let out = std::io::stdout();
        if out.is_terminal() {
            return Err(usage("the archive would go to the terminal; name a file with -f, or use a pipe"));
        }
        return Ok(File::from(out.as_fd().try_clone_to_owned()?));
    }
    if contains_filesystem(file) {
        return Err(usage(format!("{}: contains a filesystem, and would be overwritten", file.shown())));
    }
    let opened = OpenOptions::new().write(true).create(true).truncate(true).open(file);
    opened.with_context(|| format!("cannot write {}", file.shown()))
}

/// Opens the archive for reading, before this process enters the sandbox.
pub fn open_input(file: &Path) -> Result<File> {
    if is_standard(file) {
        let input = std::io::stdin();
        if input.is_terminal() {
            return Err(usage(
                "the archive would come from the terminal; name a file with -f, or use a pipe",
            ));
        }
        return Ok(File::from(input.as_fd().try_clone_to_owned()?));
    }
    File::open(file).with_context(|| format!("cannot open {}", file.shown()))
}

/// Returns the owners of the files that `-x` creates. On a server only root can change owners, so what
/// another user extracts belongs to that user, as with tar(1).
fn new_owners(args: &Args, image: &Path) -> NewOwners {
    let given = args.owners.owners();
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if !is_server(image) || user.is_root() {
        return given;
    }
    NewOwners { uid: given.uid.or(Some(user.as_raw())), gid: given.gid.or(Some(group.as_raw())) }
}

fn extract(args: &Args, word: &Path, excludes: &Excludes) -> Result<(u64, Problems)> {
    let (image, path) = parse_image_path(word)?;
    let options = args.image.options()?.for_editing()?;
    if options.no_replay {
        return Err(usage(
            "-o norecovery: not allowed when the image is written, since the journal would be lost",
        ));
    }
    let input = open_input(&args.file)?;
    let archive_bytes = input.metadata().map_or(0, |meta| if meta.is_file() { meta.len() } else { 0 });
    let mut source = Source::open(&image, &path, &options)?;
    source.defer_closes();
    // After a signal the image is closed, and nothing of it is lost.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    sandbox::enter(options.sandbox);
    let vfs = source.parse(&image, &options, MountOptions::default())?;
    if let Some(why) = vfs.health().read_only {
        return Err(failure(FAILED, format!("{}: read-only: {why}", image.shown())));
    }
    let show = |member: &Member| if args.verbose { print::line(format::name(&member.path)) } else { Ok(()) };
    let options = unpack::Options {
        excludes,
        strip: args.strip_components,
        owners: new_owners(args, &image),
        latest: None,
        show: &show,
        no_atimes: false,
        silent: false,
        stop: &|| stop.load(Ordering::Relaxed),
        archive_bytes,
    };
    let fill = || -> Result<(u64, Problems)> {
        let root = resolve(&vfs, &image, &path, true).map_err(|error| match code(&error) {
            NOT_FOUND => {
                let dir = image_path(&image, &path);
                failure(NOT_FOUND, format!("{dir}: no such directory; make it first: ivers mkdir -p {dir}"))
            }
            _ => error,
        })?;
        if root.kind != FileType::Directory {
            return Err(usage(format!("{}: not a directory", word.shown())));
        }
        let mut filler = Filler::new(vfs.clone(), root, None)?;
        if args.keep_directory_symlink {
            filler.keep_directory_links();
        }
        let mut archive = Reader::new(BufReader::with_capacity(BUFFER, input));
        let unpacked = unpack::unpack(&mut archive, &mut filler, &options);
        filler.set_times()?;
        unpacked
    };
    let filled = fill();
    // Also after an error: what was created before stays.
    let closed = images::close(&vfs, &image);
    let filled = filled?;
    closed?;
    Ok(filled)
}

fn list(args: &Args, excludes: &Excludes, json: bool) -> Result<u64> {
    let input = open_input(&args.file)?;
    sandbox::enter(args.image.options()?.sandbox);
    let mut archive = Reader::new(BufReader::with_capacity(BUFFER, input));
    let mut count = 0;
    while let Some(member) = archive.next()? {
        let names: Vec<_> = member.path.split(|&byte| byte == b'/').filter(|name| *name != b".").collect();
        if excludes.excludes(&names) {
            continue;
        }
        count += 1;
        if !json {
            print::line(if args.verbose { long_line(&member) } else { format::name(&member.path) })?;
        }
    }
    Ok(count)
}

fn long_line(member: &Member) -> String {
    let (kind, arrow) = match member.kind {
        Kind::File(kind) => (kind, " -> "),
        Kind::HardLink | Kind::Unknown(_) => (FileType::Regular, " link to "),
    };
    let target = format::name(&member.target);
    let target = if target.is_empty() { target } else { format!("{arrow}{target}") };
    let Member { uid, gid, size, .. } = member;
    format!(
        "{} {uid:>5} {gid:>5} {size:>10} {} {}{target}",
        format::mode(kind, member.perm),
        format::time(member.mtime.sec),
        format::name(&member.path),
    )
}
