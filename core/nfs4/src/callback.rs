//! Requests of a server to a client: CB_COMPOUND (RFC 7530 section 17, RFC 8881 section 20, RFC 7862 section
//! 16).

use crate::attr::Fattr;
use crate::ops::Outcome;
use crate::ops::v42::WriteResponse;
use crate::status::{NfsStat, Res};
use crate::types::{Bitmap, FileHandle, Owner, SessionId, StateId, Utf8};
use crate::xdr::{Decoder, Encoder, List, Result, Xdr, XdrError, xdr_struct};

/// The usual program number for callbacks of NFSv4.0 clients (RFC 7531). Each client states its number.
pub const CALLBACK_PROGRAM: u32 = 0x4000_0000;
/// Version of the program. RFC 8881 section 18.36.3 says 4, but the XDR of all minor versions and all
/// implementations say 1.
pub const CALLBACK_VERSION: u32 = 1;
/// Procedure 0: no operation.
pub const PROC_CB_NULL: u32 = 0;
/// Procedure 1: a list of operations.
pub const PROC_CB_COMPOUND: u32 = 1;

/// Bits of `rca4_type_mask` in CB_RECALL_ANY (RFC 8881 section 20.6).
pub mod recall_any {
    /// Read delegations.
    pub const READ_DELEG: u32 = 0;
    /// Write delegations.
    pub const WRITE_DELEG: u32 = 1;
}

xdr_struct! {
    /// `CB_GETATTR4args` (RFC 8881 section 20.1).
    struct CbGetAttrArgs {
        /// The delegated file.
        file: FileHandle,
        /// The requested attributes: change attribute and size.
        attrs: Bitmap,
    }

    /// `CB_RECALL4args` (RFC 8881 section 20.2).
    struct CbRecallArgs {
        /// The delegation.
        stateid: StateId,
        /// The file will be truncated, so the client need not write its data back.
        truncate: bool,
        /// The delegated file.
        file: FileHandle,
    }

    /// `CB_RECALL_ANY4args` (RFC 8881 section 20.6).
    struct CbRecallAnyArgs {
        /// Number of objects that the client may keep.
        keep: u32,
        /// Types of objects (`rca4_type_mask`).
        types: Bitmap,
    }

    /// `referring_call4` (RFC 8881 section 20.9).
    struct ReferringCall {
        /// Sequence ID of the slot.
        sequenceid: u32,
        /// Slot ID.
        slotid: u32,
    }

    /// `referring_call_list4` (RFC 8881 section 20.9): requests that must be answered before this callback.
    struct ReferringCalls {
        /// Session ID of the requests.
        sessionid: SessionId,
        /// The requests.
        calls: List<ReferringCall>,
    }

    /// `CB_SEQUENCE4args` (RFC 8881 section 20.9).
    struct CbSequenceArgs {
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
        /// Requests that must be answered first.
        referring: List<ReferringCalls>,
    }

    /// `CB_SEQUENCE4resok` (RFC 8881 section 20.9).
    struct CbSequenceOk {
        /// Copied from the request.
        sessionid: SessionId,
        /// Copied from the request.
        sequenceid: u32,
        /// Copied from the request.
        slotid: u32,
        /// Highest slot ID that the client accepts.
        highest_slotid: u32,
        /// Highest slot ID that the client prefers.
        target_highest_slotid: u32,
    }

    /// `CB_NOTIFY_LOCK4args` (RFC 8881 section 20.11): a lock may be available.
    struct CbNotifyLockArgs {
        /// The locked file.
        file: FileHandle,
        /// The lock-owner.
        owner: Owner,
    }

    /// `CB_OFFLOAD4args` (RFC 7862 section 16.1): a copy has ended.
    struct CbOffloadArgs {
        /// The destination file.
        file: FileHandle,
        /// The stateid of the copy.
        stateid: StateId,
        /// Result of the copy.
        info: OffloadInfo,
    }

    /// `CB_COMPOUND4args` (RFC 7530 section 17.2, RFC 8881 section 20).
    struct CbCompoundArgs {
        /// Repeated in the reply.
        tag: Utf8,
        /// 0, 1 or 2.
        minor_version: u32,
        /// NFSv4.0: identifier from SETCLIENTID.
        ident: u32,
        /// The operations.
        ops: List<CbOp>,
    }

    /// `CB_COMPOUND4res` (RFC 7530 section 17.2, RFC 8881 section 20).
    struct CbCompoundRes {
        /// Status of the last operation.
        status: NfsStat,
        /// Copied from the request.
        tag: Utf8,
        /// Results of the executed operations.
        results: List<CbResult>,
    }
}

