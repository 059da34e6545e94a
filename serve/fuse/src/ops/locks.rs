//! fcntl(2) and flock(2) locks of a filesystem whose locks live elsewhere. Otherwise the kernel keeps them.

use super::Ops;
use super::reply::Reply;
use crate::connection::{Connection, Handle, OrErrno};
use crate::errno::errno;
use crate::lock_waits::Wait;
use crate::nodes::Node;
use fuser::*;
use ivers_vfs::{Cred, Error, FileType, LockRequest, NameError, OpenMode};
use std::ops::Range;
use std::sync::Arc;

/// Types of locks: `F_RDLCK`, `F_WRLCK`, `F_UNLCK`.
const SHARED: i32 = 0;
const EXCLUSIVE: i32 = 1;
const UNLOCKED: i32 = 2;

/// All bytes of a file.
const WHOLE: Range<u64> = 0..u64::MAX;

/// Returns the bytes of a lock. Its last byte is the largest offset if it reaches to the end of the file.
fn range(first: u64, last: u64) -> Range<u64> {
    let end = if last >= i64::MAX as u64 { u64::MAX } else { last + 1 };
    first..end
}

fn owner(owner: LockOwner) -> ivers_vfs::LockOwner {
    ivers_vfs::LockOwner(owner.0)
}

/// Returns whether a file that is open like this can get such a lock: a server asks for the same.
fn may_lock(handle: Handle, exclusive: bool) -> bool {
    let writes = OpenMode::WRITE | OpenMode::APPEND;
    handle.mode.intersects(if exclusive { writes } else { OpenMode::READ | OpenMode::EXECUTE })
}

impl Ops {
    fn lockable(&self, ino: INodeNo) -> Reply<Arc<Node>> {
        let node = self.0.node(ino)?;
        if self.0.vfs.has_locks() && node.inode.kind == FileType::Regular {
            Ok(node)
        } else {
            Err(Errno::ENOSYS)
        }
    }

    /// Finds a lock in the way: its range, type and process.
    pub(super) fn test_lock(
        &self,
        request: &Request,
        ino: INodeNo,
        of: LockOwner,
        (first, last): (u64, u64),
        kind: i32,
    ) -> Reply<(u64, u64, i32, u32)> {
        self.0.heard(request);
        let node = self.lockable(ino)?;
        let (range, exclusive) = (range(first, last), kind == EXCLUSIVE);
        let lock = LockRequest { owner: owner(of), range, exclusive, waits: false };
        let found = self.0.vfs.test_lock(&self.0.opened_by(request), &node.inode, &lock).or_errno()?;
        Ok(found.map_or((first, last, UNLOCKED, 0), |found| {
            let last = (found.range.end - 1).min(i64::MAX as u64);
            // Its process may be on another machine.
            (found.range.start, last, if found.exclusive { EXCLUSIVE } else { SHARED }, 0)
        }))
    }

    /// Gets or releases a lock.
    pub(super) fn set_lock(
        &self,
        request: &Request,
        (ino, handle): (INodeNo, FileHandle),
        of: LockOwner,
        (first, last): (u64, u64),
        (kind, waits): (i32, bool),
        reply: ReplyEmpty,
    ) {
        let s = &self.0;
        s.heard(request);
        let node = match self.lockable(ino) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let (cred, owner, range) = (s.opened_by(request), owner(of), range(first, last));
        if kind == UNLOCKED {
            return s.unlock_range(cred, node, owner, range, reply);
        }
        let exclusive = kind == EXCLUSIVE;
        if !may_lock(Handle::unpack(handle), exclusive) {
            return reply.error(Errno::EBADF);
        }
        let lock = LockRequest { owner, range, exclusive, waits };
        match s.vfs.lock(&cred, &node.inode, &lock) {
            Ok(()) => s.locked(node, reply),
            Err(Error::Name(NameError::Busy)) if waits => {
                s.lock_waits.add(Wait::new(node, cred, lock, request.pid(), reply));
            }
            Err(Error::Name(NameError::Busy)) => reply.error(Errno::EAGAIN),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Releases all locks of an owner on a file: fcntl(2) locks when its process closes a descriptor,
    /// flock(2) locks when the open file is closed.
    pub(super) fn unlock_all(&self, ino: INodeNo, of: LockOwner) -> Reply<()> {
        let s = &self.0;
        if !s.vfs.has_locks() {
            return Ok(());
        }
        let node = s.node(ino)?;
        let unlocked = s.vfs.unlock(&Cred::system(), &node.inode, owner(of), WHOLE);
        s.lock_waits.unlocked(node.id);
        unlocked.or_errno()
    }
}

impl Connection {
    /// A program has a lock: it reads what the last owner wrote.
    pub(crate) fn locked(&self, node: Arc<Node>, reply: ReplyEmpty) {
        let drop_pages = self.drops_pages(&node);
        self.flusher.later(move || {
            drop_pages();
            reply.ok();
        });
    }

    fn unlock_range(
        self: &Arc<Self>,
        cred: Cred,
        node: Arc<Node>,
        owner: ivers_vfs::LockOwner,
        range: Range<u64>,
        reply: ReplyEmpty,
    ) {
        let (connection, file) = (self.clone(), node.clone());
        let unlock = move || {
            let unlocked = connection.vfs.unlock(&cred, &file.inode, owner, range);
            connection.lock_waits.unlocked(file.id);
            match unlocked {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        };
        // A mapping may have changed something that the kernel has not handed over.
        if !node.is_held_back() {
            return unlock();
        }
        let drop_pages = self.drops_pages(&node);
        self.flusher.later(move || {
            drop_pages();
            unlock();
        });
    }
}
