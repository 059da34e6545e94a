//! What many operations have in common (RFC 7531, RFC 5662, RFC 7863).

use crate::attr::Fattr;
use crate::xdr::{Decoder, Encoder, List, Result, Xdr, XdrError, xdr_enum, xdr_struct, xdr_union};

/// Bytes of a filehandle.
pub const FHSIZE: usize = 128;
/// Bytes of a name of an owner or a client (`NFS4_OPAQUE_LIMIT`).
pub const OPAQUE_LIMIT: usize = 1024;

/// `verifier4`: tells one instance from another.
pub type Verifier = [u8; 8];
/// `sessionid4`.
pub type SessionId = [u8; 16];
/// `clientid4`.
pub type ClientId = u64;
/// `component4`, `utf8string`: bytes that should be UTF-8. Whether they are is for whoever uses them to say.
pub type Utf8 = Vec<u8>;

/// `opaque x<MAX>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opaque<const MAX: usize>(pub Vec<u8>);

impl<const MAX: usize> Xdr for Opaque<MAX> {
    fn put(&self, to: &mut Encoder) {
        to.opaque(&self.0);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(Self(from.opaque(MAX)?.to_vec()))
    }
}

/// `nfs_fh4`.
pub type FileHandle = Opaque<FHSIZE>;

/// `bitmap4`: which attributes, operations or hints. Words without bits at the end are not sent, and none are compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Bitmap(Vec<u32>);

impl Bitmap {
    /// Bits that nobody has a use for may be asked about, and are answered by silence; but not without end.
    const MOST_WORDS: usize = 64;

    /// Of these bits.
    pub fn of(bits: impl IntoIterator<Item = u32>) -> Self {
        let mut map = Self::default();
        bits.into_iter().for_each(|bit| map.insert(bit));
        map
    }

    /// Whether a bit is set.
    pub fn contains(&self, bit: u32) -> bool {
        self.0.get(bit as usize / 32).is_some_and(|word| word & 1 << (bit % 32) != 0)
    }

    /// Set a bit; one that no message can hold stays clear.
    pub fn insert(&mut self, bit: u32) {
        let word = bit as usize / 32;
        if word >= Self::MOST_WORDS {
            return;
        }
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (bit % 32);
    }

    /// Clear a bit.
    pub fn remove(&mut self, bit: u32) {
        if let Some(word) = self.0.get_mut(bit as usize / 32) {
            *word &= !(1 << (bit % 32));
        }
        self.trim();
    }

    /// Those that are in both.
    pub fn and(&self, other: &Self) -> Self {
        let mut both = Self(self.0.iter().zip(&other.0).map(|(a, b)| a & b).collect());
        both.trim();
        both
    }

    /// The bits in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.0.len() as u32 * 32).filter(|&bit| self.contains(bit))
    }

    /// Whether no bit is set.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}

impl Xdr for Bitmap {
    fn put(&self, to: &mut Encoder) {
        to.word(self.0.len() as u32);
        self.0.iter().for_each(|&word| to.word(word));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        let mut map = Self(List::<u32, { Self::MOST_WORDS }>::take(from)?.0);
        map.trim();
        Ok(map)
    }
}

xdr_enum! {
    /// `nfs_ftype4`.
    enum Ftype {
        /// A regular file.
        Reg = 1,
        /// A directory.
        Dir = 2,
        /// A block device.
        Blk = 3,
        /// A character device.
        Chr = 4,
        /// A symbolic link.
        Lnk = 5,
        /// A socket.
        Sock = 6,
        /// A FIFO.
        Fifo = 7,
        /// A directory of named attributes.
        Attrdir = 8,
        /// A named attribute.
        Namedattr = 9,
    }

    /// `stable_how4`: how durable written data is.
    enum StableHow {
        /// It may be lost until COMMIT.
        Unstable = 0,
        /// The data, and what is needed to read it.
        DataSync = 1,
        /// Everything.
        FileSync = 2,
    }

    /// `nfs_lock_type4`.
    enum LockType {
        /// Shared.
        Read = 1,
        /// Exclusive.
        Write = 2,
        /// Shared; the client waits for it.
        ReadW = 3,
        /// Exclusive; the client waits for it.
        WriteW = 4,
    }
}

