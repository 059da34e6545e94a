//! Operations added by NFSv4.1 (RFC 8881, RFC 5662).

use super::v40::ClientOwner;
use crate::rpc::AuthSys;
use crate::types::*;
use crate::xdr::{Decoder, Encoder, List, Result, Xdr, XdrError, xdr_enum, xdr_struct, xdr_union};

/// Bits of `eia_flags` and `eir_flags` in EXCHANGE_ID (RFC 8881 section 18.35).
pub mod exchgid {
    /// The client supports referrals.
    pub const SUPP_MOVED_REFER: u32 = 0x1;
    /// The client supports migration.
    pub const SUPP_MOVED_MIGR: u32 = 0x2;
    /// The client supports fencing of operations (RFC 7862 section 14).
    pub const SUPP_FENCE_OPS: u32 = 0x4;
    /// Stateids are bound to principals.
    pub const BIND_PRINC_STATEID: u32 = 0x100;
    /// Server without pNFS.
    pub const USE_NON_PNFS: u32 = 0x1_0000;
    /// pNFS metadata server.
    pub const USE_PNFS_MDS: u32 = 0x2_0000;
    /// pNFS data server.
    pub const USE_PNFS_DS: u32 = 0x4_0000;
    /// The client updates its confirmed record.
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    /// The client record is confirmed.
    pub const CONFIRMED_R: u32 = 0x8000_0000;
}

/// Bits of `csa_flags` and `csr_flags` in CREATE_SESSION (RFC 8881 section 18.36).
pub mod session_flags {
    /// The reply cache survives server restarts.
    pub const PERSIST: u32 = 1;
    /// The connection also serves as backchannel.
    pub const CONN_BACK_CHAN: u32 = 2;
    /// Use RDMA.
    pub const CONN_RDMA: u32 = 4;
}

/// Bits of `sr_status_flags` in SEQUENCE (RFC 8881 section 18.46).
pub mod seq4_status {
    /// No working backchannel to the client.
    pub const CB_PATH_DOWN: u32 = 0x1;
    /// RPCSEC_GSS contexts of callbacks will expire soon.
    pub const CB_GSS_CONTEXTS_EXPIRING: u32 = 0x2;
    /// RPCSEC_GSS contexts of callbacks have expired.
    pub const CB_GSS_CONTEXTS_EXPIRED: u32 = 0x4;
    /// The lease expired; all state was revoked.
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x8;
    /// The lease expired; some state was revoked.
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x10;
    /// An administrator revoked state.
    pub const ADMIN_STATE_REVOKED: u32 = 0x20;
    /// A delegation was revoked.
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x40;
    /// A lease moved to another server.
    pub const LEASE_MOVED: u32 = 0x80;
    /// The server restarted; the client must reclaim its state.
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    /// No working backchannel for this session.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x200;
    /// The client violated the protocol on the backchannel.
    pub const BACKCHANNEL_FAULT: u32 = 0x400;
}

xdr_enum! {
    /// `secinfo_style4` (RFC 8881 section 18.45).
    enum SecInfoStyle {
        /// The current filehandle.
        CurrentFh = 0,
        /// The parent of the current filehandle.
        Parent = 1,
    }
}

