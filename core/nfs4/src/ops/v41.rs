//! Operations that NFSv4.1 added (RFC 8881, RFC 5662).

use super::v40::ClientOwner;
use crate::rpc::AuthSys;
use crate::types::*;
use crate::xdr::{Decoder, Encoder, List, Result, Xdr, XdrError, xdr_enum, xdr_struct, xdr_union};

/// Bits of EXCHANGE_ID's flags (RFC 8881 section 18.35).
pub mod exchgid {
    /// Referrals are understood.
    pub const SUPP_MOVED_REFER: u32 = 0x1;
    /// Migration is understood.
    pub const SUPP_MOVED_MIGR: u32 = 0x2;
    /// The client knows that operations can be fenced off (RFC 7862 section 14).
    pub const SUPP_FENCE_OPS: u32 = 0x4;
    /// Stateids are bound to principals.
    pub const BIND_PRINC_STATEID: u32 = 0x100;
    /// A server without pNFS.
    pub const USE_NON_PNFS: u32 = 0x1_0000;
    /// A metadata server.
    pub const USE_PNFS_MDS: u32 = 0x2_0000;
    /// A data server.
    pub const USE_PNFS_DS: u32 = 0x4_0000;
    /// The client changes what it said before.
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    /// The server knows this client.
    pub const CONFIRMED_R: u32 = 0x8000_0000;
}

/// Bits of CREATE_SESSION's flags (RFC 8881 section 18.36).
pub mod session_flags {
    /// Replies are kept over restarts.
    pub const PERSIST: u32 = 1;
    /// This connection is the backchannel, too.
    pub const CONN_BACK_CHAN: u32 = 2;
    /// RDMA.
    pub const CONN_RDMA: u32 = 4;
}

/// Bits of SEQUENCE's status flags (RFC 8881 section 18.46).
pub mod seq4_status {
    /// The client cannot be called back.
    pub const CB_PATH_DOWN: u32 = 0x1;
    /// RPCSEC_GSS contexts of the callbacks are about to expire.
    pub const CB_GSS_CONTEXTS_EXPIRING: u32 = 0x2;
    /// They have.
    pub const CB_GSS_CONTEXTS_EXPIRED: u32 = 0x4;
    /// The lease expired, all state is gone.
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x8;
    /// The lease expired, some state is gone.
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x10;
    /// The administrator took state away.
    pub const ADMIN_STATE_REVOKED: u32 = 0x20;
    /// A delegation was taken away.
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x40;
    /// Some lease has moved elsewhere.
    pub const LEASE_MOVED: u32 = 0x80;
    /// The server restarted: reclaim.
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    /// This session cannot call back.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x200;
    /// The backchannel makes no sense.
    pub const BACKCHANNEL_FAULT: u32 = 0x400;
}

xdr_enum! {
    /// `secinfo_style4`.
    enum SecInfoStyle {
        /// Of the current filehandle.
        CurrentFh = 0,
        /// Of its parent.
        Parent = 1,
    }
}

