//! Operations on clients, sessions, opens, locks and delegations.

use std::sync::Arc;

use ivers_nfs4::compound::CompoundRes;
use ivers_nfs4::ops::v40::{LockArgs, LockTestArgs, Locked, Locker, UnlockArgs};
use ivers_nfs4::ops::v41::{SequenceArgs, exchgid};
use ivers_nfs4::ops::{Op, OpResult, SetClientIdRes, number};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{ClientId, StateId};
use ivers_nfs4::xdr::{Encoder, List, Xdr};

use super::core::Core;
use super::event_log;
use crate::compound::{Clients, Context, CopyJob, Object, Origin, PermitGuard};
use crate::executor::{StateOps, StateReply};
use crate::net::budget::ClientKey;
use crate::rpc::Credential;
use crate::state::{
    self, Access, CachedReply, Caller, ClientHost, FileId, LockRequest, OwnerRequest, Principal,
    RequestHeader, SeqidOwner, SequenceOutcome, SessionRequest, Step, Stop,
};

/// Attempts of an operation whose obstacle is removed each time, before NFS4ERR_DELAY.
const ATTEMPTS: usize = 8;

/// Answers questions of operations on files, and performs operations on clients' state.
pub(super) struct StateFrontEnd(pub Arc<Core>);

/// The principal: the user of the credential, and the certificate of TLS.
pub(super) fn principal(origin: &Origin) -> Principal {
    let user = match &origin.credential {
        Credential::None => None,
        Credential::Sys(sys) => Some(sys.uid),
    };
    Principal::of(user, origin.tls.as_ref().and_then(|tls| tls.certificate.as_deref()))
}

/// The network of a client, which shares limits of state with others.
fn client_host(context: &Context) -> ClientHost {
    ClientHost(ClientKey::from(context.origin.address).address())
}

/// The client of the session, or the named one in NFSv4.0.
pub(super) fn client(context: &Context, named: ClientId) -> Step<ClientId> {
    match (context.caller, context.minor) {
        (Caller::Client(client), _) => Ok(client),
        (Caller::V40, 0) => Ok(named),
        (Caller::V40, _) => Err(Stop::Fail(NfsStat::OpNotInSession)),
    }
}

/// The current object if it is a regular file.
fn regular(context: &Context) -> Res<&Object> {
    context.object(NfsStat::Isdir)?.regular(context.minor)
}

/// A running request of an owner, which ends even after a panic.
struct OwnerRequestGuard<'a> {
    core: &'a Arc<Core>,
    request: Option<OwnerRequest>,
}

impl Drop for OwnerRequestGuard<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            let reply = CachedReply { bytes: Vec::new(), file: None };
            // The thread has panicked: leave the sequence number unchanged.
            self.core.with(|state, now| state.end_owner_request(now, request, NfsStat::Resource, reply));
        }
    }
}

impl StateFrontEnd {
    /// Performs an operation with an owner's sequence number (NFSv4.0), or without one.
    pub(super) fn with_owner_seqid(
        &self,
        context: &mut Context,
        op: u32,
        of: &SeqidOwner<'_>,
        seqid: u32,
        work: &mut dyn FnMut(&mut Context, Option<&OwnerRequest>) -> Step<OpResult>,
    ) -> Step<OpResult> {
        if context.minor > 0 {
            return work(context, None);
        }
        let request = self.0.with(|state, now| state.begin_owner_request(now, of, seqid))?;
        let mut taken = OwnerRequestGuard { core: &self.0, request: Some(request) };
        let mut stop = Stop::Fail(NfsStat::Delay);
        for _ in 0..ATTEMPTS {
            match work(context, taken.request.as_ref()) {
                Ok(result) => return Ok(self.end_owner_request(context, &mut taken, result)),
                Err(why) => {
                    if let Err(why) = self.0.retry_now(why) {
                        stop = why;
                        break;
                    }
                }
            }
        }
        let result = match stop {
            Stop::Denied(lock) => OpResult::Lock(Locked::Denied(*lock)),
            Stop::Fail(status) => OpResult::failure(op, status),
            stop => return Err(stop),
        };
        Ok(self.end_owner_request(context, &mut taken, result))
    }

    fn end_owner_request(
        &self,
        context: &Context,
        taken: &mut OwnerRequestGuard<'_>,
        result: OpResult,
    ) -> OpResult {
        let mut bytes = Encoder::default();
        result.put(&mut bytes);
        let file = context.current_fh().and_then(|fh| fh.object(NfsStat::Isdir)).ok().map(Object::file);
        let reply = CachedReply { bytes: bytes.into_bytes(), file };
        if let Some(request) = taken.request.take() {
            self.0.with(|state, now| state.end_owner_request(now, request, result.status(), reply));
        }
        result
    }