xdr_struct! {
    /// `nfstime4`.
    struct NfsTime {
        /// Seconds since 1970.
        seconds: i64,
        /// Below 1,000,000,000.
        nseconds: u32,
    }

    /// `fsid4`: tells filesystems apart.
    struct Fsid {
        /// One half.
        major: u64,
        /// The other.
        minor: u64,
    }

    /// `specdata4`: a device number.
    struct SpecData {
        /// Major.
        major: u32,
        /// Minor.
        minor: u32,
    }

    /// `change_info4`: a directory before and after.
    struct ChangeInfo {
        /// Nothing else came between the two.
        atomic: bool,
        /// Its change attribute before.
        before: u64,
        /// And after.
        after: u64,
    }

    /// `open_owner4`, `lock_owner4`: who, of a client.
    struct Owner {
        /// The client.
        clientid: ClientId,
        /// His own name for it.
        owner: Opaque<OPAQUE_LIMIT>,
    }

    /// `nfsace4`: one entry of an ACL (RFC 7530 section 6.2.1).
    struct Ace {
        /// Allow, deny, audit, alarm.
        kind: u32,
        /// Inheritance, and whether it is a group.
        flags: u32,
        /// What is allowed.
        mask: u32,
        /// Who: `OWNER@`, `GROUP@`, `EVERYONE@`, or a name.
        who: Utf8,
    }

    /// `netaddr4` (RFC 5665).
    struct NetAddr {
        /// `tcp`, `tcp6`.
        netid: Utf8,
        /// Address and port, in numbers between dots.
        addr: Utf8,
    }

    /// `nfs_modified_limit4`.
    struct ModifiedLimit {
        /// Blocks.
        blocks: u32,
        /// Of so many bytes.
        block_bytes: u32,
    }

    /// `mode_masked4`: some bits of the mode.
    struct ModeMasked {
        /// Their values.
        value: u32,
        /// Which.
        mask: u32,
    }

    /// `open_arguments4` (RFC 9754): which bits and choices OPEN takes.
    struct OpenArguments {
        /// Of `share_access`.
        access: Bitmap,
        /// Of `share_deny`.
        deny: Bitmap,
        /// Of what is wanted beside.
        want: Bitmap,
        /// Of claims.
        claim: Bitmap,
        /// Of ways to make a file.
        create: Bitmap,
    }

    /// `mode_umask4` (RFC 8275): a mode for a new file that may have an inherited ACL.
    struct ModeUmask {
        /// As the program asked.
        mode: u32,
        /// Its umask.
        umask: u32,
    }
}

impl Copy for NfsTime {}
impl Copy for Fsid {}
impl Copy for SpecData {}
impl Copy for ChangeInfo {}

xdr_union! {
    /// `settime4`.
    union SetTime {
        /// The server's clock.
        0 => Server,
        /// This.
        1 => Client(NfsTime),
    }

    /// `nfs_space_limit4`: how much the holder of a write delegation may write without asking.
    union SpaceLimit {
        /// Up to this file size.
        1 => Size(u64),
        /// So many blocks.
        2 => Blocks(ModifiedLimit),
    }
}

/// `stateid4`: a piece of state, and which edition of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId {
    /// The edition. 0 in NFSv4.1: the newest.
    pub seqid: u32,
    /// Which.
    pub other: [u8; 12],
}

impl StateId {
    /// Nobody's (RFC 7530 section 9.1.4.3): all zeros.
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// Nobody's, and past locks for reading: all ones.
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// The current one of this request (RFC 8881 section 8.2.3).
    pub const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// None (RFC 8881 section 8.2.3).
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };
}

impl Xdr for StateId {
    fn put(&self, to: &mut Encoder) {
        to.word(self.seqid);
        to.fixed(&self.other);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(Self { seqid: from.word()?, other: Xdr::take(from)? })
    }
}

