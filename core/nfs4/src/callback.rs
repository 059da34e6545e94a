//! What a server asks of a client: CB_COMPOUND (RFC 7530 section 17, RFC 8881 section 20, RFC 7862 section 16).

use crate::attr::Fattr;
use crate::ops::Outcome;
use crate::ops::v42::WriteResponse;
use crate::status::{NfsStat, Res};
use crate::types::{Bitmap, FileHandle, Owner, SessionId, StateId, Utf8};
use crate::xdr::{Decoder, Encoder, List, Result, Xdr, XdrError, xdr_struct};

/// The program that clients of NFSv4.0 like to be called back as; in truth each says which (RFC 7531).
pub const CALLBACK_PROGRAM: u32 = 0x4000_0000;
/// Its version. RFC 8881 section 18.36.3 says 4; the XDR of all minor versions says 1, and so does everybody.
pub const CALLBACK_VERSION: u32 = 1;
/// Procedure 0: does nothing.
pub const PROC_CB_NULL: u32 = 0;
/// Procedure 1: a list of operations.
pub const PROC_CB_COMPOUND: u32 = 1;

/// Bits of CB_RECALL_ANY's types.
pub mod recall_any {
    /// Delegations for reading.
    pub const READ_DELEG: u32 = 0;
    /// Delegations for writing.
    pub const WRITE_DELEG: u32 = 1;
}

xdr_struct! {
    /// `CB_GETATTR4args`.
    struct CbGetAttrArgs {
        /// The delegated file.
        file: FileHandle,
        /// Change attribute and size.
        attrs: Bitmap,
    }

    /// `CB_RECALL4args`.
    struct CbRecallArgs {
        /// The delegation.
        stateid: StateId,
        /// The file is going to be truncated: its data need not be written back.
        truncate: bool,
        /// The delegated file.
        file: FileHandle,
    }

    /// `CB_RECALL_ANY4args`.
    struct CbRecallAnyArgs {
        /// So many may be kept.
        keep: u32,
        /// Of these types (`rca4_type_mask`).
        types: Bitmap,
    }

    /// `referring_call4`.
    struct ReferringCall {
        /// The slot's.
        sequenceid: u32,
        /// Which slot.
        slotid: u32,
    }

    /// `referring_call_list4`: requests whose replies this callback depends on.
    struct ReferringCalls {
        /// Of this session.
        sessionid: SessionId,
        /// These.
        calls: List<ReferringCall>,
    }

    /// `CB_SEQUENCE4args`.
    struct CbSequenceArgs {
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
        /// What this depends on.
        referring: List<ReferringCalls>,
    }

    /// `CB_SEQUENCE4resok`.
    struct CbSequenceOk {
        /// As asked.
        sessionid: SessionId,
        /// As asked.
        sequenceid: u32,
        /// As asked.
        slotid: u32,
        /// The highest one that the client takes.
        highest_slotid: u32,
        /// The highest one that it would like to take.
        target_highest_slotid: u32,
    }

    /// `CB_NOTIFY_LOCK4args`: a lock may be free now.
    struct CbNotifyLockArgs {
        /// Of this file.
        file: FileHandle,
        /// For whom.
        owner: Owner,
    }

    /// `CB_OFFLOAD4args`: a copy has ended.
    struct CbOffloadArgs {
        /// Into this file.
        file: FileHandle,
        /// Which copy.
        stateid: StateId,
        /// How.
        info: OffloadInfo,
    }

    /// `CB_COMPOUND4args`.
    struct CbCompoundArgs {
        /// Repeated in the reply.
        tag: Utf8,
        /// 0, 1 or 2.
        minor_version: u32,
        /// NFSv4.0: what SETCLIENTID said.
        ident: u32,
        /// The operations.
        ops: List<CbOp>,
    }

    /// `CB_COMPOUND4res`.
    struct CbCompoundRes {
        /// That of the last operation.
        status: NfsStat,
        /// As asked.
        tag: Utf8,
        /// As many as were done.
        results: List<CbResult>,
    }
}

/// `offload_info4`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OffloadInfo {
    /// Done.
    Ok(WriteResponse),
    /// It failed after so many bytes.
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
        /// `nfs_cb_argop4`.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum CbOp { $($(#[$about])* $name($args),)* }

        /// `nfs_cb_resop4`.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum CbResult {
            $($(#[$about])* $name($result),)*
            /// Not done by this client.
            Failed {
                /// The operation.
                op: u32,
                /// Not NFS4_OK.
                status: NfsStat,
            },
        }

        impl CbOp {
            /// Its number.
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
            /// How it ended.
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
    /// What does the file look like to you?
    3 GetAttr(CbGetAttrArgs) -> Res<Fattr>,
    /// Give the delegation back.
    4 Recall(CbRecallArgs) -> Res<()>,
    /// Give some delegations back.
    8 RecallAny(CbRecallAnyArgs) -> Res<()>,
    /// Use fewer slots.
    10 RecallSlot(u32) -> Res<()>,
    /// Which slot of which session this callback uses.
    11 Sequence(CbSequenceArgs) -> Res<CbSequenceOk>,
    /// A lock may be free now.
    13 NotifyLock(CbNotifyLockArgs) -> Res<()>,
    /// A copy has ended.
    15 Offload(CbOffloadArgs) -> Res<()>,
}
