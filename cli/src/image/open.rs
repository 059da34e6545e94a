//! Opening an image file and the filesystem in it.
//!
//! Opening the file and parsing its contents are two steps, so that a process can enter the sandbox in
//! between.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_block::{BlockError, Budget, ByteOffset, CountedDevice, Device, FileDevice, OffsetDevice};
use ivers_mem::Mem;
use ivers_vfs::{Clock, FileSystem, MountOptions, Timestamp, Vfs};

use super::formats::{self, Format};
use super::image_lock::{explain_busy, open_when_closed};
use super::mount_options::ImageArgs;
use super::open_options::{AUTO, ImageOptions};
use super::{foreign_formats, glob, sandbox};
use crate::arguments::{Operand, with_missing_slash};
use crate::output::failure::{BUSY, NOT_FOUND, REFUSED, USAGE, code, failure, usage};

/// Opens and locks an image file without reading it; `None` for `mem`, which has no image.
pub fn open_device(fs_type: &str, image: &Path, options: &ImageOptions) -> Result<Option<FileDevice>> {
    match fs_type {
        "mem" => Ok(None),
        name if name == AUTO || formats::by_name(name).is_some() => {
            open_when_closed(image, options.open_mode()).map(Some).map_err(|error| match error {
                BlockError::Busy { .. } => match explain_busy(image) {
                    Some(message) => failure(BUSY, message),
                    None => error.into(),
                },
                error => missing_or(image, error.into()),
            })
        }
        other => Err(failure(
            REFUSED,
            format!("type {other:?} is not supported: choose one of {AUTO}, {}, mem", formats::all_names()),
        )),
    }
}

/// Opens a device as [`open_device`] does, but read-only if the image cannot be written. Returns the reason
/// in that case.
pub fn open_device_or_fall_back(
    fs_type: &str,
    image: &Path,
    options: &ImageOptions,
) -> Result<(Option<FileDevice>, Option<String>)> {
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

/// Opens and locks an image of any format without reading it.
pub fn open_image(image: &Path, options: &ImageOptions) -> Result<FileDevice> {
    open_device(AUTO, image, options)?.with_context(|| image.display().to_string())
}

/// Opens the filesystem on a device that [`open_device`] opened. Opens no file, so it works in the sandbox.
pub fn open_on(
    device: Option<FileDevice>,
    image: &Path,
    options: &ImageOptions,
    mount_options: MountOptions,
) -> Result<Arc<Vfs>> {
    let device = match device {
        None => None,
        Some(device) if options.offset_bytes == 0 => Some(Arc::new(device) as Arc<dyn Device>),
        Some(device) => {
            Some(Arc::new(OffsetDevice::new(device, ByteOffset(options.offset_bytes))?) as Arc<dyn Device>)
        }
    };
    mount_on(device, image, options, mount_options)
}

/// A clock that always shows the same time.
struct StoppedClock(Timestamp);

impl Clock for StoppedClock {
    fn now(&self) -> Timestamp {
        self.0
    }
}

/// Opens the filesystem on a device that starts with it.
pub fn mount_on(
    device: Option<Arc<dyn Device>>,
    image: &Path,
    options: &ImageOptions,
    mut mount_options: MountOptions,
) -> Result<Arc<Vfs>> {
    let budget = mount_options.budget.take().unwrap_or_else(|| Arc::new(Budget::new(options.cache_bytes)));
    let image_name = image.display().to_string();
    let fs: Arc<dyn FileSystem> = match device {
        None => Arc::new(Mem::new(options.cache_bytes)),
        Some(device) => {
            let counts = mount_options.io_counts.get_or_insert_default().clone();
            let device = Arc::new(CountedDevice::new(device, counts)) as Arc<dyn Device>;
            let format = format_of(&*device, &image_name, options)?;
            check_options(format, options).with_context(|| image_name.clone())?;
            format.open(device, options, budget.clone(), image_name.clone())?
        }
    };
    if let Some(sec) = options.filling {
        // No thread decides when something is written, and no clock what: equal calls make equal images.
        mount_options.clock = Some(Box::new(StoppedClock(Timestamp { sec, nsec: 0 })));
        mount_options.background = false;
    }
    mount_options.read_only |= options.read_only;
    mount_options.cache_bytes = options.cache_bytes;
    mount_options.budget = Some(budget);
    Vfs::mount(fs, mount_options).with_context(|| image_name)
}

/// Returns the format of a device: the requested one, or the recognised one. The error says what the device
/// contains instead.
fn format_of(device: &dyn Device, image_name: &str, options: &ImageOptions) -> Result<&'static Format> {
    let requested = options.format.as_deref().and_then(formats::by_name);
    let found = match requested {
        Some(format) => Some(format).filter(|format| format.is_on(device).unwrap_or(true)),
        None => formats::recognise(device)?,
    };
    found.ok_or_else(|| {
        let wanted = requested.map_or(formats::SUPPORTED, |format| format.title);
        let hint = foreign_formats::recognise(device).map_or(String::new(), |found| format!(", but {found}"));
        failure(REFUSED, format!("{image_name} contains no {wanted}{hint}"))
    })
}

