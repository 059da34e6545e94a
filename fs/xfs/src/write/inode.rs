//! Inodes that are changed: encoding, logging, new ones.

use super::tx::Tx;
use crate::fork::{EXTENT_BYTES, Extent, Fork, Which, root_bytes, root_room};
use crate::inode::Dinode;
use crate::layout::bytes::{MAGIC_INODE, NULL_AGINO};
use crate::layout::dinode::{BIGTIME_EPOCH_SEC, NS_PER_SEC, flags2, format};
use crate::layout::features::Incompat;
use crate::layout::raw::{RawBmdrBlock, RawDinode};
use crate::layout::superblock::Superblock;
use crate::log::object;
use ivers_block::Unit;
use ivers_journal::{LogObject, ObjectId, Patch};
use ivers_vfs::{FileType, NameError, Result, Timestamp};
use smallvec::SmallVec;
use std::mem::{offset_of, size_of};
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// The most extents of a fork without large counters.
const SMALL_COUNTS: [u64; 2] = [i32::MAX as u64, i16::MAX as u64];
/// The most extents of a fork with large counters.
const LARGE_COUNTS: [u64; 2] = [(1 << 48) - 1, u32::MAX as u64];

impl Fork {
    /// The form of the fork as it is stored.
    pub(crate) fn format(&self) -> u8 {
        match self {
            Self::Device(_) => format::DEVICE,
            Self::Local(_) => format::LOCAL,
            Self::None | Self::Extents(_) => format::EXTENTS,
            Self::Btree(_) => format::BTREE,
        }
    }

    /// Whether it fits into a space of so many bytes.
    fn fits(&self, space: usize) -> bool {
        match self {
            Self::None => true,
            Self::Device(_) => space >= 4,
            // Local attributes may have unused bytes at the end.
            Self::Local(bytes) => bytes.iter().skip(space).all(|byte| *byte == 0),
            Self::Extents(list) => list.len() * EXTENT_BYTES <= space,
            Self::Btree(root) => root_bytes(root.children.len()) <= space,
        }
    }

    /// Writes the fork into its space. `None` if it does not fit.
    fn encode(&self, space: &mut [u8]) -> Option<()> {
        self.fits(space.len()).then_some(())?;
        match self {
            Self::None => {}
            Self::Device(number) => space[..4].copy_from_slice(&number.to_be_bytes()),
            Self::Local(bytes) => {
                let len = bytes.len().min(space.len());
                space[..len].copy_from_slice(&bytes[..len]);
            }
            Self::Extents(list) => {
                for (place, extent) in space.chunks_exact_mut(EXTENT_BYTES).zip(list) {
                    place.copy_from_slice(&extent.record());
                }
            }
            Self::Btree(root) => {
                let header = size_of::<RawBmdrBlock>();
                let most = root_room(space.len());
                space[..2].copy_from_slice(&(root.level as u16).to_be_bytes());
                space[2..4].copy_from_slice(&(root.children.len() as u16).to_be_bytes());
                for (nth, (key, pointer)) in root.children.iter().enumerate() {
                    space[header + nth * 8..][..8].copy_from_slice(&key.to_be_bytes());
                    space[header + (most + nth) * 8..][..8].copy_from_slice(&pointer.to_be_bytes());
                }
            }
        }
        Some(())
    }
}

impl Extent {
    /// The two numbers of its record.
    pub(super) fn words(&self) -> (u64, u64) {
        let l0 = u64::from(self.unwritten) << 63 | self.file_block.0 << 9 | self.start.0 >> 43;
        (l0, self.start.0 << 21 | self.len)
    }

    fn record(&self) -> [u8; 16] {
        let (l0, l1) = self.words();
        (u128::from(l0) << 64 | u128::from(l1)).to_be_bytes()
    }
}

/// An inode as it is stored. Most have 512 bytes.
type Encoded = SmallVec<[u8; 512]>;

/// What a new inode is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewDinode {
    pub(crate) kind: FileType,
    pub(crate) perm: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) project: u32,
    /// Bits of `di_flags` that it inherits.
    pub(crate) flags: u16,
    /// The number of a device, in the kernel's encoding.
    pub(crate) rdev: u32,
    pub(crate) now: Timestamp,
    /// Larger than that of the inode that had the number before.
    pub(crate) generation: u32,
    pub(crate) change_count: u64,
}

