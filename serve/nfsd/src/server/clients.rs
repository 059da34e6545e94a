//! Operations of clients, sessions, opens, locks and delegations: from their arguments to [`State`](crate::state::State), and back.

use std::any::Any;
use std::sync::Arc;

use ivers_nfs4::compound::CompoundRes;
use ivers_nfs4::ops::v40::{LockArgs, LockTestArgs, Locked, Locker, UnlockArgs};
use ivers_nfs4::ops::v41::{SequenceArgs, exchgid};
use ivers_nfs4::ops::{Op, OpResult, SetClientIdRes, number};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{ClientId, StateId};
use ivers_nfs4::xdr::{Encoder, List, Xdr};

use super::core::Core;
use super::stats::welcome;
use crate::compound::{Answered, Clients, Context, CopyOrder, Held, Object, Origin};
use crate::net::budget::ClientKey;
use crate::rpc::Credential;
use crate::state::{
    self, Caller, Does, File, Home, LockRequest, Principal, Reply, Request, Running, Sequenced, Step, Stop,
    Turn, TurnOf,
};

/// So often what had to be done first is done, and the operation tried again.
const TRIES: usize = 8;

/// What the floors below ask.
pub(super) struct Front(pub Arc<Core>);

/// Who somebody is: what he says of himself, and what TLS says of him.
pub(super) fn principal(origin: &Origin) -> Principal {
    let user = match &origin.credential {
        Credential::None => None,
        Credential::Sys(sys) => Some(sys.uid),
    };
    Principal::of(user, origin.tls.as_ref().and_then(|tls| tls.certificate.as_deref()))
}

/// Where a client is at home, for the room that clients share.
fn home(context: &Context) -> Home {
    Home(ClientKey::from(context.origin.address).address())
}

/// The request of a session that this is.
pub(super) fn running(context: &Context) -> Option<&Running> {
    context.session.as_ref()?.downcast_ref()
}

/// The client: the session's, or before there were sessions the one that is named.
pub(super) fn client(context: &Context, named: ClientId) -> Step<ClientId> {
    match (context.caller, context.minor) {
        (Caller::Client(client), _) => Ok(client),
        (Caller::V40, 0) => Ok(named),
        (Caller::V40, _) => Err(Stop::Fail(NfsStat::OpNotInSession)),
    }
}

/// A regular file.
fn regular(context: &Context) -> Res<&Object> {
    context.object(NfsStat::Isdir)?.regular(context.minor)
}

/// A turn that ends in any case.
struct Taken<'a> {
    core: &'a Arc<Core>,
    turn: Option<Turn>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            let reply = Reply { bytes: Vec::new(), file: None };
            // Whoever worked on it has died: the number is as it was.
            self.core.with(|state, now| state.turn_end(now, turn, NfsStat::Resource, reply));
        }
    }
}

