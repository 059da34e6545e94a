//! Types that several operations share (XDR in RFC 7531, RFC 5662, RFC 7863).

use crate::attr::Fattr;
use crate::xdr::{Decoder, Encoder, Result, Xdr, XdrError, xdr_enum, xdr_struct, xdr_union};

/// Maximum size of a filehandle in bytes (`NFS4_FHSIZE`, RFC 7531).
pub const FHSIZE: usize = 128;
/// Maximum size of an owner or client name in bytes (`NFS4_OPAQUE_LIMIT`, RFC 7531).
pub const OPAQUE_LIMIT: usize = 1024;

/// `verifier4` (RFC 7530 section 2.1): distinguishes instances of a client, server or file.
pub type Verifier = [u8; 8];
/// `sessionid4` (RFC 8881 section 3.2).
pub type SessionId = [u8; 16];
/// `clientid4` (RFC 7530 section 2.1).
pub type ClientId = u64;
/// `component4`, `utf8string` (RFC 7530 section 2.1): bytes that should be UTF-8. The user of the value
/// checks.
pub type Utf8 = Vec<u8>;

/// `opaque x<MAX>` (RFC 4506 section 4.10): bytes of variable length.
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

/// `nfs_fh4` (RFC 7530 section 2.1).
pub type FileHandle = Opaque<FHSIZE>;

/// `bitmap4` (RFC 7530 section 2.1): a set of attributes, operations or hints. Trailing zero words are
/// neither sent nor compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Bitmap {
    /// The first words. All known bits are here, so their sets need no memory on the heap.
    words: [u32; Self::FIRST_WORDS],
    /// The words after them.
    more: Vec<u32>,
}

impl Bitmap {
    /// Maximum number of words. Unknown bits are permitted and ignored, but not without limit.
    const MAX_WORDS: usize = 64;
    const FIRST_WORDS: usize = 3;

    /// The empty set.
    pub const EMPTY: Self = Self { words: [0; Self::FIRST_WORDS], more: Vec::new() };

    /// Returns the set of these bits.
    pub fn of(bits: impl IntoIterator<Item = u32>) -> Self {
        let mut map = Self::default();
        bits.into_iter().for_each(|bit| map.insert(bit));
        map
    }

    /// Adds bits to a constant. Panics if one is 96 or greater.
    pub const fn with(mut self, bits: &[u32]) -> Self {
        let mut nth = 0;
        while nth < bits.len() {
            self.words[bits[nth] as usize / 32] |= 1 << (bits[nth] % 32);
            nth += 1;
        }
        self
    }

    /// Returns the word at an index.
    fn word(&self, at: usize) -> Option<u32> {
        self.words.get(at).or_else(|| self.more.get(at - Self::FIRST_WORDS)).copied()
    }

    /// Returns the number of words up to the last one that is not zero.
    fn len(&self) -> usize {
        match self.more.len() {
            0 => self.words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1),
            more => Self::FIRST_WORDS + more,
        }
    }

    /// Returns whether a bit is set.
    pub fn contains(&self, bit: u32) -> bool {
        self.word(bit as usize / 32).is_some_and(|word| word & 1 << (bit % 32) != 0)
    }

    /// Sets a bit. Ignores a bit beyond the maximum size.
    pub fn insert(&mut self, bit: u32) {
        let at = bit as usize / 32;
        if at >= Self::MAX_WORDS {
            return;
        }
        if at >= Self::FIRST_WORDS + self.more.len() {
            self.more.resize(at + 1 - Self::FIRST_WORDS, 0);
        }
        if let Some(word) = self.words.iter_mut().chain(&mut self.more).nth(at) {
            *word |= 1 << (bit % 32);
        }
    }

    /// Clears a bit.
    pub fn remove(&mut self, bit: u32) {
        if let Some(word) = self.words.iter_mut().chain(&mut self.more).nth(bit as usize / 32) {
            *word &= !(1 << (bit % 32));
        }
        self.trim();
    }

    /// Returns the intersection.
    pub fn and(&self, other: &Self) -> Self {
        let mut words = self.words;
        words.iter_mut().zip(other.words).for_each(|(word, other)| *word &= other);
        let more = self.more.iter().zip(&other.more).map(|(word, other)| word & other).collect();
        let mut both = Self { words, more };
        both.trim();
        both
    }

    /// Returns the bits in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let bits = |(at, word): (u32, &u32)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(at * 32 + bit)
            })
        };
        (0..).zip(self.words.iter().chain(&self.more)).flat_map(bits)
    }

    /// Returns whether no bit is set.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn trim(&mut self) {
        while self.more.last() == Some(&0) {
            self.more.pop();
        }
    }
}

