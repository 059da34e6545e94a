//! Opening the files of an image and the filesystem in it.
//!
//! Opening the files and parsing their contents are two steps, so that a process can enter the sandbox in
//! between.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_block::{
    BlockError, Budget, ByteOffset, CountedDevice, Device, FileDevice, FileRange, OffsetDevice,
};
use ivers_btrfs::check::Scrubbed;
use ivers_mem::Mem;
use ivers_vfs::check::{Findings, Memory};
use ivers_vfs::{Clock, CoarseClock, Error, FileSystem, MountOptions, Timestamp, Vfs};

use super::formats::{self, Devices, Format};
use super::image_files::{ImageFile, ImageFiles};
use super::image_lock::{
    explain_busy, explain_kernel_use, kernel_writes, lock_when_closed, open_disk_when_closed,
    open_when_closed, unknown_user,
};
use super::open_options::{AUTO, BtrfsOptions, ImageOptions};
use super::process::{ImageProcess, PartitionPlace, is_same};
use super::server::{self, ServerConnection};
use super::{foreign_formats, other_devices, partitions, sandbox};
use crate::arguments::{
    ImageName, Operand, is_server, partition_of, split_image, with_missing_slash, with_partition,
};
use crate::output::failure::{BUSY, CORRUPT, NOT_FOUND, REFUSED, USAGE, failure, usage, warn};
use crate::output::format::Shown;
use crate::process::metered_budget;

/// Starts the process that works on an image, or on a server. What it prints goes to `output`. `path` is a
/// file that is worked on.
pub fn start_process(
    image: &Path,
    path: &[u8],
    options: &ImageOptions,
    output: Stdio,
) -> Result<ImageProcess> {
    if is_server(image) {
        let connection = ServerConnection::open(image, options)?;
        return ImageProcess::start_for_server(&connection, image, options, output, path);
    }
    ImageProcess::start_printing(&open_image(image, options)?, image, options, output)
}

/// Opens and locks the files of an image without parsing them; `None` for `mem`, which has no image.
pub fn open_device(fs_type: &str, image: &Path, options: &ImageOptions) -> Result<Option<ImageFiles>> {
    match fs_type {
        "mem" => Ok(None),
        name if name == AUTO || formats::by_name(name).is_some() => open_files(image, options).map(Some),
        other => Err(failure(
            REFUSED,
            format!("type {other:?} is not supported: choose one of {AUTO}, {}, mem", formats::all_names()),
        )),
    }
}

/// Opens and locks the files of an image, or the partitions that `image` or the options name, without parsing
/// them. A process of its own reads a partition table. If a whole file is named, and it is one device of
/// several, opens the others too.
fn open_files(image: &Path, options: &ImageOptions) -> Result<ImageFiles> {
    let open = |name: PathBuf| -> Result<ImageFile> {
        let (device, _) = open_partition(&name, options)?;
        Ok(ImageFile { name, device: Arc::new(device) })
    };
    let mut names = split_image(image);
    if let Some(twice) = (1..names.len()).find(|&at| names[..at].iter().any(|name| is_same(name, &names[at])))
    {
        return Err(usage(format!("{}: {} is named twice", image.shown(), names[twice].shown())));
    }
    let others = names.split_off(1);
    let first = open(names.remove(0))?;
    let others = match &first.device {
        device if others.is_empty() && device.range().is_none() && options.offset_bytes == 0 => {
            other_devices::find(device)?
        }
        _ => others,
    };
    Ok(ImageFiles { first, others: others.into_iter().map(open).collect::<Result<_>>()? })
}

/// Opens and locks an image file, or a partition of one, to make a filesystem in it.
pub fn open_to_format(image: &Path) -> Result<FileDevice> {
    let options = ImageOptions { read_only: false, ..ImageOptions::default() };
    match open_partition(image, &options)? {
        (device, false) => Ok(device),
        (_, true) => {
            let why = "is a partition of a Rigid Disk Block, in which mkfs makes no filesystem";
            Err(failure(REFUSED, format!("{} {why}; format it on the Amiga", image.shown())))
        }
    }
}

