//! Callbacks to clients: CB_RECALL, CB_GETATTR, CB_NOTIFY_LOCK, CB_OFFLOAD.

use std::sync::Arc;

use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::callback::{
    CALLBACK_VERSION, CbCompoundArgs, CbCompoundRes, CbGetAttrArgs, CbNotifyLockArgs, CbOffloadArgs, CbOp,
    CbRecallArgs, CbResult, PROC_CB_COMPOUND,
};
use ivers_nfs4::rpc::OpaqueAuth;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Bitmap, ClientId, Opaque, Owner};
use ivers_nfs4::xdr::{List, Xdr};
use ivers_vfs::Touch;

use super::core::{CALLBACK_TIMEOUT, Core};
use super::runtime::Runtime;
use super::v40_callback::system;
use crate::compound::{ReportedAttrs, WakeReason};
use crate::rpc::{self, Outcome, Procedure};
use crate::state::{
    Callback, CallbackCred, CallbackPath, FileId, GetattrOutcome, HolderAttrs, NoCallbackPath, Ticket,
};

/// The number of CB_GETATTR and CB_NOTIFY_LOCK calls that may wait for a free slot; further ones fail.
/// Recalls and ends of copies always wait, as state limits their number.
const DEFERRED_MAX: usize = 4096;

impl Core {
    /// Sends a callback. Its answer is handled later on another thread.
    pub(super) fn call(self: &Arc<Self>, client: ClientId, call: Callback) {
        // Not `with`: the caller runs effects.
        let channel = match self.section(|state, _| state.begin_callback(client, &call)).0 {
            Ok(channel) => channel,
            Err(NoCallbackPath::Busy) => return self.defer(client, call),
            Err(NoCallbackPath::Down) => return self.callback_failed(call),
        };
        let Some(op) = self.operation(client, &call) else {
            return self.spawn(move |core| core.callback_ended(client, call, &channel, None));
        };
        let (program, credential, minor_version, ident, ops) = match &channel {
            CallbackPath::Session { sequence, program, identity, minor, .. } => {
                let credential = match identity {
                    CallbackCred::None => OpaqueAuth::NONE,
                    CallbackCred::Sys(sys) => OpaqueAuth::sys(sys),
                };
                (*program, credential, *minor, 0, vec![CbOp::Sequence(sequence.clone()), op])
            }
            CallbackPath::V40 { callback, ident } => (callback.program, system(), 0, *ident, vec![op]),
        };
        let procedure =
            Procedure { program, version: CALLBACK_VERSION, procedure: PROC_CB_COMPOUND, credential };
        let arguments = CbCompoundArgs { tag: Vec::new(), minor_version, ident, ops: List(ops) }.to_bytes();
        if let Some(Runtime::Simulated { peer, .. }) = self.runtime.get() {
            let outcome = peer(&arguments).map(|results| Ok(rpc::Answer::of(results)));
            return self.spawn(move |core| core.callback_ended(client, call, &channel, outcome));
        }
        let connection = match &channel {
            CallbackPath::Session { conn, .. } => self.connection(*conn),
            CallbackPath::V40 { callback, .. } => self.v40_connection(callback),
        };
        let Some(connection) = connection else {
            return self.spawn(move |core| core.callback_ended(client, call, &channel, None));
        };
        let core = self.clone();
        self.callbacks.call(&connection, &procedure, &arguments, CALLBACK_TIMEOUT, move |outcome| {
            core.callback_ended(client, call, &channel, Some(outcome));
        });
    }

    /// Runs a job after the effects that the caller runs.
    fn spawn(self: &Arc<Self>, job: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let core = self.clone();
        if let Some(runtime) = self.runtime.get() {
            runtime.run(move || job(&core));
        }
    }

    fn operation(&self, client: ClientId, call: &Callback) -> Option<CbOp> {
        Some(match call {
            Callback::Recall { stateid, file, truncate } => CbOp::Recall(CbRecallArgs {
                stateid: *stateid,
                truncate: *truncate,
                file: self.handle(*file)?,
            }),
            Callback::GetAttr { file, .. } => CbOp::GetAttr(CbGetAttrArgs {
                file: self.handle(*file)?,
                attrs: Bitmap::of([attr::CHANGE, attr::SIZE]),
            }),
            Callback::Offload { stateid, file, info } => CbOp::Offload(CbOffloadArgs {
                file: self.handle(*file)?,
                stateid: *stateid,
                info: info.clone(),
            }),
            Callback::NotifyLock { file, owner } => CbOp::NotifyLock(CbNotifyLockArgs {
                file: self.handle(*file)?,
                owner: Owner { clientid: client, owner: Opaque(owner.clone()) },
            }),
        })
    }