impl Dinode {
    /// A new inode without links. A directory and a link have no contents yet.
    pub(crate) fn new(sb: &Superblock, ino: u64, new: &NewDinode) -> Self {
        let mut raw = RawDinode::new_zeroed();
        raw.di_magic = MAGIC_INODE.into();
        raw.di_version = 3;
        raw.di_mode = ((new.kind.mode_bits() | (new.perm & 0o7777)) as u16).into();
        (raw.di_uid, raw.di_gid) = (new.uid.into(), new.gid.into());
        raw.di_projid = (new.project as u16).into();
        raw.di_projid_hi = ((new.project >> 16) as u16).into();
        raw.di_gen = new.generation.into();
        raw.di_flags = new.flags.into();
        raw.di_changecount = new.change_count.into();
        raw.di_next_unlinked = NULL_AGINO.into();
        raw.di_ino = ino.into();
        raw.di_uuid = sb.meta_uuid;
        let mut set = 0;
        if sb.incompat.contains(Incompat::BIGTIME) {
            set |= flags2::BIGTIME;
        }
        if sb.incompat.contains(Incompat::NREXT64) {
            set |= flags2::NREXT64;
        }
        raw.di_flags2 = set.into();
        let data = match new.kind {
            FileType::Regular => Fork::Extents(Vec::new()),
            FileType::Directory | FileType::Symlink => Fork::Local(Box::default()),
            _ => Fork::Device(stored_device(new.rdev)),
        };
        let mut inode = Self { ino, raw, data, attrs: Fork::None };
        let now = inode.stored_time(new.now);
        (inode.raw.di_atime, inode.raw.di_mtime) = (now.into(), now.into());
        (inode.raw.di_ctime, inode.raw.di_crtime) = (now.into(), now.into());
        inode
    }

    /// Says that blocks of the file may be shared.
    pub(crate) fn begin_sharing(&mut self) {
        self.raw.di_flags2 = (self.raw.di_flags2.get() | flags2::REFLINK).into();
    }

    /// Says that no block of the file may be shared, if it has none.
    pub(crate) fn end_sharing_if_empty(&mut self) {
        if matches!(&self.data, Fork::Extents(extents) if extents.is_empty()) {
            self.raw.di_flags2 = (self.raw.di_flags2.get() & !flags2::REFLINK).into();
        }
    }

    /// A time as it is stored, as near as the inode can.
    pub(crate) fn stored_time(&self, time: Timestamp) -> u64 {
        if self.flags2() & flags2::BIGTIME != 0 {
            let most = (u64::MAX / u64::from(NS_PER_SEC)) as i64 - 1;
            let sec = time.sec.saturating_add(BIGTIME_EPOCH_SEC as i64).clamp(0, most) as u64;
            return sec * u64::from(NS_PER_SEC) + u64::from(time.nsec);
        }
        let sec = time.sec.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        u64::from(sec as u32) << 32 | u64::from(time.nsec)
    }

    pub(crate) fn set_mtime(&mut self, now: Timestamp) {
        self.raw.di_mtime = self.stored_time(now).into();
        self.set_ctime(now);
    }

    pub(crate) fn set_ctime(&mut self, now: Timestamp) {
        self.raw.di_ctime = self.stored_time(now).into();
    }

    pub(crate) fn set_size(&mut self, size: u64) {
        self.raw.di_size = size.into();
    }

    pub(crate) fn nlink(&self) -> u32 {
        self.raw.di_nlink.get()
    }

    pub(crate) fn set_nlink(&mut self, links: u32) {
        self.raw.di_nlink = links.into();
    }

    pub(crate) fn fork(&self, which: Which) -> &Fork {
        if which == Which::Data { &self.data } else { &self.attrs }
    }

    pub(crate) fn fork_mut(&mut self, which: Which) -> &mut Fork {
        if which == Which::Data { &mut self.data } else { &mut self.attrs }
    }

    /// Bytes for both forks.
    pub(crate) fn literal_bytes(&self, sb: &Superblock) -> usize {
        sb.inode_size as usize - self.core_bytes()
    }

