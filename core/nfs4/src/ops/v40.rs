//! Operations of NFSv4.0 (RFC 7530, RFC 7531); 4.1 and 4.2 use most of them as well.

use super::Outcome;
use crate::attr::Fattr;
use crate::status::NfsStat;
use crate::types::*;
use crate::xdr::{Decoder, Encoder, Result, Xdr, xdr_struct, xdr_union};

/// Bits of ACCESS (RFC 7530 section 16.1, RFC 8276 section 8.5).
pub mod access {
    /// Read data or names.
    pub const READ: u32 = 0x01;
    /// Look a name up.
    pub const LOOKUP: u32 = 0x02;
    /// Change data or names.
    pub const MODIFY: u32 = 0x04;
    /// Add data or names.
    pub const EXTEND: u32 = 0x08;
    /// Remove names.
    pub const DELETE: u32 = 0x10;
    /// Run.
    pub const EXECUTE: u32 = 0x20;
    /// Read extended attributes.
    pub const XAREAD: u32 = 0x40;
    /// Change extended attributes.
    pub const XAWRITE: u32 = 0x80;
    /// List extended attributes.
    pub const XALIST: u32 = 0x100;
}

/// Bits of `share_access` and `share_deny` (RFC 7531, RFC 8881 section 18.16).
pub mod share {
    /// Reading.
    pub const READ: u32 = 1;
    /// Writing.
    pub const WRITE: u32 = 2;
    /// Both.
    pub const BOTH: u32 = 3;
    /// Which delegation is wanted.
    pub const WANT_MASK: u32 = 0xff00;
    /// One for reading.
    pub const WANT_READ_DELEG: u32 = 0x0100;
    /// One for writing.
    pub const WANT_WRITE_DELEG: u32 = 0x0200;
    /// Any.
    pub const WANT_ANY_DELEG: u32 = 0x0300;
    /// None at all.
    pub const WANT_NO_DELEG: u32 = 0x0400;
    /// No longer the one that was wanted.
    pub const WANT_CANCEL: u32 = 0x0500;
    /// Tell when there is room for one again.
    pub const WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: u32 = 0x1_0000;
    /// Give it when nobody is in the way any more.
    pub const WANT_PUSH_DELEG_WHEN_UNCONTENDED: u32 = 0x2_0000;
    /// With times that the holder keeps (RFC 9754).
    pub const WANT_DELEG_TIMESTAMPS: u32 = 0x10_0000;
    /// A delegation may take the place of the open's stateid (RFC 9754).
    pub const WANT_OPEN_XOR_DELEGATION: u32 = 0x20_0000;
}

/// Bits of an OPEN's result flags.
pub mod rflags {
    /// NFSv4.0: OPEN_CONFIRM has to follow.
    pub const CONFIRM: u32 = 2;
    /// Locks are POSIX's: ranges are split and merged.
    pub const LOCKTYPE_POSIX: u32 = 4;
    /// A file that is removed while it is open stays, over restarts of the server, too.
    pub const PRESERVE_UNLINKED: u32 = 8;
    /// There is a delegation and no open stateid (RFC 9754).
    pub const NO_OPEN_STATEID: u32 = 0x10;
    /// CB_NOTIFY_LOCK may come.
    pub const MAY_NOTIFY_LOCK: u32 = 0x20;
}

