//! Numbers of the log's format, which both directions use.

/// Bytes of a sector of the log.
pub(crate) const SECTOR: usize = 512;
/// `XLOG_HEADER_MAGIC_NUM`: the first word of a record.
pub(crate) const MAGIC: u32 = 0xFEED_BABE;
/// Sectors whose first words fit in one header.
pub(crate) const WORDS: usize = 64;
/// Bytes of data for which a record has one header.
pub(crate) const HEADER_COVERS: u32 = (WORDS * SECTOR) as u32;
/// Bytes of the words and the cycle in a further header.
pub(crate) const FURTHER_BYTES: usize = 4 + WORDS * 4;
/// The longest record in bytes.
pub(crate) const RECORD_MAX: u32 = 256 << 10;
/// `XLOG_FMT_LINUX_LE`: items have the byte order of x86 and ARM.
pub(crate) const LITTLE_ENDIAN: u32 = 1;
/// Sectors before the head that can be missing after a crash: Linux writes eight records at a time, in any
/// order, and so may every writer.
pub(crate) const IN_FLIGHT: u32 = 8 * RECORD_MAX / SECTOR as u32;

/// The regions of an item to write: the first one says what the item is. Their lengths are multiples of 4.
pub(super) type Regions = Vec<Vec<u8>>;

/// Flags of an operation.
pub(crate) mod op {
    pub(crate) const START: u8 = 0x01;
    pub(crate) const COMMIT: u8 = 0x02;
    /// The region continues in the next record.
    pub(crate) const CONTINUE: u8 = 0x04;
    pub(crate) const WAS_CONTINUED: u8 = 0x08;
    /// The region, which was continued, ends.
    pub(crate) const END: u8 = 0x10;
    pub(crate) const UNMOUNT: u8 = 0x20;
}

/// Who wrote an operation: a transaction, or the log itself.
pub(crate) mod client {
    pub(crate) const TRANSACTION: u8 = 0x69;
    pub(crate) const LOG: u8 = 0xAA;
    pub(crate) const ALL: [u8; 3] = [TRANSACTION, 0x02, LOG];
}

/// Types of log items.
pub(super) mod kind {
    pub(crate) const INODE: u16 = 0x123b;
    pub(crate) const BUFFER: u16 = 0x123c;
    pub(crate) const DQUOT: u16 = 0x123d;
    pub(crate) const QUOTA_OFF: u16 = 0x123e;
    pub(crate) const ICREATE: u16 = 0x123f;
    /// An intent of a mapping.
    pub(crate) const MAPPING: u16 = 0x1244;
    /// An attribute intent.
    pub(crate) const ATTRIBUTE: u16 = 0x1246;
    /// An intent of an exchange of mappings.
    pub(crate) const EXCHANGE: u16 = 0x1248;
    /// Intents, their done items, and their names.
    pub(crate) const INTENTS: [(u16, u16, &str); 6] = [
        (0x1236, 0x1237, "free extent"),
        (0x1240, 0x1241, "reverse map"),
        (0x1242, 0x1243, "reference count"),
        (MAPPING, 0x1245, "mapping"),
        (ATTRIBUTE, 0x1247, "attribute"),
        (EXCHANGE, 0x1249, "exchange"),
    ];
}

/// Flags of a buffer item, and the types of buffers, which are in the upper bits.
pub(super) mod buffer {
    pub(crate) const INODES: u16 = 0x1;
    pub(crate) const CANCEL: u16 = 0x2;
    pub(crate) const TYPE_SHIFT: u32 = 11;
    /// Bytes of a bit in the map of a buffer item.
    pub(crate) const CHUNK: usize = 128;
}

/// Fields of an inode item.
pub(super) mod fields {
    pub(crate) const CORE: u32 = 0x001;
    pub(crate) const DATA_BYTES: u32 = 0x002;
    pub(crate) const DATA_EXTENTS: u32 = 0x004;
    pub(crate) const DATA_ROOT: u32 = 0x008;
    pub(crate) const DEVICE: u32 = 0x010;
    pub(crate) const ATTR_BYTES: u32 = 0x040;
    pub(crate) const ATTR_EXTENTS: u32 = 0x080;
    pub(crate) const ATTR_ROOT: u32 = 0x100;
}
