//! Sessions and their connections (RFC 8881 sections 2.10, 18.34, 18.36, 18.37).

use std::collections::BTreeMap;

use super::fair_share::FairShare;
use super::ids::{ConnId, Principal, Step, Stop, Time, fail};
use super::limits::Limits;
use super::manager::StateManager;
use super::tables::back_slot::BackSlot;
use super::tables::session::{
    BACK, BACK_OR_BOTH, BOTH, CallbackCred, CreateSlot, FORE, SMALLEST_KEPT, SMALLEST_MESSAGE, Session,
};
use super::tables::slot::{SessionRequest, Slot};

/// Minimum size for a CB_SEQUENCE and the operation after it.
const SMALLEST_CALLBACK: u32 = 256;
/// CB_SEQUENCE and one other operation.
const CALLBACK_OPERATIONS: u32 = 2;

use ivers_nfs4::ops::v41::{
    BackchannelCtlArgs, BindConn, ChannelAttrs, CreateSessionArgs, CreateSessionOk, session_flags,
};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::SessionId;
use ivers_nfs4::xdr::List;

/// Returns the fore channel that the server agrees to.
fn fore_channel(asked: &ChannelAttrs, limits: &Limits) -> Res<ChannelAttrs> {
    if asked.max_requests == 0 || asked.max_operations == 0 {
        return Err(NfsStat::Inval);
    }
    if asked.max_request < SMALLEST_MESSAGE || asked.max_response < SMALLEST_MESSAGE {
        return Err(NfsStat::Toosmall);
    }
    let max_response = asked.max_response.min(limits.reply_bytes);
    Ok(ChannelAttrs {
        header_pad_size: 0,
        max_request: asked.max_request.min(limits.request_bytes),
        max_response,
        max_response_cached: asked.max_response_cached.min(limits.cached_reply_bytes).min(max_response),
        max_operations: asked.max_operations.min(limits.operations),
        max_requests: asked.max_requests.min(limits.slots),
        rdma_ird: List(Vec::new()),
    })
}

fn back_channel(asked: &ChannelAttrs, limits: &Limits) -> Res<ChannelAttrs> {
    // [RFC8881 18.36.3] Checked even if no callbacks are requested: BIND_CONN_TO_SESSION may add a back
    // channel later without negotiation.
    let too_small = asked.max_request < SMALLEST_CALLBACK
        || asked.max_response < SMALLEST_CALLBACK
        || asked.max_operations < CALLBACK_OPERATIONS;
    if too_small {
        return Err(NfsStat::Toosmall);
    }
    Ok(ChannelAttrs {
        header_pad_size: 0,
        max_request: asked.max_request.min(limits.request_bytes),
        max_response: asked.max_response.min(limits.reply_bytes),
        max_response_cached: asked.max_response_cached.min(limits.cached_reply_bytes),
        max_operations: asked.max_operations.min(limits.operations),
        max_requests: asked.max_requests.min(limits.back_slots).max(1),
        rdma_ird: List(Vec::new()),
    })
}

/// Returns the channels that the server agrees to, or the error if no server could.
fn negotiate(args: &CreateSessionArgs, limits: &Limits) -> Res<(ChannelAttrs, ChannelAttrs)> {
    if args.flags & !(session_flags::PERSIST | session_flags::CONN_BACK_CHAN | session_flags::CONN_RDMA) != 0
    {
        return Err(NfsStat::Inval);
    }
    Ok((fore_channel(&args.fore, limits)?, back_channel(&args.back, limits)?))
}

