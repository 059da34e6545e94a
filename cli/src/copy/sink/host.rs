//! Writing the system's own files.
//!
//! The names come from an image that may be hostile, so no symbolic link that is in the way is followed: below what the command line
//! names every directory was made here or seen to be one, and files are opened without following.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown,
};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use ivers_vfs::FileType;
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps};
use rustix::io::Errno;

use super::super::stream::Item;
use super::{Target, Xattrs, acls_missing_in};
use crate::failure::usage;
use crate::show;
use crate::state::dir_of;

/// Reading the system's files has this origin: numbers of files are comparable.
pub const HOST_ORIGIN: u32 = 0;

const SET_ID_BITS: u32 = 0o6000;

/// A directory of the system, or a name in one.
pub struct Host {
    to: PathBuf,
    is_dir: bool,
    /// The names of what the command line names. A reader that somebody has taken over would find others: those of files that a
    /// shell reads, say.
    words: Vec<Option<Vec<u8>>>,
    preserve: bool,
    is_root: bool,
}

/// What was made, and its file while it is being written.
pub struct Made {
    path: PathBuf,
    file: Option<File>,
    is_new: bool,
}

impl Host {
    /// Copy what has these names, or none, to this place; many things need a directory.
    pub fn new(to: &Path, words: &[Option<Vec<u8>>], preserve: bool) -> Result<Self> {
        // What the user names may be a link; from there on nothing may.
        let to = to.canonicalize().unwrap_or_else(|_| to.to_owned());
        let is_dir = to.is_dir();
        if words.len() > 1 && !is_dir {
            return Err(usage(format!("{}: not a directory", to.display())));
        }
        Ok(Self {
            to,
            is_dir,
            words: words.to_vec(),
            preserve,
            is_root: rustix::process::geteuid().is_root(),
        })
    }

    /// The directory that is written to, by number.
    pub fn number(&self) -> Option<(u64, u64)> {
        let dir = if self.is_dir { self.to.as_path() } else { dir_of(&self.to) };
        fs::metadata(dir).ok().map(|meta| (meta.dev(), meta.ino()))
    }

    /// Owner and group as far as this user may give them; whether all of it could be kept.
    fn keep_owner(&self, path: &Path, item: &Item) -> Result<bool> {
        let meta = fs::symlink_metadata(path)?;
        if (meta.uid(), meta.gid()) == (item.uid, item.gid) {
            return Ok(true);
        }
        let refused = |error: &io::Error| error.raw_os_error() == Some(Errno::PERM.raw_os_error());
        match lchown(path, Some(item.uid), Some(item.gid)) {
            Ok(()) => Ok(true),
            Err(error) if refused(&error) && !self.is_root => {
                // One may give a file to a group that one is in.
                let _ = lchown(path, None, Some(item.gid));
                Ok(false)
            }
            Err(error) => Err(error).context("its owner cannot be kept"),
        }
    }

    fn make_at(&self, path: PathBuf, item: &Item, origin: u32) -> Result<Made> {
        let kind = item.kind()?;
        let found = match fs::symlink_metadata(&path) {
            Ok(meta) => Some(meta),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(meta) = &found
            && origin == HOST_ORIGIN
            && !meta.is_dir()
            && (meta.dev(), meta.ino()) == item.number
        {
            return Err(anyhow!("is the file to copy to"));
        }
        // Nobody else may look before the owner is the right one.
        let perm = if self.preserve { 0o600 } else { item.perm() & 0o777 };
        let mut file = None;
        match (kind, &found) {
            (FileType::Directory, Some(meta)) if meta.is_dir() => {}
            (FileType::Directory, Some(meta)) => return Err(anyhow!("exists and is a {}", kind_of(meta))),
            (FileType::Directory, None) => DirBuilder::new().mode(perm | 0o700).create(&path)?,
            (_, Some(meta)) if meta.is_dir() => return Err(anyhow!("exists and is a directory")),
            (FileType::Regular, Some(meta)) if meta.is_file() => {
                let mut options = OpenOptions::new();
                options.write(true).truncate(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
                file = Some(options.open(&path)?);
            }
            (FileType::Regular, Some(meta)) if is_special(meta) => {
                return Err(anyhow!("exists and is a {}: cat writes to it", kind_of(meta)));
            }
            (FileType::Regular, _) => {
                clear(&path)?;
                file = Some(OpenOptions::new().write(true).create_new(true).mode(perm).open(&path)?);
            }
            (FileType::Symlink, _) => {
                clear(&path)?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&item.target), &path)?;
            }
            (special, _) => {
                clear(&path)?;
                let mode = Mode::from_raw_mode(perm);
                let kind = rustix::fs::FileType::from_raw_mode(special.mode_bits());
                rustix::fs::mknodat(CWD, &path, kind, mode, item.rdev.into()).map_err(|error| {
                    let device = matches!(special, FileType::CharDevice | FileType::BlockDevice);
                    match error {
                        Errno::PERM if device => anyhow!("not copied: only root makes device nodes here"),
                        error => anyhow::Error::from(error).context(show::kind(special)),
                    }
                })?;
            }
        }
        Ok(Made { path, file, is_new: found.is_none() })
    }