    fn sequence(&self, context: &mut Context, args: &SequenceArgs) -> Step<StateReply> {
        let request = RequestHeader {
            principal: principal(&context.origin),
            digest: context.digest,
            bytes: u32::try_from(context.request_bytes).unwrap_or(u32::MAX),
            operations: context.op_count,
        };
        let conn = context.origin.conn;
        let ok = match self.0.with(|state, now| state.sequence(now, conn, &request, args))? {
            SequenceOutcome::Replay(reply) => return Ok(StateReply::Replay(reply)),
            SequenceOutcome::Uncached(ok) => {
                context.retry_uncached = true;
                ok
            }
            SequenceOutcome::New(running, ok) => {
                context.caller = Caller::Client(running.client);
                (context.cache_reply, context.reply_bytes) = (running.keep, running.reply_bytes as usize);
                context.session = Some(running);
                ok
            }
        };
        self.keep(context);
        Ok(StateReply::Result(Box::new(OpResult::Sequence(Ok(ok)))))
    }

    fn log_new_client(&self, client: ClientId, context: &Context) {
        let name = self.0.section(|state, _| state.name_of(client).map(<[u8]>::to_vec)).0;
        event_log::log_new_client(client, &name.unwrap_or_default(), &context.origin, context.minor);
    }

    /// Marks the connection as used by a client.
    fn keep(&self, context: &Context) {
        if let Some(connection) = self.0.connection(context.origin.conn) {
            connection.keep();
        }
    }

    fn lock(&self, context: &mut Context, args: &LockArgs) -> Step<OpResult> {
        let file = regular(context)?.file();
        let locker = match &args.locker {
            Locker::Known(known) => state::Locker::Existing(context.resolve_stateid(&known.stateid)?),
            Locker::New(new) => state::Locker::New {
                open: context.resolve_stateid(&new.open_stateid)?,
                owner: &new.lock_owner.owner.0,
            },
        };
        let LockArgs { kind, reclaim, offset, length, .. } = *args;
        let request = LockRequest { locker, kind, reclaim, offset, length };
        let caller = context.caller;
        let stateid = self.0.with(|state, now| state.lock(now, caller, file, &request))?;
        context.stateid = stateid;
        Ok(OpResult::Lock(Locked::Ok(stateid)))
    }

    fn lock_with_seqid(&self, context: &mut Context, args: &LockArgs) -> Step<OpResult> {
        let mut work = |context: &mut Context, _: Option<&OwnerRequest>| self.lock(context, args);
        match &args.locker {
            Locker::Known(known) => self.with_owner_seqid(
                context,
                number::LOCK,
                &SeqidOwner::Stateid(&known.stateid),
                known.seqid,
                &mut work,
            ),
            Locker::New(new) => {
                let owner = SeqidOwner::Lock(new.lock_owner.clientid, &new.lock_owner.owner.0);
                let open = SeqidOwner::Stateid(&new.open_stateid);
                // [RFC7530 16.10.5] A request of both the open-owner and the new lock-owner.
                self.with_owner_seqid(context, number::LOCK, &open, new.open_seqid, &mut |context, _| {
                    self.with_owner_seqid(context, number::LOCK, &owner, new.lock_seqid, &mut work)
                })
            }
        }
    }

    fn lock_test(&self, context: &Context, args: &LockTestArgs) -> Step<OpResult> {
        let file = regular(context)?.file();
        let client = client(context, args.owner.clientid)?;
        let (owner, range) = (&args.owner.owner.0, (args.offset, args.length));
        self.0.with(|state, now| state.lockt(now, client, file, owner, args.kind, range))?;
        Ok(OpResult::LockT(Locked::Ok(())))
    }

    fn unlock(&self, context: &mut Context, args: &UnlockArgs) -> Step<OpResult> {
        let file = regular(context)?.file();
        let (stateid, caller) = (context.resolve_stateid(&args.stateid)?, context.caller);
        let range = (args.offset, args.length);
        let stateid = self.0.with(|state, now| state.locku(now, caller, file, &stateid, range))?;
        context.stateid = stateid;
        Ok(OpResult::LockU(Ok(stateid)))
    }