impl StateManager {
    /// CREATE_SESSION (RFC 8881 section 18.36.4), with its own exactly-once semantics.
    pub fn create_session(
        &mut self,
        now: Time,
        conn: ConnId,
        minor: u32,
        principal: &Principal,
        args: &CreateSessionArgs,
    ) -> Step<CreateSessionOk> {
        let Some(client) = self.clients.get(&args.clientid).filter(|client| client.with_sessions) else {
            return fail(NfsStat::StaleClientid);
        };
        if client.evicting.is_some() {
            return fail(NfsStat::Delay);
        }
        if client.confirmed {
            self.check_principal(principal, args.clientid)?;
        } else if client.principal != *principal {
            // [RFC8881 18.36.4] Checked before the sequence number, so that another principal does not get a
            // cached reply.
            return fail(NfsStat::ClidInuse);
        }
        // [RFC8881 18.36.4]
        if args.sequence == client.create.sequence {
            return client.create.reply.clone().map_err(Stop::Fail);
        }
        if args.sequence != client.create.next() {
            return fail(NfsStat::SeqMisordered);
        }
        // [RFC8881 18.36.4] A request with invalid arguments consumes no sequence number.
        let channels = negotiate(args, &self.config.limits)?;
        // Temporary errors are not cached: a retry would get them forever.
        let created = self.new_session(now, conn, minor, args, channels)?;
        if let Some(client) = self.clients.get_mut(&args.clientid) {
            client.create = CreateSlot { sequence: args.sequence, reply: Ok(created.clone()) };
        }
        Ok(created)
    }

    fn new_session(
        &mut self,
        now: Time,
        conn: ConnId,
        minor: u32,
        args: &CreateSessionArgs,
        (mut fore, back): (ChannelAttrs, ChannelAttrs),
    ) -> Step<CreateSessionOk> {
        let limits = self.config.limits.clone();
        let client = &self.clients[&args.clientid];
        let back_wanted = args.flags & session_flags::CONN_BACK_CHAN != 0;
        if client.sessions.len() >= limits.sessions {
            return fail(NfsStat::Delay);
        }
        // Reserve memory for cached replies now: after an operation it is too late to refuse.
        let each = u64::from(fore.max_response_cached.max(SMALLEST_KEPT));
        let held = self.clients.values().map(|client| (client.host, client.reply_cache_bytes));
        let room = FairShare::new(limits.reply_cache_bytes.1, client.host, held).available(client.host);
        let free = limits.reply_cache_bytes.0.saturating_sub(client.reply_cache_bytes).min(room);
        fore.max_requests = fore.max_requests.min(u32::try_from(free / each).unwrap_or(u32::MAX));
        if fore.max_requests == 0 {
            self.evict_longest_expired(now)?;
            return fail(NfsStat::Delay);
        }
        if !client.confirmed {
            self.confirm(now, args.clientid)?;
        }

        let mut sessionid = [0; 16];
        sessionid[..8].copy_from_slice(&args.clientid.to_be_bytes());
        sessionid[8..].copy_from_slice(&self.rng.next_u64().to_be_bytes());
        while self.sessions.contains_key(&sessionid) {
            sessionid[8..].copy_from_slice(&self.rng.next_u64().to_be_bytes());
        }
        let identity = CallbackCred::choose(&args.security);
        let back_granted = back_wanted && identity.is_some();
        let session = Session {
            client: args.clientid,
            slots: vec![Slot::default(); fore.max_requests as usize],
            retired: Vec::new(),
            target: fore.max_requests,
            target_version: 0,
            resized: 0,
            fore: fore.clone(),
            back_slots: vec![BackSlot::default(); back.max_requests as usize],
            back_wanted,
            program: args.callback_program,
            minor,
            identity,
            connections: BTreeMap::from([(conn, if back_granted { BOTH } else { FORE })]),
        };
        let bytes = session.reserved();
        self.sessions.insert(sessionid, session);
        self.reply_cache_bytes += bytes;
        if let Some(client) = self.clients.get_mut(&args.clientid) {
            client.sessions.insert(sessionid);
            client.reply_cache_bytes += bytes;
        }
        self.renew(now, args.clientid);
        let flags = if back_granted { session_flags::CONN_BACK_CHAN } else { 0 };
        Ok(CreateSessionOk { sessionid, sequence: args.sequence, flags, fore, back })
    }