impl Front {
    /// An operation with an owner's number, if the version has those.
    pub(super) fn in_turn(
        &self,
        context: &mut Context,
        op: u32,
        of: &TurnOf<'_>,
        seqid: u32,
        work: &mut dyn FnMut(&mut Context, Option<&Turn>) -> Step<OpResult>,
    ) -> Step<OpResult> {
        if context.minor > 0 {
            return work(context, None);
        }
        let turn = self.0.with(|state, now| state.turn(now, of, seqid))?;
        let mut taken = Taken { core: &self.0, turn: Some(turn) };
        let mut stop = Stop::Fail(NfsStat::Delay);
        for _ in 0..TRIES {
            match work(context, taken.turn.as_ref()) {
                Ok(result) => return Ok(self.end_turn(context, &mut taken, result)),
                Err(why) => {
                    if let Err(why) = self.0.passed(why) {
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
        Ok(self.end_turn(context, &mut taken, result))
    }

    fn end_turn(&self, context: &Context, taken: &mut Taken<'_>, result: OpResult) -> OpResult {
        let mut bytes = Encoder::default();
        result.put(&mut bytes);
        let file = context.current().and_then(|place| place.object(NfsStat::Isdir)).ok().map(Object::file);
        let reply = Reply { bytes: bytes.into_bytes(), file };
        if let Some(turn) = taken.turn.take() {
            self.0.with(|state, now| state.turn_end(now, turn, result.status(), reply));
        }
        result
    }

    fn sequence(&self, context: &mut Context, args: &SequenceArgs) -> Step<Answered> {
        let request = Request {
            principal: principal(&context.origin),
            digest: context.digest,
            bytes: u32::try_from(context.request_bytes).unwrap_or(u32::MAX),
            operations: context.operations,
        };
        let conn = context.origin.conn;
        let ok = match self.0.with(|state, now| state.sequence(now, conn, &request, args))? {
            Sequenced::Replay(reply) => return Ok(Answered::Replay(reply)),
            Sequenced::Uncached(ok) => {
                context.uncached = true;
                ok
            }
            Sequenced::New(running, ok) => {
                context.caller = Caller::Client(running.client());
                (context.keep, context.reply_bytes) = (running.keep, running.reply_bytes as usize);
                context.session = Some(Box::new(running));
                ok
            }
        };
        self.keep(context);
        Ok(Answered::Result(Box::new(OpResult::Sequence(Ok(ok)))))
    }

    /// The connection belongs to somebody.
    fn keep(&self, context: &Context) {
        if let Some(connection) = self.0.connection(context.origin.conn) {
            connection.keep();
        }
    }

    fn lock(&self, context: &mut Context, args: &LockArgs) -> Step<OpResult> {
        let file = regular(context)?.file();
        let locker = match &args.locker {
            Locker::Known(known) => state::Locker::Old(context.meant(&known.stateid)?),
            Locker::New(new) => {
                state::Locker::New { open: context.meant(&new.open_stateid)?, owner: &new.lock_owner.owner.0 }
            }
        };
        let LockArgs { kind, reclaim, offset, length, .. } = *args;
        let request = LockRequest { locker, kind, reclaim, offset, length };
        let caller = context.caller;
        let stateid = self.0.with(|state, now| state.lock(now, caller, file, &request))?;
        context.stateid = stateid;
        Ok(OpResult::Lock(Locked::Ok(stateid)))
    }

    fn lock_in_turn(&self, context: &mut Context, args: &LockArgs) -> Step<OpResult> {
        let mut work = |context: &mut Context, _: Option<&Turn>| self.lock(context, args);
        match &args.locker {
            Locker::Known(known) => {
                self.in_turn(context, number::LOCK, &TurnOf::Of(&known.stateid), known.seqid, &mut work)
            }
            Locker::New(new) => {
                let owner = TurnOf::Lock(new.lock_owner.clientid, &new.lock_owner.owner.0);
                let open = TurnOf::Of(&new.open_stateid);
                // [RFC7530 16.10.5] The open-owner's turn, and in it the lock-owner's first one.
                self.in_turn(context, number::LOCK, &open, new.open_seqid, &mut |context, _| {
                    self.in_turn(context, number::LOCK, &owner, new.lock_seqid, &mut work)
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
        let (stateid, caller) = (context.meant(&args.stateid)?, context.caller);
        let range = (args.offset, args.length);
        let stateid = self.0.with(|state, now| state.locku(now, caller, file, &stateid, range))?;
        context.stateid = stateid;
        Ok(OpResult::LockU(Ok(stateid)))
    }

    fn close(&self, context: &mut Context, stateid: &StateId, turn: Option<&Turn>) -> Step<OpResult> {
        let file = regular(context)?.file();
        let (stateid, caller) = (context.meant(stateid)?, context.caller);
        let closed = self.0.with(|state, now| match turn {
            Some(turn) => state.close_in_turn(now, turn, file, &stateid),
            None => state.close(now, caller, file, &stateid),
        })?;
        context.stateid = closed;
        Ok(OpResult::Close(Ok(closed)))
    }

    /// What is neither SEQUENCE nor a repetition.
    fn result(&self, context: &mut Context, op: &Op) -> Step<OpResult> {
        let core = &self.0;
        let (conn, caller, number) = (context.origin.conn, context.caller, op.number());
        let who = principal(&context.origin);
        Ok(match op {
            Op::Open(args) => {
                let of = TurnOf::Open(args.owner.clientid, &args.owner.owner.0);
                self.in_turn(context, number, &of, args.seqid, &mut |context, turn| {
                    self.open(context, args, turn)
                })?
            }
            Op::OpenConfirm(args) => {
                let of = TurnOf::Of(&args.stateid);
                self.in_turn(context, number, &of, args.seqid, &mut |context, _| {
                    let file = regular(context)?.file();
                    let confirmed = core.with(|state, _| state.open_confirm(file, &args.stateid))?;
                    Ok(OpResult::OpenConfirm(Ok(confirmed)))
                })?
            }
            Op::OpenDowngrade(args) => {
                let of = TurnOf::Of(&args.stateid);
                self.in_turn(context, number, &of, args.seqid, &mut |context, _| {
                    let file = regular(context)?.file();
                    let stateid = context.meant(&args.stateid)?;
                    let (access, deny) = (args.share_access, args.share_deny);
                    let left = core
                        .with(|state, now| state.open_downgrade(now, caller, file, &stateid, access, deny))?;
                    context.stateid = left;
                    Ok(OpResult::OpenDowngrade(Ok(left)))
                })?
            }
            Op::Close(args) => {
                let of = TurnOf::Of(&args.stateid);
                self.in_turn(context, number, &of, args.seqid, &mut |context, turn| {
                    self.close(context, &args.stateid, turn)
                })?
            }
            Op::Lock(args) => self.lock_in_turn(context, args)?,
            Op::LockT(args) => self.lock_test(context, args)?,
            Op::LockU(args) => {
                let of = TurnOf::Of(&args.stateid);
                self.in_turn(context, number, &of, args.seqid, &mut |context, _| self.unlock(context, args))?
            }
            Op::DelegReturn(stateid) => {
                let file = regular(context)?.file();
                let stateid = context.meant(stateid)?;
                core.with(|state, now| state.deleg_return(now, caller, file, &stateid))?;
                OpResult::DelegReturn(Ok(()))
            }
            Op::Renew(client) => {
                core.with(|state, now| state.renew_client(now, *client))?;
                OpResult::Renew(Ok(()))
            }
            Op::SetClientId(args) => {
                let confirm = core.with(|state, now| state.set_client_id(now, home(context), &who, args))?;
                OpResult::SetClientId(SetClientIdRes::Ok(confirm))
            }
            Op::SetClientIdConfirm(args) => {
                core.with(|state, now| state.set_client_id_confirm(now, &who, args))?;
                welcome(core, args.clientid, context);
                self.keep(context);
                core.try_way_back(args.clientid, context.origin.address);
                OpResult::SetClientIdConfirm(Ok(()))
            }
            Op::ReleaseLockOwner(args) => {
                core.with(|state, now| state.release_lock_owner(now, args.clientid, &args.owner.0))?;
                OpResult::ReleaseLockOwner(Ok(()))
            }
            Op::BackchannelCtl(args) => {
                let inside = running(context).ok_or(NfsStat::OpNotInSession)?;
                core.with(|state, _| state.backchannel_ctl(inside, args))?;
                OpResult::BackchannelCtl(Ok(()))
            }
            Op::BindConnToSession(args) => {
                let bound = core.with(|state, now| state.bind_conn_to_session(now, conn, &who, args))?;
                self.keep(context);
                OpResult::BindConnToSession(Ok(bound))
            }
            Op::ExchangeId(args) => {
                // [RFC8881 18.35.3] This one is of NFSv4.2.
                if context.minor < 2 && args.flags & exchgid::SUPP_FENCE_OPS != 0 {
                    return Err(Stop::Fail(NfsStat::Inval));
                }
                let made = core.with(|state, now| state.exchange_id(now, home(context), &who, args))?;
                OpResult::ExchangeId(Ok(made))
            }
            Op::CreateSession(args) => {
                let minor = context.minor;
                let made = core.with(|state, now| state.create_session(now, conn, minor, &who, args))?;
                welcome(core, args.clientid, context);
                self.keep(context);
                OpResult::CreateSession(Ok(made))
            }
            Op::DestroySession(session) => {
                let inside = running(context);
                core.with(|state, _| state.destroy_session(conn, &who, inside, session))?;
                OpResult::DestroySession(Ok(()))
            }
            Op::DestroyClientId(client) => {
                let inside = running(context);
                core.with(|state, _| state.destroy_clientid(&who, inside, *client))?;
                OpResult::DestroyClientId(Ok(()))
            }
            Op::ReclaimComplete(one_fs) => {
                if *one_fs {
                    // [RFC8881 18.51.3]
                    context.current()?;
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
                let (client, stateid) = (client(context, 0)?, context.meant(stateid)?);
                core.with(|state, _| state.free_stateid(client, &stateid))?;
                OpResult::FreeStateId(Ok(()))
            }
            Op::OffloadStatus(stateid) => {
                let (client, file) = (client(context, 0)?, regular(context)?.file());
                let stateid = context.meant(stateid)?;
                OpResult::OffloadStatus(Ok(core.with(|state, _| state.copy_status(client, file, &stateid))?))
            }
            Op::OffloadCancel(stateid) => {
                let (client, file) = (client(context, 0)?, regular(context)?.file());
                let stateid = context.meant(stateid)?;
                core.with(|state, _| state.copy_cancel(client, file, &stateid))?;
                OpResult::OffloadCancel(Ok(()))
            }
            // [RFC8881 10.2.1] Nothing is kept for clients that restart.
            _ => return Err(Stop::Fail(NfsStat::Notsupp)),
        })
    }
}

impl Clients for Front {
    fn permit(&self, caller: Caller, file: File, stateid: &StateId, does: Does) -> Step<Held> {
        let permit = self.0.with(|state, now| state.permit(now, caller, file, stateid, does))?;
        Ok(self.0.hold(permit))
    }

    fn is_opener(&self, origin: &Origin, caller: Caller, stateid: &StateId) -> bool {
        let who = principal(origin);
        self.0.with(|state, _| state.is_opener(caller, stateid, &who))
    }

    fn look(&self, caller: Caller, file: File) -> Step<Held> {
        let permit = self.0.with(|state, now| state.look(now, caller, file))?;
        Ok(self.0.hold(permit))
    }

    fn copy(&self, context: &Context, order: CopyOrder) -> Step<Option<StateId>> {
        match context.caller {
            Caller::Client(client) => self.0.copy(client, running(context), order),
            Caller::V40 => Ok(None),
        }
    }

    fn operate(&self, context: &mut Context, op: &Op) -> Step<Answered> {
        match op {
            Op::Sequence(args) => self.sequence(context, args),
            op => Ok(Answered::Result(Box::new(self.result(context, op)?))),
        }
    }

    fn finish(&self, session: Box<dyn Any + Send>, reply: Option<&[u8]>) {
        let Ok(running) = session.downcast::<Running>() else { return };
        let died = || {
            let results = vec![OpResult::failure(number::SEQUENCE, NfsStat::Serverfault)];
            CompoundRes { status: NfsStat::Serverfault, tag: Vec::new(), results }.to_bytes()
        };
        let reply = reply.map_or_else(died, <[u8]>::to_vec);
        self.0.with(|state, now| state.finish(now, *running, &reply));
    }
}