    fn defer(self: &Arc<Self>, client: ClientId, call: Callback) {
        let mut deferred = self.deferred.lock();
        if deferred.len() < DEFERRED_MAX || matches!(call, Callback::Recall { .. } | Callback::Offload { .. })
        {
            deferred.push((client, call));
            return;
        }
        drop(deferred);
        self.callback_failed(call);
    }

    /// Retries the callbacks that found no free slot.
    pub(super) fn call_deferred(self: &Arc<Self>) {
        let calls = std::mem::take(&mut *self.deferred.lock());
        for (client, call) in calls {
            self.call(client, call);
        }
    }

    /// Handles a callback that cannot be sent. A recall and the end of a copy are repeated later, and a
    /// client that waits for a lock polls for it.
    fn callback_failed(self: &Arc<Self>, call: Callback) {
        if let Callback::GetAttr { ticket, file, .. } = call {
            self.spawn(move |core| core.holder_answered(ticket, file, None));
        }
    }

    /// Handles the end of a callback. `outcome` is none if it was not sent.
    fn callback_ended(
        self: &Arc<Self>,
        client: ClientId,
        call: Callback,
        channel: &CallbackPath,
        outcome: Option<Outcome>,
    ) {
        let answered = matches!(&outcome, Some(Ok(_)));
        let res = outcome.and_then(Result::ok).map(|answer| CbCompoundRes::from_bytes(answer.results()));
        self.with(|state, _| state.end_callback(client, &call, channel, answered));
        let last = match res {
            Some(Ok(res)) => res.results.0.into_iter().next_back(),
            Some(Err(error)) => {
                log::warn!("cannot decode the reply to a callback: {error}");
                None
            }
            None => None,
        };
        match (&call, last) {
            (Callback::GetAttr { ticket, file, .. }, last) => {
                self.holder_answered(*ticket, *file, attributes(last))
            }
            (Callback::Recall { .. } | Callback::Offload { .. }, Some(last))
                if last.status() == NfsStat::Delay =>
            {
                self.defer(client, call);
            }
            // Repeat it over another connection, if there is one.
            (Callback::Recall { .. } | Callback::Offload { .. }, None) if !answered => {
                self.defer(client, call)
            }
            (Callback::Offload { stateid, .. }, _) => self.with(|state, _| state.copy_acknowledged(stateid)),
            (Callback::Recall { .. } | Callback::NotifyLock { .. }, _) => {}
        }
    }

    /// Passes the answer of a delegation's holder to all requests that wait for it.
    fn holder_answered(self: &Arc<Self>, ticket: Ticket, file: FileId, answer: Option<HolderAttrs>) {
        let reason = match self.with(|state, now| state.getattr_reply(now, ticket, answer)) {
            Ok(GetattrOutcome::Unmodified(permit)) => {
                WakeReason::HolderAnswered(None, Arc::new(self.guard(permit)))
            }
            Ok(GetattrOutcome::Modified { size, permit }) => {
                let held = Arc::new(self.guard(permit));
                if answer.is_some_and(|answer| self.has_all_of(file, answer)) {
                    WakeReason::HolderAnswered(None, held)
                } else if let Some(change) = self.bump_for_holder(file) {
                    WakeReason::HolderAnswered(Some(ReportedAttrs { change, size }), held)
                } else {
                    WakeReason::TimedOut
                }
            }
            Err(_) => WakeReason::TimedOut,
        };
        self.resume(ticket, &reason);
    }

    /// Returns whether the holder has sent all of its changes: it reports what this server has. The times are
    /// then those that the holder has set.
    fn has_all_of(&self, file: FileId, answer: HolderAttrs) -> bool {
        let Some((vfs, inode)) = self.file(file) else { return false };
        vfs.change(&inode) == Some(answer.change) && inode.size() == answer.size
    }

    /// Bumps the change attribute and updates the times in one step, because the holder has changed the file.
    fn bump_for_holder(&self, file: FileId) -> Option<u64> {
        let (vfs, inode) = self.file(file)?;
        vfs.force_change(&inode, Touch::Data)
    }
}

fn attributes(last: Option<CbResult>) -> Option<HolderAttrs> {
    let Some(CbResult::GetAttr(Ok(fattr))) = last else { return None };
    let attrs = Attrs::decode(&fattr).ok()?;
    Some(HolderAttrs { change: attrs.change?, size: attrs.size? })
}