xdr_struct! {
    /// `BACKCHANNEL_CTL4args` (RFC 8881 section 18.33).
    struct BackchannelCtlArgs {
        /// RPC program number.
        program: u32,
        /// Credentials, of which the server chooses one.
        security: List<CallbackSecurity>,
    }

    /// `gss_cb_handles4` (RFC 8881 section 18.33).
    struct GssCallback {
        /// Service: none, integrity or privacy.
        service: u32,
        /// Handle from the server.
        handle_from_server: Vec<u8>,
        /// Handle from the client.
        handle_from_client: Vec<u8>,
    }

    /// `BIND_CONN_TO_SESSION4args` and `BIND_CONN_TO_SESSION4resok` (RFC 8881 section 18.34).
    struct BindConn {
        /// Session ID.
        sessionid: SessionId,
        /// Requested: 1 fore, 2 back, 3 fore or both, 7 back or both. Granted: 1, 2, 3.
        direction: u32,
        /// Whether to use RDMA.
        rdma: bool,
    }

    /// `nfs_impl_id4` (RFC 8881 section 18.35).
    struct ImplId {
        /// Domain of the implementer.
        domain: Utf8,
        /// Name of the implementation.
        name: Utf8,
        /// Build time.
        date: NfsTime,
    }

    /// `state_protect_ops4` (RFC 8881 section 18.35).
    struct ProtectOps {
        /// Operations that require the machine credential.
        must_enforce: Bitmap,
        /// Operations that also permit the machine credential.
        must_allow: Bitmap,
    }

    /// `ssv_sp_parms4` (RFC 8881 section 18.35).
    struct SsvParms {
        /// Protected operations.
        ops: ProtectOps,
        /// Hash algorithms.
        hashes: List<Vec<u8>>,
        /// Encryption algorithms.
        ciphers: List<Vec<u8>>,
        /// Number of old secrets kept.
        window: u32,
        /// Number of GSS handles.
        handles: u32,
    }

    /// `EXCHANGE_ID4args` (RFC 8881 section 18.35).
    struct ExchangeIdArgs {
        /// Owner of the client.
        owner: ClientOwner,
        /// Bits of [`exchgid`].
        flags: u32,
        /// State protection.
        protect: StateProtect,
        /// Implementation of the client.
        implementation: List<ImplId, 1>,
    }

    /// `server_owner4` (RFC 8881 section 18.35).
    struct ServerOwner {
        /// Minor ID: connections with the same server owner may share a session.
        minor: u64,
        /// Major ID: equal for the same server.
        major: Opaque<OPAQUE_LIMIT>,
    }

    /// `EXCHANGE_ID4resok` (RFC 8881 section 18.35). State protection is never granted, so its results are
    /// missing.
    struct ExchangeIdOk {
        /// Client ID.
        clientid: ClientId,
        /// First sequence ID for CREATE_SESSION.
        sequenceid: u32,
        /// Bits of [`exchgid`].
        flags: u32,
        /// State protection.
        protect: ProtectNone,
        /// Owner of the server.
        owner: ServerOwner,
        /// Server scope, in which state is valid.
        scope: Opaque<OPAQUE_LIMIT>,
        /// Implementation of the server.
        implementation: List<ImplId, 1>,
    }

    /// `channel_attrs4` (RFC 8881 section 18.36).
    struct ChannelAttrs {
        /// Padding before data, for RDMA.
        header_pad_size: u32,
        /// Maximum size of a request in bytes, header included.
        max_request: u32,
        /// Maximum size of a reply in bytes.
        max_response: u32,
        /// Maximum size of a cached reply in bytes.
        max_response_cached: u32,
        /// Maximum number of operations per request.
        max_operations: u32,
        /// Number of slots.
        max_requests: u32,
        /// RDMA parameters.
        rdma_ird: List<u32, 1>,
    }

    /// `CREATE_SESSION4args` (RFC 8881 section 18.36).
    struct CreateSessionArgs {
        /// Client ID.
        clientid: ClientId,
        /// Next sequence ID of the client.
        sequence: u32,
        /// Bits of [`session_flags`].
        flags: u32,
        /// Attributes of the fore channel.
        fore: ChannelAttrs,
        /// Attributes of the backchannel.
        back: ChannelAttrs,
        /// RPC program number of callbacks.
        callback_program: u32,
        /// Credentials for callbacks, of which the server chooses one.
        security: List<CallbackSecurity>,
    }

    /// `CREATE_SESSION4resok` (RFC 8881 section 18.36).
    struct CreateSessionOk {
        /// Session ID.
        sessionid: SessionId,
        /// Sequence ID of the request.
        sequence: u32,
        /// Bits of [`session_flags`].
        flags: u32,
        /// Attributes of the fore channel.
        fore: ChannelAttrs,
        /// Attributes of the backchannel.
        back: ChannelAttrs,
    }

    /// `SEQUENCE4args` (RFC 8881 section 18.46).
    struct SequenceArgs {
        /// Session ID.
        sessionid: SessionId,
        /// Next sequence ID of the slot.
        sequenceid: u32,
        /// Slot ID.
        slotid: u32,
        /// Highest slot ID in use.
        highest_slotid: u32,
        /// Whether to cache the reply.
        cache_this: bool,
    }

    /// `SEQUENCE4resok` (RFC 8881 section 18.46).
    struct SequenceOk {
        /// Copied from the request.
        sessionid: SessionId,
        /// Copied from the request.
        sequenceid: u32,
        /// Copied from the request.
        slotid: u32,
        /// Highest slot ID that the server accepts.
        highest_slotid: u32,
        /// Highest slot ID that the server prefers.
        target_highest_slotid: u32,
        /// Bits of [`seq4_status`].
        status_flags: u32,
    }
}

xdr_union! {
    /// `callback_sec_parms4` (RFC 8881 section 18.33).
    union CallbackSecurity {
        /// AUTH_NONE.
        0 => None,
        /// AUTH_SYS.
        1 => Sys(AuthSys),
        /// RPCSEC_GSS.
        6 => Gss(GssCallback),
    }

    /// `state_protect4_a` (RFC 8881 section 18.35).
    union StateProtect {
        /// No state protection.
        0 => None,
        /// By the machine credential.
        1 => MachCred(ProtectOps),
        /// By a shared secret (SSV).
        2 => Ssv(SsvParms),
    }
}

/// `state_protect4_r` (RFC 8881 section 18.35), for SP4_NONE.
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
