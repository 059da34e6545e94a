//! The operations of COMPOUND: numbers, arguments and results.
//!
//! The modules [`v40`], [`v41`] and [`v42`] hold the types that each minor version added. The table below
//! maps operation numbers to them.

pub mod v40;
pub mod v41;
pub mod v42;

use crate::attr::Fattr;
use crate::status::{NfsStat, Res};
use crate::types::{Bitmap, ChangeInfo, ClientId, FileHandle, NetAddr, Owner, StateId, Utf8, Verifier};
use crate::xdr::{Decoder, Encoder, List, Result, Xdr};
use v40::*;
use v41::*;
use v42::*;

macro_rules! operations {
    ($($(#[$about:meta])* $number:literal $constant:ident $name:ident($args:ty) -> $result:ty,)*
     unsupported: $($(#[$about_not:meta])* $number_not:literal $constant_not:ident,)*) => {
        /// `nfs_opnum4` (RFC 7530 section 14.4, RFC 8881 section 16).
        pub mod number {
            $($(#[$about])* pub const $constant: u32 = $number;)*
            $($(#[$about_not])* pub const $constant_not: u32 = $number_not;)*
            /// Operation number in the reply to an unknown operation.
            pub const ILLEGAL: u32 = 10044;

            /// Returns the name of an operation, or `None` for an unknown number.
            pub const fn name(number: u32) -> Option<&'static str> {
                match number {
                    $($number => Some(stringify!($constant)),)*
                    $($number_not => Some(stringify!($constant_not)),)*
                    ILLEGAL => Some("ILLEGAL"),
                    _ => None,
                }
            }
        }

        /// `nfs_argop4` (RFC 7530 section 15.2, RFC 8881 section 16.2): an operation and its arguments.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Op {
            $($(#[$about])* $name($args),)*
            /// A known operation whose arguments cannot be decoded. The operations after it cannot be found.
            Unsupported(u32),
        }

        /// `nfs_resop4` (RFC 7530 section 15.2, RFC 8881 section 16.2): an operation and how it went.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum OpResult {
            $($(#[$about])* $name($result),)*
            /// An operation that failed and whose results this crate does not know.
            Failed {
                /// Operation number.
                op: u32,
                /// Error status, never NFS4_OK.
                status: NfsStat,
            },
        }

        impl Op {
            /// Returns the operation number.
            pub fn number(&self) -> u32 {
                match self {
                    $(Self::$name(_) => $number,)*
                    Self::Unsupported(number) => *number,
                }
            }

            /// Decodes the arguments of an operation. Returns `None` if the minor version has no such
            /// operation.
            pub fn take_body(minor: u32, number: u32, from: &mut Decoder<'_>) -> Result<Option<Self>> {
                if number > last(minor) {
                    return Ok(None);
                }
                if minor > 0 && ONLY_V40.contains(&number) {
                    return Ok(Some(Self::Unsupported(number)));
                }
                Ok(Some(match number {
                    $($number => Self::$name(Xdr::take(from)?),)*
                    $($number_not)|* => Self::Unsupported(number),
                    _ => return Ok(None),
                }))
            }

            /// Appends number and arguments.
            pub fn put(&self, to: &mut Encoder) {
                to.word(self.number());
                match self {
                    $(Self::$name(args) => args.put(to),)*
                    Self::Unsupported(_) => {}
                }
            }
        }

        impl OpResult {
            /// Returns the operation number.
            pub fn number(&self) -> u32 {
                match self {
                    $(Self::$name(_) => $number,)*
                    Self::Failed { op, .. } => *op,
                }
            }

            /// Returns the status.
            pub fn status(&self) -> NfsStat {
                match self {
                    $(Self::$name(result) => Outcome::status(result),)*
                    Self::Failed { status, .. } => *status,
                }
            }

            /// Returns the result of a failed operation.
            pub fn failure(op: u32, status: NfsStat) -> Self {
                match op {
                    $($number => Self::$name(Outcome::failure(status)),)*
                    _ => Self::Failed { op, status },
                }
            }
        }

        impl Xdr for OpResult {
            fn put(&self, to: &mut Encoder) {
                to.word(self.number());
                match self {
                    $(Self::$name(result) => result.put(to),)*
                    Self::Failed { status, .. } => status.put(to),
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

/// Returns the last operation number of a minor version. Extended attributes belong to NFSv4.2.
const fn last(minor: u32) -> u32 {
    match minor {
        0 => number::RELEASE_LOCKOWNER,
        1 => number::RECLAIM_COMPLETE,
        _ => number::REMOVEXATTR,
    }
}

/// Operations that sessions replaced: NFS4ERR_NOTSUPP since NFSv4.1 (RFC 8881 section 17).
const ONLY_V40: [u32; 5] = [
    number::SETCLIENTID,
    number::SETCLIENTID_CONFIRM,
    number::OPEN_CONFIRM,
    number::RENEW,
    number::RELEASE_LOCKOWNER,
];

/// A result. Each begins with a status.
pub trait Outcome {
    /// Returns the status.
    fn status(&self) -> NfsStat;
    /// Creates the result of a failure.
    fn failure(status: NfsStat) -> Self;
}

impl<T> Outcome for Res<T> {
    fn status(&self) -> NfsStat {
        self.as_ref().err().copied().unwrap_or(NfsStat::Ok)
    }

    fn failure(status: NfsStat) -> Self {
        Err(status)
    }
}

operations! {
    /// Check access rights.
    3 ACCESS Access(u32) -> Res<AccessOk>,
    /// Close an open.
    4 CLOSE Close(SeqState) -> Res<StateId>,
    /// Make unstable writes durable.
    5 COMMIT Commit(CommitArgs) -> Res<Verifier>,
    /// Create an object other than a regular file.
    6 CREATE Create(CreateArgs) -> Res<Created>,
    /// Discard delegations that wait to be reclaimed.
    7 DELEGPURGE DelegPurge(ClientId) -> Res<()>,
    /// Return a delegation.
    8 DELEGRETURN DelegReturn(StateId) -> Res<()>,
    /// Read attributes.
    9 GETATTR GetAttr(Bitmap) -> Res<Fattr>,
    /// Return the current filehandle.
    10 GETFH GetFh(()) -> Res<FileHandle>,
    /// Create a link to the saved file in the current directory.
    11 LINK Link(Utf8) -> Res<ChangeInfo>,
    /// Lock a range.
    12 LOCK Lock(LockArgs) -> LockRes,
    /// Test for a lock.
    13 LOCKT LockT(LockTestArgs) -> LockTestRes,
    /// Unlock a range.
    14 LOCKU LockU(UnlockArgs) -> Res<StateId>,
    /// Look up a name.
    15 LOOKUP Lookup(Utf8) -> Res<()>,
    /// Look up the parent directory.
    16 LOOKUPP LookupP(()) -> Res<()>,
    /// Continue only if attributes differ.
    17 NVERIFY NVerify(Fattr) -> Res<()>,
    /// Open and optionally create a regular file.
    18 OPEN Open(OpenArgs) -> Res<Opened>,
    /// Open the directory of named attributes.
    19 OPENATTR OpenAttr(bool) -> Res<()>,
    /// NFSv4.0: confirm a new open-owner.
    20 OPEN_CONFIRM OpenConfirm(OpenConfirmArgs) -> Res<StateId>,
    /// Reduce the access of an open.
    21 OPEN_DOWNGRADE OpenDowngrade(DowngradeArgs) -> Res<StateId>,
    /// Set the current filehandle.
    22 PUTFH PutFh(FileHandle) -> Res<()>,
    /// Set the current filehandle to the public one.
    23 PUTPUBFH PutPubFh(()) -> Res<()>,
    /// Set the current filehandle to the root.
    24 PUTROOTFH PutRootFh(()) -> Res<()>,
    /// Read data.
    25 READ Read(ReadArgs) -> Res<ReadOk>,
    /// List a directory.
    26 READDIR ReadDir(ReadDirArgs) -> Res<ReadDirOk>,
    /// Read a symbolic link.
    27 READLINK ReadLink(()) -> Res<Vec<u8>>,
    /// Remove a name.
    28 REMOVE Remove(Utf8) -> Res<ChangeInfo>,
    /// Rename from the saved directory to the current one.
    29 RENAME Rename(RenameArgs) -> Res<Renamed>,
    /// NFSv4.0: renew the lease.
    30 RENEW Renew(ClientId) -> Res<()>,
    /// Restore the saved filehandle.
    31 RESTOREFH RestoreFh(()) -> Res<()>,
    /// Save the current filehandle.
    32 SAVEFH SaveFh(()) -> Res<()>,
    /// List the security flavors of a name.
    33 SECINFO SecInfo(Utf8) -> Res<List<SecInfoEntry>>,
    /// Set attributes.
    34 SETATTR SetAttr(SetAttrArgs) -> SetAttrRes,
    /// NFSv4.0: announce a client.
    35 SETCLIENTID SetClientId(SetClientIdArgs) -> SetClientIdRes,
    /// NFSv4.0: confirm a client ID.
    36 SETCLIENTID_CONFIRM SetClientIdConfirm(ConfirmArgs) -> Res<()>,
    /// Continue only if attributes are equal.
    37 VERIFY Verify(Fattr) -> Res<()>,
    /// Write data.
    38 WRITE Write(WriteArgs) -> Res<WriteOk>,
    /// NFSv4.0: release a lock-owner.
    39 RELEASE_LOCKOWNER ReleaseLockOwner(Owner) -> Res<()>,
    /// Change the parameters of the backchannel.
    40 BACKCHANNEL_CTL BackchannelCtl(BackchannelCtlArgs) -> Res<()>,
    /// Bind a connection to a session.
    41 BIND_CONN_TO_SESSION BindConnToSession(BindConn) -> Res<BindConn>,
    /// Announce a client.
    42 EXCHANGE_ID ExchangeId(ExchangeIdArgs) -> Res<ExchangeIdOk>,
    /// Create a session.
    43 CREATE_SESSION CreateSession(CreateSessionArgs) -> Res<CreateSessionOk>,
    /// Destroy a session.
    44 DESTROY_SESSION DestroySession(crate::types::SessionId) -> Res<()>,
    /// Free a stateid.
    45 FREE_STATEID FreeStateId(StateId) -> Res<()>,
    /// List the security flavors of the current filehandle or its parent.
    52 SECINFO_NO_NAME SecInfoNoName(SecInfoStyle) -> Res<List<SecInfoEntry>>,
    /// State the session and slot of this request.
    53 SEQUENCE Sequence(SequenceArgs) -> Res<SequenceOk>,
    /// Test stateids.
    55 TEST_STATEID TestStateId(List<StateId>) -> Res<List<u32>>,
    /// Destroy a client ID.
    57 DESTROY_CLIENTID DestroyClientId(ClientId) -> Res<()>,
    /// Tell that reclaim is complete. True: for the current filesystem only.
    58 RECLAIM_COMPLETE ReclaimComplete(bool) -> Res<()>,
    /// Allocate a range.
    59 ALLOCATE Allocate(RangeArgs) -> Res<()>,
    /// Copy a range from the saved file to the current one.
    60 COPY Copy(CopyArgs) -> CopyRes,
    /// Free a range.
    62 DEALLOCATE Deallocate(RangeArgs) -> Res<()>,
    /// Announce the access pattern of a range.
    63 IO_ADVISE IoAdvise(IoAdviseArgs) -> Res<Bitmap>,
    /// Cancel a copy.
    66 OFFLOAD_CANCEL OffloadCancel(StateId) -> Res<()>,
    /// Query the status of a copy.
    67 OFFLOAD_STATUS OffloadStatus(StateId) -> Res<OffloadStatusOk>,
    /// Read data and holes.
    68 READ_PLUS ReadPlus(ReadArgs) -> Res<ReadPlusOk>,
    /// Seek data or a hole.
    69 SEEK Seek(SeekArgs) -> Res<SeekOk>,
    /// Clone a range of the saved file into the current one.
    71 CLONE Clone(CloneArgs) -> Res<()>,
    /// Read an extended attribute.
    72 GETXATTR GetXattr(Utf8) -> Res<Vec<u8>>,
    /// Set an extended attribute.
    73 SETXATTR SetXattr(SetXattrArgs) -> Res<ChangeInfo>,
    /// List extended attributes.
    74 LISTXATTRS ListXattrs(ListXattrsArgs) -> Res<ListXattrsOk>,
    /// Remove an extended attribute.
    75 REMOVEXATTR RemoveXattr(Utf8) -> Res<ChangeInfo>,
    unsupported:
    /// Directory delegations.
    46 GET_DIR_DELEGATION,
    /// pNFS.
    47 GETDEVICEINFO,
    /// pNFS.
    48 GETDEVICELIST,
    /// pNFS.
    49 LAYOUTCOMMIT,
    /// pNFS.
    50 LAYOUTGET,
    /// pNFS.
    51 LAYOUTRETURN,
    /// Set the shared secret for state protection (SSV).
    54 SET_SSV,
    /// Request a delegation without an open.
    56 WANT_DELEGATION,
    /// Prepare a copy between servers.
    61 COPY_NOTIFY,
    /// pNFS.
    64 LAYOUTERROR,
    /// pNFS.
    65 LAYOUTSTATS,
    /// Write a repeated pattern.
    70 WRITE_SAME,
}

/// `SETCLIENTID4res` (RFC 7530 section 16.33).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetClientIdRes {
    /// Success; the client must confirm.
    Ok(ConfirmArgs),
    /// Another client uses the name, from this address.
    InUse(NetAddr),
    /// Another error.
    Failed(NfsStat),
}

impl Outcome for SetClientIdRes {
    fn status(&self) -> NfsStat {
        match self {
            Self::Ok(_) => NfsStat::Ok,
            Self::InUse(_) => NfsStat::ClidInuse,
            Self::Failed(status) => *status,
        }
    }

    fn failure(status: NfsStat) -> Self {
        match status {
            NfsStat::ClidInuse => Self::InUse(NetAddr { netid: Vec::new(), addr: Vec::new() }),
            status => Self::Failed(status),
        }
    }
}

impl Xdr for SetClientIdRes {
    fn put(&self, to: &mut Encoder) {
        self.status().put(to);
        match self {
            Self::Ok(args) => args.put(to),
            Self::InUse(addr) => addr.put(to),
            Self::Failed(_) => {}
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(match NfsStat::take(from)? {
            NfsStat::Ok => Self::Ok(Xdr::take(from)?),
            NfsStat::ClidInuse => Self::InUse(Xdr::take(from)?),
            status => Self::Failed(status),
        })
    }
}