/// A result, or the status that says why there is none. [`NfsStat::Ok`](crate::status::NfsStat::Ok) is never an error.
impl<T: Xdr> Xdr for crate::status::Res<T> {
    fn put(&self, to: &mut Encoder) {
        match self {
            Ok(value) => {
                to.word(0);
                value.put(to);
            }
            Err(status) => {
                debug_assert!(status.number() != 0, "an error that is none");
                status.put(to);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        match crate::status::NfsStat::take(from)? {
            crate::status::NfsStat::Ok => T::take(from).map(Ok),
            status => Ok(Err(status)),
        }
    }
}

/// `createtype4`: what CREATE makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateType {
    /// A symbolic link to this.
    Lnk(Vec<u8>),
    /// A block device.
    Blk(SpecData),
    /// A character device.
    Chr(SpecData),
    /// A socket.
    Sock,
    /// A FIFO.
    Fifo,
    /// A directory.
    Dir,
    /// Something that CREATE does not make: NFS4ERR_BADTYPE.
    Other(u32),
}

impl Xdr for CreateType {
    fn put(&self, to: &mut Encoder) {
        let plain = |to: &mut Encoder, kind: Ftype| kind.put(to);
        match self {
            Self::Lnk(target) => {
                plain(to, Ftype::Lnk);
                target.put(to);
            }
            Self::Blk(device) => {
                plain(to, Ftype::Blk);
                device.put(to);
            }
            Self::Chr(device) => {
                plain(to, Ftype::Chr);
                device.put(to);
            }
            Self::Sock => plain(to, Ftype::Sock),
            Self::Fifo => plain(to, Ftype::Fifo),
            Self::Dir => plain(to, Ftype::Dir),
            Self::Other(kind) => to.word(*kind),
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        // The choice has a default without a body, so that unknown types are the server's to refuse.
        Ok(match from.word()? {
            2 => Self::Dir,
            3 => Self::Blk(Xdr::take(from)?),
            4 => Self::Chr(Xdr::take(from)?),
            5 => Self::Lnk(Xdr::take(from)?),
            6 => Self::Sock,
            7 => Self::Fifo,
            other => Self::Other(other),
        })
    }
}

xdr_struct! {
    /// How EXCLUSIVE4_1 makes a file.
    struct CreateVerfAttr {
        /// Tells this creation from another one.
        verifier: Verifier,
        /// And these attributes.
        attrs: Fattr,
    }
}

xdr_union! {
    /// `createhow4`.
    union CreateHow {
        /// Or open the one that is there.
        0 => Unchecked(Fattr),
        /// Only if there is none.
        1 => Guarded(Fattr),
        /// Only if there is none, or it was made by this very request.
        2 => Exclusive(Verifier),
        /// The same, with attributes.
        3 => Exclusive41(CreateVerfAttr),
    }
}

/// `openflag4`: make it or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenHow {
    /// It has to be there.
    NoCreate,
    /// Make it.
    Create(CreateHow),
}

impl Xdr for OpenHow {
    fn put(&self, to: &mut Encoder) {
        match self {
            Self::NoCreate => to.word(0),
            Self::Create(how) => {
                to.word(1);
                how.put(to);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        match from.word()? {
            0 => Ok(Self::NoCreate),
            1 => Ok(Self::Create(Xdr::take(from)?)),
            other => Err(XdrError::BadValue(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmaps_are_sets() {
        let mut map = Bitmap::of([1, 33, 82]);
        assert_eq!(map.iter().collect::<Vec<_>>(), [1, 33, 82]);
        assert_eq!(map.to_bytes().len(), 16);
        assert_eq!(Bitmap::from_bytes(&map.to_bytes()), Ok(map.clone()));
        assert_eq!(map.and(&Bitmap::of([33, 34])), Bitmap::of([33]));
        map.remove(82);
        map.remove(33);
        assert_eq!(map.to_bytes(), [0, 0, 0, 1, 0, 0, 0, 2]);
        assert!(!map.is_empty() && !map.contains(300));
        assert_eq!(Bitmap::from_bytes(&Bitmap::of([1000]).to_bytes()), Ok(Bitmap::of([1000])));
        assert_eq!(Bitmap::of([u32::MAX]), Bitmap::default());
        assert_eq!(Bitmap::from_bytes(b"\0\0\0\x02\0\0\0\x02\0\0\0\0"), Ok(map));
    }

    #[test]
    fn statuses_and_unknown_types_are_told_apart() {
        use crate::status::{NfsStat, Res};
        let ok: Res<u32> = Ok(7);
        assert_eq!(ok.to_bytes(), [0, 0, 0, 0, 0, 0, 0, 7]);
        let stale: Res<u32> = Err(NfsStat::Stale);
        assert_eq!(Res::<u32>::from_bytes(&stale.to_bytes()), Ok(stale));
        assert_eq!(CreateType::from_bytes(&[0, 0, 0, 9]), Ok(CreateType::Other(9)));
        assert_eq!(
            CreateType::from_bytes(&CreateType::Lnk(b"x".to_vec()).to_bytes()),
            Ok(CreateType::Lnk(b"x".to_vec()))
        );
    }
}
