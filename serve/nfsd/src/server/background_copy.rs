//! Copies that continue after their reply. One thread runs them in slices. Clients take turns, and the copies
//! of one client take turns; no thread that serves requests is occupied.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StateId};

use super::copy_queue::{Copies, CopyProgress};
use super::core::Core;
use super::runtime::Runtime;
use crate::compound::CopyJob;
use crate::compound::status::status;
use crate::state::{CopyRequest, Millis, SessionRequest, Step, Stop};

/// Bytes of a slice. A client that recalls the target waits for one slice.
const SLICE_BYTES: u64 = 4 << 20;
/// Lease times for which a copy waits while another client holds its file. A recalled delegation is returned
/// or revoked sooner.
const STALL_LEASES_MAX: u64 = 5;

/// The loop of the copy thread.
fn run_copies(copies: &Copies, core: &Weak<Core>) {
    loop {
        match (copies.next(), core.upgrade()) {
            (Ok(Some(copy)), Some(core)) => {
                core.copy_slice(copy);
                copies.slice_done();
            }
            (Ok(None), Some(_)) => {}
            _ => return copies.slice_done(),
        }
    }
}

impl Core {
    /// Starts a copy. `None` if the caller must copy before it replies.
    pub fn begin_copy(
        self: &Arc<Self>,
        client: ClientId,
        running: Option<&SessionRequest>,
        job: CopyJob,
    ) -> Step<Option<StateId>> {
        let wanted = CopyRequest {
            source: (job.source.file(), job.source_stateid),
            target: (job.target.file(), job.target_stateid),
            verifier: job.verifier,
        };
        let Some(stateid) = self.with(|state, now| state.copy_begin(now, client, running, &wanted))? else {
            return Ok(None);
        };
        self.copies.queue.lock().push(CopyProgress { client, stateid, job, done: 0, stalled: None });
        self.wake_copy_thread();
        Ok(Some(stateid))
    }

    /// Runs the copy thread, or one slice in a simulated server.
    fn wake_copy_thread(self: &Arc<Self>) {
        match self.runtime.get() {
            Some(Runtime::Threads(_)) => {
                let mut queue = self.copies.queue.lock();
                if !queue.thread && !queue.closed {
                    let (copies, core) = (self.copies.clone(), Arc::downgrade(self));
                    let thread = std::thread::Builder::new().name("ivers-copies".into());
                    match thread.spawn(move || run_copies(&copies, &core)) {
                        Ok(_) => queue.thread = true,
                        // The next tick tries again.
                        Err(error) => {
                            log::error!("cannot start the thread for copies: {error}; trying again")
                        }
                    }
                }
                drop(queue);
                self.copies.changed.notify_all();
            }
            Some(runtime @ Runtime::Simulated { .. }) => {
                // One slice now and one with each tick: the caller waits for it.
                let core = self.clone();
                runtime.run(move || {
                    let next = core.copies.queue.lock().pop();
                    if let Some(copy) = next {
                        core.copy_slice(copy);
                    }
                });
            }
            None => {}
        }
    }

    /// Puts waiting copies back into the queue.
    pub fn retry_stalled_copies(self: &Arc<Self>) {
        let mut queue = self.copies.queue.lock();
        let stalled = std::mem::take(&mut queue.stalled);
        stalled.into_iter().for_each(|copy| queue.push(copy));
        let any = !queue.turns.is_empty();
        drop(queue);
        if any {
            self.wake_copy_thread();
        }
    }

    fn copy_slice(self: &Arc<Self>, mut copy: CopyProgress) {
        let stateid = copy.stateid;
        let guards = self.with(|state, now| state.copy_slice(now, &stateid));
        let guards = match guards {
            Ok((read, write)) => (self.guard(read), self.guard(write)),
            Err(Stop::Fail(NfsStat::Delay | NfsStat::Locked) | Stop::Wait(_) | Stop::AskHolder(_)) => {
                return self.stall_copy(copy);
            }
            Err(Stop::Fail(status)) => {
                return self.with(|state, now| state.finish_copy(now, &stateid, status));
            }
            Err(Stop::Denied(_) | Stop::Replay(_)) => {
                return self.with(|state, now| state.finish_copy(now, &stateid, NfsStat::Serverfault));
            }
        };
        copy.stalled = None;
        let exported =
            self.service().is_some_and(|it| it.exports().export(copy.job.target.file().export).is_some());
        if !exported {
            drop(guards);
            return self.with(|state, now| state.finish_copy(now, &stateid, NfsStat::Stale));
        }
        let wanted = (copy.job.length - copy.done).min(SLICE_BYTES);
        let copied = catch_unwind(AssertUnwindSafe(|| copy.job.slice(copy.done, wanted)));
        drop(guards);
        let (bytes, end) = match copied {
            // The source was truncated.
            Ok(Ok(0)) => (0, Some(NfsStat::Ok)),
            // A short copy is no error: the next slice reports what stopped it.
            Ok(Ok(bytes)) => (bytes, (copy.done + bytes == copy.job.length).then_some(NfsStat::Ok)),
            Ok(Err(error)) => (0, Some(status(&error))),
            Err(_) => (0, Some(NfsStat::Serverfault)),
        };
        copy.done += bytes;
        self.with(|state, now| state.copy_progress(now, &stateid, bytes, end));
        if end.is_none() {
            let mut queue = self.copies.queue.lock();
            if !queue.closed {
                queue.push(copy);
            }
        }
    }

    fn stall_copy(self: &Arc<Self>, mut copy: CopyProgress) {
        let now = self.now();
        let since = *copy.stalled.get_or_insert(now);
        if now.since(since) > Millis(self.lease.0.saturating_mul(STALL_LEASES_MAX)) {
            return self.with(|state, now| state.finish_copy(now, &copy.stateid, NfsStat::Delay));
        }
        let mut queue = self.copies.queue.lock();
        if !queue.closed {
            queue.stalled.push(copy);
        }
    }
}