xdr_struct! {
    /// `ACCESS4resok`.
    struct AccessOk {
        /// What can be told.
        supported: u32,
        /// What is allowed.
        access: u32,
    }

    /// `CLOSE4args`.
    struct SeqState {
        /// NFSv4.0: the owner's next.
        seqid: u32,
        /// The open.
        stateid: StateId,
    }

    /// `COMMIT4args`.
    struct CommitArgs {
        /// From here.
        offset: u64,
        /// So many bytes; 0: all.
        count: u32,
    }

    /// `CREATE4args`.
    struct CreateArgs {
        /// What.
        kind: CreateType,
        /// Its name in the current directory.
        name: Utf8,
        /// Its attributes.
        attrs: Fattr,
    }

    /// `CREATE4resok`.
    struct Created {
        /// The directory.
        cinfo: ChangeInfo,
        /// Attributes that were set.
        attrset: Bitmap,
    }

    /// `open_to_lock_owner4`: the first lock of a lock-owner under an open.
    struct OpenToLockOwner {
        /// NFSv4.0: the open-owner's next.
        open_seqid: u32,
        /// The open.
        open_stateid: StateId,
        /// NFSv4.0: the lock-owner's first.
        lock_seqid: u32,
        /// Who locks.
        lock_owner: Owner,
    }

    /// `exist_lock_owner4`.
    struct ExistLockOwner {
        /// His locks of this file.
        stateid: StateId,
        /// NFSv4.0: his next.
        seqid: u32,
    }

    /// `LOCK4args`.
    struct LockArgs {
        /// Which kind.
        kind: LockType,
        /// It was held before the server restarted.
        reclaim: bool,
        /// From here.
        offset: u64,
        /// So many bytes; all ones: to the end.
        length: u64,
        /// For whom.
        locker: Locker,
    }

    /// `LOCK4denied`: a lock that is in the way.
    struct LockDenied {
        /// From here.
        offset: u64,
        /// So many bytes.
        length: u64,
        /// Of this kind.
        kind: LockType,
        /// Whose.
        owner: Owner,
    }

    /// `LOCKT4args`.
    struct LockTestArgs {
        /// Which kind.
        kind: LockType,
        /// From here.
        offset: u64,
        /// So many bytes.
        length: u64,
        /// For whom.
        owner: Owner,
    }

    /// `LOCKU4args`.
    struct UnlockArgs {
        /// Ignored.
        kind: LockType,
        /// NFSv4.0: the owner's next.
        seqid: u32,
        /// His locks of this file.
        stateid: StateId,
        /// From here.
        offset: u64,
        /// So many bytes.
        length: u64,
    }

    /// `open_claim_delegate_cur4`.
    struct ClaimDelegateCur {
        /// The delegation.
        stateid: StateId,
        /// The name.
        name: Utf8,
    }

    /// `OPEN4args`.
    struct OpenArgs {
        /// NFSv4.0: the owner's next.
        seqid: u32,
        /// Bits of [`share`].
        share_access: u32,
        /// Bits of [`share`] that others shall not have.
        share_deny: u32,
        /// Who opens.
        owner: Owner,
        /// Make it or not.
        how: OpenHow,
        /// Which file, and by what right.
        claim: OpenClaim,
    }

    /// `OPEN4resok`.
    struct Opened {
        /// The open.
        stateid: StateId,
        /// The directory.
        cinfo: ChangeInfo,
        /// Bits of [`rflags`].
        rflags: u32,
        /// Attributes that were set.
        attrset: Bitmap,
        /// A delegation, perhaps.
        delegation: OpenDelegation,
    }

    /// `open_read_delegation4`.
    struct ReadDelegation {
        /// Which.
        stateid: StateId,
        /// It is being recalled already.
        recall: bool,
        /// Who may open the file without asking.
        permissions: Ace,
    }

    /// `open_write_delegation4`.
    struct WriteDelegation {
        /// Which.
        stateid: StateId,
        /// It is being recalled already.
        recall: bool,
        /// How much may be written back later than at CLOSE.
        space_limit: SpaceLimit,
        /// Who may open the file without asking.
        permissions: Ace,
    }

    /// `OPEN_CONFIRM4args`.
    struct OpenConfirmArgs {
        /// The open.
        stateid: StateId,
        /// The owner's next.
        seqid: u32,
    }

    /// `OPEN_DOWNGRADE4args`.
    struct DowngradeArgs {
        /// The open.
        stateid: StateId,
        /// NFSv4.0: the owner's next.
        seqid: u32,
        /// What stays.
        share_access: u32,
        /// What stays.
        share_deny: u32,
    }

    /// `READ4args`, `READ_PLUS4args`.
    struct ReadArgs {
        /// By what right.
        stateid: StateId,
        /// From here.
        offset: u64,
        /// At most so many bytes.
        count: u32,
    }

    /// `READ4resok`.
    struct ReadOk {
        /// The end of the file was reached.
        eof: bool,
        /// The data.
        data: Vec<u8>,
    }

    /// `READDIR4args`.
    struct ReadDirArgs {
        /// Behind this entry; 0: from the start.
        cookie: u64,
        /// That the cookie came with.
        verifier: Verifier,
        /// Bytes of names and cookies: a hint.
        dircount: u32,
        /// Bytes of the whole result.
        maxcount: u32,
        /// Attributes of each.
        attrs: Bitmap,
    }

    /// `entry4`, without the link to the next.
    struct Entry {
        /// To go on behind it.
        cookie: u64,
        /// The name.
        name: Utf8,
        /// Its attributes.
        attrs: Fattr,
    }

    /// `RENAME4args`.
    struct RenameArgs {
        /// In the saved directory.
        old: Utf8,
        /// In the current directory.
        new: Utf8,
    }

    /// `RENAME4resok`.
    struct Renamed {
        /// The saved directory.
        source: ChangeInfo,
        /// The current directory.
        target: ChangeInfo,
    }

    /// `rpcsec_gss_info`.
    struct GssInfo {
        /// The mechanism.
        oid: Vec<u8>,
        /// Quality of protection.
        qop: u32,
        /// None, integrity, privacy: 1 to 3.
        service: u32,
    }

    /// `SETATTR4args`.
    struct SetAttrArgs {
        /// By what right, if the size is set.
        stateid: StateId,
        /// What.
        attrs: Fattr,
    }

    /// `SETATTR4res`: which attributes were set is told also where others could not be.
    struct SetAttrRes {
        /// How it ended.
        status: NfsStat,
        /// What was set.
        attrset: Bitmap,
    }

    /// `nfs_client_id4`, `client_owner4`: who a client is, by his own name.
    struct ClientOwner {
        /// Tells one boot from another.
        verifier: Verifier,
        /// The name.
        id: Opaque<OPAQUE_LIMIT>,
    }

    /// `cb_client4`: where a client of NFSv4.0 is called back.
    struct CallbackClient {
        /// The RPC program.
        program: u32,
        /// The address.
        location: NetAddr,
    }

    /// `SETCLIENTID4args`.
    struct SetClientIdArgs {
        /// Who.
        client: ClientOwner,
        /// Where he is called back.
        callback: CallbackClient,
        /// What he is told then.
        callback_ident: u32,
    }

    /// `SETCLIENTID4resok`, `SETCLIENTID_CONFIRM4args`.
    struct ConfirmArgs {
        /// The server's number for the client.
        clientid: ClientId,
        /// To be repeated.
        confirm: Verifier,
    }

    /// `WRITE4args`.
    struct WriteArgs {
        /// By what right.
        stateid: StateId,
        /// From here.
        offset: u64,
        /// How durable.
        stable: StableHow,
        /// The data.
        data: Vec<u8>,
    }

    /// `WRITE4resok`.
    struct WriteOk {
        /// Bytes.
        count: u32,
        /// How durable they are.
        committed: StableHow,
        /// Changes when unstable data may have been lost.
        verifier: Verifier,
    }
}