/// `offload_info4` (RFC 7862 section 16.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OffloadInfo {
    /// The copy succeeded.
    Ok(WriteResponse),
    /// The copy failed after this many bytes.
    Failed(NfsStat, u64),
}

impl Xdr for OffloadInfo {
    fn put(&self, to: &mut Encoder) {
        match self {
            Self::Ok(response) => {
                NfsStat::Ok.put(to);
                response.put(to);
            }
            Self::Failed(status, bytes) => {
                status.put(to);
                bytes.put(to);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(match NfsStat::take(from)? {
            NfsStat::Ok => Self::Ok(Xdr::take(from)?),
            status => Self::Failed(status, Xdr::take(from)?),
        })
    }
}

macro_rules! callbacks {
    ($($(#[$about:meta])* $number:literal $name:ident($args:ty) -> $result:ty,)*) => {
        /// `nfs_cb_argop4` (RFC 8881 section 20).
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum CbOp { $($(#[$about])* $name($args),)* }

        /// `nfs_cb_resop4` (RFC 8881 section 20).
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum CbResult {
            $($(#[$about])* $name($result),)*
            /// The client does not support the operation, or it failed.
            Failed {
                /// Operation number.
                op: u32,
                /// Error status, never NFS4_OK.
                status: NfsStat,
            },
        }

        impl CbOp {
            /// Returns the operation number.
            pub fn number(&self) -> u32 {
                match self { $(Self::$name(_) => $number,)* }
            }
        }

        impl Xdr for CbOp {
            fn put(&self, to: &mut Encoder) {
                to.word(self.number());
                match self { $(Self::$name(args) => args.put(to),)* }
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self> {
                match from.word()? {
                    $($number => Ok(Self::$name(Xdr::take(from)?)),)*
                    other => Err(XdrError::BadValue(other)),
                }
            }
        }

        impl CbResult {
            /// Returns the status.
            pub fn status(&self) -> NfsStat {
                match self {
                    $(Self::$name(result) => Outcome::status(result),)*
                    Self::Failed { status, .. } => *status,
                }
            }
        }

        impl Xdr for CbResult {
            fn put(&self, to: &mut Encoder) {
                match self {
                    $(Self::$name(result) => {
                        to.word($number);
                        result.put(to);
                    })*
                    Self::Failed { op, status } => {
                        to.word(*op);
                        status.put(to);
                    }
                }
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self> {
                Ok(match from.word()? {
                    $($number => Self::$name(Xdr::take(from)?),)*
                    op => Self::Failed { op, status: Xdr::take(from)? },
                })
            }
        }
    };
}

callbacks! {
    /// CB_GETATTR: request the file's current attributes.
    3 GetAttr(CbGetAttrArgs) -> Res<Fattr>,
    /// CB_RECALL: return the delegation.
    4 Recall(CbRecallArgs) -> Res<()>,
    /// CB_RECALL_ANY: return some delegations.
    8 RecallAny(CbRecallAnyArgs) -> Res<()>,
    /// CB_RECALL_SLOT: use fewer slots.
    10 RecallSlot(u32) -> Res<()>,
    /// CB_SEQUENCE: the session and slot of this callback.
    11 Sequence(CbSequenceArgs) -> Res<CbSequenceOk>,
    /// CB_NOTIFY_LOCK: a lock may be available.
    13 NotifyLock(CbNotifyLockArgs) -> Res<()>,
    /// CB_OFFLOAD: a copy has ended.
    15 Offload(CbOffloadArgs) -> Res<()>,
}