    fn close(
        &self,
        context: &mut Context,
        stateid: &StateId,
        request: Option<&OwnerRequest>,
    ) -> Step<OpResult> {
        let file = regular(context)?.file();
        let (stateid, caller) = (context.resolve_stateid(stateid)?, context.caller);
        let closed = self.0.with(|state, now| match request {
            Some(request) => state.close_v40(now, request, file, &stateid),
            None => state.close(now, caller, file, &stateid),
        })?;
        context.stateid = closed;
        Ok(OpResult::Close(Ok(closed)))
    }

    /// Performs every operation but SEQUENCE.
    fn result(&self, context: &mut Context, op: &Op) -> Step<OpResult> {
        let core = &self.0;
        let (conn, caller, number) = (context.origin.conn, context.caller, op.number());
        let who = principal(&context.origin);
        Ok(match op {
            Op::Open(args) => {
                let of = SeqidOwner::Open(args.owner.clientid, &args.owner.owner.0);
                self.with_owner_seqid(context, number, &of, args.seqid, &mut |context, _| {
                    self.open(context, args)
                })?
            }
            Op::OpenConfirm(args) => {
                let of = SeqidOwner::Stateid(&args.stateid);
                self.with_owner_seqid(context, number, &of, args.seqid, &mut |context, _| {
                    let file = regular(context)?.file();
                    let confirmed = core.with(|state, _| state.open_confirm(file, &args.stateid))?;
                    Ok(OpResult::OpenConfirm(Ok(confirmed)))
                })?
            }
            Op::OpenDowngrade(args) => {
                let of = SeqidOwner::Stateid(&args.stateid);
                self.with_owner_seqid(context, number, &of, args.seqid, &mut |context, _| {
                    let file = regular(context)?.file();
                    let stateid = context.resolve_stateid(&args.stateid)?;
                    let (access, deny) = (args.share_access, args.share_deny);
                    let left = core
                        .with(|state, now| state.open_downgrade(now, caller, file, &stateid, access, deny))?;
                    context.stateid = left;
                    Ok(OpResult::OpenDowngrade(Ok(left)))
                })?
            }
            Op::Close(args) => {
                let of = SeqidOwner::Stateid(&args.stateid);
                self.with_owner_seqid(context, number, &of, args.seqid, &mut |context, request| {
                    self.close(context, &args.stateid, request)
                })?
            }
            Op::Lock(args) => self.lock_with_seqid(context, args)?,
            Op::LockT(args) => self.lock_test(context, args)?,
            Op::LockU(args) => {
                let of = SeqidOwner::Stateid(&args.stateid);
                self.with_owner_seqid(context, number, &of, args.seqid, &mut |context, _| {
                    self.unlock(context, args)
                })?
            }
            Op::DelegReturn(stateid) => {
                let file = regular(context)?.file();
                let stateid = context.resolve_stateid(stateid)?;
                core.with(|state, now| state.deleg_return(now, caller, file, &stateid))?;
                OpResult::DelegReturn(Ok(()))
            }
            Op::Renew(client) => {
                core.with(|state, now| state.renew_client(now, *client))?;
                OpResult::Renew(Ok(()))
            }
            Op::SetClientId(args) => {
                let confirm =
                    core.with(|state, now| state.set_client_id(now, client_host(context), &who, args))?;
                OpResult::SetClientId(SetClientIdRes::Ok(confirm))
            }
            Op::SetClientIdConfirm(args) => {
                core.with(|state, now| state.set_client_id_confirm(now, &who, args))?;
                self.log_new_client(args.clientid, context);
                self.keep(context);
                core.probe_v40_callback(args.clientid, context.origin.address);
                OpResult::SetClientIdConfirm(Ok(()))
            }
            Op::ReleaseLockOwner(args) => {
                core.with(|state, now| state.release_lock_owner(now, args.clientid, &args.owner.0))?;
                OpResult::ReleaseLockOwner(Ok(()))
            }
            Op::BackchannelCtl(args) => {
                let session = context.session.as_ref().ok_or(NfsStat::OpNotInSession)?;
                core.with(|state, _| state.backchannel_ctl(session, args))?;
                OpResult::BackchannelCtl(Ok(()))
            }
            Op::BindConnToSession(args) => {
                let bound = core.with(|state, now| state.bind_conn_to_session(now, conn, &who, args))?;
                self.keep(context);
                OpResult::BindConnToSession(Ok(bound))
            }
            Op::ExchangeId(args) => {
                // [RFC8881 18.35.3] The flag exists since NFSv4.2.
                if context.minor < 2 && args.flags & exchgid::SUPP_FENCE_OPS != 0 {
                    return Err(Stop::Fail(NfsStat::Inval));
                }
                let made =
                    core.with(|state, now| state.exchange_id(now, client_host(context), &who, args))?;
                OpResult::ExchangeId(Ok(made))
            }
            Op::CreateSession(args) => {
                let minor = context.minor;
                let made = core.with(|state, now| state.create_session(now, conn, minor, &who, args))?;
                self.log_new_client(args.clientid, context);
                self.keep(context);
                OpResult::CreateSession(Ok(made))
            }
            Op::DestroySession(target) => {
                let session = context.session.as_ref();
                core.with(|state, _| state.destroy_session(conn, &who, session, target))?;
                OpResult::DestroySession(Ok(()))
            }
            Op::DestroyClientId(client) => {
                let session = context.session.as_ref();
                core.with(|state, _| state.destroy_clientid(&who, session, *client))?;
                OpResult::DestroyClientId(Ok(()))
            }
            Op::ReclaimComplete(one_fs) => {
                if *one_fs {
                    // [RFC8881 18.51.3]
                    context.current_fh()?;
                }
                let client = client(context, 0)?;
                core.with(|state, now| state.reclaim_complete(now, client, *one_fs))?;
                OpResult::ReclaimComplete(Ok(()))
            }
            Op::TestStateId(stateids) => {
                let client = client(context, 0)?;
                let each = core.with(|state, _| state.test_stateid(client, &stateids.0));
                OpResult::TestStateId(Ok(List(each.into_iter().map(NfsStat::number).collect())))
            }
            Op::FreeStateId(stateid) => {
                let (client, stateid) = (client(context, 0)?, context.resolve_stateid(stateid)?);
                core.with(|state, _| state.free_stateid(client, &stateid))?;
                OpResult::FreeStateId(Ok(()))
            }
            Op::OffloadStatus(stateid) => {
                let (client, file) = (client(context, 0)?, regular(context)?.file());
                let stateid = context.resolve_stateid(stateid)?;
                OpResult::OffloadStatus(Ok(core.with(|state, _| state.copy_status(client, file, &stateid))?))
            }
            Op::OffloadCancel(stateid) => {
                let (client, file) = (client(context, 0)?, regular(context)?.file());
                let stateid = context.resolve_stateid(stateid)?;
                core.with(|state, _| state.copy_cancel(client, file, &stateid))?;
                OpResult::OffloadCancel(Ok(()))
            }
            // [RFC8881 10.2.1] Delegations are not kept for clients that restart.
            _ => return Err(Stop::Fail(NfsStat::Notsupp)),
        })
    }
}