xdr_union! {
    /// `open_claim4`.
    union OpenClaim {
        /// A name in the current directory.
        0 => Null(Utf8),
        /// The current file, as it was open before the server restarted; with this kind of delegation.
        1 => Previous(u32),
        /// A name, under a delegation.
        2 => DelegateCur(ClaimDelegateCur),
        /// A name, under a delegation from before the client restarted.
        3 => DelegatePrev(Utf8),
        /// The current file (NFSv4.1).
        4 => Fh,
        /// The current file, under a delegation (NFSv4.1).
        5 => DelegCurFh(StateId),
        /// The current file, under a delegation from before the client restarted (NFSv4.1).
        6 => DelegPrevFh,
    }

    /// `open_delegation4`.
    union OpenDelegation {
        /// None.
        0 => None,
        /// Nobody else writes.
        1 => Read(ReadDelegation),
        /// Nobody else reads or writes.
        2 => Write(WriteDelegation),
        /// None, and why (NFSv4.1).
        3 => NoneExt(WhyNone),
        /// As `Read`; the holder keeps times, too (RFC 9754).
        4 => ReadAttrs(ReadDelegation),
        /// As `Write`; the holder keeps times, too (RFC 9754).
        5 => WriteAttrs(WriteDelegation),
    }
}

/// `locker4`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locker {
    /// One that has locks under this stateid.
    Known(ExistLockOwner),
    /// One that locks under this open for the first time.
    New(OpenToLockOwner),
}

