//! Sending what closes have deferred under write delegations.
//!
//! A close leaves a file to a thread. This thread sends the bytes and attributes of several files in one
//! request, and then closes these files on the server. `docs/nfs.md` has the rules (D9 to D12).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use ivers_nfs4::attr;
use ivers_nfs4::ops::Op;
use ivers_nfs4::types::{Bitmap, StateId};
use ivers_vfs::sync::thread::Builder;
use ivers_vfs::{CacheHandle, Cred, Error, Inode, Result};

use crate::attributes;
use crate::background;
use crate::counters::Counters;
use crate::data::LOSSES_MAX;
use crate::deferred::Deferred;
use crate::driver::Nfs;
use crate::file_open::FileOpen;
use crate::nodes::Node;
use crate::reply::take;
use crate::settings::setting;
use crate::together::Group;
use crate::unsent::{BYTES_MAX, DELAY, FILE_BYTES_MAX, GROUP, SPACE_SHARE};

impl Nfs {
    /// Starts the thread.
    pub(crate) fn start_sender(self: &Arc<Self>) -> Result<()> {
        let (nfs, sender) = (Arc::downgrade(self), self.sender.clone());
        let run = move || {
            background::enter();
            while let Some(files) = sender.next() {
                let Some(nfs) = nfs.upgrade() else { return };
                nfs.send_files(&files);
                drop(nfs);
                if files.iter().any(|file| file.owes()) {
                    sender.rest();
                }
            }
        };
        Builder::new().name("ivers-nfs-sender".into()).spawn(run).map(drop).map_err(Error::io)
    }

    /// Returns whether a close may leave the cached writes of a file to the sender.
    pub(crate) fn may_defer_close(&self, node: &Node, inode: &Inode) -> bool {
        let size = inode.size();
        let delegation = self.covered_by(node);
        let permits = delegation.and_then(|it| it.write).is_some_and(|most| size <= most);
        permits
            && size <= FILE_BYTES_MAX
            // The free space of other filesystems is not known.
            && node.place().is_some_and(|(fsid, _)| Some(fsid) == self.facts.fsid())
            && node.open.may_wait()
            && self.sender.has_room(size)
    }

    /// Leaves a closed file to the sender. Returns whether there is something to do: otherwise the caller
    /// closes the file on the server.
    pub(crate) fn leave_to_sender(&self, node: &Node, inode: &Inode) -> bool {
        let is_ours = node.open.owes() || node.open.delegation().is_some_and(|it| it.write.is_some());
        if is_ours && !node.open.is_used() && node.open.queue() {
            Counters::count(&self.client.counters().deferred_closes);
            self.sender.push(&node.open, inode.size().min(FILE_BYTES_MAX));
        }
        is_ours
    }

    /// Sends what is cached of a file.
    fn send_file(&self, file: &Arc<FileOpen>) -> Result<()> {
        file.begin_sending();
        let (Some(node), Some(cache)) = (self.nodes.find(&file.handle), self.cache()) else { return Ok(()) };
        cache.send(node.ino)?;
        self.send_deferred(&node)
    }

    fn try_to_send(&self, file: &Arc<FileOpen>) {
        match self.send_file(file) {
            Ok(()) => {}
            // Nothing is lost: it is tried again.
            Err(error @ Error::Server(_)) => {
                log::info!("{}: cached writes: {error}", self.client.name());
                file.not_sent();
                if !self.client.is_stopped() && file.queue() {
                    self.sender.push(file, 0);
                }
            }
            Err(error) => log::error!("{}: cached writes: {error}", self.client.name()),
        }
    }

    /// Sends what is cached of these files together, and closes them.
    fn send_files(&self, files: &[Arc<FileOpen>]) {
        let group = Group::new(&self.client, files.len());
        let has_caller = background::has_caller();
        std::thread::scope(|threads| {
            for file in files {
                let group = &group;
                let send = move || {
                    if !has_caller {
                        background::enter();
                    }
                    let _entered = group.enter();
                    self.try_to_send(file);
                };
                if let Err(error) = std::thread::Builder::new().spawn_scoped(threads, send) {
                    log::warn!("{}: cannot start a thread: {error}", self.client.name());
                    drop(group.enter());
                    self.try_to_send(file);
                }
            }
        });
        self.opens.close_many(files);
        self.opens.return_unused(files);
        self.ask_for_space();
        self.sender.sent(files.len());
    }