impl Xdr for Bitmap {
    fn put(&self, to: &mut Encoder) {
        let len = self.len();
        to.word(len as u32);
        self.words.iter().chain(&self.more).take(len).for_each(|&word| to.word(word));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        let mut map = Self::default();
        for at in 0..from.count(Self::MAX_WORDS)? {
            let word = from.word()?;
            match map.words.get_mut(at) {
                Some(first) => *first = word,
                None => map.more.push(word),
            }
        }
        map.trim();
        Ok(map)
    }
}

xdr_enum! {
    /// `nfs_ftype4` (RFC 7530 section 2.1).
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

    /// `stable_how4` (RFC 7530 section 16.36): how durable written data is.
    enum StableHow {
        /// May be lost until COMMIT.
        Unstable = 0,
        /// Data and the metadata needed to read it are durable.
        DataSync = 1,
        /// Data and metadata are durable.
        FileSync = 2,
    }

    /// `nfs_lock_type4` (RFC 7530 section 16.10).
    enum LockType {
        /// Shared.
        Read = 1,
        /// Exclusive.
        Write = 2,
        /// Shared; the client waits for the lock.
        ReadW = 3,
        /// Exclusive; the client waits for the lock.
        WriteW = 4,
    }
}

xdr_struct! {
    /// `nfstime4` (RFC 7530 section 2.2.1).
    struct NfsTime {
        /// Seconds since 1970.
        seconds: i64,
        /// Nanoseconds, below 1,000,000,000.
        nseconds: u32,
    }

    /// `fsid4` (RFC 7530 section 2.2.5): identifies a filesystem.
    struct Fsid {
        /// Upper half.
        major: u64,
        /// Lower half.
        minor: u64,
    }

    /// `specdata4` (RFC 7530 section 2.2.4): a device number.
    struct SpecData {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    }

    /// `change_info4` (RFC 7530 section 2.2.9): the change attribute of a directory before and after an
    /// operation.
    struct ChangeInfo {
        /// No other change happened in between.
        atomic: bool,
        /// Change attribute before the operation.
        before: u64,
        /// Change attribute after the operation.
        after: u64,
    }

    /// `open_owner4`, `lock_owner4` (RFC 7530 sections 2.2.13 and 2.2.14): an owner of opens or locks.
    struct Owner {
        /// The client ID.
        clientid: ClientId,
        /// The client's name for the owner.
        owner: Opaque<OPAQUE_LIMIT>,
    }

    /// `nfsace4` (RFC 7530 section 6.2.1): an entry of an ACL.
    struct Ace {
        /// Type: allow, deny, audit or alarm.
        kind: u32,
        /// Inheritance flags, and whether `who` is a group.
        flags: u32,
        /// Permissions.
        mask: u32,
        /// `OWNER@`, `GROUP@`, `EVERYONE@`, or a name.
        who: Utf8,
    }

    /// `netaddr4` (RFC 8881 section 3.3.9, RFC 5665): a transport address.
    struct NetAddr {
        /// Network ID, for example `tcp` or `tcp6`.
        netid: Utf8,
        /// Universal address: address and port as decimal numbers separated by dots.
        addr: Utf8,
    }

    /// `nfs_modified_limit4` (RFC 7530 section 16.16).
    struct ModifiedLimit {
        /// Number of blocks.
        blocks: u32,
        /// Size of a block in bytes.
        block_bytes: u32,
    }

    /// `mode_masked4` (RFC 8881 section 6.2.5): some bits of the mode.
    struct ModeMasked {
        /// Values of the bits in `mask`.
        value: u32,
        /// The bits to set.
        mask: u32,
    }

    /// `open_arguments4` (RFC 9754): the bits and choices that OPEN supports.
    struct OpenArguments {
        /// Bits of `share_access`.
        access: Bitmap,
        /// Bits of `share_deny`.
        deny: Bitmap,
        /// Bits of `share_access` that request delegations.
        want: Bitmap,
        /// Claim types.
        claim: Bitmap,
        /// Create modes.
        create: Bitmap,
    }

    /// `mode_umask4` (RFC 8275): a mode for a new file that may inherit an ACL.
    struct ModeUmask {
        /// Mode that the program requested.
        mode: u32,
        /// Umask of the program.
        umask: u32,
    }
}

impl Copy for NfsTime {}
impl Copy for Fsid {}
impl Copy for SpecData {}
impl Copy for ChangeInfo {}