impl Xdr for Locker {
    fn put(&self, to: &mut Encoder) {
        match self {
            Self::Known(owner) => {
                to.word(0);
                owner.put(to);
            }
            Self::New(owner) => {
                to.word(1);
                owner.put(to);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        if bool::take(from)? { Xdr::take(from).map(Self::New) } else { Xdr::take(from).map(Self::Known) }
    }
}

/// `open_none_delegation4`: why there is no delegation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyNone {
    /// Somebody else is in the way. True: it will be offered later.
    Contention(bool),
    /// The server has no room. True: it will say when it has.
    Resource(bool),
    /// Another reason (`why_no_delegation4`): 0 not wanted, 3 not supported for this type, 4 not for a write, 5 ...
    Other(u32),
}

impl Xdr for WhyNone {
    fn put(&self, to: &mut Encoder) {
        match self {
            Self::Contention(push) => {
                to.word(1);
                push.put(to);
            }
            Self::Resource(signal) => {
                to.word(2);
                signal.put(to);
            }
            Self::Other(why) => to.word(*why),
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(match from.word()? {
            1 => Self::Contention(Xdr::take(from)?),
            2 => Self::Resource(Xdr::take(from)?),
            why => Self::Other(why),
        })
    }
}

/// `secinfo4`: a flavour, and for RPCSEC_GSS which of its mechanisms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecInfoEntry {
    /// AUTH_NONE, AUTH_SYS.
    Flavor(u32),
    /// RPCSEC_GSS.
    Gss(GssInfo),
}

impl Xdr for SecInfoEntry {
    fn put(&self, to: &mut Encoder) {
        match self {
            Self::Flavor(flavor) => to.word(*flavor),
            Self::Gss(info) => {
                to.word(crate::rpc::RPCSEC_GSS);
                info.put(to);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(match from.word()? {
            crate::rpc::RPCSEC_GSS => Self::Gss(Xdr::take(from)?),
            flavor => Self::Flavor(flavor),
        })
    }
}

/// `READDIR4resok`. On the wire the entries are a linked list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadDirOk {
    /// To be repeated with cookies.
    pub verifier: Verifier,
    /// The entries.
    pub entries: Vec<Entry>,
    /// There are no more.
    pub eof: bool,
}

impl Xdr for ReadDirOk {
    fn put(&self, to: &mut Encoder) {
        self.verifier.put(to);
        for entry in &self.entries {
            true.put(to);
            entry.put(to);
        }
        false.put(to);
        self.eof.put(to);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        let verifier = Xdr::take(from)?;
        let mut entries = Vec::new();
        while bool::take(from)? {
            entries.push(Entry::take(from)?);
        }
        Ok(Self { verifier, entries, eof: Xdr::take(from)? })
    }
}

impl Outcome for SetAttrRes {
    fn status(&self) -> NfsStat {
        self.status
    }

    fn failure(status: NfsStat) -> Self {
        Self { status, attrset: Bitmap::default() }
    }
}

/// `LOCKT4res`, and [`LockRes`] with something in it: free, taken, or neither.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locked<T> {
    /// It could be had.
    Ok(T),
    /// This one is in the way.
    Denied(LockDenied),
    /// Neither.
    Failed(NfsStat),
}

/// `LOCK4res`.
pub type LockRes = Locked<StateId>;
/// `LOCKT4res`.
pub type LockTestRes = Locked<()>;

impl<T> Outcome for Locked<T> {
    fn status(&self) -> NfsStat {
        match self {
            Self::Ok(_) => NfsStat::Ok,
            Self::Denied(_) => NfsStat::Denied,
            Self::Failed(status) => *status,
        }
    }

    fn failure(status: NfsStat) -> Self {
        debug_assert!(status != NfsStat::Denied, "say by whom");
        Self::Failed(status)
    }
}

impl<T: Xdr> Xdr for Locked<T> {
    fn put(&self, to: &mut Encoder) {
        self.status().put(to);
        match self {
            Self::Ok(value) => value.put(to),
            Self::Denied(lock) => lock.put(to),
            Self::Failed(_) => {}
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(match NfsStat::take(from)? {
            NfsStat::Ok => Self::Ok(Xdr::take(from)?),
            NfsStat::Denied => Self::Denied(Xdr::take(from)?),
            status => Self::Failed(status),
        })
    }
}
