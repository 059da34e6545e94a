//! Operations of NFSv4.0 (RFC 7530, RFC 7531). NFSv4.1 and 4.2 use most of them as well.

use super::Outcome;
use crate::attr::Fattr;
use crate::shared::SharedBytes;
use crate::status::NfsStat;
use crate::types::*;
use crate::xdr::{Decoder, Encoder, Result, Xdr, xdr_struct, xdr_union};

/// Bits of ACCESS (RFC 7530 section 16.1, RFC 8276 section 8.5).
pub mod access {
    /// Read data or list names.
    pub const READ: u32 = 0x01;
    /// Look up a name.
    pub const LOOKUP: u32 = 0x02;
    /// Change data or names.
    pub const MODIFY: u32 = 0x04;
    /// Add data or names.
    pub const EXTEND: u32 = 0x08;
    /// Remove names.
    pub const DELETE: u32 = 0x10;
    /// Execute.
    pub const EXECUTE: u32 = 0x20;
    /// Read extended attributes.
    pub const XAREAD: u32 = 0x40;
    /// Change extended attributes.
    pub const XAWRITE: u32 = 0x80;
    /// List extended attributes.
    pub const XALIST: u32 = 0x100;
}

/// Bits of `share_access` and `share_deny` (RFC 7531, RFC 8881 section 18.16, RFC 9754).
pub mod share {
    /// Read.
    pub const READ: u32 = 1;
    /// Write.
    pub const WRITE: u32 = 2;
    /// Read and write.
    pub const BOTH: u32 = 3;
    /// Mask of the requested delegation type.
    pub const WANT_MASK: u32 = 0xff00;
    /// Request a read delegation.
    pub const WANT_READ_DELEG: u32 = 0x0100;
    /// Request a write delegation.
    pub const WANT_WRITE_DELEG: u32 = 0x0200;
    /// Request any delegation.
    pub const WANT_ANY_DELEG: u32 = 0x0300;
    /// Request no delegation.
    pub const WANT_NO_DELEG: u32 = 0x0400;
    /// Cancel an earlier request for a delegation.
    pub const WANT_CANCEL: u32 = 0x0500;
    /// Notify the client when the server has resources for a delegation.
    pub const WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: u32 = 0x1_0000;
    /// Grant the delegation when no other client conflicts.
    pub const WANT_PUSH_DELEG_WHEN_UNCONTENDED: u32 = 0x2_0000;
    /// Request a delegation whose holder sets the times (RFC 9754).
    pub const WANT_DELEG_TIMESTAMPS: u32 = 0x10_0000;
    /// A delegation may replace the open stateid (RFC 9754).
    pub const WANT_OPEN_XOR_DELEGATION: u32 = 0x20_0000;
}

/// Bits of `rflags` in the result of OPEN (RFC 7530 section 16.16, RFC 8881 section 18.16).
pub mod rflags {
    /// NFSv4.0: OPEN_CONFIRM must follow.
    pub const CONFIRM: u32 = 2;
    /// POSIX locks: ranges are split and merged.
    pub const LOCKTYPE_POSIX: u32 = 4;
    /// A removed file stays while it is open, also after a restart of the server.
    pub const PRESERVE_UNLINKED: u32 = 8;
    /// The result has a delegation and no open stateid (RFC 9754).
    pub const NO_OPEN_STATEID: u32 = 0x10;
    /// The server may send CB_NOTIFY_LOCK.
    pub const MAY_NOTIFY_LOCK: u32 = 0x20;
}

