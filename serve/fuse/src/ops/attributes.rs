//! Attributes of stat, and extended attributes including the virtual ones.

use super::Ops;
use super::reply::{self, Reply};
use crate::bulk_stat::{self, CHILDREN_MAX};
use crate::change_attr::{self, VirtualXattr};
use crate::connection::{ENODATA, OrErrno};
use crate::errno::errno;
use crate::subvolumes;
use fuser::*;
use ivers_vfs::{Cred, Error, NameError, SetAttr, XattrMode};

/// The prefix of the names of access control lists.
const ACL: &[u8] = b"system.posix_acl_";

impl Ops {
    pub(super) fn set(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: Option<FileHandle>,
        mut set: SetAttr,
    ) -> Reply<FileAttr> {
        let s = &*self.0;
        let node = s.node(ino)?;
        let cred = s.cred_for_set_gid(request, &node);
        if !s.is_times_flush(&node, &set) {
            s.changes(request, Some(&node), &[&node]);
        } else if handle.is_none() {
            // The kernel shows its own times already. With a handle the times are the kernel's. Without one
            // they may also be those that a program sets (`touch -m`): the kernel may hand over its own times
            // during any call.
            s.data_changes(request, &node);
        }
        match s.vfs.set_attr(&cred, &node.inode, &set) {
            Ok(_) => {}
            Err(Error::Name(NameError::NotPermitted | NameError::Access))
                if s.is_times_flush(&node, &set) =>
            {
                set.already_accepted = true;
                s.vfs.set_attr(&Cred::trusted(), &node.inode, &set).or_errno()?;
            }
            Err(error) => return Err(errno(error)),
        }
        if let Some(size) = set.size {
            s.is_truncated(&node, size);
        }
        let shown = s.shown_attr(&node);
        node.note_shown(&shown);
        Ok(shown)
    }

    /// Sends the result of a change of an extended attribute.
    pub(super) fn answer_named(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &[u8],
        reply: ReplyEmpty,
        result: Reply<()>,
    ) {
        // An ACL also changes the mode, and the kernel only marks its attributes as outdated. An answer given
        // before the change could arrive after that mark and count as new.
        if name.starts_with(ACL) && result.is_ok() {
            let outdates = self.0.outdates(ino.0);
            self.0.flusher.soon(move || {
                outdates();
                reply.ok();
            });
        } else {
            self.empty(request, reply, result);
        }
    }

    pub(super) fn set_named(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Reply<()> {
        let s = &*self.0;
        let mode = match flags {
            0 => XattrMode::Any,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return Err(Errno::EINVAL),
        };
        match change_attr::asked(name) {
            Some(VirtualXattr::Resize(bytes)) => {
                s.heard(request);
                if !s.is_for_owner(request) {
                    return Err(Errno::EPERM);
                }
                return s.vfs.grow(bytes).or_errno().map(drop);
            }
            Some(VirtualXattr::Subvolume) => {
                s.heard(request);
                let dir = s.node(ino)?;
                return s.announcements.announce(s, request, &dir, value);
            }
            Some(_) => return Err(Errno::EPERM),
            None => {}
        }
        let node = s.node(ino)?;
        s.changes(request, Some(&node), &[&node]);
        let cred = s.cred_for_set_gid(request, &node);
        s.vfs.set_xattr(&cred, &node.inode, name, value, mode).or_errno().map(drop)
    }

    pub(super) fn get_named(&self, request: &Request, ino: INodeNo, name: &[u8]) -> Reply<Vec<u8>> {
        let s = &*self.0;
        // The kernel requests these itself, during other calls.
        if !name.starts_with(b"security.") {
            s.heard(request);
        }
        let node = s.node(ino)?;
        s.vfs.get_xattr(&s.cred(request), &node.inode, name).or_errno()
    }

    /// Returns the names, each followed by a NUL.
    pub(super) fn list_named(&self, request: &Request, ino: INodeNo) -> Reply<Vec<u8>> {
        let s = &*self.0;
        let node = s.node(ino)?;
        let mut list = Vec::new();
        for name in s.vfs.list_xattr(&s.cred(request), &node.inode).or_errno()? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(list)
    }

    pub(super) fn remove_named(&self, request: &Request, ino: INodeNo, name: &[u8]) -> Reply<()> {
        let s = &*self.0;
        if change_attr::asked(name).is_some() {
            return Err(Errno::EPERM);
        }
        let node = s.node(ino)?;
        s.changes(request, Some(&node), &[&node]);
        match s.vfs.remove_xattr(&s.cred(request), &node.inode, name) {
            // Removing an ACL that does not exist succeeds.
            Err(Error::Name(NameError::NoAttribute)) if name.starts_with(ACL) => Ok(()),
            done => done.or_errno(),
        }
    }

    pub(super) fn virtual_xattr(
        &self,
        request: &Request,
        ino: INodeNo,
        asked: VirtualXattr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let s = &self.0;
        s.heard(request);
        let node = match s.node(ino) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let none = Errno::from_i32(ENODATA);
        match asked {
            VirtualXattr::Semantics => {
                reply::value(change_attr::semantics(&s.vfs).to_string().as_bytes(), size, reply)
            }
            VirtualXattr::Stats => reply::value(change_attr::stats(&s.vfs).as_bytes(), size, reply),
            VirtualXattr::Mount => {
                reply::value(change_attr::mount(&s.vfs, &s.server).as_bytes(), size, reply)
            }
            VirtualXattr::Resize(bytes) => {
                reply::value(change_attr::growth(&s.vfs, bytes).as_bytes(), size, reply)
            }
            VirtualXattr::Generation => {
                reply::value(node.inode.generation.to_string().as_bytes(), size, reply)
            }
            VirtualXattr::Measurement => match s.vfs.observer_report() {
                Some(report) => reply::value(report.as_bytes(), size, reply),
                None => reply.error(none),
            },
            VirtualXattr::Subvolumes(_) if !s.is_for_owner(request) => reply.error(Errno::EPERM),
            VirtualXattr::Subvolumes(_) if size == 0 => reply.size(CHILDREN_MAX as u32),
            VirtualXattr::Subvolumes(first) => {
                let value = subvolumes::list(&s.vfs, first, size as usize);
                self.answer(request, reply, value, |reply, value| reply.data(&value));
            }
            VirtualXattr::SubvolumeFlush if size == 0 => reply.size(change_attr::DECIMAL_MAX),
            VirtualXattr::SubvolumeFlush => {
                s.flush_subvolume(
                    &node,
                    move |flushed| {
                        if flushed { reply.data(b"1") } else { reply.error(Errno::EBUSY) }
                    },
                )
            }
            VirtualXattr::Unknown | VirtualXattr::Subvolume => reply.error(none),
            VirtualXattr::Change if size > 0 => s.query(node, move |change| match change {
                Some(change) => reply::value(change.to_string().as_bytes(), size, reply),
                None => reply.error(none),
            }),
            // The rest is answered without a query, which would say so itself.
            _ if s.vfs.no_change_attribute().is_some() => reply.error(none),
            // Asking only for the size is no query: return the size of the longest number.
            VirtualXattr::Change => reply.size(change_attr::DECIMAL_MAX),
            VirtualXattr::Children(_) if size == 0 => reply.size(CHILDREN_MAX as u32),
            VirtualXattr::Children(cursor) => {
                let value = bulk_stat::value(s, request, ino, cursor, size as usize);
                self.answer(request, reply, value, |reply, value| reply.data(&value));
            }
            VirtualXattr::Stored => {
                reply::value(s.vfs.stored_counter(&node.inode).to_string().as_bytes(), size, reply)
            }
        }
    }
}
