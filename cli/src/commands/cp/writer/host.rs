//! Writing files of the host.
//!
//! The names can come from a hostile image, so symbolic links are not followed: below an operand each
//! directory was created here or checked to be one, and files are opened with O_NOFOLLOW.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown,
};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use ivers_vfs::FileType;
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps};
use rustix::io::Errno;

use super::super::stream::FileHeader;
use super::{Target, Xattrs, acls_missing_in, protocol_error};
use crate::output::failure::{NOT_FOUND, failure, usage};
use crate::output::format;
use crate::output::format::Shown;
use crate::output::save::dir_of;

/// The origin of files of the host.
pub const HOST_ORIGIN: u32 = 0;

const SET_ID_BITS: u32 = 0o6000;

/// A directory of the host, or a name in one.
pub struct Host {
    to: PathBuf,
    is_dir: bool,
    /// The names of the operands. A reader that a hostile image has taken over could send others, e.g.
    /// `.profile`.
    operands: Vec<Option<Vec<u8>>>,
    preserve: bool,
    is_root: bool,
}

/// A file that was created, and its descriptor while it is written.
pub struct Created {
    path: PathBuf,
    file: Option<File>,
    is_new: bool,
}

impl Host {
    /// Copies operands with these names to `to`, which must be a directory if there are several.
    pub fn new(to: &Path, operands: &[Option<Vec<u8>>], preserve: bool) -> Result<Self> {
        // The destination itself can be a symbolic link, nothing below it.
        let to = to.canonicalize().unwrap_or_else(|_| to.to_owned());
        let is_dir = to.is_dir();
        if operands.len() > 1 && !is_dir {
            return Err(usage(format!("{}: not a directory", to.shown())));
        }
        Ok(Self {
            to,
            is_dir,
            operands: operands.to_vec(),
            preserve,
            is_root: rustix::process::geteuid().is_root(),
        })
    }

    /// Identifies the directory that is written to.
    pub fn dir_id(&self) -> Option<(u64, u64)> {
        let dir = if self.is_dir { self.to.as_path() } else { dir_of(&self.to) };
        fs::metadata(dir).ok().map(|meta| (meta.dev(), meta.ino()))
    }

    /// Sets owner and group as far as this user may. Returns whether both are set.
    fn set_owner(&self, path: &Path, header: &FileHeader) -> Result<bool> {
        let meta = fs::symlink_metadata(path)?;
        if (meta.uid(), meta.gid()) == (header.uid, header.gid) {
            return Ok(true);
        }
        let refused = |error: &io::Error| error.raw_os_error() == Some(Errno::PERM.raw_os_error());
        match lchown(path, Some(header.uid), Some(header.gid)) {
            Ok(()) => Ok(true),
            Err(error) if refused(&error) && !self.is_root => {
                // A user may set a group that it is in.
                let _ = lchown(path, None, Some(header.gid));
                Ok(false)
            }
            Err(error) => Err(error).context("cannot set its owner"),
        }
    }

    fn create_at(&self, path: PathBuf, header: &FileHeader, origin: u32) -> Result<Created> {
        let kind = header.kind()?;
        let found = match fs::symlink_metadata(&path) {
            Ok(meta) => Some(meta),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(meta) = &found
            && origin == HOST_ORIGIN
            && !meta.is_dir()
            && (meta.dev(), meta.ino()) == header.id
        {
            return Err(anyhow!("is the file to copy to"));
        }
        // No other user may read the file before its owner is set.
        let perm = if self.preserve { 0o600 } else { header.perm() & 0o777 };
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
                return Err(anyhow!("exists and is a {}; use cat to write to it", kind_of(meta)));
            }
            (FileType::Regular, _) => {
                remove_existing(&path)?;
                file = Some(OpenOptions::new().write(true).create_new(true).mode(perm).open(&path)?);
            }
            (FileType::Symlink, _) => {
                remove_existing(&path)?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&header.target), &path)?;
            }
            (special, _) => {
                remove_existing(&path)?;
                let mode = Mode::from_raw_mode(perm);
                let kind = rustix::fs::FileType::from_raw_mode(special.mode_bits());
                rustix::fs::mknodat(CWD, &path, kind, mode, header.rdev.into()).map_err(|error| {
                    let device = matches!(special, FileType::CharDevice | FileType::BlockDevice);
                    match error {
                        Errno::PERM if device => anyhow!("not copied: only root creates device nodes here"),
                        error => anyhow::Error::from(error).context(format::kind(special)),
                    }
                })?;
            }
        }
        Ok(Created { path, file, is_new: found.is_none() })
    }

    fn set_attributes(&self, path: &Path, header: &FileHeader, xattrs: &Xattrs) -> Result<()> {
        let is_link = header.kind()? == FileType::Symlink;
        // The owner comes first: changing it removes capabilities and set-id bits.
        let owned = self.set_owner(path, header)?;
        let mut failed = None;
        for (name, value) in xattrs {
            match xattr::set(path, OsStr::from_bytes(name), value) {
                Ok(()) => {}
                // As cp -a does, attributes are omitted that this user may not set or the filesystem does not
                // support.
                Err(error) if is_unsupported(&error) => {}
                Err(error) => failed = failed.or(Some(anyhow!("attribute {}: {error}", format::name(name)))),
            }
        }
        if !is_link {
            for acl in acls_missing_in(xattrs) {
                // Fails if there is no ACL, or no support for ACLs.
                let _ = xattr::remove(path, acl);
            }
            // Set-id bits of another owner must not apply to this user.
            let perm = if owned { header.perm() } else { header.perm() & !SET_ID_BITS };
            fs::set_permissions(path, Permissions::from_mode(perm))?;
        }
        let spec = |(sec, nsec): (i64, u32)| Timespec { tv_sec: sec, tv_nsec: nsec.into() };
        let times = Timestamps { last_access: spec(header.atime), last_modification: spec(header.mtime) };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
            .context("cannot set its times")?;
        failed.map_or(Ok(()), Err)
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    [Errno::PERM, Errno::ACCESS, Errno::OPNOTSUPP]
        .iter()
        .any(|errno| Some(errno.raw_os_error()) == error.raw_os_error())
}

