//! Opening what the command line names: an image file, a path in it, a filesystem in memory.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_block::{BlockError, Budget, Device, FileDevice, OffsetDevice, OpenMode};
use ivers_mem::Mem;
use ivers_vfs::{Error, FileSystem, MountOptions, Vfs};
use serde::{Deserialize, Serialize};

use crate::drivers::{self, AUTO, Format, Owners};
use crate::failure::{NOT_FOUND, REFUSED, USAGE, failure};
use crate::holder::open_when_closed;
use crate::{confine, formats, show};

/// What a word on the command line stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A path of the system.
    Host(PathBuf),
    /// A path in an image.
    Image {
        /// The image.
        image: PathBuf,
        /// The path, beginning with a slash.
        path: Vec<u8>,
    },
}

impl Place {
    /// `IMAGE:/path` if there is no file of that whole name and IMAGE is no directory.
    pub fn parse(word: &Path) -> Self {
        let bytes = word.as_os_str().as_bytes();
        if std::fs::symlink_metadata(word).is_err() {
            for at in (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b":/")) {
                let image = PathBuf::from(OsString::from_vec(bytes[..at].to_vec()));
                if at > 0 && !image.is_dir() && (image.exists() || !bytes[at + 1..].contains(&b':')) {
                    return Place::Image { image, path: bytes[at + 1..].to_vec() };
                }
            }
        }
        Place::Host(word.to_owned())
    }

    /// What a word that is a path of the system was perhaps meant to be: IMAGE:/path without the slash.
    pub fn without_slash(word: &Path) -> Option<String> {
        let bytes = word.as_os_str().as_bytes();
        let Place::Host(path) = Self::parse(word) else { return None };
        if std::fs::symlink_metadata(path).is_ok() {
            return None;
        }
        let parts = (1..bytes.len()).rev().filter(|&at| bytes[at] == b':');
        let mut parts = parts.map(|at| (Path::new(OsStr::from_bytes(&bytes[..at])), &bytes[at + 1..]));
        let (image, rest) = parts.find(|(image, _)| image.exists() && !image.is_dir())?;
        Some(shown(image, &join(b"/", rest)))
    }

    /// The name that a copy of it gets, if it has one.
    pub fn name(&self) -> Option<Vec<u8>> {
        let path = match self {
            Place::Host(path) => path.as_os_str().as_bytes(),
            Place::Image { path, .. } => path,
        };
        last_name(path).map(<[u8]>::to_vec)
    }

    /// The image that it is in.
    pub fn image(&self) -> Option<&Path> {
        match self {
            Place::Image { image, .. } => Some(image),
            Place::Host(_) => None,
        }
    }

    /// As [`Place::parse`], but a plain file is an image, and its root is meant.
    pub fn parse_image(word: &Path) -> Self {
        match Self::parse(word) {
            Place::Host(image) if !image.is_dir() => Place::Image { image, path: b"/".to_vec() },
            place => place,
        }
    }
}

/// How to open an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct How {
    /// Write nothing.
    pub read_only: bool,
    /// Where in the image the filesystem begins.
    pub offset_bytes: u64,
    /// Which partition of an Amiga's disk.
    pub partition: Option<String>,
    /// See `OpenOptions::trust_foreign`.
    pub trust_foreign: bool,
    /// See `OpenOptions::no_replay`.
    pub no_replay: bool,
    /// Seconds between commits.
    pub commit_s: u64,
    /// The bound of all caches.
    pub cache_bytes: u64,
    /// Lock the process that parses in.
    pub sandbox: bool,
    /// The name of the format. None: told from what the image holds.
    pub format: Option<String>,
    /// Whose files are where the format does not say.
    pub owners: Owners,
    /// Options have said it.
    pub owners_said: bool,
    /// Files are opened only if their `security.ima` fits them.
    pub appraises: bool,
}

impl How {
    /// As what `-t` says.
    pub fn of_format(mut self, name: &str) -> Self {
        self.format = (name != AUTO).then(|| name.to_owned());
        self
    }

    /// How to open the file.
    pub fn open_mode(&self) -> OpenMode {
        if self.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite }
    }
}