xdr_struct! {
    /// `ACCESS4resok` (RFC 7530 section 16.1).
    struct AccessOk {
        /// The rights that the server checked.
        supported: u32,
        /// The rights that the caller has.
        access: u32,
    }

    /// `CLOSE4args` (RFC 7530 section 16.2).
    struct SeqState {
        /// NFSv4.0: next sequence ID of the owner.
        seqid: u32,
        /// Stateid of the open.
        stateid: StateId,
    }

    /// `COMMIT4args` (RFC 7530 section 16.3).
    struct CommitArgs {
        /// Start offset in bytes.
        offset: u64,
        /// Length in bytes; 0 means up to the end of the file.
        count: u32,
    }

    /// `CREATE4args` (RFC 7530 section 16.4).
    struct CreateArgs {
        /// The object or attributes to create or set.
        kind: CreateType,
        /// Name in the current directory.
        name: Utf8,
        /// Attributes.
        attrs: Fattr,
    }

    /// `CREATE4resok` (RFC 7530 section 16.4).
    struct Created {
        /// Change info of the directory.
        cinfo: ChangeInfo,
        /// Attributes that were set.
        attrset: Bitmap,
    }

    /// `open_to_lock_owner4` (RFC 7530 section 2.2.15): the first lock of a lock-owner under an open.
    struct OpenToLockOwner {
        /// NFSv4.0: next sequence ID of the open-owner.
        open_seqid: u32,
        /// Stateid of the open.
        open_stateid: StateId,
        /// NFSv4.0: first sequence ID of the lock-owner.
        lock_seqid: u32,
        /// The lock-owner.
        lock_owner: Owner,
    }

    /// `exist_lock_owner4` (RFC 7530 section 16.10).
    struct ExistLockOwner {
        /// Stateid of the owner's locks on this file.
        stateid: StateId,
        /// NFSv4.0: next sequence ID of the lock-owner.
        seqid: u32,
    }

    /// `LOCK4args` (RFC 7530 section 16.10).
    struct LockArgs {
        /// Lock type.
        kind: LockType,
        /// Whether the lock was held before a server restart.
        reclaim: bool,
        /// Start offset in bytes.
        offset: u64,
        /// Length in bytes; all ones means up to the end of the file.
        length: u64,
        /// The lock-owner.
        locker: Locker,
    }

    /// `LOCK4denied` (RFC 7530 section 16.10): a conflicting lock.
    struct LockDenied {
        /// Start offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Type of the conflicting lock.
        kind: LockType,
        /// Owner of the conflicting lock.
        owner: Owner,
    }

    /// `LOCKT4args` (RFC 7530 section 16.11).
    struct LockTestArgs {
        /// Lock type.
        kind: LockType,
        /// Start offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// The lock-owner.
        owner: Owner,
    }

    /// `LOCKU4args` (RFC 7530 section 16.12).
    struct UnlockArgs {
        /// Ignored by the server.
        kind: LockType,
        /// NFSv4.0: next sequence ID of the owner.
        seqid: u32,
        /// Stateid of the owner's locks on this file.
        stateid: StateId,
        /// Start offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    }

    /// `open_claim_delegate_cur4` (RFC 7530 section 16.16).
    struct ClaimDelegateCur {
        /// The delegation.
        stateid: StateId,
        /// Name.
        name: Utf8,
    }

    /// `OPEN4args` (RFC 7530 section 16.16, RFC 8881 section 18.16).
    struct OpenArgs {
        /// NFSv4.0: next sequence ID of the owner.
        seqid: u32,
        /// Access: bits of [`share`].
        share_access: u32,
        /// Denied access of others: bits of [`share`].
        share_deny: u32,
        /// The open-owner.
        owner: Owner,
        /// Whether to create the file.
        how: OpenHow,
        /// The file to open, and the claim to it.
        claim: OpenClaim,
    }

    /// `OPEN4resok` (RFC 7530 section 16.16, RFC 8881 section 18.16).
    struct Opened {
        /// Stateid of the open.
        stateid: StateId,
        /// Change info of the directory.
        cinfo: ChangeInfo,
        /// Bits of [`rflags`].
        rflags: u32,
        /// Attributes that were set.
        attrset: Bitmap,
        /// Delegation, if granted.
        delegation: OpenDelegation,
    }

    /// `open_read_delegation4` (RFC 7530 section 16.16).
    struct ReadDelegation {
        /// Stateid of the delegation.
        stateid: StateId,
        /// Whether the delegation is being recalled already.
        recall: bool,
        /// Users who may open the file without asking the server.
        permissions: Ace,
    }

    /// `open_write_delegation4` (RFC 7530 section 16.16).
    struct WriteDelegation {
        /// Stateid of the delegation.
        stateid: StateId,
        /// Whether the delegation is being recalled already.
        recall: bool,
        /// Limit for data that need not be written back at CLOSE.
        space_limit: SpaceLimit,
        /// Users who may open the file without asking the server.
        permissions: Ace,
    }

    /// `OPEN_CONFIRM4args` (RFC 7530 section 16.18).
    struct OpenConfirmArgs {
        /// Stateid of the open.
        stateid: StateId,
        /// Next sequence ID of the owner.
        seqid: u32,
    }

    /// `OPEN_DOWNGRADE4args` (RFC 7530 section 16.19).
    struct DowngradeArgs {
        /// Stateid of the open.
        stateid: StateId,
        /// NFSv4.0: next sequence ID of the owner.
        seqid: u32,
        /// Share bits that remain.
        share_access: u32,
        /// Share bits that remain.
        share_deny: u32,
    }

    /// `READ4args`, `READ_PLUS4args` (RFC 7530 section 16.23, RFC 7862 section 15.10).
    struct ReadArgs {
        /// Stateid of an open, lock or delegation.
        stateid: StateId,
        /// Start offset in bytes.
        offset: u64,
        /// Maximum number of bytes.
        count: u32,
    }

    /// `READ4resok` (RFC 7530 section 16.23).
    struct ReadOk {
        /// Whether the end of the file was reached.
        eof: bool,
        /// The data.
        data: SharedBytes,
    }

    /// `READDIR4args` (RFC 7530 section 16.24).
    struct ReadDirArgs {
        /// Continue after the entry with this cookie; 0 means from the start.
        cookie: u64,
        /// Verifier of the cookie.
        verifier: Verifier,
        /// Maximum size of names and cookies in bytes, as a hint.
        dircount: u32,
        /// Maximum size of the result in bytes.
        maxcount: u32,
        /// Attributes to return for each entry.
        attrs: Bitmap,
    }

    /// `entry4` (RFC 7530 section 16.24), without the link to the next entry.
    struct Entry {
        /// Cookie for continuing after this entry.
        cookie: u64,
        /// Name.
        name: Utf8,
        /// Attributes.
        attrs: Fattr,
    }

    /// `RENAME4args` (RFC 7530 section 16.27).
    struct RenameArgs {
        /// Old name in the saved directory.
        old: Utf8,
        /// New name in the current directory.
        new: Utf8,
    }

    /// `RENAME4resok` (RFC 7530 section 16.27).
    struct Renamed {
        /// Change info of the saved directory.
        source: ChangeInfo,
        /// Change info of the current directory.
        target: ChangeInfo,
    }

    /// `rpcsec_gss_info` (RFC 7530 section 16.31).
    struct GssInfo {
        /// Object identifier of the mechanism.
        oid: Vec<u8>,
        /// Quality of protection.
        qop: u32,
        /// Service: 1 none, 2 integrity, 3 privacy.
        service: u32,
    }

    /// `SETATTR4args` (RFC 7530 section 16.32).
    struct SetAttrArgs {
        /// Stateid, if the size is set.
        stateid: StateId,
        /// The object or attributes to create or set.
        attrs: Fattr,
    }

    /// `SETATTR4res` (RFC 7530 section 16.32): lists the attributes that were set even if others failed.
    struct SetAttrRes {
        /// Status of the operation.
        status: NfsStat,
        /// Attributes that were set.
        attrset: Bitmap,
    }

    /// `nfs_client_id4`, `client_owner4` (RFC 7530 section 2.2.12, RFC 8881 section 18.35): the client's name
    /// for itself.
    struct ClientOwner {
        /// Distinguishes instances of the client, for example before and after a reboot.
        verifier: Verifier,
        /// Name.
        id: Opaque<OPAQUE_LIMIT>,
    }

    /// `cb_client4` (RFC 7530 section 2.2.11): the callback service of an NFSv4.0 client.
    struct CallbackClient {
        /// RPC program number.
        program: u32,
        /// Network address.
        location: NetAddr,
    }

    /// `SETCLIENTID4args` (RFC 7530 section 16.33).
    struct SetClientIdArgs {
        /// Name of the client.
        client: ClientOwner,
        /// Callback service of the client.
        callback: CallbackClient,
        /// Identifier that callbacks contain.
        callback_ident: u32,
    }

    /// `SETCLIENTID4resok`, `SETCLIENTID_CONFIRM4args` (RFC 7530 sections 16.33 and 16.34).
    struct ConfirmArgs {
        /// Client ID.
        clientid: ClientId,
        /// Verifier to repeat.
        confirm: Verifier,
    }

    /// `WRITE4args` (RFC 7530 section 16.36).
    struct WriteArgs {
        /// Stateid of an open, lock or delegation.
        stateid: StateId,
        /// Start offset in bytes.
        offset: u64,
        /// Requested durability.
        stable: StableHow,
        /// The data.
        data: SharedBytes,
    }

    /// `WRITE4resok` (RFC 7530 section 16.36).
    struct WriteOk {
        /// Number of bytes written.
        count: u32,
        /// Durability of the written bytes.
        committed: StableHow,
        /// Write verifier: changes when unstable data may have been lost.
        verifier: Verifier,
    }
}

xdr_union! {
    /// `open_claim4` (RFC 7530 section 16.16, RFC 8881 section 18.16).
    union OpenClaim {
        /// Name in the current directory.
        0 => Null(Utf8),
        /// The current file, open before a server restart, with this type of delegation.
        1 => Previous(u32),
        /// Name of a delegated file.
        2 => DelegateCur(ClaimDelegateCur),
        /// Name of a file that was delegated before a client restart.
        3 => DelegatePrev(Utf8),
        /// The current file (NFSv4.1).
        4 => Fh,
        /// The current file, which is delegated (NFSv4.1).
        5 => DelegCurFh(StateId),
        /// The current file, delegated before a client restart (NFSv4.1).
        6 => DelegPrevFh,
    }

    /// `open_delegation4` (RFC 7530 section 16.16, RFC 8881 section 18.16).
    union OpenDelegation {
        /// No delegation.
        0 => None,
        /// Read delegation: no other client writes.
        1 => Read(ReadDelegation),
        /// Write delegation: no other client reads or writes.
        2 => Write(WriteDelegation),
        /// No delegation, with a reason (NFSv4.1).
        3 => NoneExt(WhyNone),
        /// As `Read`; the holder also sets times (RFC 9754).
        4 => ReadAttrs(ReadDelegation),
        /// As `Write`; the holder also sets times (RFC 9754).
        5 => WriteAttrs(WriteDelegation),
    }
}

/// `locker4` (RFC 7530 section 16.10): the lock-owner of a LOCK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locker {
    /// A lock-owner with existing locks, by their stateid.
    Known(ExistLockOwner),
    /// A lock-owner without locks under this open.
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

/// `open_none_delegation4` (RFC 8881 section 18.16): why no delegation was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyNone {
    /// Conflict with another client. True: the server will offer the delegation later.
    Contention(bool),
    /// No resources. True: the server will notify the client when it has resources.
    Resource(bool),
    /// Another reason, a value of `why_no_delegation4`: 0 not requested, 3 unsupported file type, 4 write
    /// delegation unsupported, and so on.
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

/// `secinfo4` (RFC 7530 section 16.31): a security flavor and, for RPCSEC_GSS, its mechanism.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecInfoEntry {
    /// AUTH_NONE or AUTH_SYS.
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

/// `READDIR4resok` (RFC 7530 section 16.24). On the wire the entries are a linked list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadDirOk {
    /// Verifier to repeat with cookies.
    pub verifier: Verifier,
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether the listing is complete.
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

/// `LOCKT4res` and `LOCK4res` (with a stateid): granted, denied or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locked<T> {
    /// The lock is granted or available.
    Ok(T),
    /// Denied because of this lock.
    Denied(LockDenied),
    /// Another error.
    Failed(NfsStat),
}

/// `LOCK4res` (RFC 7530 section 16.10).
pub type LockRes = Locked<StateId>;
/// `LOCKT4res` (RFC 7530 section 16.11).
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
