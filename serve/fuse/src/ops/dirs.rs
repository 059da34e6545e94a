//! Reading directories, from a cursor on: they need no handle.

use super::Ops;
use super::reply::Reply;
use crate::convert::{file_attr, file_type, negative_attr};
use crate::serving::OrErrno;
use fuser::*;
use ivers_vfs::Ino;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

struct Entry {
    ino: Ino,
    name: Box<[u8]>,
    kind: fuser::FileType,
    next: u64,
}

impl Ops {
    /// ENOSYS tells the kernel not to ask again, where it understands that and checks permissions itself.
    pub(super) fn open_dir(&self, request: &Request, ino: INodeNo) -> Reply<()> {
        let s = &*self.0;
        if s.no_opendir.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Errno::ENOSYS);
        }
        let node = s.node(ino)?;
        s.vfs.access(&s.cred(request), &node.inode, 4).or_errno()
    }

    /// The entries from a cursor on that a reply of `bytes` can hold, in the smallest form an entry has on the wire.
    fn entries(&self, ino: INodeNo, offset: u64, bytes: usize, entry_bytes: usize) -> Reply<Vec<Entry>> {
        let s = &*self.0;
        let node = s.node(ino)?;
        let mut entries = Vec::new();
        let mut used = 0;
        s.vfs
            .readdir(&node.inode, offset, &mut |entry| {
                used += (entry_bytes + entry.name.len()).next_multiple_of(8);
                entries.push(Entry {
                    ino: entry.ino,
                    name: entry.name.into(),
                    kind: entry.kind.map_or(fuser::FileType::RegularFile, file_type),
                    next: entry.next,
                });
                if used >= bytes { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .or_errno()?;
        Ok(entries)
    }

    pub(super) fn list(&self, ino: INodeNo, offset: u64, reply: &mut ReplyDirectory) -> Reply<()> {
        // fuser keeps the size of the reply to itself; the kernel asks for a page or, lately, more.
        for entry in self.entries(ino, offset, 32 << 10, 24)? {
            let id = self.0.nodes.id(entry.ino.0);
            if reply.add(INodeNo(id), entry.next, entry.kind, OsStr::from_bytes(&entry.name)) {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn list_with_attributes(
        &self,
        ino: INodeNo,
        offset: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Reply<()> {
        let s = &*self.0;
        for entry in self.entries(ino, offset, 4096, 152)? {
            let name = OsStr::from_bytes(&entry.name);
            // An entry whose inode is damaged is shown all the same; asking for it brings the error.
            let Ok(inode) = s.vfs.get(entry.ino) else {
                let mut attr = negative_attr();
                attr.kind = entry.kind;
                if reply.add(INodeNo(0), entry.next, name, &Duration::ZERO, &attr, Generation(0)) {
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
                let Some(node) = s.nodes.remember(inode, ino.0, &entry.name) else { break };
                ttl = s.attr_ttl(&node);
            }
            if reply.add(INodeNo(id), entry.next, name, &ttl, &attr, generation) {
                // It did not fit: the kernel never hears of it.
                if !is_dot {
                    s.nodes.forget(id, 1);
                }
                break;
            }
        }
        Ok(())
    }
}