/// Refuses options that the format cannot honour.
fn check_options(format: &Format, options: &ImageOptions) -> Result<()> {
    let name = format.names[0];
    if options.owners_given && format.stores_owners {
        let why = "stores owners, permissions and UTC times; remove uid, gid, masks and utc_offset";
        return Err(failure(USAGE, format!("{name} {why}")));
    }
    if options.partition.is_some() && !format.has_partitions {
        let why = "has no Rigid Disk Block; replace partition= with offset= (where the filesystem starts)";
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
            failure(NOT_FOUND, format!("cannot open {}: {why}; did you mean {meant}?", image.display()))
        }
        None => anyhow::Error::from(why).context(format!("cannot open {}", image.display())),
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
            path.display()
        ))),
    }
}

/// The images of a command that only reads them. All are opened before the first is parsed: the sandbox comes
/// in between.
pub struct Images {
    options: ImageOptions,
    images: Vec<(PathBuf, State)>,
}

enum State {
    Opened(Option<FileDevice>),
    Parsed(Arc<Vfs>),
    /// It could not be parsed; the exit code.
    Refused(u8),
}

impl Images {
    /// Opens the images, then enters the sandbox: from then on this process opens no other file.
    pub fn open<'a>(images: impl IntoIterator<Item = &'a Path>, options: &ImageOptions) -> Result<Self> {
        let mut all = Self { options: options.clone(), images: Vec::new() };
        for image in images {
            if !all.images.iter().any(|(other, _)| other == image) {
                all.images.push((image.to_owned(), State::Opened(Some(open_image(image, options)?))));
            }
        }
        if !all.images.is_empty() {
            sandbox::enter(options.sandbox);
        }
        Ok(all)
    }

    /// Parses operands that must name files of images, opens the images, and expands patterns.
    pub fn of_operands(words: &[PathBuf], args: &ImageArgs) -> Result<(Vec<ImagePath>, Self)> {
        let paths: Vec<_> = words.iter().map(|word| parse_image_path(word)).collect::<Result<_>>()?;
        let mut images = Self::open(paths.iter().map(|(image, _)| image.as_path()), &args.options()?)?;
        let mut expanded = Vec::new();
        for (image, path) in paths {
            if glob::is_pattern(&path) {
                let vfs = images.get(&image)?;
                let found = match glob::expand(&vfs, &image, &path) {
                    // The command names it, and continues with the next operand.
                    Err(error) if code(&error) == NOT_FOUND => vec![path],
                    found => found?,
                };
                expanded.extend(found.into_iter().map(|path| (image.clone(), path)));
            } else {
                expanded.push((image, path));
            }
        }
        Ok((expanded, images))
    }

    /// Returns the filesystem of one of the images.
    pub fn get(&mut self, image: &Path) -> Result<Arc<Vfs>> {
        let state = self.images.iter_mut().find(|(other, _)| other == image);
        let (_, state) = state.with_context(|| format!("{} is not open", image.display()))?;
        match state {
            State::Parsed(vfs) => Ok(vfs.clone()),
            State::Opened(device) => {
                let mount_options = MountOptions { background: false, ..MountOptions::default() };
                let opened = open_on(device.take(), image, &self.options, mount_options);
                *state = match &opened {
                    Ok(vfs) => State::Parsed(vfs.clone()),
                    Err(error) => State::Refused(code(error)),
                };
                opened
            }
            State::Refused(code) => {
                Err(failure(*code, format!("{} was not opened: see the first error", image.display())))
            }
        }
    }
}
