//! Reading directories from a cursor, without a handle.

use super::Ops;
use super::reply::Reply;
use crate::connection::OrErrno;
use crate::convert::{file_attr, file_type, negative_attr};
use fuser::*;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// The size of a READDIRPLUS reply, and of its entry without the name (`fuse_direntplus`). fuser does not
/// expose the requested size; the kernel requests a page or, in new versions, more.
const PLUS_BYTES: usize = 4096;
const PLUS_ENTRY_BYTES: usize = 152;
/// Marks the node number of an inode that cannot be read.
const UNREADABLE: u64 = 1 << 63;

/// Returns the file type of an entry, as its directory stores it.
fn kind_of(kind: Option<ivers_vfs::FileType>) -> fuser::FileType {
    kind.map_or(fuser::FileType::RegularFile, file_type)
}

impl Ops {
    /// ENOSYS tells the kernel not to ask again, if it supports that and checks permissions itself.
    pub(super) fn open_dir(&self, request: &Request, ino: INodeNo) -> Reply<()> {
        let s = &*self.0;
        if s.no_opendir.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Errno::ENOSYS);
        }
        let node = s.node(ino)?;
        s.vfs.access(&s.cred(request), &node.inode, 4).or_errno()
    }

    pub(super) fn list(
        &self,
        cred: &ivers_vfs::Cred,
        ino: INodeNo,
        offset: u64,
        reply: &mut ReplyDirectory,
    ) -> Reply<()> {
        let s = &*self.0;
        let node = s.node(ino)?;
        node.note_listed();
        s.vfs
            .readdir(cred, &node.inode, offset, &mut |entry| {
                let (id, name) = (s.nodes.id(entry.ino.0), OsStr::from_bytes(entry.name));
                let is_full = reply.add(INodeNo(id), entry.next, kind_of(entry.kind), name);
                if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .or_errno()
    }

    pub(super) fn list_with_attributes(
        &self,
        cred: &ivers_vfs::Cred,
        ino: INodeNo,
        offset: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Reply<()> {
        let s = &self.0;
        let dir = s.node(ino)?;
        dir.note_listed();
        let mut used = 0;
        let mut enough = |name: &[u8]| {
            used += (PLUS_ENTRY_BYTES + name.len()).next_multiple_of(8);
            used >= PLUS_BYTES
        };
        for entry in s.vfs.list_until(cred, &dir.inode, offset, true, &mut enough).or_errno()? {
            let name = OsStr::from_bytes(&entry.name);
            // An entry with a damaged inode is shown too. fuser sends one number to the program and to the
            // kernel, and programs skip entries with number 0. So the kernel gets a number that no node has,
            // with no validity: the next use of the name asks again and gets the error.
            let Ok(inode) = entry.inode else {
                let id = INodeNo(UNREADABLE | s.nodes.id(entry.ino.0));
                let attr = FileAttr { ino: id, kind: kind_of(entry.kind), ..negative_attr() };
                if reply.add(id, entry.next, name, &Duration::ZERO, &attr, Generation(0)) {
                    break;
                }
                continue;
            };
            let generation = Generation(u64::from(inode.generation));
            let id = s.nodes.id(inode.ino.0);
            let attr = file_attr(id, &s.vfs.stat(&inode), s.vfs.info().block_size.max(4096));
            // The kernel counts no lookup for these two.
            let is_dot = matches!(&*entry.name, b"." | b"..");
            let mut ttl = s.ttl;
            if !is_dot {
                s.nodes.remember_listed(&inode, ino.0, &entry.name);
                // Without a node there is nothing that the kernel may not show.
                ttl = s.nodes.get(id).map_or(ttl, |node| s.attr_ttl(&node));
            }
            if reply.add(INodeNo(id), entry.next, name, &ttl, &attr, generation) {
                // The entry did not fit, so the kernel does not learn of it.
                if !is_dot {
                    s.nodes.forget(id, 1);
                }
                break;
            }
        }
        s.prune_if_needed();
        Ok(())
    }
}