impl Default for How {
    fn default() -> Self {
        Self {
            read_only: true,
            offset_bytes: 0,
            partition: None,
            trust_foreign: false,
            no_replay: false,
            commit_s: 5,
            cache_bytes: 256 << 20,
            sandbox: true,
            format: None,
            owners: Owners::default(),
            owners_said: false,
            appraises: false,
        }
    }
}

/// Open and lock the image; `None` for a filesystem that has none. Reads nothing of it.
pub fn open_device(fs_type: &str, image: &Path, how: &How) -> Result<Option<FileDevice>> {
    match fs_type {
        "mem" => Ok(None),
        name if name == AUTO || drivers::named(name).is_some() => open_when_closed(image, how.open_mode())
            .map(Some)
            .map_err(|error| missing_or(image, error.into())),
        other => Err(failure(
            REFUSED,
            format!("no filesystem {other:?} in here; there are {}, mem", drivers::all_names()),
        )),
    }
}

/// The same. What may only be read is opened so, with the reason.
pub fn open_device_or_fall_back(
    fs_type: &str,
    image: &Path,
    how: &How,
) -> Result<(Option<FileDevice>, Option<String>)> {
    let denied = [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem];
    let error = match open_device(fs_type, image, how) {
        Ok(device) => return Ok((device, None)),
        Err(error) => error,
    };
    match error.downcast_ref() {
        Some(BlockError::Open { source, .. }) if !how.read_only && denied.contains(&source.kind()) => {
            let device = open_device(fs_type, image, &How { read_only: true, ..how.clone() })?;
            Ok((device, Some(format!("it can only be read: {source}"))))
        }
        _ => Err(error),
    }
}

/// Parse what was opened, and put the VFS over it. Opens no file, so that it works in the sandbox.
pub fn open_on(
    device: Option<FileDevice>,
    image: &Path,
    how: &How,
    options: MountOptions,
) -> Result<Arc<Vfs>> {
    let device = match device {
        None => None,
        Some(device) if how.offset_bytes == 0 => Some(Arc::new(device) as Arc<dyn Device>),
        Some(device) => Some(Arc::new(OffsetDevice::new(device, how.offset_bytes)?) as Arc<dyn Device>),
    };
    mount_on(device, image, how, options)
}

/// The same, on a device that begins where the filesystem does.
pub fn mount_on(
    device: Option<Arc<dyn Device>>,
    image: &Path,
    how: &How,
    mut options: MountOptions,
) -> Result<Arc<Vfs>> {
    let budget = Arc::new(Budget::new(how.cache_bytes));
    let fs: Arc<dyn FileSystem> = match device {
        None => Arc::new(Mem::new(how.cache_bytes)),
        Some(device) => {
            let found = match how.format.as_deref().and_then(drivers::named) {
                Some(format) => Some(format),
                None => drivers::of(&*device)?,
            };
            let place = image.display().to_string();
            if let Some(format) = found {
                check_options(format, how).map_err(|error| error.context(place.clone()))?;
            }
            // Who knows no format of it says what it holds instead.
            let format = found.unwrap_or(&drivers::FORMATS[0]);
            format.open(device.clone(), how, budget.clone(), place.clone()).map_err(|error| match error {
                Error::Incompatible(_) if found.is_none() => {
                    with_hint(format!("{place} holds no {} filesystem", drivers::KNOWN), &*device)
                }
                Error::Incompatible(text) if text.contains("holds no") => with_hint(text, &*device),
                error => error,
            })?
        }
    };
    options.read_only |= how.read_only;
    options.cache_bytes = how.cache_bytes;
    options.budget = Some(budget);
    Vfs::mount(fs, options).with_context(|| image.display().to_string())
}

/// What a format cannot honour is refused, not passed over.
fn check_options(format: &Format, how: &How) -> Result<()> {
    let name = format.names[0];
    if how.owners_said && format.keeps_owners {
        let why = "keeps owners, permissions and UTC times: uid, gid, masks and utc_offset are not for it";
        return Err(failure(USAGE, format!("{name} {why}")));
    }
    if how.partition.is_some() && !format.has_partitions {
        let why = "has no Rigid Disk Block: partition= is for an Amiga's disk (offset= says where a filesystem begins)";
        return Err(failure(USAGE, format!("{name} {why}")));
    }
    if how.appraises && !format.keeps_labels {
        let why = "has no place for security.ima, so that no file could be opened: appraise is not for it";
        return Err(failure(REFUSED, format!("{name} {why}")));
    }
    Ok(())
}

