//! Inodes as stored.

use super::bytes::{Fields, FieldsMut};
use super::superblock::{DIRECT, Superblock, Version};
use ivers_vfs::{Attr, FileType, InodeFlags, Timestamp};

/// Pointers of an inode: twelve direct ones, then one for each level of indirect blocks.
pub const POINTERS: usize = DIRECT as usize + 3;
/// A file with this flag is a snapshot of the filesystem.
const SF_SNAPSHOT: u32 = 0x0020_0000;
/// The offset of `di_ckhash`.
const CHECK_HASH_AT: usize = 244;

/// The offset of the link count.
const LINKS_AT: usize = 2;

/// Bits of `di_flags`, what they are in Linux, and the bit that is set here. Users (UF) and root (SF) have
/// flags of their own; in Linux, only root sets the last two.
const FLAGS: [(u32, InodeFlags, u32); 3] = [
    (0x1, InodeFlags::NODUMP, 0x1),
    (0x2 | 0x2_0000, InodeFlags::IMMUTABLE, 0x2_0000),
    (0x4 | 0x4_0000, InodeFlags::APPEND, 0x4_0000),
];

/// The flags of Linux that an inode can store.
pub const STORED_FLAGS: InodeFlags =
    InodeFlags::NODUMP.union(InodeFlags::IMMUTABLE).union(InodeFlags::APPEND);

/// An inode.
#[derive(Debug, Clone, Default)]
pub struct Dinode {
    /// Its number.
    pub ino: u32,
    /// Type and permissions.
    pub mode: u16,
    /// Link count.
    pub links: u16,
    /// Bytes of the contents.
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks_512: u64,
    /// Distinguishes successive inodes of this number.
    pub generation: u32,
    /// Bytes of the area of extended attributes.
    pub attributes_size: u32,
    /// Blocks of that area.
    pub attributes: [u64; 2],
    /// Pointers to blocks; 0 is a hole.
    pub pointers: [u64; POINTERS],
    /// The target of a link that is in the inode.
    pub short_link: Option<Vec<u8>>,
    flags: u32,
    owner: (u32, u32),
    /// Of access, contents, attributes, birth.
    times: [Timestamp; 4],
}

fn time(sec: i64, nsec: u32) -> Timestamp {
    // FreeBSD stores what programs set; a damaged value counts as none.
    Timestamp { sec, nsec: if nsec < 1_000_000_000 { nsec } else { 0 } }
}

/// The offset of the pointers, and of a link target in their place.
fn pointers_at(sb: &Superblock) -> usize {
    if sb.version == Version::Ufs1 { 40 } else { 112 }
}

/// Returns the link count to store. A directory without a name still has its `.`: fsck_ffs counts that.
pub fn stored_links(is_dir: bool, links: u32) -> u16 {
    links.clamp(is_dir.into(), u16::MAX.into()) as u16
}

/// Sets the link count in the bytes of an inode.
pub fn set_links(bytes: &mut [u8], sb: &Superblock, links: u16) {
    let mut fields = FieldsMut::new(bytes, sb.order);
    fields.u16(LINKS_AT, links);
    if sb.hashes_inodes() {
        fields.set_check_hash(CHECK_HASH_AT);
    }
}

impl Dinode {
    /// Decodes an inode. `None`: it is free.
    pub fn parse(bytes: &[u8], sb: &Superblock, ino: u32) -> Result<Option<Self>, String> {
        let fields = Fields::new(bytes, sb.order);
        let mode = fields.u16(0);
        if mode == 0 {
            return Ok(None);
        }
        if sb.hashes_inodes() && fields.check_hash(CHECK_HASH_AT) != fields.u32(CHECK_HASH_AT) {
            return Err("bad check hash; run fsck_ffs of FreeBSD".into());
        }
        let mut inode = match sb.version {
            Version::Ufs1 if sb.is_old => Self::parse_old(&fields, ino),
            Version::Ufs1 => Self::parse_ufs1(&fields, ino),
            Version::Ufs2 => Self::parse_ufs2(&fields, ino),
        };
        let kind = inode.kind().ok_or_else(|| format!("mode {mode:#o} has no known type"))?;
        if inode.size > sb.file_size_max() {
            return Err(format!("its size is {}, more than a file can have", inode.size));
        }
        let is_short =
            inode.size < u64::from(sb.short_link_max) || (sb.short_link_max == 0 && inode.blocks_512 == 0);
        if kind == FileType::Symlink && is_short {
            let start = pointers_at(sb);
            let area = &bytes[start..start + POINTERS * sb.pointer_size() as usize];
            let target = area.get(..inode.size as usize);
            inode.short_link = Some(target.ok_or("a link target does not fit into the inode")?.to_vec());
        }
        if inode.attributes_size > 2 * sb.block_size {
            let size = inode.attributes_size;
            return Err(format!("its extended attributes have {size} bytes, more than two blocks"));
        }
        Ok(Some(inode))
    }

