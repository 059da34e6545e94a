//! The operations of COMPOUND: numbers, arguments, results.
//!
//! [`v40`], [`v41`] and [`v42`] hold the types of what each minor version added; the table below says which belong to which number.

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
        /// `nfs_opnum4`.
        pub mod number {
            $($(#[$about])* pub const $constant: u32 = $number;)*
            $($(#[$about_not])* pub const $constant_not: u32 = $number_not;)*
            /// What answers a number that no operation has.
            pub const ILLEGAL: u32 = 10044;

            /// The name of the operation that has a number, if one has.
            pub const fn name(number: u32) -> Option<&'static str> {
                match number {
                    $($number => Some(stringify!($constant)),)*
                    $($number_not => Some(stringify!($constant_not)),)*
                    ILLEGAL => Some("ILLEGAL"),
                    _ => None,
                }
            }
        }

        /// `nfs_argop4`: an operation and its arguments.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Op {
            $($(#[$about])* $name($args),)*
            /// One that exists and whose arguments this does not know: nothing behind it can be found.
            Unsupported(u32),
        }

        /// `nfs_resop4`: an operation and how it went.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum OpResult {
            $($(#[$about])* $name($result),)*
            /// One whose results this does not know, or that none has: only failures.
            Failed {
                /// The operation.
                op: u32,
                /// Not NFS4_OK.
                status: NfsStat,
            },
        }

        impl Op {
            /// Its number.
            pub fn number(&self) -> u32 {
                match self {
                    $(Self::$name(_) => $number,)*
                    Self::Unsupported(number) => *number,
                }
            }

            /// Take the arguments of an operation. `None`: no operation of this minor version has this number.
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

            /// Append number and arguments.
            pub fn put(&self, to: &mut Encoder) {
                to.word(self.number());
                match self {
                    $(Self::$name(args) => args.put(to),)*
                    Self::Unsupported(_) => {}
                }
            }
        }

        impl OpResult {
            /// The operation's number.
            pub fn number(&self) -> u32 {
                match self {
                    $(Self::$name(_) => $number,)*
                    Self::Failed { op, .. } => *op,
                }
            }

            /// How it ended.
            pub fn status(&self) -> NfsStat {
                match self {
                    $(Self::$name(result) => Outcome::status(result),)*
                    Self::Failed { status, .. } => *status,
                }
            }

            /// That an operation failed.
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

/// The last operation of a minor version; extended attributes belong to the last one.
const fn last(minor: u32) -> u32 {
    match minor {
        0 => number::RELEASE_LOCKOWNER,
        1 => number::RECLAIM_COMPLETE,
        _ => number::REMOVEXATTR,
    }
}

/// What sessions replaced: NFS4ERR_NOTSUPP since NFSv4.1 (RFC 8881 section 17).
const ONLY_V40: [u32; 5] = [
    number::SETCLIENTID,
    number::SETCLIENTID_CONFIRM,
    number::OPEN_CONFIRM,
    number::RENEW,
    number::RELEASE_LOCKOWNER,
];

/// A result of whatever shape: each begins with a status.
pub trait Outcome {
    /// How it ended.
    fn status(&self) -> NfsStat;
    /// That it failed.
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
    /// Ask for permissions.
    3 ACCESS Access(u32) -> Res<AccessOk>,
    /// Close an open.
    4 CLOSE Close(SeqState) -> Res<StateId>,
    /// Make unstable writes durable.
    5 COMMIT Commit(CommitArgs) -> Res<Verifier>,
    /// Make anything but a regular file.
    6 CREATE Create(CreateArgs) -> Res<Created>,
    /// Give up all delegations that wait to be reclaimed.
    7 DELEGPURGE DelegPurge(ClientId) -> Res<()>,
    /// Give a delegation back.
    8 DELEGRETURN DelegReturn(StateId) -> Res<()>,
    /// Attributes.
    9 GETATTR GetAttr(Bitmap) -> Res<Fattr>,
    /// The current filehandle.
    10 GETFH GetFh(()) -> Res<FileHandle>,
    /// Another name for the saved file in the current directory.
    11 LINK Link(Utf8) -> Res<ChangeInfo>,
    /// Lock a range.
    12 LOCK Lock(LockArgs) -> LockRes,
    /// Ask about a lock.
    13 LOCKT LockT(LockTestArgs) -> LockTestRes,
    /// Unlock a range.
    14 LOCKU LockU(UnlockArgs) -> Res<StateId>,
    /// Go to a name.
    15 LOOKUP Lookup(Utf8) -> Res<()>,
    /// Go to the parent directory.
    16 LOOKUPP LookupP(()) -> Res<()>,
    /// Go on only if attributes differ.
    17 NVERIFY NVerify(Fattr) -> Res<()>,
    /// Open a regular file, perhaps make it.
    18 OPEN Open(OpenArgs) -> Res<Opened>,
    /// The directory of named attributes.
    19 OPENATTR OpenAttr(bool) -> Res<()>,
    /// NFSv4.0: a new open-owner is no repetition.
    20 OPEN_CONFIRM OpenConfirm(OpenConfirmArgs) -> Res<StateId>,
    /// Give up part of what an open may do.
    21 OPEN_DOWNGRADE OpenDowngrade(DowngradeArgs) -> Res<StateId>,
    /// Go to a filehandle.
    22 PUTFH PutFh(FileHandle) -> Res<()>,
    /// Go to the public filehandle.
    23 PUTPUBFH PutPubFh(()) -> Res<()>,
    /// Go to the root.
    24 PUTROOTFH PutRootFh(()) -> Res<()>,
    /// Read data.
    25 READ Read(ReadArgs) -> Res<ReadOk>,
    /// Names in a directory.
    26 READDIR ReadDir(ReadDirArgs) -> Res<ReadDirOk>,
    /// Where a symbolic link leads.
    27 READLINK ReadLink(()) -> Res<Vec<u8>>,
    /// Remove a name.
    28 REMOVE Remove(Utf8) -> Res<ChangeInfo>,
    /// From the saved directory to the current one.
    29 RENAME Rename(RenameArgs) -> Res<Renamed>,
    /// NFSv4.0: renew the lease.
    30 RENEW Renew(ClientId) -> Res<()>,
    /// Go back to the saved filehandle.
    31 RESTOREFH RestoreFh(()) -> Res<()>,
    /// Save the current filehandle.
    32 SAVEFH SaveFh(()) -> Res<()>,
    /// Which security a name wants.
    33 SECINFO SecInfo(Utf8) -> Res<List<SecInfoEntry>>,
    /// Set attributes.
    34 SETATTR SetAttr(SetAttrArgs) -> SetAttrRes,
    /// NFSv4.0: who I am.
    35 SETCLIENTID SetClientId(SetClientIdArgs) -> SetClientIdRes,
    /// NFSv4.0: it is really me.
    36 SETCLIENTID_CONFIRM SetClientIdConfirm(ConfirmArgs) -> Res<()>,
    /// Go on only if attributes are the same.
    37 VERIFY Verify(Fattr) -> Res<()>,
    /// Write data.
    38 WRITE Write(WriteArgs) -> Res<WriteOk>,
    /// NFSv4.0: forget a lock-owner.
    39 RELEASE_LOCKOWNER ReleaseLockOwner(Owner) -> Res<()>,
    /// What the backchannel shall use.
    40 BACKCHANNEL_CTL BackchannelCtl(BackchannelCtlArgs) -> Res<()>,
    /// Let a connection serve a session.
    41 BIND_CONN_TO_SESSION BindConnToSession(BindConn) -> Res<BindConn>,
    /// Who I am.
    42 EXCHANGE_ID ExchangeId(ExchangeIdArgs) -> Res<ExchangeIdOk>,
    /// A session.
    43 CREATE_SESSION CreateSession(CreateSessionArgs) -> Res<CreateSessionOk>,
    /// No session any more.
    44 DESTROY_SESSION DestroySession(crate::types::SessionId) -> Res<()>,
    /// Forget a stateid that means nothing any more.
    45 FREE_STATEID FreeStateId(StateId) -> Res<()>,
    /// Which security the current filehandle, or its parent, wants.
    52 SECINFO_NO_NAME SecInfoNoName(SecInfoStyle) -> Res<List<SecInfoEntry>>,
    /// Which slot of which session this request uses.
    53 SEQUENCE Sequence(SequenceArgs) -> Res<SequenceOk>,
    /// Ask about stateids.
    55 TEST_STATEID TestStateId(List<StateId>) -> Res<List<u32>>,
    /// No client any more.
    57 DESTROY_CLIENTID DestroyClientId(ClientId) -> Res<()>,
    /// Everything that there was to reclaim is reclaimed. True: of the current filesystem.
    58 RECLAIM_COMPLETE ReclaimComplete(bool) -> Res<()>,
    /// Allocate a range.
    59 ALLOCATE Allocate(RangeArgs) -> Res<()>,
    /// Copy a range from the saved file to the current one.
    60 COPY Copy(CopyArgs) -> CopyRes,
    /// Free a range.
    62 DEALLOCATE Deallocate(RangeArgs) -> Res<()>,
    /// How a range is going to be used.
    63 IO_ADVISE IoAdvise(IoAdviseArgs) -> Res<Bitmap>,
    /// Stop a copy.
    66 OFFLOAD_CANCEL OffloadCancel(StateId) -> Res<()>,
    /// Ask about a copy.
    67 OFFLOAD_STATUS OffloadStatus(StateId) -> Res<OffloadStatusOk>,
    /// Read data and holes.
    68 READ_PLUS ReadPlus(ReadArgs) -> Res<ReadPlusOk>,
    /// Find data or a hole.
    69 SEEK Seek(SeekArgs) -> Res<SeekOk>,
    /// Share a range of the saved file with the current one.
    71 CLONE Clone(CloneArgs) -> Res<()>,
    /// Read an extended attribute.
    72 GETXATTR GetXattr(Utf8) -> Res<Vec<u8>>,
    /// Set an extended attribute.
    73 SETXATTR SetXattr(SetXattrArgs) -> Res<ChangeInfo>,
    /// Names of extended attributes.
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
    /// State protection by a shared secret.
    54 SET_SSV,
    /// Delegations without an open.
    56 WANT_DELEGATION,
    /// Copies between servers.
    61 COPY_NOTIFY,
    /// pNFS.
    64 LAYOUTERROR,
    /// pNFS.
    65 LAYOUTSTATS,
    /// Patterns.
    70 WRITE_SAME,
}

/// `SETCLIENTID4res`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetClientIdRes {
    /// To be confirmed.
    Ok(ConfirmArgs),
    /// Another one uses that name, from there.
    InUse(NetAddr),
    /// Neither.
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
