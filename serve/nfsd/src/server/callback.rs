//! Calls to clients: CB_RECALL, CB_GETATTR, CB_NOTIFY_LOCK, CB_OFFLOAD.

use std::sync::Arc;
use std::time::Duration;

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

use super::core::Core;
use super::dial::system;
use super::outside::Crew;
use crate::compound::{News, Shown};
use crate::rpc::{self, Outcome, Procedure};
use crate::state::{Answer, Call, Channel, File, Identity, NoChannel, Ticket, Told};

/// So long a client has for his answer.
pub(super) const TIME: Duration = Duration::from_secs(5);
/// So many calls wait for a free slot (recalls and ends of copies, whose number is bounded, beside); beyond that a lock's waiter is not told, and a file's holder not asked.
const DEFERRED_MAX: usize = 4096;

impl Core {
    /// Ask something of a client. What comes of it is a continuation.
    pub(super) fn call(self: &Arc<Self>, client: ClientId, call: Call) {
        // Not by `with`: this is what carries effects out.
        let channel = match self.section(|state, _| state.channel(client, &call)).0 {
            Ok(channel) => channel,
            Err(NoChannel::Busy) => return self.defer(client, call),
            Err(NoChannel::Down) => return self.unheard(call),
        };
        let Some(op) = self.operation(client, &call) else {
            return self.later(move |core| core.heard(client, call, &channel, None));
        };
        let (program, credential, minor_version, ident, ops) = match &channel {
            Channel::Session { sequence, program, identity, minor, .. } => {
                let credential = match identity {
                    Identity::None => OpaqueAuth::NONE,
                    Identity::Sys(sys) => OpaqueAuth::sys(sys),
                };
                (*program, credential, *minor, 0, vec![CbOp::Sequence(sequence.clone()), op])
            }
            Channel::Dial { callback, ident } => (callback.program, system(), 0, *ident, vec![op]),
        };
        let procedure =
            Procedure { program, version: CALLBACK_VERSION, procedure: PROC_CB_COMPOUND, credential };
        let arguments = CbCompoundArgs { tag: Vec::new(), minor_version, ident, ops: List(ops) }.to_bytes();
        if let Some(Crew::Caller { peer, .. }) = self.crew.get() {
            let outcome = peer(&arguments).map(|results| Ok(rpc::Answer::of(results)));
            return self.later(move |core| core.heard(client, call, &channel, outcome));
        }
        let connection = match &channel {
            Channel::Session { conn, .. } => self.connection(*conn),
            Channel::Dial { callback, .. } => self.dialled(callback),
        };
        let Some(connection) = connection else {
            return self.later(move |core| core.heard(client, call, &channel, None));
        };
        let core = self.clone();
        self.callbacks.call(&connection, &procedure, &arguments, TIME, move |outcome| {
            core.heard(client, call, &channel, Some(outcome));
        });
    }

    /// Not now: whoever calls is carrying effects out.
    fn later(self: &Arc<Self>, job: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let core = self.clone();
        if let Some(crew) = self.crew.get() {
            crew.run(move || job(&core));
        }
    }

    fn operation(&self, client: ClientId, call: &Call) -> Option<CbOp> {
        Some(match call {
            Call::Recall { stateid, file, truncate } => CbOp::Recall(CbRecallArgs {
                stateid: *stateid,
                truncate: *truncate,
                file: self.handle(*file)?,
            }),
            Call::GetAttr { file, .. } => CbOp::GetAttr(CbGetAttrArgs {
                file: self.handle(*file)?,
                attrs: Bitmap::of([attr::CHANGE, attr::SIZE]),
            }),
            Call::Offload { stateid, file, info } => CbOp::Offload(CbOffloadArgs {
                file: self.handle(*file)?,
                stateid: *stateid,
                info: info.clone(),
            }),
            Call::NotifyLock { file, owner } => CbOp::NotifyLock(CbNotifyLockArgs {
                file: self.handle(*file)?,
                owner: Owner { clientid: client, owner: Opaque(owner.clone()) },
            }),
        })
    }

    fn defer(self: &Arc<Self>, client: ClientId, call: Call) {
        let mut deferred = self.deferred.lock();
        if deferred.len() < DEFERRED_MAX || matches!(call, Call::Recall { .. } | Call::Offload { .. }) {
            deferred.push((client, call));
            return;
        }
        drop(deferred);
        self.unheard(call);
    }

    /// Try those again that found no free slot.
    pub(super) fn call_deferred(self: &Arc<Self>) {
        let calls = std::mem::take(&mut *self.deferred.lock());
        for (client, call) in calls {
            self.call(client, call);
        }
    }

    /// A client could not be asked. A recall, or the end of a copy, comes again when he can be; who waits for a lock asks by himself.
    fn unheard(self: &Arc<Self>, call: Call) {
        if let Call::GetAttr { ticket, file, .. } = call {
            self.later(move |core| core.tell(ticket, file, None));
        }
    }

    /// A call has ended, in whatever way.
    fn heard(self: &Arc<Self>, client: ClientId, call: Call, channel: &Channel, outcome: Option<Outcome>) {
        let answered = matches!(&outcome, Some(Ok(_)));
        let res = outcome.and_then(Result::ok).map(|answer| CbCompoundRes::from_bytes(answer.results()));
        self.with(|state, _| state.channel_end(client, &call, channel, answered));
        let last = match res {
            Some(Ok(res)) => res.results.0.into_iter().next_back(),
            Some(Err(error)) => {
                log::warn!("the answer to a callback makes no sense: {error}");
                None
            }
            None => None,
        };
        match (&call, last) {
            (Call::GetAttr { ticket, file, .. }, last) => self.tell(*ticket, *file, attributes(last)),
            (Call::Recall { .. } | Call::Offload { .. }, Some(last)) if last.status() == NfsStat::Delay => {
                self.defer(client, call);
            }
            // Over another connection, if there is one.
            (Call::Recall { .. } | Call::Offload { .. }, None) if !answered => self.defer(client, call),
            (Call::Offload { stateid, .. }, _) => self.with(|state, _| state.copy_told(stateid)),
            (Call::Recall { .. } | Call::NotifyLock { .. }, _) => {}
        }
    }

    /// What the holder of a write delegation has said goes to all who have asked.
    fn tell(self: &Arc<Self>, ticket: Ticket, file: File, answer: Option<Answer>) {
        let news = match self.with(|state, now| state.told(now, ticket, answer)) {
            Ok(Told::Untouched(permit)) => News::Told(None, Arc::new(self.hold(permit))),
            Ok(Told::Written { size, permit }) => {
                let held = Arc::new(self.hold(permit));
                match self.show(file) {
                    Some(change) => News::Told(Some(Shown { change, size }), held),
                    None => News::Late,
                }
            }
            Err(_) => News::Late,
        };
        self.resume(ticket, &news);
    }

    /// He has written: the times say so, and the change attribute, in one step.
    fn show(&self, file: File) -> Option<u64> {
        let (vfs, inode) = self.file(file)?;
        vfs.force_change(&inode, Touch::Data)
    }
}

fn attributes(last: Option<CbResult>) -> Option<Answer> {
    let Some(CbResult::GetAttr(Ok(fattr))) = last else { return None };
    let attrs = Attrs::decode(&fattr).ok()?;
    Some(Answer { change: attrs.change?, size: attrs.size? })
}