xdr_union! {
    /// `settime4` (RFC 7530 section 2.2.3).
    union SetTime {
        /// Set to the server's time.
        0 => Server,
        /// Set to this time.
        1 => Client(NfsTime),
    }

    /// `nfs_space_limit4` (RFC 7530 section 16.16): how much the holder of a write delegation may write
    /// without asking the server.
    union SpaceLimit {
        /// Up to this file size in bytes.
        1 => Size(u64),
        /// This number of blocks.
        2 => Blocks(ModifiedLimit),
    }
}

/// `stateid4` (RFC 7530 section 2.2.16): an open, lock, delegation or layout, and its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId {
    /// Version of the state. 0 in NFSv4.1: the newest version.
    pub seqid: u32,
    /// Identifies the state.
    pub other: [u8; 12],
}

impl StateId {
    /// Anonymous stateid (RFC 7530 section 9.1.4.3).
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// Anonymous stateid that bypasses locks for reading (RFC 7530 section 9.1.4.3).
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// Current stateid of the request (RFC 8881 section 8.2.3).
    pub const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// Invalid stateid (RFC 8881 section 8.2.3).
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

/// A result or an error status. [`NfsStat::Ok`](crate::status::NfsStat::Ok) is never an error.
impl<T: Xdr> Xdr for crate::status::Res<T> {
    fn put(&self, to: &mut Encoder) {
        match self {
            Ok(value) => {
                to.word(0);
                value.put(to);
            }
            Err(status) => {
                debug_assert!(status.number() != 0, "NFS4_OK as an error");
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

/// `createtype4` (RFC 7530 section 16.4): the object that CREATE creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateType {
    /// A symbolic link with this target.
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
    /// A type that CREATE does not support: NFS4ERR_BADTYPE.
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
        // The union has a default arm without body, so that the server can refuse unknown types.
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
    /// `creatverfattr` (RFC 8881 section 18.16): how EXCLUSIVE4_1 creates a file.
    struct CreateVerfAttr {
        /// Identifies this creation when the request is repeated.
        verifier: Verifier,
        /// Initial attributes.
        attrs: Fattr,
    }
}

xdr_union! {
    /// `createhow4` (RFC 7530 section 16.16, RFC 8881 section 18.16).
    union CreateHow {
        /// Open the file if it exists.
        0 => Unchecked(Fattr),
        /// Fail if the file exists.
        1 => Guarded(Fattr),
        /// Fail if the file exists, unless the same request created it.
        2 => Exclusive(Verifier),
        /// As `Exclusive`, with attributes.
        3 => Exclusive41(CreateVerfAttr),
    }
}

/// `openflag4` (RFC 7530 section 16.16): whether OPEN creates the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenHow {
    /// The file must exist.
    NoCreate,
    /// Create the file.
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
    fn a_bitmap_is_a_set() {
        let mut map = Bitmap::of([1, 33, 82]);
        assert_eq!(map.iter().collect::<Vec<_>>(), [1, 33, 82]);
        assert_eq!(Bitmap::EMPTY.with(&[82]).with(&[1, 33]), map);
        assert_eq!(map.to_bytes().len(), 16);
        assert_eq!(Bitmap::from_bytes(&map.to_bytes()), Ok(map.clone()));
        assert_eq!(map.and(&Bitmap::of([33, 34])), Bitmap::of([33]));
        map.remove(82);
        map.remove(33);
        assert_eq!(map.to_bytes(), [0, 0, 0, 1, 0, 0, 0, 2]);
        assert!(!map.is_empty() && !map.contains(300));
        let long = Bitmap::of([2, 95, 96, 1000, 2047]);
        assert_eq!(long.iter().collect::<Vec<_>>(), [2, 95, 96, 1000, 2047]);
        assert_eq!(Bitmap::from_bytes(&long.to_bytes()), Ok(long.clone()));
        assert_eq!(long.and(&Bitmap::of([95, 97, 1000])), Bitmap::of([95, 1000]));
        let mut short = long.clone();
        [96, 1000, 2047].into_iter().for_each(|bit| short.remove(bit));
        assert_eq!((&short, short.to_bytes().len()), (&Bitmap::EMPTY.with(&[2, 95]), 16));
        assert_eq!(Bitmap::of([u32::MAX]), Bitmap::default());
        assert_eq!(Bitmap::from_bytes(b"\0\0\0\x02\0\0\0\x02\0\0\0\0"), Ok(map));
    }

    #[test]
    fn results_errors_and_unknown_types_are_distinguished() {
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
