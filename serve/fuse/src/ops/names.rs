//! Requests on names: lookup, creation, links, removal, renames.

use super::Ops;
use super::reply::Reply;
use crate::connection::{Found, Handle, O_EXCL, OrErrno};
use crate::convert::negative_attr;
use crate::errno::errno;
use crate::nodes::Node;
use crate::subvolumes::SubvolumeCall;
use fuser::*;
use ivers_vfs::{CreateSpec, Error, Ino, NameError, RenameFlags as VfsRename};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub(super) fn spec(kind: ivers_vfs::FileType, mode: u32, umask: u32) -> CreateSpec {
    CreateSpec { umask: umask & 0o777, ..CreateSpec::of(kind, mode & 0o7777) }
}

impl Ops {
    pub(super) fn find(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Reply<Found> {
        let s = &self.0;
        s.heard(request);
        let name = name.as_bytes();
        let found = match s.node(parent) {
            Ok(dir) if name == b"." => Ok(dir.inode.clone()),
            Ok(dir) => s.vfs.lookup(&s.reader(request), &dir.inode, name),
            // A file handle of an inode that the kernel has forgotten (open_by_handle_at, export).
            Err(_) if name == b"." => s.vfs.get(Ino(s.nodes.ino(parent.0))),
            Err(error) => return Err(error),
        };
        match found {
            Ok(inode) => {
                let (_, found) = s.entry(inode, parent, name)?;
                Ok(found)
            }
            Err(Error::Name(NameError::NotFound)) if !s.ttl.is_zero() => {
                Ok(Found { attr: negative_attr(), generation: Generation(0), ttl: s.ttl })
            }
            Err(error) => Err(errno(error)),
        }
    }

    pub(super) fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        spec: &CreateSpec,
    ) -> Reply<Found> {
        let s = &self.0;
        let dir = s.node(parent)?;
        s.names_change(request, &dir, &[&dir]);
        let (inode, _) =
            s.vfs.create(&s.cred(request), &dir.inode, name.as_bytes(), spec, false).or_errno()?;
        let (_, found) = s.entry(inode, parent, name.as_bytes())?;
        Ok(found)
    }

