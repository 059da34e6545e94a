//! A change: one transaction, and the inodes in it.
//!
//! The transaction works on copies of blocks, and the change on copies of inodes. At its end it publishes
//! both under the locks of the inodes, so that a reader never sees one without the other. Then the change
//! counters move, and then the inodes are logged: an observer of the new value finds the new contents. The
//! locks are released after that, so the newest version of an inode is the last one that is logged.

use super::session::Session;
use super::vnode::{XfsInode, private_of};
use super::volume::Xfs;
use crate::inode::Dinode;
use crate::layout::superblock::Superblock;
use crate::write::space::journal_error;
use crate::write::tx::{LoggedInodes, Publish, Tx};
use ivers_journal::{Changes, Tid};
use ivers_vfs::sync::{RankedMutexGuard, RankedWriteGuard};
use ivers_vfs::{FileType, Inode, Logged, Result, Timestamp, Touch};
use smallvec::SmallVec;

/// One change of the filesystem. Dropping it forgets it.
pub(crate) struct Change<'x> {
    session: &'x Session,
    sb: &'x Superblock,
    // Before the turn: ended first.
    pub tx: Tx<'x>,
    _turn: RankedMutexGuard<'x, ()>,
}

/// An inode that a change edits.
pub(crate) struct Edited<'i> {
    inode: &'i Inode,
    /// The inode as it will be. Link count, blocks and, unless it is a regular file, the size go from here to
    /// the VFS; all other attributes come from there.
    pub core: Dinode,
    touch: Option<Touch>,
    logs: bool,
    /// The object has the newest attributes of the VFS.
    has_attributes: bool,
}

impl<'i> Edited<'i> {
    /// A copy of an inode, to edit. Background work: no change for users.
    pub(crate) fn new(inode: &'i Inode) -> Self {
        let core = private_of(inode).core.read().clone();
        Self { inode, core, touch: None, logs: false, has_attributes: true }
    }

    /// Users see a change. It is logged if the inode differs, a time moves, or a client asked for its value.
    pub(crate) fn touched(mut self, touch: Touch) -> Self {
        self.touch = Some(touch);
        self
    }

    /// It is logged in any case.
    pub(crate) fn logged(mut self) -> Self {
        self.logs = true;
        self
    }

    /// Only the driver's part changes: another object of the inode, which the VFS has, may have newer
    /// attributes and a newer counter.
    pub(crate) fn without_attributes(mut self) -> Self {
        self.has_attributes = false;
        self
    }

    /// The time that operations give it. The VFS decides what is stored.
    pub(crate) fn time(&self) -> Timestamp {
        self.inode.attr().ctime
    }

    /// Makes the inode visible. Returns whether it is logged.
    fn publish(self, guard: &mut Dinode, sb: &Superblock) -> bool {
        let Self { inode, mut core, touch, logs, has_attributes } = self;
        // `log_attributes` may have logged newer attributes. A change of times alone need not be logged here.
        core.keep_attributes_of(guard);
        let differs = core != *guard;
        *guard = core;
        inode.with_attr(|attr| {
            attr.nlink = guard.nlink();
            attr.blocks_512 = guard.blocks_512(sb);
            if attr.kind != FileType::Regular {
                attr.size = guard.size();
            }
        });
        let anyway = differs || logs;
        let must_log = match touch {
            Some(touch) => {
                let logged = if anyway { Logged::Anyway } else { Logged::IfNeeded };
                inode.changed(touch, logged).must_log()
            }
            None => {
                if differs {
                    inode.logged_in_background();
                }
                anyway
            }
        };
        if must_log && has_attributes {
            guard.apply(&inode.attr());
            guard.set_change_count(inode.counter.peek());
        }
        must_log
    }
}

/// Few changes have more inodes.
const USUAL_INODES: usize = 4;

type Privates<'i> = SmallVec<[&'i XfsInode; USUAL_INODES]>;

/// Publishes edited inodes with their transaction.
struct Publisher<'p, 'i> {
    sb: &'p Superblock,
    changes: &'p Changes,
    /// The inodes of `edited`, in the order of their locks.
    privates: Privates<'i>,
    edited: Vec<Edited<'i>>,
    guards: SmallVec<[RankedWriteGuard<'i, Dinode>; USUAL_INODES]>,
}

impl Publish for Publisher<'_, '_> {
    fn begin(&mut self) {
        self.guards.extend(self.privates.iter().map(|private| private.core.write()));
    }

    fn end(&mut self, tid: Tid) -> LoggedInodes {
        let mut inodes = LoggedInodes::new();
        for ((edited, private), guard) in self.edited.drain(..).zip(&self.privates).zip(&mut self.guards) {
            if edited.publish(guard, self.sb) {
                inodes.extend(private.image(guard, self.sb));
            }
        }
        self.changes.transaction_ends(tid, self.privates.iter().map(|private| &private.last_change));
        inodes
    }

    fn release(&mut self) {
        self.guards.clear();
    }

    fn decides_about(&self, ino: u64) -> bool {
        self.edited.iter().any(|edited| edited.inode.ino.0 == ino)
    }
}

impl Xfs {
    /// Logs the attributes that the VFS decides. It does not wait for a change: nothing else of the inode
    /// differs, and a change that publishes the inode later keeps them.
    pub(crate) fn log_attributes(&self, inode: &Inode) -> Result<()> {
        let (session, private) = (self.session()?, private_of(inode));
        let handle = session.space.begin_inode()?;
        let mut core = private.core.write();
        core.apply(&inode.attr());
        core.set_change_count(inode.counter.peek());
        let unfit = || self.corrupt("its forks do not fit", core.whose());
        let image = private.image(&core, &self.sb).ok_or_else(unfit)?;
        handle.log_object(&image).map_err(journal_error)?;
        session.commits.changes().transaction_ends(handle.tid(), [&private.last_change]);
        Ok(())
    }

    /// Begins a change. It waits for the one before.
    pub(crate) fn change(&self) -> Result<Change<'_>> {
        let session = self.session()?;
        let turn = session.turn.lock();
        let mut tx = session.space.begin(session.credits)?;
        tx.leave_inodes_to_publisher();
        Ok(Change { session, sb: &self.sb, tx, _turn: turn })
    }
}

impl Change<'_> {
    pub(super) fn session(&self) -> &Session {
        self.session
    }

    /// Makes the change visible. On error nothing has changed, unless the journal is aborted.
    pub(crate) fn finish(self, mut edited: Vec<Edited<'_>>) -> Result<()> {
        if let Some(bad) = edited.iter().find(|edited| !edited.core.fits(self.sb)) {
            return Err(self.tx.space().corrupt("its forks do not fit", bad.core.whose()));
        }
        // The order of their locks.
        edited.sort_by_key(|edited| edited.inode.ino);
        let privates = edited.iter().map(|edited| &**private_of(edited.inode)).collect();
        let changes = self.session.commits.changes();
        let guards = SmallVec::new();
        self.tx.finish_with(&mut Publisher { sb: self.sb, changes, privates, edited, guards })
    }
}