    /// Bytes of a fork's space in the inode.
    pub(crate) fn space(&self, sb: &Superblock, which: Which) -> usize {
        let (literal, split) = (self.literal_bytes(sb), usize::from(self.raw.di_forkoff) * 8);
        match which {
            Which::Data if split == 0 => literal,
            Which::Data => split,
            Which::Attributes if split == 0 => 0,
            Which::Attributes => literal.saturating_sub(split),
        }
    }

    /// Sets the number of extents of a fork.
    pub(super) fn set_extents(&mut self, which: Which, count: u64) -> Result<()> {
        let large = self.flags2() & flags2::NREXT64 != 0;
        let most = if large { LARGE_COUNTS } else { SMALL_COUNTS };
        if count > most[usize::from(which == Which::Attributes)] {
            return Err(NameError::TooLarge.into());
        }
        match (which, large) {
            (Which::Data, true) => {
                let bytes = count.to_be_bytes();
                self.raw.di_pad.copy_from_slice(&bytes[..6]);
                self.raw.di_flushiter = u16::from_be_bytes([bytes[6], bytes[7]]).into();
            }
            (Which::Data, false) | (Which::Attributes, true) => self.raw.di_nextents = (count as u32).into(),
            (Which::Attributes, false) => self.raw.di_anextents = (count as u16).into(),
        }
        Ok(())
    }

    /// Changes the number of blocks that the inode owns.
    pub(super) fn add_blocks(&mut self, difference: i64) {
        self.raw.di_nblocks = self.raw.di_nblocks.get().saturating_add_signed(difference).into();
    }

    /// Whether the forks fit, so that it can be stored.
    pub(crate) fn fits(&self, sb: &Superblock) -> bool {
        let literal = self.literal_bytes(sb);
        let data = self.space(sb, Which::Data).min(literal);
        self.data.fits(data) && self.attrs.fits(literal - data)
    }

    /// The inode as it is stored, with checksum 0: the write in place computes it. `None` if the forks do not
    /// fit.
    pub(crate) fn encode(&self, sb: &Superblock) -> Option<Encoded> {
        let mut raw = self.raw.clone();
        (raw.di_format, raw.di_aformat) = (self.data.format(), self.attrs.format());
        raw.di_crc = 0.into();
        let mut bytes = Encoded::from_elem(0, sb.inode_size as usize);
        bytes[..size_of::<RawDinode>()].copy_from_slice(raw.as_bytes());
        let literal = &mut bytes[size_of::<RawDinode>()..];
        let (data, attrs) = literal.split_at_mut(self.space(sb, Which::Data).min(literal.len()));
        self.data.encode(data)?;
        self.attrs.encode(attrs)?;
        Some(bytes)
    }

    /// The part of a stored inode that says something. What is after it may stay as it was.
    fn used_part<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        let data = match &self.data {
            _ if self.raw.di_forkoff != 0 => return bytes,
            Fork::Btree(_) => return bytes,
            Fork::None => 0,
            Fork::Device(_) => 4,
            Fork::Local(bytes) => bytes.len(),
            Fork::Extents(list) => list.len() * EXTENT_BYTES,
        };
        &bytes[..(size_of::<RawDinode>() + data).min(bytes.len())]
    }

    /// The inode as it is now, for the log. `None` if it cannot be encoded.
    fn image(&self, sb: &Superblock) -> Option<Arc<dyn LogObject>> {
        let (unit, at) = sb.inode_cluster(self.ino)?;
        self.image_in(sb, unit, at)
    }

    /// As [`Dinode::image`]; the inode is at byte `at` of its cluster.
    pub(crate) fn image_in(&self, sb: &Superblock, unit: Unit, at: usize) -> Option<Arc<dyn LogObject>> {
        let bytes = self.encode(sb)?;
        let (bytes, at): (Arc<[u8]>, _) = (self.used_part(&bytes).into(), at as u32);
        // The link between unlinked inodes is not the inode's own.
        let (link, after) = (offset_of!(RawDinode, di_next_unlinked), offset_of!(RawDinode, di_crc));
        let (link, after, end) = (link as u32, after as u32, bytes.len() as u32);
        let pieces = [(at, 0..link), (at + after, after..end)].into();
        Some(Arc::new(InodeImage { ino: self.ino, patch: Arc::new(Patch { unit, bytes, pieces }) }))
    }

    /// Logs the inode: as it is now, or, if the transaction leaves it to its publisher, as it is then.
    pub(crate) fn log(&self, tx: &mut Tx<'_>) -> Result<()> {
        if tx.leave_to_publisher(self.ino) {
            return Ok(());
        }
        let image = self.image(&tx.space().sb);
        let image = image.ok_or_else(|| tx.space().corrupt("its forks do not fit", self.whose()))?;
        tx.log_inode(image);
        Ok(())
    }
}

