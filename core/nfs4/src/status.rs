//! `nfsstat4`: how an operation ended.

use crate::xdr::xdr_enum;

/// What an operation gives: its results, or why there are none.
pub type Res<T> = std::result::Result<T, NfsStat>;

xdr_enum! {
    /// `nfsstat4` (RFC 7530 section 13.1, RFC 8881 section 15.1, RFC 7862 section 11.1, RFC 8276 section 8.5). The names are the
    /// RFCs' without `NFS4ERR_`.
    enum NfsStat {
        /// It worked.
        Ok = 0,
        /// Not the owner.
        Perm = 1,
        /// No such name.
        Noent = 2,
        /// The device failed.
        Io = 5,
        /// No such device.
        Nxio = 6,
        /// Permission denied.
        Access = 13,
        /// The name is taken.
        Exist = 17,
        /// Across filesystems.
        Xdev = 18,
        /// Not a directory.
        Notdir = 20,
        /// A directory.
        Isdir = 21,
        /// An argument is wrong.
        Inval = 22,
        /// The file would become too large.
        Fbig = 27,
        /// No room.
        Nospc = 28,
        /// Read-only.
        Rofs = 30,
        /// Too many links.
        Mlink = 31,
        /// The name is too long.
        Nametoolong = 63,
        /// The directory is not empty.
        Notempty = 66,
        /// The quota is used up.
        Dquot = 69,
        /// The handle's file is gone.
        Stale = 70,
        /// Not one of our handles.
        Badhandle = 10001,
        /// A READDIR cookie of somewhere else.
        BadCookie = 10003,
        /// Not done here.
        Notsupp = 10004,
        /// The result does not fit what was asked for.
        Toosmall = 10005,
        /// The server failed.
        Serverfault = 10006,
        /// No such type of file.
        Badtype = 10007,
        /// Come again later.
        Delay = 10008,
        /// NVERIFY: the attributes are the same.
        Same = 10009,
        /// Somebody holds the lock.
        Denied = 10010,
        /// The lease has ended.
        Expired = 10011,
        /// A lock of somebody else is in the way.
        Locked = 10012,
        /// Only reclaims for now.
        Grace = 10013,
        /// The handle has expired.
        Fhexpired = 10014,
        /// Somebody denies this kind of access.
        ShareDenied = 10015,
        /// Another security flavour is wanted.
        Wrongsec = 10016,
        /// SETCLIENTID: another machine uses that name.
        ClidInuse = 10017,
        /// The server ran out of something.
        Resource = 10018,
        /// The filesystem is elsewhere.
        Moved = 10019,
        /// There is no current filehandle.
        Nofilehandle = 10020,
        /// No such minor version.
        MinorVersMismatch = 10021,
        /// A client id of an earlier server.
        StaleClientid = 10022,
        /// A stateid of an earlier server.
        StaleStateid = 10023,
        /// An older seqid than the current one.
        OldStateid = 10024,
        /// No such stateid.
        BadStateid = 10025,
        /// Not the next of this owner.
        BadSeqid = 10026,
        /// VERIFY: the attributes are not the same.
        NotSame = 10027,
        /// The lock range is not supported.
        LockRange = 10028,
        /// A symbolic link.
        Symlink = 10029,
        /// There is no saved filehandle.
        Restorefh = 10030,
        /// Some lease has moved elsewhere.
        LeaseMoved = 10031,
        /// No such attribute here.
        Attrnotsupp = 10032,
        /// Nothing can be reclaimed any more.
        NoGrace = 10033,
        /// What is reclaimed was not held.
        ReclaimBad = 10034,
        /// Somebody else has it now.
        ReclaimConflict = 10035,
        /// The arguments make no sense.
        Badxdr = 10036,
        /// Locks are held.
        LocksHeld = 10037,
        /// The file is not open for that.
        Openmode = 10038,
        /// No such user or group.
        Badowner = 10039,
        /// No UTF-8.
        Badchar = 10040,
        /// A name that none may have.
        Badname = 10041,
        /// A range that ends before it begins.
        BadRange = 10042,
        /// Locks of that kind are not done.
        LockNotsupp = 10043,
        /// No such operation.
        OpIllegal = 10044,
        /// A deadlock.
        Deadlock = 10045,
        /// The file is open.
        FileOpen = 10046,
        /// The administrator took it away.
        AdminRevoked = 10047,
        /// The client cannot be called back.
        CbPathDown = 10048,
        /// Layouts: the wrong mode.
        Badiomode = 10049,
        /// Layouts: a bad one.
        Badlayout = 10050,
        /// A wrong digest.
        BadSessionDigest = 10051,
        /// No such session.
        Badsession = 10052,
        /// No such slot.
        Badslot = 10053,
        /// RECLAIM_COMPLETE was there already.
        CompleteAlready = 10054,
        /// Bind the connection first.
        ConnNotBoundToSession = 10055,
        /// The delegation is wanted already.
        DelegAlreadyWanted = 10056,
        /// The backchannel is in use.
        BackChanBusy = 10057,
        /// Layouts: later.
        Layouttrylater = 10058,
        /// Layouts: none.
        Layoutunavailable = 10059,
        /// Layouts: none like that.
        NomatchingLayout = 10060,
        /// A recall is under way.
        Recallconflict = 10061,
        /// Layouts: no such type.
        UnknownLayouttype = 10062,
        /// Not the next of this slot.
        SeqMisordered = 10063,
        /// SEQUENCE must be first, and only there.
        SequencePos = 10064,
        /// The request is larger than agreed.
        ReqTooBig = 10065,
        /// The reply would be larger than agreed.
        RepTooBig = 10066,
        /// The reply would be too large to be kept.
        RepTooBigToCache = 10067,
        /// A retry of what was not kept.
        RetryUncachedRep = 10068,
        /// Operations that do not go together.
        UnsafeCompound = 10069,
        /// More operations than agreed.
        TooManyOps = 10070,
        /// Begin with SEQUENCE.
        OpNotInSession = 10071,
        /// SSV: no such hash.
        HashAlgUnsupp = 10072,
        /// The client has state.
        ClientidBusy = 10074,
        /// A hole of pNFS.
        PnfsIoHole = 10075,
        /// A retry that is none.
        SeqFalseRetry = 10076,
        /// A highest slot that cannot be.
        BadHighSlot = 10077,
        /// The session is about to go.
        Deadsession = 10078,
        /// SSV: no such cipher.
        EncrAlgUnsupp = 10079,
        /// pNFS without a layout.
        PnfsNoLayout = 10080,
        /// Must be alone in its request.
        NotOnlyOp = 10081,
        /// Somebody else's.
        WrongCred = 10082,
        /// The wrong type of file.
        WrongType = 10083,
        /// No delegations of directories.
        DirdelegUnavail = 10084,
        /// The client does not want it.
        RejectDeleg = 10085,
        /// A return is under way.
        Returnconflict = 10086,
        /// The delegation was taken away.
        DelegRevoked = 10087,
        /// COPY between servers: not by that one.
        PartnerNotsupp = 10088,
        /// COPY between servers: not allowed.
        PartnerNoAuth = 10089,
        /// A choice that is not done here.
        UnionNotsupp = 10090,
        /// COPY: not now.
        OffloadDenied = 10091,
        /// No such label format.
        WrongLfs = 10092,
        /// A bad label.
        Badlabel = 10093,
        /// COPY: not under those requirements.
        OffloadNoReqs = 10094,
        /// No such extended attribute.
        Noxattr = 10095,
        /// The extended attribute is too large.
        Xattr2big = 10096,
    }
}

impl NfsStat {
    /// Its name in the RFCs.
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
    fn names_are_the_rfcs() {
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