    /// DESTROY_SESSION (RFC 8881 section 18.37). `inside` is the session request that contains it, if any.
    pub fn destroy_session(
        &mut self,
        conn: ConnId,
        principal: &Principal,
        inside: Option<&SessionRequest>,
        sessionid: &SessionId,
    ) -> Step<()> {
        let Some(session) = self.sessions.get(sessionid) else { return fail(NfsStat::Badsession) };
        self.check_principal(principal, session.client)?;
        // [RFC8881 18.37.3]
        if !session.connections.contains_key(&conn) {
            return fail(NfsStat::ConnNotBoundToSession);
        }
        let own = inside.filter(|running| running.session == *sessionid).map(|running| running.slot);
        let others =
            session.slots.iter().enumerate().any(|(at, slot)| slot.is_busy() && Some(at as u32) != own);
        if others {
            return fail(NfsStat::Delay);
        }
        if session.back_slots.iter().any(|slot| slot.is_busy()) {
            return fail(NfsStat::BackChanBusy);
        }
        self.remove_session(*sessionid);
        Ok(())
    }

    /// BIND_CONN_TO_SESSION (RFC 8881 section 18.34).
    pub fn bind_conn_to_session(
        &mut self,
        now: Time,
        conn: ConnId,
        principal: &Principal,
        args: &BindConn,
    ) -> Step<BindConn> {
        let limit = self.config.limits.connections;
        let Some(session) = self.sessions.get(&args.sessionid) else { return fail(NfsStat::Badsession) };
        self.check_principal(principal, session.client)?;
        let Some(session) = self.sessions.get_mut(&args.sessionid) else { return fail(NfsStat::Badsession) };
        let can_back = session.identity.is_some();
        let way = match args.direction {
            FORE => FORE,
            BACK if can_back => BACK,
            BOTH | BACK_OR_BOTH => {
                if can_back {
                    BOTH
                } else {
                    FORE
                }
            }
            _ => return fail(NfsStat::Inval),
        };
        let direction = session.bind(conn, way, limit)?;
        let client = session.client;
        if direction & BACK != 0 {
            session.back_wanted = true;
        }
        self.renew(now, client);
        self.callback_path_up(client);
        Ok(BindConn { sessionid: args.sessionid, direction, rdma: false })
    }

    /// BACKCHANNEL_CTL (RFC 8881 section 18.33) for the session of this request.
    pub fn backchannel_ctl(&mut self, inside: &SessionRequest, args: &BackchannelCtlArgs) -> Step<()> {
        let Some(session) = self.sessions.get_mut(&inside.session) else { return fail(NfsStat::Badsession) };
        // [RFC8881 18.33.3]
        let Some(identity) = CallbackCred::choose(&args.security) else { return fail(NfsStat::Noent) };
        session.program = args.program;
        session.identity = Some(identity);
        let client = session.client;
        self.callback_path_up(client);
        Ok(())
    }

    /// Binds a connection to a session. Without state protection, a SEQUENCE suffices (section 2.10.3.1).
    pub(super) fn bind_fore_channel(&mut self, conn: ConnId, sessionid: &SessionId) -> Step<()> {
        let limit = self.config.limits.connections;
        let Some(session) = self.sessions.get_mut(sessionid) else { return fail(NfsStat::Badsession) };
        session.bind(conn, FORE, limit).map(|_| ())
    }

    /// Removes a closed connection.
    pub fn disconnected(&mut self, conn: ConnId) {
        for session in self.sessions.values_mut() {
            session.connections.remove(&conn);
        }
    }

    pub(super) fn remove_session(&mut self, sessionid: SessionId) {
        let Some(session) = self.sessions.remove(&sessionid) else { return };
        let bytes = session.reserved();
        self.reply_cache_bytes -= bytes;
        if let Some(client) = self.clients.get_mut(&session.client) {
            client.sessions.remove(&sessionid);
            client.reply_cache_bytes -= bytes;
            client.busy -= session.slots.iter().filter(|slot| slot.is_busy()).count() as u32;
        }
    }
}