/// Returns the device, and true if it is the whole disk. It is for a partition of a Rigid Disk Block: the
/// Amiga driver reads that block itself and keeps to the partition.
fn open_partition(image: &Path, options: &ImageOptions) -> Result<(FileDevice, bool)> {
    server::refuse(image)?;
    server::check_options_of_image(image, options)?;
    let ImageName { file, partition } = ImageName::parse(image);
    let wanted = match (partition, &options.partition) {
        (Some(one), Some(other)) if one != *other => {
            let image = image.shown();
            return Err(usage(format!("{image}: option partition={other} names another one; remove it")));
        }
        (one, other) => one.or_else(|| other.clone()),
    };
    let mode = options.open_mode();
    if options.read_only
        && let Some(warning) = kernel_writes(image, &file)
    {
        warn(warning);
    }
    let Some(wanted) = wanted else {
        let device = open_when_closed(&file, mode).map_err(|error| open_error(image, &file, error))?;
        return Ok((device, false));
    };
    if options.offset_bytes > 0 {
        return Err(usage("options offset= and partition=: both say where the filesystem is; remove one"));
    }
    let name = with_partition(&file, Some(&wanted));
    let disk = open_disk_when_closed(&file, mode).map_err(|error| open_error(&name, &file, error))?;
    let PartitionPlace { start, len, in_rdb } =
        ImageProcess::find_partition(disk.whole(), &wanted, options.sandbox)?;
    let range = FileRange { start, len };
    lock_when_closed(&disk, range).map_err(|error| open_error(&name, &file, error))?;
    let device = disk.into_device();
    if in_rdb { Ok((device, true)) } else { Ok((device.limit(range)?, false)) }
}

/// Returns the error for an image that cannot be opened: who uses it, or what was probably meant.
fn open_error(image: &Path, file: &Path, error: BlockError) -> anyhow::Error {
    match error {
        BlockError::Busy { .. } => {
            let why = explain_busy(image, file).or_else(|| explain_kernel_use(image, file));
            failure(BUSY, why.unwrap_or_else(|| unknown_user(image, file)))
        }
        error => missing_or(file, error.into()),
    }
}

/// Opens files as [`open_device`] does, but read-only if the image cannot be written. Returns the reason
/// in that case.
pub fn open_device_or_fall_back(
    fs_type: &str,
    image: &Path,
    options: &ImageOptions,
) -> Result<(Option<ImageFiles>, Option<String>)> {
    let denied = [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem];
    let error = match open_device(fs_type, image, options) {
        Ok(device) => return Ok((device, None)),
        Err(error) => error,
    };
    match error.downcast_ref() {
        Some(BlockError::Open { source, .. }) if !options.read_only && denied.contains(&source.kind()) => {
            let device = open_device(fs_type, image, &ImageOptions { read_only: true, ..options.clone() })?;
            Ok((device, Some(format!("cannot open it for writing: {source}"))))
        }
        _ => Err(error),
    }
}

/// Opens and locks an image of any format without parsing it.
pub fn open_image(image: &Path, options: &ImageOptions) -> Result<ImageFiles> {
    open_device(AUTO, image, options)?.with_context(|| image.shown())
}

/// Opens the filesystem in files that [`open_device`] opened. Opens no file, so it works in the sandbox.
pub fn open_on(
    files: Option<ImageFiles>,
    image: &Path,
    options: &ImageOptions,
    mut mount_options: MountOptions,
) -> Result<Arc<Vfs>> {
    let budget = mount_options.budget.take().unwrap_or_else(|| Arc::new(Budget::new(options.cache_bytes)));
    let (fs, image_name): (Arc<dyn FileSystem>, _) = match files {
        None => {
            let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            let fs = Mem::with_root(options.cache_bytes, owner, CoarseClock.now());
            (Arc::new(fs), image.shown())
        }
        Some(files) => {
            let counts = mount_options.io_counts.get_or_insert_default().clone();
            let counted =
                |file: &Arc<FileDevice>| Arc::new(CountedDevice::new(file.clone(), counts.clone())) as _;
            let Located { devices, format, partition, image_name, .. } =
                locate_all(&files, counted, image, options)?;
            check_options(format, options).with_context(|| image_name.clone())?;
            let options = ImageOptions { partition, ..options.clone() };
            (format.open(devices, &options, budget.clone(), image_name.clone())?, image_name)
        }
    };
    if let Some(sec) = options.stopped_clock {
        // No thread decides when something is written, and no clock what: equal calls make equal images.
        mount_options.clock = Some(Box::new(StoppedClock(Timestamp { sec, nsec: 0 })));
        mount_options.background = false;
    }
    mount_options.read_only |= options.read_only;
    mount_options.cache_bytes = options.cache_bytes;
    mount_options.budget = Some(budget);
    Vfs::mount(fs, mount_options).with_context(|| image_name)
}

