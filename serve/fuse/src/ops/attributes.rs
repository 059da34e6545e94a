//! Attributes: those of stat, and the named ones with the change cookie among them.

use super::Ops;
use super::reply::{self, Reply};
use crate::children::{self, CHILDREN_MAX};
use crate::cookie::{self, Asked};
use crate::errno::errno;
use crate::serving::{ENODATA, OrErrno};
use fuser::*;
use ivers_vfs::{Cred, Error, NameError, SetAttr, XattrMode};

/// What the names of access control lists begin with.
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
            // The kernel's own times show already. With a handle they are that; without one nothing tells them from those that a program sets
            // (`touch -m`), and the kernel may hand its own over in the midst of any call.
            s.data_changes(request, &node);
        }
        set.kill_priv = set.size.is_some() && cred.uid != 0;
        let kills_capabilities = set.size.is_some() || set.uid.is_some() || set.gid.is_some();
        match s.vfs.set_attr(&cred, &node.inode, &set) {
            Ok(_) => {}
            Err(Error::Name(NameError::NotPermitted | NameError::Access))
                if s.is_times_flush(&node, &set) =>
            {
                set.handed_over = true;
                s.vfs.set_attr(&Cred::trusted(), &node.inode, &set).or_errno()?;
            }
            Err(error) => return Err(errno(error)),
        }
        if set.size == Some(0) {
            node.agrees_again();
        }
        if kills_capabilities {
            s.vfs.drop_capability(&node.inode).or_errno()?;
        }
        Ok(s.shown_attr(&node))
    }

    /// Send the result of a change of a named attribute.
    pub(super) fn answer_named(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &[u8],
        reply: ReplyEmpty,
        result: Reply<()>,
    ) {
        // The mode changes with an access control list, and what the kernel knows of that it only takes for outdated: an answer that was
        // given before the change could come behind it, and would count as new.
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
        if cookie::asked(name).is_some() {
            return Err(Errno::EPERM);
        }
        let node = s.node(ino)?;
        s.changes(request, Some(&node), &[&node]);
        let cred = s.cred_for_set_gid(request, &node);
        s.vfs.set_xattr(&cred, &node.inode, name, value, mode).or_errno().map(drop)
    }

    pub(super) fn get_named(&self, request: &Request, ino: INodeNo, name: &[u8]) -> Reply<Vec<u8>> {
        let s = &*self.0;
        // The kernel asks for those itself, in the midst of other calls.
        if !name.starts_with(b"security.") {
            s.heard(request);
        }
        let node = s.node(ino)?;
        s.vfs.get_xattr(&s.cred(request), &node.inode, name).or_errno()
    }

    /// The names as the kernel wants them, each ended by a zero.
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
        if cookie::asked(name).is_some() {
            return Err(Errno::EPERM);
        }
        let node = s.node(ino)?;
        s.changes(request, Some(&node), &[&node]);
        match s.vfs.remove_xattr(&s.cred(request), &node.inode, name) {
            // Where there is no list already, none is what was asked for.
            Err(Error::Name(NameError::NoAttribute)) if name.starts_with(ACL) => Ok(()),
            done => done.or_errno(),
        }
    }

    pub(super) fn cookie_attribute(
        &self,
        request: &Request,
        ino: INodeNo,
        asked: Asked,
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
            Asked::Semantics => reply::value(cookie::semantics(&s.vfs).to_string().as_bytes(), size, reply),
            Asked::Stats => reply::value(cookie::stats(&s.vfs).as_bytes(), size, reply),
            Asked::Mount => reply::value(cookie::mount(&s.vfs, &s.server).as_bytes(), size, reply),
            Asked::Generation => reply::value(node.inode.generation.to_string().as_bytes(), size, reply),
            Asked::Measurement => match s.vfs.watch_report() {
                Some(report) => reply::value(report.as_bytes(), size, reply),
                None => reply.error(none),
            },
            Asked::Unknown => reply.error(none),
            Asked::Change | Asked::Stored | Asked::Children(_) if s.vfs.no_cookie().is_some() => {
                reply.error(none)
            }
            // A caller that only wants room is not one who looks: the longest number there is.
            Asked::Change if size == 0 => reply.size(cookie::DECIMAL_MAX),
            Asked::Change => s.query(node, move |change| match change {
                Some(change) => reply::value(change.to_string().as_bytes(), size, reply),
                None => reply.error(none),
            }),
            Asked::Children(_) if size == 0 => reply.size(CHILDREN_MAX as u32),
            Asked::Children(cursor) => {
                let value = children::value(s, request, ino, cursor, size as usize);
                self.answer(request, reply, value, |reply, value| reply.data(&value));
            }
            Asked::Stored => {
                reply::value(s.vfs.stored_version(&node.inode).to_string().as_bytes(), size, reply)
            }
        }
    }
}