/// The identity of an inode in the log.
pub(crate) fn inode_id(ino: u64) -> ObjectId {
    ObjectId { kind: object::INODE, number: ino }
}

/// Converts a device number from the kernel's encoding of 12 and 20 bits to that of 14 and 18 bits.
fn stored_device(rdev: u32) -> u32 {
    let (major, minor) = (rdev >> 8 & 0xFFF, (rdev & 0xFF) | (rdev >> 12 & !0xFF));
    major << 18 | (minor & 0x3_FFFF)
}

/// An inode at one time, as it is logged.
struct InodeImage {
    ino: u64,
    /// Its bytes are the record too.
    patch: Arc<Patch>,
}

impl LogObject for InodeImage {
    fn id(&self) -> ObjectId {
        inode_id(self.ino)
    }

    fn record(&self) -> Arc<[u8]> {
        self.patch.bytes.clone()
    }

    fn patch(&self) -> Option<Arc<Patch>> {
        Some(self.patch.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::TreeRoot;
    use crate::layout::superblock::FsBlock;
    use crate::write::tests::samples::superblock;
    use ivers_block::FileBlock;

    fn new(kind: FileType) -> NewDinode {
        NewDinode {
            kind,
            perm: 0o640,
            uid: 7,
            gid: 70_000,
            project: 0x12_3456,
            flags: 0,
            rdev: 0x1230_0845,
            now: Timestamp { sec: 1_700_000_000, nsec: 5 },
            generation: 99,
            change_count: 3,
        }
    }

    fn reopened(sb: &Superblock, inode: &Dinode) -> Dinode {
        let bytes = inode.encode(sb).unwrap();
        Dinode::decode(sb, &bytes, inode.ino, true).unwrap_or_else(|_| panic!("it does not decode"))
    }

    #[test]
    fn new_inodes_decode_as_they_were_encoded() {
        let sb = superblock();
        for kind in [FileType::Regular, FileType::CharDevice, FileType::Fifo] {
            let mut inode = Dinode::new(&sb, 133, &new(kind));
            inode.set_nlink(2);
            let again = reopened(&sb, &inode);
            assert_eq!(again.attr(&sb), inode.attr(&sb));
            let attr = again.attr(&sb);
            assert_eq!((attr.kind, attr.perm, attr.nlink, attr.project), (kind, 0o640, 2, 0x12_3456));
            assert_eq!((attr.mtime.sec, attr.mtime.nsec, again.generation()), (1_700_000_000, 5, 99));
        }
        assert_eq!(Dinode::new(&sb, 133, &new(FileType::CharDevice)).attr(&sb).rdev, 0x1230_0845);
    }

    #[test]
    fn forks_are_encoded_in_their_space() {
        let sb = superblock();
        let extent = |nth: u64| Extent {
            file_block: FileBlock(nth * 10),
            start: FsBlock(100 + nth),
            len: nth + 1,
            unwritten: nth == 2,
        };
        let mut inode = Dinode::new(&sb, 133, &new(FileType::Regular));
        let list: Vec<_> = (0..5).map(extent).collect();
        inode.data = Fork::Extents(list.clone());
        inode.set_extents(Which::Data, 5).unwrap();
        inode.raw.di_forkoff = 20;
        inode.attrs = Fork::Btree(TreeRoot { level: 2, children: vec![(0, 7), (55, 9)] });
        inode.set_extents(Which::Attributes, 1000).unwrap();
        let again = reopened(&sb, &inode);
        assert!(matches!(&again.data, Fork::Extents(found) if *found == list));
        assert_eq!((again.extents(Which::Data), again.extents(Which::Attributes)), (5, 1000));
        assert!(matches!(&again.attrs, Fork::Btree(root) if root.children == [(0, 7), (55, 9)]));
        inode.data = Fork::Extents((0..11).map(extent).collect());
        assert!(inode.encode(&sb).is_none(), "it does not fit");
        assert!(inode.set_extents(Which::Attributes, 1 << 40).is_err());
    }
}