/// An image without a filesystem that is wanted; if it holds something else, with its name.
fn with_hint(text: String, device: &dyn Device) -> Error {
    Error::Incompatible(match formats::recognise(device) {
        Some(what) => format!("{text}, but {what}"),
        None => text,
    })
}

fn missing_or(image: &Path, error: anyhow::Error) -> anyhow::Error {
    match std::fs::metadata(image) {
        Err(why) => match Place::without_slash(image) {
            Some(meant) => failure(NOT_FOUND, format!("cannot open {}: {why} ({meant}?)", image.display())),
            None => anyhow::Error::from(why).context(format!("cannot open {}", image.display())),
        },
        Ok(_) => error,
    }
}

/// Open and lock an image that is asked about paths. Reads nothing of it.
pub fn open_image(image: &Path, how: &How) -> Result<FileDevice> {
    open_device(AUTO, image, how)?.with_context(|| image.display().to_string())
}

/// The images of a command line that are only read. All are opened before the first is parsed, since this process locks itself in
/// between.
pub struct Images {
    how: How,
    open: Vec<(PathBuf, Opened)>,
}

enum Opened {
    Device(Option<FileDevice>),
    Parsed(Arc<Vfs>),
}

impl Images {
    /// Open these, and give up the right to open anything else.
    pub fn open<'a>(images: impl IntoIterator<Item = &'a Path>, how: &How) -> Result<Self> {
        let mut all = Self { how: how.clone(), open: Vec::new() };
        for image in images {
            if !all.open.iter().any(|(open, _)| open == image) {
                all.open.push((image.to_owned(), Opened::Device(Some(open_image(image, how)?))));
            }
        }
        if !all.open.is_empty() {
            confine::enter(how.sandbox);
        }
        Ok(all)
    }

    /// One of them, parsed.
    pub fn get(&mut self, image: &Path) -> Result<Arc<Vfs>> {
        let open = self.open.iter_mut().find(|(open, _)| open == image);
        let (_, opened) = open.with_context(|| format!("{} is not open", image.display()))?;
        match opened {
            Opened::Parsed(vfs) => Ok(vfs.clone()),
            Opened::Device(device) => {
                let options = MountOptions { background: false, ..MountOptions::default() };
                let vfs = open_on(device.take(), image, &self.how, options)?;
                *opened = Opened::Parsed(vfs.clone());
                Ok(vfs)
            }
        }
    }
}

/// `IMAGE:/path` again.
pub fn name(image: &Path, path: &[u8]) -> String {
    format!("{}:{}", image.display(), OsStr::from_bytes(path).display())
}

/// `IMAGE:/path` for a terminal.
pub fn shown(image: &Path, path: &[u8]) -> String {
    show::name(name(image, path).as_bytes())
}

/// The last part of a path, if it is a name.
pub fn last_name(path: &[u8]) -> Option<&[u8]> {
    let name = path.rsplit(|&byte| byte == b'/').find(|part| !part.is_empty())?;
    (name != b"." && name != b"..").then_some(name)
}

/// `dir/name`.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_parse() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a:b.img");
        std::fs::write(&image, "").unwrap();
        let word = PathBuf::from(format!("{}:/etc/x:/y", image.display()));
        assert_eq!(Place::parse(&word), Place::Image { image: image.clone(), path: b"/etc/x:/y".to_vec() });
        assert_eq!(Place::parse(dir.path()), Place::Host(dir.path().into()));
        let root = Place::Image { image: image.clone(), path: b"/".to_vec() };
        assert_eq!(Place::parse_image(&image), root);
        let without = |rest: &str| Place::without_slash(Path::new(&format!("{}{rest}", image.display())));
        assert_eq!(without(":"), Some(format!("{}:/", image.display())));
        assert_eq!(without(":etc/x"), Some(format!("{}:/etc/x", image.display())));
        assert_eq!((without(""), without(":/etc"), without(".other:")), (None, None, None));
        assert_eq!(Place::without_slash(Path::new("no.img:x")), None);
        let missing = Path::new("no.img:/x");
        assert_eq!(Place::parse(missing), Place::Image { image: "no.img".into(), path: b"/x".to_vec() });
    }
}