    /// Decodes an inode of 4.2BSD. Solaris has the owner in 32 bits in another place, if 16 are too few:
    /// `ic_suid`, `ic_sgid`, `ic_uid` and `ic_gid` of its `struct icommon`.
    fn parse_old(fields: &Fields<'_>, ino: u32) -> Self {
        let owner = |short: usize, wide: usize| match (fields.u16(short), fields.u32(wide)) {
            (u16::MAX, wide) if wide > u16::MAX.into() => wide,
            (short, _) => short.into(),
        };
        let mut inode = Self::parse_ufs1(fields, ino);
        inode.owner = (owner(4, 116), owner(6, 120));
        // The second half of a time is free, or counts microseconds. The flags have other meanings.
        inode.times.iter_mut().for_each(|time| time.nsec = 0);
        inode.flags = 0;
        inode
    }

    /// Decodes a `struct ufs1_dinode`: mode, links, size, times, pointers, flags, di_blocks, generation,
    /// owner and group, in the order of their offsets.
    fn parse_ufs1(fields: &Fields<'_>, ino: u32) -> Self {
        let time = |at: usize| time((fields.u32(at) as i32).into(), fields.u32(at + 4));
        Self {
            ino,
            mode: fields.u16(0),
            links: fields.u16(2),
            size: fields.u64(8),
            blocks_512: fields.u32(104).into(),
            generation: fields.u32(108),
            attributes_size: 0,
            attributes: [0; 2],
            pointers: std::array::from_fn(|nth| fields.u32(40 + nth * 4).into()),
            short_link: None,
            flags: fields.u32(100),
            owner: (fields.u32(112), fields.u32(116)),
            times: [time(16), time(24), time(32), Timestamp::default()],
        }
    }

    /// Decodes a `struct ufs2_dinode`: mode, links, owner, group, size, di_blocks, times, their nanoseconds,
    /// generation, flags, the area of extended attributes and pointers, in the order of their offsets.
    fn parse_ufs2(fields: &Fields<'_>, ino: u32) -> Self {
        let time = |at: usize, nsec_at: usize| time(fields.u64(at) as i64, fields.u32(nsec_at));
        Self {
            ino,
            mode: fields.u16(0),
            links: fields.u16(2),
            size: fields.u64(16),
            blocks_512: fields.u64(24),
            generation: fields.u32(80),
            attributes_size: fields.u32(92),
            attributes: [fields.u64(96), fields.u64(104)],
            pointers: std::array::from_fn(|nth| fields.u64(112 + nth * 8)),
            short_link: None,
            flags: fields.u32(88),
            owner: (fields.u32(4), fields.u32(8)),
            times: [time(32, 68), time(40, 64), time(48, 72), time(56, 76)],
        }
    }

    /// A free inode. It keeps the generation of the last file in its place.
    pub fn free(ino: u32, generation: u32) -> Self {
        Self { ino, generation, ..Self::default() }
    }

    /// Whether the bytes of an inode are those of one in use.
    pub fn is_used(bytes: &[u8], sb: &Superblock) -> bool {
        Fields::new(bytes, sb.order).u16(0) != 0
    }

    /// The generation in the bytes of an inode that may be free.
    pub fn generation_in(bytes: &[u8], sb: &Superblock) -> u32 {
        Fields::new(bytes, sb.order).u32(if sb.version == Version::Ufs1 { 108 } else { 80 })
    }

    /// Its type.
    pub fn kind(&self) -> Option<FileType> {
        FileType::from_mode(self.mode.into())
    }

    /// Whether it has blocks: others store a device number or a link target in place of pointers.
    pub fn has_blocks(&self) -> bool {
        match self.kind() {
            Some(FileType::Regular | FileType::Directory) => true,
            Some(FileType::Symlink) => self.short_link.is_none(),
            _ => false,
        }
    }