/// An image for a check or a scrub, opened before the process entered the sandbox.
struct OpenImage {
    files: ImageFiles,
    memory: Memory,
}

fn uncounted(file: &Arc<FileDevice>) -> Arc<dyn Device> {
    file.clone()
}

fn refuse_kernel_writes(name: &Path, file: &Path) -> Result<()> {
    match kernel_writes(name, file).and_then(|_| explain_kernel_use(name, file)) {
        Some(why) => Err(failure(BUSY, why)),
        None => Ok(()),
    }
}

/// Opens an image, and enters the sandbox. Refuses an image that the kernel has mounted for writing.
fn open_whole(image: &Path, options: &ImageOptions) -> Result<OpenImage> {
    // Before it is opened: then opening it does not warn of the same.
    for name in split_image(image) {
        refuse_kernel_writes(&name, &ImageName::parse(&name).file)?;
    }
    let files = open_image(image, options)?;
    for other in &files.others {
        refuse_kernel_writes(&other.name, other.device.path())?;
    }
    let budget = metered_budget(options.cache_bytes);
    sandbox::enter(options.sandbox);
    let budget = budget.unwrap_or_else(|| Arc::new(Budget::new(options.cache_bytes)));
    Ok(OpenImage { files, memory: Memory::new(budget, "allow more with -o cache=") })
}

/// Opens an image, enters the sandbox, and checks the filesystem in it, with contents of files if
/// `with_data`. Returns the format's name and what is wrong.
pub fn check_image(
    image: &Path,
    options: &ImageOptions,
    with_data: bool,
) -> Result<(&'static str, Findings)> {
    let OpenImage { files, memory } = open_whole(image, options)?;
    let Located { devices, format, partition, image_name, .. } =
        match locate_all(&files, uncounted, image, options) {
            Ok(located) => located,
            Err(error) if !files.others.is_empty() => return Err(error),
            Err(error) => {
                let found = check_remains(files.first.device, image, options)?;
                return found.ok_or(error);
            }
        };
    check_options(format, options).with_context(|| image_name.clone())?;
    let options = ImageOptions { partition, ..options.clone() };
    let found = format.check(devices, &options, memory, &image_name, with_data);
    let found = found.map_err(|error| named(error, &image_name))?;
    Ok((found.fs_type().unwrap_or(format.names[0]), found))
}

/// Opens an image, enters the sandbox, and reads all copies in it. Mends bad ones, unless the options are
/// read-only.
pub fn scrub_image(image: &Path, options: &ImageOptions) -> Result<Scrubbed> {
    let OpenImage { files, memory } = open_whole(image, options)?;
    let Located { devices, format, image_name, .. } = locate_all(&files, uncounted, image, options)?;
    check_options(format, options).with_context(|| image_name.clone())?;
    let scrubbed = format.scrub(devices, options, memory, &image_name);
    scrubbed.map_err(|error| named(error, &image_name))
}

/// Names the image in an error, unless the driver has done so.
fn named(error: Error, image_name: &str) -> anyhow::Error {
    let is_named = error.to_string().contains(image_name);
    let error = anyhow::Error::from(error);
    if is_named { error } else { error.context(image_name.to_owned()) }
}

/// Finds a filesystem whose superblock is destroyed, and reports that. Returns `None` if it finds none, or if
/// the device contains something else.
fn check_remains(
    file: Arc<FileDevice>,
    image: &Path,
    options: &ImageOptions,
) -> Result<Option<(&'static str, Findings)>> {
    let device: Arc<dyn Device> = match options.offset_bytes {
        0 => file,
        offset => Arc::new(OffsetDevice::new(file, ByteOffset(offset))?),
    };
    let name = image.shown();
    if !foreign_formats::may_be_destroyed(&*device) || partitions::read(&*device, &name)?.is_some() {
        return Ok(None);
    }
    Ok(formats::check_remains(&*device)?)
}