    /// Asks how much space is left, when that decides how much may wait.
    fn ask_for_space(&self) {
        if self.sender.space.load(Relaxed) / SPACE_SHARE > 2 * BYTES_MAX {
            self.sender.space.fetch_sub(GROUP as u64 * FILE_BYTES_MAX, Relaxed);
            return;
        }
        let name = self.client.name();
        let ops = [Op::PutFh(self.facts_at.clone()), Op::GetAttr(Bitmap::of([attr::SPACE_AVAIL]))];
        let asked = self.client.call(&Cred::system(), &ops).and_then(|outcome| {
            let (mut results, _) = outcome.ok(name)?;
            results.skip();
            attributes::decode(&take!(results, GetAttr)?, name)
        });
        self.sender.space.store(asked.ok().and_then(|attrs| attrs.space_avail).unwrap_or(0), Relaxed);
    }

    /// Sends everything that waits now. What other programs close meanwhile is not waited for.
    pub(crate) fn send_everything(&self) {
        let until = Instant::now();
        loop {
            let files = {
                let mut queue = self.sender.queue.lock();
                while queue.sending > 0 && !self.client.is_stopped() {
                    queue.wait_for(&self.sender.changed, DELAY);
                }
                if self.client.is_stopped() {
                    return;
                }
                self.sender.take_until(&mut queue, until)
            };
            if files.is_empty() {
                return;
            }
            self.send_files(&files);
            // Files that cannot be sent come back. They stay cached.
            if files.iter().any(|file| file.owes()) {
                return;
            }
        }
    }

    /// Ends the thread.
    pub(crate) fn stop_sender(&self, until: Instant) {
        self.sender.stop();
        self.sender.wait_for_end(until);
    }

    /// Sends what is cached of a file whose delegation is recalled (D9).
    pub(crate) fn send_recalled(&self, node: &Node, cache: &CacheHandle) -> Result<()> {
        for _ in 0..LOSSES_MAX {
            cache.write_back(node.ino)?;
            self.send_deferred(node)?;
            if node.open.deferred().is_none() {
                return Ok(());
            }
        }
        log::warn!("{}: times may move: the server loses what was written before them", self.place(node));
        node.open.deferred().map_or(Ok(()), |deferred| self.send_these(node, &deferred))
    }

    /// Sends the deferred attributes of a file. What the server refuses is dropped. Times stay deferred if
    /// the server has lost bytes that were written before: they are cached again, and must be sent first.
    pub(crate) fn send_deferred(&self, node: &Node) -> Result<()> {
        match node.open.deferred() {
            Some(deferred) if !deferred.sets_times() || self.commit_in_manner(node)? => {
                self.send_these(node, &deferred)
            }
            _ => Ok(()),
        }
    }

    fn send_these(&self, node: &Node, deferred: &Deferred) -> Result<()> {
        let changing = self.sending(node);
        let ops = setting(node, deferred.op(StateId::ANONYMOUS));
        let outcome = self.client.call_in_manner(&deferred.caller, ops)?;
        match outcome.up_to(2, &self.place(node)) {
            Ok((mut results, sent)) => {
                (0..2).for_each(|_| results.skip());
                node.open.no_longer_deferred(deferred);
                changing.learn_or_expire(&mut results, sent)
            }
            Err(error @ Error::Server(_)) => Err(error),
            Err(error) => {
                node.open.no_longer_deferred(deferred);
                node.expire(self.client.requests() + 1);
                Err(error)
            }
        }
    }

    /// Sends a deferred mode, before the server is asked what it permits.
    pub(crate) fn send_mode(&self, node: &Node) -> Result<()> {
        let Some(mode) = node.open.deferred_mode() else { return Ok(()) };
        let changing = self.sending(node);
        let ops = setting(node, mode.op(StateId::ANONYMOUS));
        match self.client.call(&mode.caller, &ops)?.up_to(2, &self.place(node)) {
            Ok((mut results, sent)) => {
                (0..2).for_each(|_| results.skip());
                node.open.mode_is_sent(&mode);
                changing.learn_or_expire(&mut results, sent)
            }
            Err(error @ Error::Server(_)) => Err(error),
            // It must not refuse every open of the file from now on.
            Err(error) => {
                log::error!("{}: a deferred mode: {error}", self.place(node));
                node.open.mode_is_sent(&mode);
                node.expire(self.client.requests() + 1);
                Ok(())
            }
        }
    }
}