    /// Whether it is a snapshot of the filesystem.
    pub fn is_snapshot(&self) -> bool {
        self.flags & SF_SNAPSHOT != 0
    }

    /// Its attributes.
    pub fn attr(&self) -> Attr {
        let kind = self.kind().unwrap_or(FileType::Regular);
        let flags = FLAGS.iter().filter(|(bits, ..)| self.flags & bits != 0);
        let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        let [atime, mtime, ctime, birth] = self.times;
        Attr {
            kind,
            perm: u32::from(self.mode) & 0o7777,
            uid: self.owner.0,
            gid: self.owner.1,
            project: 0,
            nlink: self.links.into(),
            size: self.size,
            blocks_512: self.blocks_512,
            // The lower 32 bits, also in UFS2: see "Differences from the BSDs" in docs/ufs.md.
            rdev: if is_device { self.pointers[0] as u32 } else { 0 },
            atime,
            mtime,
            ctime,
            // makefs stores none.
            btime: (birth != Timestamp::default()).then_some(birth),
            flags: flags.fold(InodeFlags::empty(), |all, (_, flag, _)| all | *flag),
        }
    }

    /// Takes over attributes, but not the size and the space: those follow what is on the device.
    pub fn set_attr(&mut self, attr: &Attr) {
        self.mode = attr.mode() as u16;
        self.links = stored_links(self.kind() == Some(FileType::Directory), attr.nlink);
        self.owner = (attr.uid, attr.gid);
        for (bits, flag, set) in FLAGS {
            match (attr.flags.contains(flag), self.flags & bits != 0) {
                (true, false) => self.flags |= set,
                (false, true) => self.flags &= !bits,
                _ => {}
            }
        }
        self.times = [attr.atime, attr.mtime, attr.ctime, attr.btime.unwrap_or_default()];
    }

    /// Writes the inode into its place. Fields that this driver does not know stay as they are.
    pub fn encode(&self, bytes: &mut [u8], sb: &Superblock) {
        let mut fields = FieldsMut::new(bytes, sb.order);
        fields.u16(0, self.mode);
        fields.u16(LINKS_AT, self.links);
        match sb.version {
            Version::Ufs1 => self.encode_ufs1(&mut fields),
            Version::Ufs2 => self.encode_ufs2(&mut fields),
        }
        if let Some(target) = &self.short_link {
            let (start, len) = (pointers_at(sb), POINTERS * sb.pointer_size() as usize);
            if let Some(area) = bytes.get_mut(start..start + len) {
                area.fill(0);
                area.iter_mut().zip(target).for_each(|(to, from)| *to = *from);
            }
        }
        if sb.hashes_inodes() {
            FieldsMut::new(bytes, sb.order).set_check_hash(CHECK_HASH_AT);
        }
    }

    fn encode_ufs1(&self, fields: &mut FieldsMut<'_>) {
        fields.u64(8, self.size);
        for (at, time) in [16, 24, 32].into_iter().zip(self.times) {
            fields.u32(at, time.sec as u32);
            fields.u32(at + 4, time.nsec);
        }
        for (nth, &pointer) in self.pointers.iter().enumerate() {
            fields.u32(40 + nth * 4, pointer as u32);
        }
        fields.u32(100, self.flags);
        fields.u32(104, self.blocks_512 as u32);
        fields.u32(108, self.generation);
        fields.u32(112, self.owner.0);
        fields.u32(116, self.owner.1);
    }

    fn encode_ufs2(&self, fields: &mut FieldsMut<'_>) {
        fields.u32(4, self.owner.0);
        fields.u32(8, self.owner.1);
        fields.u64(16, self.size);
        fields.u64(24, self.blocks_512);
        for ((at, nsec_at), time) in [(32, 68), (40, 64), (48, 72), (56, 76)].into_iter().zip(self.times) {
            fields.u64(at, time.sec as u64);
            fields.u32(nsec_at, time.nsec);
        }
        fields.u32(80, self.generation);
        fields.u32(88, self.flags);
        fields.u32(92, self.attributes_size);
        for (nth, &block) in self.attributes.iter().enumerate() {
            fields.u64(96 + nth * 8, block);
        }
        for (nth, &pointer) in self.pointers.iter().enumerate() {
            fields.u64(112 + nth * 8, pointer);
        }
    }
}
