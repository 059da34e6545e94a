//! Information on one file: of a mount, from the attributes that it serves, or of an image, from the VFS.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use ivers_fuse::{CHANGE, GENERATION, MOUNT, SEMANTICS, STORED, semantics};
use ivers_vfs::{Attr, FileType, InodeFlags, InodeRef, Timestamp, Vfs};
use serde_json::{Value, json};

pub use ivers::state_format::Identity;

use crate::output::failure::{REFUSED, failure};
use crate::output::format;
use crate::output::format::Shown;

/// The information that `stat` shows.
#[derive(Debug)]
pub struct FileInfo {
    /// The inode, its generation and its change attribute.
    pub identity: Identity,
    /// The stored counter.
    pub stored: Option<u64>,
    /// The semantics of the filesystem, in JSON.
    pub semantics: Value,
    /// The usual attributes.
    pub attr: Attr,
}

/// Returns the instance of a filesystem: change attributes of different instances are never compared.
pub fn instance(vfs: &Vfs) -> String {
    let prefix = if vfs.fs().server().is_some() { ivers_fuse::OF_SERVER } else { "" };
    let this_opening = uuid::Uuid::new_v4().simple().to_string();
    prefix.to_owned() + &vfs.info().instance(&this_opening)
}

/// Returns whether the upper bits of an instance's change attributes are an epoch. They are not if the values
/// are valid only within one mount or until a program writes, or if a server makes them.
pub fn has_epoch(instance: &str) -> bool {
    !instance.contains(['-', '~']) && !instance.starts_with(ivers_fuse::OF_SERVER)
}

/// Returns the UUID of the filesystem from the name of an instance. `None`: its values end with the mount, or
/// a server makes them.
pub fn lasting_uuid(instance: &str) -> Option<&str> {
    let lasts = !instance.contains('-') && !instance.starts_with(ivers_fuse::OF_SERVER);
    lasts.then(|| instance.split('~').next()).flatten()
}

/// Reads the information on an inode of an image.
pub fn of_inode(vfs: &Vfs, inode: &InodeRef) -> FileInfo {
    let change = vfs.change(inode);
    FileInfo {
        identity: Identity { ino: inode.ino.0, generation: inode.generation, change },
        stored: change.map(|_| vfs.stored_counter(inode)),
        semantics: semantics(vfs),
        attr: vfs.stat(inode),
    }
}

/// Reads an attribute that a mount serves; `None` if there is none. `follow`: follows a symbolic link at the
/// end of the path.
pub fn served(path: &Path, name: &str, follow: bool) -> Result<Option<String>> {
    let value = if follow { xattr::get_deref(path, name) } else { xattr::get(path, name) };
    match value {
        Ok(value) => Ok(value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) => Ok(None),
        Err(error) => Err(error).with_context(|| path.shown()),
    }
}

fn served_number(path: &Path, name: &str, follow: bool) -> Result<Option<u64>> {
    Ok(served(path, name, follow)?.and_then(|text| text.trim().parse().ok()))
}

/// Reads a JSON attribute that a mount serves. Fails if `path` is not on a mount of ivers.
pub fn served_json(path: &Path, name: &str) -> Result<Value> {
    served_json_if_any(path, name)?.ok_or_else(|| {
        let hint = "name a file of an image that is not mounted as IMAGE:/path";
        failure(REFUSED, format!("{}: not on an ivers mount; {hint}", path.shown()))
    })
}

/// Reads a JSON attribute as [`served_json`] does. `None` if `path` is not on a mount of ivers.
pub fn served_json_if_any(path: &Path, name: &str) -> Result<Option<Value>> {
    let Some(text) = served(path, name, true)? else { return Ok(None) };
    serde_json::from_str(&text).with_context(|| format!("{}: {name} is not JSON", path.shown())).map(Some)
}

/// Reads inode number, generation and change attribute of a file on a mount.
pub fn identity(path: &Path, ino: u64) -> Result<Identity> {
    // The change attribute comes last, but before the caller reads: a change in between raises the next
    // value.
    let generation = served_number(path, GENERATION, false)?.unwrap_or(0) as u32;
    Ok(Identity { ino, generation, change: served_number(path, CHANGE, false)? })
}

