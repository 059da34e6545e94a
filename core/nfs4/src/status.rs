//! `nfsstat4`: the status of an operation.

use crate::xdr::xdr_enum;

/// The result of an operation, or its error status.
pub type Res<T> = std::result::Result<T, NfsStat>;

xdr_enum! {
    /// `nfsstat4` (RFC 7530 section 13.1, RFC 8881 section 15.1, RFC 7862 section 11.1, RFC 8276 section
    /// 8.5). Names are those of the RFCs without `NFS4ERR_`.
    enum NfsStat {
        /// Success.
        Ok = 0,
        /// Caller is not the owner.
        Perm = 1,
        /// No such file or directory.
        Noent = 2,
        /// I/O error.
        Io = 5,
        /// No such device.
        Nxio = 6,
        /// Permission denied.
        Access = 13,
        /// The name exists.
        Exist = 17,
        /// Operation across filesystems.
        Xdev = 18,
        /// Not a directory.
        Notdir = 20,
        /// Is a directory.
        Isdir = 21,
        /// Invalid argument.
        Inval = 22,
        /// File too large.
        Fbig = 27,
        /// No space left.
        Nospc = 28,
        /// Read-only filesystem.
        Rofs = 30,
        /// Too many links.
        Mlink = 31,
        /// Name too long.
        Nametoolong = 63,
        /// Directory not empty.
        Notempty = 66,
        /// Quota exceeded.
        Dquot = 69,
        /// Stale filehandle: the file is gone.
        Stale = 70,
        /// Invalid filehandle.
        Badhandle = 10001,
        /// Invalid READDIR cookie.
        BadCookie = 10003,
        /// Operation not supported.
        Notsupp = 10004,
        /// Buffer or request too small.
        Toosmall = 10005,
        /// Server fault.
        Serverfault = 10006,
        /// Unsupported file type.
        Badtype = 10007,
        /// Try again later.
        Delay = 10008,
        /// NVERIFY: the attributes are the same.
        Same = 10009,
        /// Lock denied.
        Denied = 10010,
        /// Lease expired.
        Expired = 10011,
        /// The file is locked.
        Locked = 10012,
        /// Grace period: only reclaims are permitted.
        Grace = 10013,
        /// Filehandle expired.
        Fhexpired = 10014,
        /// Share reservation conflict.
        ShareDenied = 10015,
        /// Wrong security flavor.
        Wrongsec = 10016,
        /// SETCLIENTID: client name in use by another client.
        ClidInuse = 10017,
        /// Server resources exhausted.
        Resource = 10018,
        /// Filesystem moved.
        Moved = 10019,
        /// No current filehandle.
        Nofilehandle = 10020,
        /// Unsupported minor version.
        MinorVersMismatch = 10021,
        /// Stale client ID, from before a server restart.
        StaleClientid = 10022,
        /// Stale stateid, from before a server restart.
        StaleStateid = 10023,
        /// Old stateid: not the current seqid.
        OldStateid = 10024,
        /// Invalid stateid.
        BadStateid = 10025,
        /// Bad sequence ID of the owner.
        BadSeqid = 10026,
        /// VERIFY: the attributes differ.
        NotSame = 10027,
        /// Unsupported lock range.
        LockRange = 10028,
        /// Is a symbolic link.
        Symlink = 10029,
        /// No saved filehandle.
        Restorefh = 10030,
        /// A lease moved to another server.
        LeaseMoved = 10031,
        /// Unsupported attribute.
        Attrnotsupp = 10032,
        /// No grace period: reclaims are not permitted.
        NoGrace = 10033,
        /// Invalid reclaim: the state was not held.
        ReclaimBad = 10034,
        /// Reclaim conflict.
        ReclaimConflict = 10035,
        /// Arguments cannot be decoded.
        Badxdr = 10036,
        /// Locks are held.
        LocksHeld = 10037,
        /// File not open for this access.
        Openmode = 10038,
        /// Unknown owner or group.
        Badowner = 10039,
        /// Invalid UTF-8 or character.
        Badchar = 10040,
        /// Invalid name.
        Badname = 10041,
        /// Invalid range.
        BadRange = 10042,
        /// Unsupported upgrade or downgrade of a lock.
        LockNotsupp = 10043,
        /// Illegal operation number.
        OpIllegal = 10044,
        /// Deadlock.
        Deadlock = 10045,
        /// File is open.
        FileOpen = 10046,
        /// State revoked by an administrator.
        AdminRevoked = 10047,
        /// No callback path to the client.
        CbPathDown = 10048,
        /// Layouts: wrong I/O mode.
        Badiomode = 10049,
        /// Layouts: invalid layout.
        Badlayout = 10050,
        /// Invalid digest of a session.
        BadSessionDigest = 10051,
        /// Unknown session.
        Badsession = 10052,
        /// Invalid slot ID.
        Badslot = 10053,
        /// RECLAIM_COMPLETE was sent already.
        CompleteAlready = 10054,
        /// Connection not bound to the session.
        ConnNotBoundToSession = 10055,
        /// The delegation is already requested.
        DelegAlreadyWanted = 10056,
        /// Backchannel busy.
        BackChanBusy = 10057,
        /// Layouts: try again later.
        Layouttrylater = 10058,
        /// Layouts: unavailable.
        Layoutunavailable = 10059,
        /// Layouts: no matching layout.
        NomatchingLayout = 10060,
        /// Recall in progress.
        Recallconflict = 10061,
        /// Layouts: unknown type.
        UnknownLayouttype = 10062,
        /// Misordered sequence ID of the slot.
        SeqMisordered = 10063,
        /// SEQUENCE is not the first operation.
        SequencePos = 10064,
        /// Request too large for the session.
        ReqTooBig = 10065,
        /// Reply too large for the session.
        RepTooBig = 10066,
        /// Reply too large to cache.
        RepTooBigToCache = 10067,
        /// Retry of a request whose reply was not cached.
        RetryUncachedRep = 10068,
        /// Unsafe combination of operations.
        UnsafeCompound = 10069,
        /// Too many operations in the request.
        TooManyOps = 10070,
        /// The operation requires a preceding SEQUENCE.
        OpNotInSession = 10071,
        /// SSV: unsupported hash algorithm.
        HashAlgUnsupp = 10072,
        /// The client still has state.
        ClientidBusy = 10074,
        /// pNFS: access to a hole.
        PnfsIoHole = 10075,
        /// False retry: different request with the same sequence ID.
        SeqFalseRetry = 10076,
        /// Invalid highest slot ID.
        BadHighSlot = 10077,
        /// Dead session.
        Deadsession = 10078,
        /// SSV: unsupported encryption algorithm.
        EncrAlgUnsupp = 10079,
        /// pNFS: no layout.
        PnfsNoLayout = 10080,
        /// The operation must be the only one in the request.
        NotOnlyOp = 10081,
        /// Wrong credential.
        WrongCred = 10082,
        /// Wrong file type.
        WrongType = 10083,
        /// Directory delegation unavailable.
        DirdelegUnavail = 10084,
        /// Delegation rejected by the client.
        RejectDeleg = 10085,
        /// Return conflicts with a recall.
        Returnconflict = 10086,
        /// Delegation revoked.
        DelegRevoked = 10087,
        /// COPY between servers: partner not supported.
        PartnerNotsupp = 10088,
        /// COPY between servers: partner not authorized.
        PartnerNoAuth = 10089,
        /// Unsupported arm of a union.
        UnionNotsupp = 10090,
        /// COPY: cannot be deferred.
        OffloadDenied = 10091,
        /// Unsupported label format.
        WrongLfs = 10092,
        /// Invalid label.
        Badlabel = 10093,
        /// COPY: requirements not met.
        OffloadNoReqs = 10094,
        /// No such extended attribute.
        Noxattr = 10095,
        /// Extended attribute too large.
        Xattr2big = 10096,
    }
}

impl NfsStat {
    /// Returns the name in the RFCs.
    pub fn name(self) -> String {
        if self == Self::Ok {
            return "NFS4_OK".into();
        }
        let mut name = String::from("NFS4ERR");
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_rfcs() {
        for (status, name) in [
            (NfsStat::Ok, "NFS4_OK"),
            (NfsStat::Noent, "NFS4ERR_NOENT"),
            (NfsStat::SeqFalseRetry, "NFS4ERR_SEQ_FALSE_RETRY"),
            (NfsStat::Xattr2big, "NFS4ERR_XATTR2BIG"),
        ] {
            assert_eq!(status.name(), name);
        }
    }
}