/// A clock that always shows the same time.
struct StoppedClock(Timestamp);

impl Clock for StoppedClock {
    fn now(&self) -> Timestamp {
        self.0
    }
}

/// A filesystem in an image.
pub struct Located {
    /// The bytes of the filesystem, or those of the disk if the driver must find the partition.
    pub devices: Devices,
    /// They are all bytes of the file.
    pub is_whole: bool,
    /// Its format.
    pub format: &'static Format,
    /// The partition that the driver must find.
    pub partition: Option<String>,
    /// The name of the image, for errors; with the partition.
    pub image_name: String,
}

/// Finds the filesystem in all files of an image, as [`locate`] does in one. `counted` is the device that
/// counts what a file is asked for.
pub fn locate_all(
    files: &ImageFiles,
    counted: impl Fn(&Arc<FileDevice>) -> Arc<dyn Device>,
    image: &Path,
    options: &ImageOptions,
) -> Result<Located> {
    let ImageFiles { first, others } = files;
    if others.is_empty() {
        return locate(&first.device, counted(&first.device), image, options);
    }
    let mut located = locate(&first.device, counted(&first.device), &first.name, options)?;
    let (is, format) = (located.format.in_words(), located.format);
    if !format.has_devices() {
        let name = &located.image_name;
        return Err(failure(
            REFUSED,
            format!("{name} contains {is}, which has one device; name no other image"),
        ));
    }
    for file in others {
        let other = locate(&file.device, counted(&file.device), &file.name, options)?;
        if other.format.names != format.names {
            let (name, other) = (other.image_name, other.format.in_words());
            let first = located.image_name;
            return Err(failure(
                REFUSED,
                format!("{name} contains {other}, and {first} {is}: name devices of one filesystem"),
            ));
        }
        located.devices.others.push(other.devices.first);
    }
    Ok(Located { is_whole: false, image_name: image.shown(), ..located })
}

/// Finds the filesystem in a file: at the start, at an offset, or in a partition. If no partition is named,
/// it must be the only one with a filesystem. `device` is `file`, or counts what `file` is asked for.
pub fn locate(
    file: &FileDevice,
    mut device: Arc<dyn Device>,
    image: &Path,
    options: &ImageOptions,
) -> Result<Located> {
    let wanted = options.partition.clone().or_else(|| partition_of(image, file.path()));
    let image_name = with_partition(image, wanted.as_deref()).shown();
    let is_whole = file.range().is_none() && options.offset_bytes == 0;
    if options.offset_bytes > 0 {
        device = Arc::new(OffsetDevice::new(device, ByteOffset(options.offset_bytes))?);
    }
    let (requested, found) = recognise(&*device, options)?;
    if !is_whole {
        let format = found.ok_or_else(|| no_filesystem(&*device, &image_name, requested))?;
        return Ok(Located { devices: only(device), is_whole, format, partition: None, image_name });
    }
    // A Rigid Disk Block looks like a volume to the probe.
    if let Some(format) = found.filter(|format| wanted.is_none() && !format.has_partitions) {
        return Ok(Located { devices: only(device), is_whole, format, partition: None, image_name });
    }
    let Some(disk) = partitions::read(&*device, &image_name)? else {
        let found = found.filter(|_| wanted.is_none());
        let format = found.ok_or_else(|| no_filesystem(&*device, &image_name, requested))?;
        return Ok(Located { devices: only(device), is_whole, format, partition: None, image_name });
    };
    // A partition that was named is in a Rigid Disk Block: the device is not limited to it.
    let at = match &wanted {
        Some(wanted) => disk.find(&image.shown(), wanted)?,
        None => disk.only(&image_name, requested)?,
    };
    let partition = disk.partition(at)?;
    let number = partition.number.to_string();
    let format = partition.format.ok_or_else(|| no_filesystem(&*device, &image_name, requested))?;
    let image_name = match &wanted {
        Some(_) => image_name,
        None => with_partition(image, Some(&number)).shown(),
    };
    if disk.is_rdb() && format.has_partitions {
        return Ok(Located { devices: only(device), is_whole, format, partition: Some(number), image_name });
    }
    let FileRange { start, len } = partition.range;
    let device = Arc::new(OffsetDevice::with_len(device, ByteOffset(start), len)?);
    Ok(Located { devices: only(device), is_whole: false, format, partition: None, image_name })
}

