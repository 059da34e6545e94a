//! Reading directories from a cursor, without a handle.

use super::Ops;
use super::reply::Reply;
use crate::connection::OrErrno;
use crate::convert::{file_attr, file_type, negative_attr};
use fuser::*;
use ivers_vfs::Listed;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The smallest READDIRPLUS reply that a kernel requests. Linux 6.18 requests as much as the program does,
/// and fuser does not expose how much.
const PLUS_BYTES_MIN: usize = 4096;
/// Entries for this many bytes of a reply are looked up at once, at most.
const PLUS_BATCH_MAX: usize = 64 << 10;
/// The size of an entry of such a reply without the name (`fuse_direntplus`).
const PLUS_ENTRY_BYTES: usize = 152;
/// Marks the node number of an inode that cannot be read.
const UNREADABLE: u64 = 1 << 63;

/// The size of the last READDIRPLUS replies of a mount. Looking up much more than fits would be in vain; with
/// much less, each request reads the same part of the directory again.
pub(crate) struct PlusBytes(AtomicUsize);

impl Default for PlusBytes {
    fn default() -> Self {
        Self(AtomicUsize::new(PLUS_BYTES_MIN))
    }
}

impl PlusBytes {
    fn expected(&self) -> usize {
        self.0.load(Ordering::Relaxed).clamp(PLUS_BYTES_MIN, PLUS_BATCH_MAX)
    }
}

fn plus_entry_bytes(name: &[u8]) -> usize {
    (PLUS_ENTRY_BYTES + name.len()).next_multiple_of(8)
}

/// Returns the file type of an entry, as its directory stores it.
fn kind_of(kind: Option<ivers_vfs::FileType>) -> fuser::FileType {
    kind.map_or(fuser::FileType::RegularFile, file_type)
}

impl Ops {
    /// ENOSYS tells the kernel not to ask again, if it supports that and checks permissions itself.
    pub(super) fn open_dir(&self, request: &Request, ino: INodeNo) -> Reply<()> {
        let s = &*self.0;
        if s.no_opendir.load(Ordering::Relaxed) {
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
        let (mut cursor, mut used, mut goal) = (offset, 0, s.plus_bytes.expected());
        'reply: loop {
            let (mut found, mut is_last) = (used, true);
            let mut enough = |name: &[u8]| {
                found += plus_entry_bytes(name);
                is_last = found < goal;
                !is_last
            };
            let listed = match s.vfs.list_until(cred, &dir.inode, cursor, true, &mut enough) {
                // The kernel must learn of the entries before, which count as looked up.
                Err(_) if used > 0 => break,
                listed => listed.or_errno()?,
            };
            for entry in listed {
                let bytes = plus_entry_bytes(&entry.name);
                if self.add_with_attributes(ino, &entry, reply) {
                    s.plus_bytes.0.store(used + bytes, Ordering::Relaxed);
                    break 'reply;
                }
                (cursor, used) = (entry.next, used + bytes);
            }
            if is_last {
                s.plus_bytes.0.fetch_max(used, Ordering::Relaxed);
                break;
            }
            goal = used + used.min(PLUS_BATCH_MAX);
        }
        s.prune_if_needed();
        Ok(())
    }

    /// Adds an entry to a reply. Returns whether the reply is full; then it does not have the entry.
    fn add_with_attributes(&self, dir: INodeNo, entry: &Listed, reply: &mut ReplyDirectoryPlus) -> bool {
        let s = &self.0;
        let name = OsStr::from_bytes(&entry.name);
        // An entry with a damaged inode is shown too. fuser sends one number to the program and to the
        // kernel, and programs skip entries with number 0. So the kernel gets a number that no node has, with
        // no validity: the next use of the name asks again and gets the error.
        let Ok(inode) = &entry.inode else {
            let id = INodeNo(UNREADABLE | s.nodes.id(entry.ino.0));
            let attr = FileAttr { ino: id, kind: kind_of(entry.kind), ..negative_attr() };
            return reply.add(id, entry.next, name, &Duration::ZERO, &attr, Generation(0));
        };
        let generation = Generation(u64::from(inode.generation));
        let id = s.nodes.id(inode.ino.0);
        let attr = file_attr(id, &s.vfs.stat(inode), s.vfs.info().block_size.max(4096));
        // The kernel counts no lookup for these two.
        let is_dot = matches!(&*entry.name, b"." | b"..");
        let mut ttl = s.ttl;
        if !is_dot {
            s.nodes.remember_listed(inode, dir.0, &entry.name);
            // Without a node there is nothing that the kernel may not show.
            ttl = s.nodes.get(id).map_or(ttl, |node| s.attr_ttl(&node));
        }
        let is_full = reply.add(INodeNo(id), entry.next, name, &ttl, &attr, generation);
        if is_full && !is_dot {
            // The kernel does not learn of it.
            s.nodes.forget(id, 1);
        } else if let (false, Some(node)) = (is_dot, s.nodes.get(id)) {
            node.note_shown(&attr);
        }
        is_full
    }
}