fn kind_of(meta: &fs::Metadata) -> &'static str {
    FileType::from_mode(meta.mode()).map_or("file", format::kind)
}

/// Removes an existing file, unless it is a directory.
fn remove_existing(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => Err(anyhow!("exists and is a directory")),
        Ok(_) => Ok(fs::remove_file(path)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Target for Host {
    type Destination = PathBuf;
    type File = Created;
    type Linked = PathBuf;
    const KEEPS_PARTIAL: bool = false;

    fn destination(&self, name: Option<&[u8]>) -> Result<PathBuf> {
        if !self.operands.iter().any(|operand| operand.as_deref() == name) {
            let name = format::name(name.unwrap_or_default());
            return Err(protocol_error(format!("{name:?} is not the name of an operand")));
        }
        match name {
            Some(name) if self.is_dir => Ok(self.to.join(OsStr::from_bytes(name))),
            _ => Ok(self.to.clone()),
        }
    }

    fn child_destination(&self, dir: &Created, name: &[u8]) -> PathBuf {
        dir.path.join(OsStr::from_bytes(name))
    }

    fn create(&self, path: PathBuf, header: &FileHeader, origin: u32) -> Result<Created> {
        // The operand names the source; the error is about the destination.
        let display_name = format::name(path.as_os_str().as_bytes());
        let names_dir = path == self.to && path.as_os_str().as_bytes().ends_with(b"/");
        if names_dir && !self.is_dir && header.kind()? != FileType::Directory {
            return Err(failure(NOT_FOUND, "no such directory")).context(display_name);
        }
        self.create_at(path, header, origin).context(display_name)
    }

    fn write(&self, created: &Created, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = created.file.as_ref().context("contents without an open file")?;
        Ok(file.write_all_at(bytes, offset)?)
    }

    fn finish(&self, created: &Created, header: &FileHeader, size: u64, xattrs: &Xattrs) -> Result<()> {
        if let Some(file) = &created.file {
            file.set_len(size)?;
        }
        if self.preserve {
            return self.set_attributes(&created.path, header, xattrs);
        }
        let missing = 0o700 & !header.perm();
        if created.is_new && missing != 0 && header.kind()? == FileType::Directory {
            let mode = fs::symlink_metadata(&created.path)?.mode() & 0o7777 & !missing;
            fs::set_permissions(&created.path, Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    fn existing(&self, name: Option<&[u8]>, below: &[Vec<u8>]) -> Option<FileType> {
        let path = self.destination(name).ok()?;
        let path = below.iter().fold(path, |path, name| path.join(OsStr::from_bytes(name)));
        FileType::from_mode(fs::symlink_metadata(path).ok()?.mode())
    }

    fn destination_path(&self, name: Option<&[u8]>) -> Vec<u8> {
        let path = self.destination(name).unwrap_or_else(|_| self.to.clone());
        path.into_os_string().into_vec()
    }

    fn abandon(&self, path: &PathBuf, created: &Created) -> bool {
        created.is_new && fs::remove_file(path).is_ok()
    }

    fn link(&self, path: PathBuf, created: &PathBuf) -> Result<()> {
        let [old, new] = [created, &path].map(fs::symlink_metadata);
        if let (Ok(old), Ok(new)) = (old, new)
            && (old.dev(), old.ino()) == (new.dev(), new.ino())
        {
            return Ok(());
        }
        remove_existing(&path)?;
        // If it is a symbolic link, the link is to the symbolic link itself.
        Ok(rustix::fs::linkat(CWD, created, CWD, &path, AtFlags::empty())?)
    }

    fn remember(&self, created: &Created) -> PathBuf {
        created.path.clone()
    }
}

fn is_special(meta: &fs::Metadata) -> bool {
    let kind = meta.file_type();
    kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device()
}