fn only(first: Arc<dyn Device>) -> Devices {
    Devices { first, others: Vec::new() }
}

/// Returns the format that the options request, and the format at the start of a device. If a format is
/// requested, no other one is found.
pub fn recognise(
    device: &dyn Device,
    options: &ImageOptions,
) -> Result<(Option<&'static Format>, Option<&'static Format>)> {
    let requested = options.format.as_deref().and_then(formats::by_name);
    let found = match requested {
        Some(format) => Some(format).filter(|format| format.is_on(device).unwrap_or(true)),
        None => formats::recognise(device)?,
    };
    Ok((requested, found))
}

/// Returns an error that says what a device contains instead of a filesystem.
fn no_filesystem(device: &dyn Device, image_name: &str, requested: Option<&Format>) -> anyhow::Error {
    let wanted = requested.map_or(formats::SUPPORTED, |format| format.title);
    if let (Some(requested), Ok(Some(found))) = (requested, formats::recognise(device)) {
        let (is, wanted) = (found.in_words(), requested.in_words());
        return failure(REFUSED, format!("{image_name} contains {is}, not {wanted}; omit --type"));
    }
    if foreign_formats::may_be_destroyed(device) && matches!(formats::check_remains(device), Ok(Some(_))) {
        let how = format!("ivers check {image_name} shows how to get it back");
        let why = "the superblock of a filesystem is destroyed, and a copy of it is left";
        return failure(CORRUPT, format!("{image_name}: {why}; {how}"));
    }
    if device.size_bytes() == 0 {
        return failure(
            REFUSED,
            format!("{image_name} is empty: make a filesystem in it first (ivers mkfs)"),
        );
    }
    let found = foreign_formats::recognise(device, image_name);
    let hint = found.map_or(String::new(), |found| format!(", but {found}"));
    failure(REFUSED, format!("{image_name} contains no {wanted}{hint}"))
}

/// Refuses options that the format cannot honour.
fn check_options(format: &Format, options: &ImageOptions) -> Result<()> {
    let name = format.names[0];
    if options.owners_given && format.stores_owners {
        let why = "stores owners, permissions and UTC times; remove uid, gid, masks and utc_offset";
        return Err(failure(USAGE, format!("{name} {why}")));
    }
    if options.btrfs != BtrfsOptions::default() && name != "btrfs" {
        let why = "has no subvolumes, no compression and one device; remove subvol, subvolid, degraded and \
                   compress";
        return Err(failure(USAGE, format!("{name} {why}")));
    }
    if options.appraise && !format.stores_security_xattrs {
        let why = "cannot store security.ima, so appraise would refuse every file; remove it";
        return Err(failure(REFUSED, format!("{name} {why}")));
    }
    Ok(())
}

/// Returns an error for an image that does not exist; otherwise `error`.
fn missing_or(image: &Path, error: anyhow::Error) -> anyhow::Error {
    let Err(why) = std::fs::metadata(image) else { return error };
    match with_missing_slash(image) {
        Some(meant) => {
            failure(NOT_FOUND, format!("cannot open {}: {why}; did you mean {meant}?", image.shown()))
        }
        None => anyhow::Error::from(why).context(format!("cannot open {}", image.shown())),
    }
}

/// An image and a path in it.
pub type ImagePath = (PathBuf, Vec<u8>);

/// Parses an operand that must name a file of an image.
pub fn parse_image_path(word: &Path) -> Result<ImagePath> {
    match Operand::parse_image(word) {
        Operand::Image { image, path } => Ok((image, path)),
        Operand::Host(path) => Err(usage(format!(
            "{} is a directory: name an image or IMAGE:/path (on a mount, use the system's own command)",
            path.shown()
        ))),
    }
}