    fn keep(&self, path: &Path, item: &Item, xattrs: &Xattrs) -> Result<()> {
        let is_link = item.kind()? == FileType::Symlink;
        // The owner first: giving a file away takes capabilities and set-id bits from it.
        let owned = self.keep_owner(path, item)?;
        let mut failed = None;
        for (name, value) in xattrs {
            match xattr::set(path, OsStr::from_bytes(name), value) {
                Ok(()) => {}
                // Namespaces that this user or the filesystem there does not have are left out, as cp -a does.
                Err(error) if is_left_out(&error) => {}
                Err(error) => failed = failed.or(Some(anyhow!("attribute {}: {error}", show::name(name)))),
            }
        }
        if !is_link {
            for acl in acls_missing_in(xattrs) {
                // Where there is none, or no such thing, it is missing already.
                let _ = xattr::remove(path, acl);
            }
            // Set-id bits of another owner must not become this user's.
            let perm = if owned { item.perm() } else { item.perm() & !SET_ID_BITS };
            fs::set_permissions(path, Permissions::from_mode(perm))?;
        }
        let spec = |(sec, nsec): (i64, u32)| Timespec { tv_sec: sec, tv_nsec: nsec.into() };
        let times = Timestamps { last_access: spec(item.atime), last_modification: spec(item.mtime) };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
            .context("its times cannot be kept")?;
        failed.map_or(Ok(()), Err)
    }
}

fn is_left_out(error: &io::Error) -> bool {
    [Errno::PERM, Errno::ACCESS, Errno::OPNOTSUPP]
        .iter()
        .any(|errno| Some(errno.raw_os_error()) == error.raw_os_error())
}

fn kind_of(meta: &fs::Metadata) -> &'static str {
    FileType::from_mode(meta.mode()).map_or("file", show::kind)
}

/// Take away what is in the way of a new file, if it is not a directory.
fn clear(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => Err(anyhow!("exists and is a directory")),
        Ok(_) => Ok(fs::remove_file(path)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Target for Host {
    type Spot = PathBuf;
    type Made = Made;

    fn place(&self, name: Option<&[u8]>) -> Result<PathBuf> {
        if !self.words.iter().any(|word| word.as_deref() == name) {
            let name = show::name(name.unwrap_or_default());
            return Err(anyhow!("the process that reads talks nonsense: nobody asked for {name:?}"));
        }
        match name {
            Some(name) if self.is_dir => Ok(self.to.join(OsStr::from_bytes(name))),
            _ => Ok(self.to.clone()),
        }
    }

    fn below(&self, dir: &Made, name: &[u8]) -> PathBuf {
        dir.path.join(OsStr::from_bytes(name))
    }

    fn make(&self, path: PathBuf, item: &Item, origin: u32) -> Result<Made> {
        // The word of the command line says what was copied, not what is missing or in the way.
        let shown = show::name(path.as_os_str().as_bytes());
        self.make_at(path, item, origin).context(shown)
    }

    fn write(&self, made: &Made, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = made.file.as_ref().context("contents of what is no file")?;
        Ok(file.write_all_at(bytes, offset)?)
    }

    fn finish(&self, made: &Made, item: &Item, size: u64, xattrs: &Xattrs) -> Result<()> {
        if let Some(file) = &made.file {
            file.set_len(size)?;
        }
        if self.preserve {
            return self.keep(&made.path, item, xattrs);
        }
        let missing = 0o700 & !item.perm();
        if made.is_new && missing != 0 && item.kind()? == FileType::Directory {
            let mode = fs::symlink_metadata(&made.path)?.mode() & 0o7777 & !missing;
            fs::set_permissions(&made.path, Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    fn link(&self, path: PathBuf, made: &Made) -> Result<()> {
        let [old, new] = [&made.path, &path].map(fs::symlink_metadata);
        if let (Ok(old), Ok(new)) = (old, new)
            && (old.dev(), old.ino()) == (new.dev(), new.ino())
        {
            return Ok(());
        }
        clear(&path)?;
        // Not the file behind it, if it is a symbolic link.
        Ok(rustix::fs::linkat(CWD, &made.path, CWD, &path, AtFlags::empty())?)
    }

    fn remember(&self, made: &Made) -> Made {
        Made { path: made.path.clone(), file: None, is_new: made.is_new }
    }
}

fn is_special(meta: &fs::Metadata) -> bool {
    let kind = meta.file_type();
    kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device()
}