xdr_struct! {
    /// `BACKCHANNEL_CTL4args`.
    struct BackchannelCtlArgs {
        /// The RPC program.
        program: u32,
        /// Credentials to choose from.
        security: List<CallbackSecurity>,
    }

    /// `gss_cb_handles4`.
    struct GssCallback {
        /// None, integrity, privacy.
        service: u32,
        /// The server's.
        handle_from_server: Vec<u8>,
        /// The client's.
        handle_from_client: Vec<u8>,
    }

    /// `BIND_CONN_TO_SESSION4args` and `BIND_CONN_TO_SESSION4resok`.
    struct BindConn {
        /// Which session.
        sessionid: SessionId,
        /// Asked: 1 fore, 2 back, 3 fore or both, 7 back or both. Answered: 1, 2, 3.
        direction: u32,
        /// RDMA.
        rdma: bool,
    }

    /// `nfs_impl_id4`.
    struct ImplId {
        /// Whose.
        domain: Utf8,
        /// What.
        name: Utf8,
        /// When it was built.
        date: NfsTime,
    }

    /// `state_protect_ops4`.
    struct ProtectOps {
        /// Only by the machine.
        must_enforce: Bitmap,
        /// By the machine, too.
        must_allow: Bitmap,
    }

    /// `ssv_sp_parms4`.
    struct SsvParms {
        /// Which operations.
        ops: ProtectOps,
        /// Hashes.
        hashes: List<Vec<u8>>,
        /// Ciphers.
        ciphers: List<Vec<u8>>,
        /// Old secrets that are kept.
        window: u32,
        /// Handles.
        handles: u32,
    }

    /// `EXCHANGE_ID4args`.
    struct ExchangeIdArgs {
        /// Who.
        owner: ClientOwner,
        /// Bits of [`exchgid`].
        flags: u32,
        /// How state is protected.
        protect: StateProtect,
        /// What he runs.
        implementation: List<ImplId, 1>,
    }

    /// `server_owner4`.
    struct ServerOwner {
        /// Tells connections that may share a session.
        minor: u64,
        /// Tells servers that are the same.
        major: Opaque<OPAQUE_LIMIT>,
    }

    /// `EXCHANGE_ID4resok`. State protection other than none is not granted, and so has no results here.
    struct ExchangeIdOk {
        /// The server's number for the client.
        clientid: ClientId,
        /// CREATE_SESSION's first.
        sequenceid: u32,
        /// Bits of [`exchgid`].
        flags: u32,
        /// How state is protected.
        protect: ProtectNone,
        /// Who answers.
        owner: ServerOwner,
        /// Where state is known.
        scope: Opaque<OPAQUE_LIMIT>,
        /// What it runs.
        implementation: List<ImplId, 1>,
    }

    /// `channel_attrs4`.
    struct ChannelAttrs {
        /// Padding before data, for RDMA.
        header_pad_size: u32,
        /// Bytes of a request, its head included.
        max_request: u32,
        /// Bytes of a reply.
        max_response: u32,
        /// Bytes of a reply that is kept.
        max_response_cached: u32,
        /// Operations of a request.
        max_operations: u32,
        /// Slots.
        max_requests: u32,
        /// RDMA.
        rdma_ird: List<u32, 1>,
    }

    /// `CREATE_SESSION4args`.
    struct CreateSessionArgs {
        /// Whose.
        clientid: ClientId,
        /// The client's next.
        sequence: u32,
        /// Bits of [`session_flags`].
        flags: u32,
        /// Requests.
        fore: ChannelAttrs,
        /// Callbacks.
        back: ChannelAttrs,
        /// Their RPC program.
        callback_program: u32,
        /// Their credentials to choose from.
        security: List<CallbackSecurity>,
    }

    /// `CREATE_SESSION4resok`.
    struct CreateSessionOk {
        /// Which.
        sessionid: SessionId,
        /// The client's.
        sequence: u32,
        /// Bits of [`session_flags`].
        flags: u32,
        /// Requests.
        fore: ChannelAttrs,
        /// Callbacks.
        back: ChannelAttrs,
    }

    /// `SEQUENCE4args`.
    struct SequenceArgs {
        /// Which session.
        sessionid: SessionId,
        /// The slot's next.
        sequenceid: u32,
        /// Which slot.
        slotid: u32,
        /// The highest one that is in use.
        highest_slotid: u32,
        /// Keep the reply.
        cache_this: bool,
    }

    /// `SEQUENCE4resok`.
    struct SequenceOk {
        /// As asked.
        sessionid: SessionId,
        /// As asked.
        sequenceid: u32,
        /// As asked.
        slotid: u32,
        /// The highest one that the server takes.
        highest_slotid: u32,
        /// The highest one that it would like to take.
        target_highest_slotid: u32,
        /// Bits of [`seq4_status`].
        status_flags: u32,
    }
}

xdr_union! {
    /// `callback_sec_parms4`.
    union CallbackSecurity {
        /// AUTH_NONE.
        0 => None,
        /// AUTH_SYS.
        1 => Sys(AuthSys),
        /// RPCSEC_GSS.
        6 => Gss(GssCallback),
    }

    /// `state_protect4_a`.
    union StateProtect {
        /// Not at all.
        0 => None,
        /// By the machine's credential.
        1 => MachCred(ProtectOps),
        /// By a shared secret.
        2 => Ssv(SsvParms),
    }
}

/// `state_protect4_r` of SP4_NONE.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProtectNone;

impl Xdr for ProtectNone {
    fn put(&self, to: &mut Encoder) {
        to.word(0);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        match from.word()? {
            0 => Ok(Self),
            other => Err(XdrError::BadValue(other)),
        }
    }
}