    /// Makes a directory, or the subvolume that the caller announced.
    pub(super) fn make_dir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        spec: &CreateSpec,
    ) -> Reply<Found> {
        let (s, bytes) = (&self.0, name.as_bytes());
        let Some(call) = s.announcements.take(request, parent, bytes) else {
            return self.make(request, parent, name, spec);
        };
        let (dir, cred) = (s.node(parent)?, s.cred(request));
        s.names_change(request, &dir, &[&dir]);
        match call {
            SubvolumeCall::Create => s.vfs.create_subvolume(&cred, &dir.inode, bytes, spec).or_errno()?,
            SubvolumeCall::Snapshot { source, read_only } => {
                let source = s.node(INodeNo(s.nodes.id(source)))?;
                let made = s.vfs.snapshot_subvolume(&cred, &source.inode, &dir.inode, bytes, read_only);
                made.or_errno()?;
            }
            SubvolumeCall::Delete => return Err(Errno::EINVAL),
        }
        let inode = s.vfs.lookup(&cred, &dir.inode, bytes).or_errno()?;
        let (_, found) = s.entry(inode, parent, bytes)?;
        Ok(found)
    }

    pub(super) fn make_node(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Reply<Found> {
        let kind = ivers_vfs::FileType::from_mode(mode).ok_or(Errno::EINVAL)?;
        self.make(request, parent, name, &CreateSpec { rdev, ..spec(kind, mode, umask) })
    }

    pub(super) fn create_file(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        spec: &CreateSpec,
        flags: i32,
    ) -> Reply<(Found, Handle)> {
        let s = &self.0;
        let dir = s.node(parent)?;
        let cred = s.cred(request);
        s.names_change(request, &dir, &[&dir]);
        let inode = match s.vfs.create(&cred, &dir.inode, name.as_bytes(), spec, false) {
            Ok((inode, _)) => inode,
            // Another client made it after the kernel looked. At ESTALE the kernel looks again, and opens it.
            Err(Error::Name(NameError::Exists)) if flags & O_EXCL == 0 && dir.inode.is_server_managed() => {
                return Err(Errno::ESTALE);
            }
            Err(error) => return Err(errno(error)),
        };
        let (node, found) = s.entry(inode, parent, name.as_bytes())?;
        let handle = s.handle(request, &cred, flags);
        if let Err(error) = s.tell_open(&cred, &node, handle) {
            // The kernel does not learn of this inode.
            s.nodes.forget(node.id, 1);
            return Err(error);
        }
        if handle.holds_back {
            node.writer_opens();
        }
        Ok((found, handle))
    }

    pub(super) fn make_link(
        &self,
        request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
    ) -> Reply<Found> {
        let s = &self.0;
        let (node, dir) = (s.node(ino)?, s.node(parent)?);
        s.names_change(request, &dir, &[&dir, &node]);
        s.vfs.link(&s.cred(request), &node.inode, &dir.inode, name.as_bytes(), false).or_errno()?;
        let (_, found) = s.entry(node.inode.clone(), parent, name.as_bytes())?;
        Ok(found)
    }

    /// Notes that a name is about to be removed from a directory, and so from a file.
    fn name_goes(&self, request: &Request, dir: &Node, name: &OsStr) {
        let file = self.0.named(dir, name.as_bytes());
        self.0.name_goes(request, dir, &[dir], file.as_deref());
    }

    pub(super) fn remove(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Reply<()> {
        let s = &self.0;
        let dir = s.node(parent)?;
        self.name_goes(request, &dir, name);
        s.vfs.unlink(&s.cred(request), &dir.inode, name.as_bytes(), false).or_errno().map(drop)
    }

    pub(super) fn remove_dir(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Reply<()> {
        let s = &self.0;
        let dir = s.node(parent)?;
        self.name_goes(request, &dir, name);
        if s.announcements.take(request, parent, name.as_bytes()) == Some(SubvolumeCall::Delete) {
            let cred = s.cred(request);
            let root = s.vfs.lookup(&cred, &dir.inode, name.as_bytes()).or_errno()?;
            // Programs would lose the files that they have open.
            if s.nodes.known(root).is_some_and(|root| s.is_open_in(&root)) {
                return Err(Errno::ETXTBSY);
            }
            return s.vfs.delete_subvolume(&cred, &dir.inode, name.as_bytes()).or_errno();
        }
        s.vfs.rmdir(&s.cred(request), &dir.inode, name.as_bytes(), false).or_errno().map(drop)
    }

    pub(super) fn move_name(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        (newparent, newname): (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Reply<()> {
        let s = &self.0;
        let known = RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE;
        if !known.contains(flags) || flags == known {
            return Err(Errno::EINVAL);
        }
        let mut how = VfsRename::empty();
        how.set(VfsRename::NOREPLACE, flags.contains(RenameFlags::RENAME_NOREPLACE));
        how.set(VfsRename::EXCHANGE, flags.contains(RenameFlags::RENAME_EXCHANGE));
        let (old, new) = (s.node(parent)?, s.node(newparent)?);
        let (name, newname) = (name.as_bytes(), newname.as_bytes());
        let (moved, replaced) = (s.named(&old, name), s.named(&new, newname));
        let of: Vec<_> = moved.iter().chain([&old, &new]).map(|node| &**node).collect();
        s.drop_listing(&old);
        s.name_goes(request, &new, &of, replaced.as_deref());
        s.vfs.rename(&s.cred(request), &old.inode, name, &new.inode, newname, how, false).or_errno()?;
        let moved = s.moved(&new, newname);
        if how.contains(VfsRename::EXCHANGE) {
            s.moved(&old, name);
        } else if let Some(moved) = moved {
            moved.leave_place(old.id, name);
        }
        Ok(())
    }
}