/// Returns whether a directory shows a mount whose process is gone. Uses a call that no cache of the kernel
/// answers.
pub fn is_dead_mount(dir: &Path) -> bool {
    use rustix::io::Errno;
    rustix::fs::statfs(dir).is_err_and(|error| matches!(error, Errno::NOTCONN | Errno::CONNABORTED))
}

/// Reads the information on a file of a mount.
pub fn of_path(path: &Path, follow: bool) -> Result<FileInfo> {
    std::fs::symlink_metadata(path).with_context(|| path.shown())?;
    let semantics = match served(path, SEMANTICS, follow)? {
        Some(text) => serde_json::from_str(&text)?,
        None => {
            served_json(path, MOUNT)?;
            Value::Null
        }
    };
    let change = served_number(path, CHANGE, follow)?;
    let stored = served_number(path, STORED, follow)?;
    let generation = served_number(path, GENERATION, follow)?.unwrap_or(0) as u32;
    let meta = if follow { std::fs::metadata(path) } else { std::fs::symlink_metadata(path) };
    let meta = meta.with_context(|| path.shown())?;
    let time = |sec, nsec: i64| Timestamp { sec, nsec: nsec as u32 };
    let btime = meta.created().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
    Ok(FileInfo {
        identity: Identity { ino: meta.ino(), generation, change },
        stored,
        semantics,
        attr: Attr {
            kind: FileType::from_mode(meta.mode()).unwrap_or(FileType::Regular),
            perm: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            project: 0,
            nlink: meta.nlink() as u32,
            size: meta.size(),
            blocks_512: meta.blocks(),
            rdev: meta.rdev() as u32,
            atime: time(meta.atime(), meta.atime_nsec()),
            mtime: time(meta.mtime(), meta.mtime_nsec()),
            ctime: time(meta.ctime(), meta.ctime_nsec()),
            btime: btime.map(|t| time(t.as_secs() as i64, i64::from(t.subsec_nanos()))),
            flags: InodeFlags::empty(),
        },
    })
}

fn json_time(time: Timestamp) -> Value {
    json!({ "sec": time.sec, "nsec": time.nsec })
}

impl FileInfo {
    /// Returns the information in JSON, without the path. Users rely on its keys.
    pub fn json(&self) -> Value {
        let attr = &self.attr;
        json!({
            "ino": self.identity.ino,
            "generation": self.identity.generation,
            "change": self.identity.change.map(|v| v.to_string()),
            "stored": self.stored.map(|v| v.to_string()),
            "semantics": self.semantics,
            "kind": format::kind(attr.kind),
            "mode": format!("{:o}", attr.mode()),
            "uid": attr.uid,
            "gid": attr.gid,
            "nlink": attr.nlink,
            "size": attr.size,
            "blocks": attr.blocks_512,
            "atime": json_time(attr.atime),
            "mtime": json_time(attr.mtime),
            "ctime": json_time(attr.ctime),
            "btime": attr.btime.map(json_time),
        })
    }

    /// Returns the information as text.
    pub fn text(&self, path: &str) -> String {
        let attr = &self.attr;
        let number = |v: Option<u64>| v.map_or("none".to_owned(), |v| v.to_string());
        let promise = |name: &str| self.semantics[name] == true;
        let kept: Vec<_> = ["data", "metadata", "monotonic", "persistent", "crash_safe"]
            .into_iter()
            .filter(|n| promise("change_attribute") && promise(n))
            .collect();
        let kept = if kept.is_empty() { "nothing".to_owned() } else { kept.join(" ") };
        let why =
            self.semantics["no_change_attribute"].as_str().map(|why| format!(" ({why})")).unwrap_or_default();
        let time = |t: Timestamp| format!("{}.{:09} UTC", format::time(t.sec), t.nsec);
        format!(
            "{path}\n  change  {}{why}\n  stored  {}\n  keeps   {}\n  inode   {} generation {}\n  \
             mode    {} {}:{} links {}\n  size    {} in {} blocks of 512\n  mtime   {}\n  ctime   {}\n  \
             btime   {}",
            number(self.identity.change),
            number(self.stored),
            kept,
            self.identity.ino,
            self.identity.generation,
            format::mode(attr.kind, attr.perm),
            attr.uid,
            attr.gid,
            attr.nlink,
            attr.size,
            attr.blocks_512,
            time(attr.mtime),
            time(attr.ctime),
            attr.btime.map_or("none".to_owned(), time),
        )
    }
}