impl Clients for StateFrontEnd {
    fn begin_access(
        &self,
        caller: Caller,
        file: FileId,
        stateid: &StateId,
        does: Access,
    ) -> Step<PermitGuard> {
        let permit = self.0.with(|state, now| state.permit(now, caller, file, stateid, does))?;
        Ok(self.0.guard(permit))
    }

    fn is_opener(&self, origin: &Origin, caller: Caller, stateid: &StateId) -> bool {
        let who = principal(origin);
        self.0.with(|state, _| state.is_opener(caller, stateid, &who))
    }

    fn begin_getattr(&self, caller: Caller, file: FileId) -> Step<PermitGuard> {
        let permit = self.0.with(|state, now| state.begin_getattr(now, caller, file))?;
        Ok(self.0.guard(permit))
    }

    fn begin_copy(
        &self,
        caller: Caller,
        session: Option<&SessionRequest>,
        job: CopyJob,
    ) -> Step<Option<StateId>> {
        match caller {
            Caller::Client(client) => self.0.begin_copy(client, session, job),
            Caller::V40 => Ok(None),
        }
    }
}

impl StateOps for StateFrontEnd {
    fn operate(&self, context: &mut Context, op: &Op) -> Step<StateReply> {
        match op {
            Op::Sequence(args) => self.sequence(context, args),
            op => Ok(StateReply::Result(Box::new(self.result(context, op)?))),
        }
    }

    fn finish(&self, session: SessionRequest, reply: Option<&[u8]>) {
        let died = || {
            let results = vec![OpResult::failure(number::SEQUENCE, NfsStat::Serverfault)];
            CompoundRes { status: NfsStat::Serverfault, tag: Vec::new(), results }.to_bytes()
        };
        let reply = reply.map_or_else(died, <[u8]>::to_vec);
        self.0.with(|state, now| state.finish(now, session, &reply));
    }
}
