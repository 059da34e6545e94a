//! Extended attributes: tables in bodies and blocks, and attribute inodes.

use super::map;
use super::state::{Checker, SharedBlock, Slot, kind};
use crate::dir::linear::{le16, le32};
use crate::layout::csum::crc32c;
use crate::layout::features::Incompat;
use crate::layout::inode::FL_EA_INODE;
use crate::xattr::body::{INDEX_SYSTEM, INLINE_DATA, MAGIC, name_hash};
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::ops::Range;

/// Bytes of an entry before its name.
const ENTRY: usize = 16;
/// Bytes of a block's header.
const HEADER: usize = 32;
/// The namespace of the encryption context.
const INDEX_ENCRYPTION: u8 = 9;
/// Longest value of an attribute inode whose hash is checked, in bytes.
const VALUE_MAX: u64 = 1 << 20;

/// What the attributes of an inode add up to.
#[derive(Default)]
pub(super) struct Attributes {
    /// Blocks of 512 bytes that count for the inode.
    pub(super) blocks_512: u64,
    /// The length of the attribute of inline data, in bytes.
    pub(super) inline: Option<u64>,
    /// How the inode is encrypted.
    pub(super) context: Context,
}

/// The attribute that says how an inode is encrypted.
#[derive(Clone, Copy, Default)]
pub(super) enum Context {
    #[default]
    None,
    /// Its length in bytes.
    Length(usize),
    /// The block of attributes was read for another inode.
    Unknown,
}

/// A table: entries from `first` on, values relative to `base`.
struct Table<'a> {
    owner: &'a Slot,
    area: &'a [u8],
    first: usize,
    base: usize,
    in_block: bool,
}

impl Checker {
    /// Checks the attributes of an inode.
    pub(super) fn check_xattrs(&mut self, inode: &Slot) -> Result<Attributes> {
        let mut all = Attributes::default();
        let area = inode.body();
        if inode.raw.i_extra_isize.get() >= 4 && area.len() > 4 && le32(area, 0) == MAGIC {
            let table = Table { owner: inode, area, first: 4, base: 4, in_block: false };
            let blocks_512 = self.check_table(&table, Place::inode(inode.ino), &mut all)?;
            all.blocks_512 += blocks_512;
        }
        let sb = self.sb();
        let mut block = u64::from(inode.raw.i_file_acl_lo.get());
        if sb.incompat.contains(Incompat::BIT64) {
            block |= u64::from(inode.raw.i_file_acl_high.get()) << 32;
        }
        if block == 0 {
            return Ok(all);
        }
        let place = Place::inode(inode.ino).at(block);
        if !self.reader.is_valid(block) {
            self.bad("xattr-block-out-of-range", place, "i_file_acl refers outside the filesystem");
            return Ok(all);
        }
        all.blocks_512 += u64::from(sb.block_size / 512) << self.cluster_bits;
        if let Some(shared) = self.shared.get_mut(&block) {
            shared.users += 1;
            all.blocks_512 += shared.value_blocks;
            all.context = Context::Unknown;
            return Ok(all);
        }
        self.claim(inode.ino, "a block of attributes", block, 1, false);
        let Some(bytes) = self.reader.block(block)? else { return Ok(all) };
        let value_blocks = self.check_block(inode, &bytes, block, place, &mut all)?;
        all.blocks_512 += value_blocks;
        let stored = le32(&bytes, 4);
        self.shared.insert(block, SharedBlock { stored, users: 1, first_user: inode.ino, value_blocks });
        Ok(all)
    }

    fn check_block(
        &mut self,
        owner: &Slot,
        bytes: &[u8],
        block: u64,
        place: Place,
        all: &mut Attributes,
    ) -> Result<u64> {
        if le32(bytes, 0) != MAGIC || le32(bytes, 8) != 1 {
            self.bad("xattr-block-header-invalid", place, "a block of attributes has an invalid header");
            return Ok(0);
        }
        if self.sb().has_csum() {
            let mut crc = crc32c(self.sb().csum_seed, &block.to_le_bytes());
            crc = crc32c(crc, &bytes[..16]);
            crc = crc32c(crc, &[0; 4]);
            crc = crc32c(crc, &bytes[20..]);
            if crc != le32(bytes, 16) {
                let what = "the checksum of a block of attributes is wrong";
                self.bad("xattr-block-checksum-wrong", place.clone(), what);
            }
        }
        let table = Table { owner, area: bytes, first: HEADER, base: 0, in_block: true };
        self.check_table(&table, place, all)
    }

    /// Checks the entries of a table. Returns the blocks of 512 bytes of the values in other inodes.
    fn check_table(&mut self, table: &Table<'_>, place: Place, all: &mut Attributes) -> Result<u64> {
        let (area, mut at) = (table.area, table.first);
        let mut values: Vec<Range<usize>> = Vec::new();
        let mut blocks_512 = 0;
        let bad = |this: &mut Self, what: &str| this.bad("xattr-entry-invalid", place.clone(), what);
        loop {
            if at + 4 > area.len() {
                bad(self, "a table of attributes has no end");
                return Ok(blocks_512);
            }
            if area[at..at + 4] == [0; 4] {
                break;
            }
            let end = at + (ENTRY + usize::from(area[at])).next_multiple_of(4);
            if end > area.len() {
                bad(self, "the name of an attribute exceeds its table");
                return Ok(blocks_512);
            }
            let name = &area[at + ENTRY..at + ENTRY + usize::from(area[at])];
            let (index, ino, size) = (area[at + 1], le32(area, at + 4), le32(area, at + 8));
            if ino != 0 {
                blocks_512 += self.check_value_inode(table.owner, ino, size, place.clone())?;
            } else {
                let start = table.base + usize::from(le16(area, at + 2));
                let stop = start.saturating_add(size as usize);
                if size > 0 && (stop > area.len() || start < table.first) {
                    bad(self, "the value of an attribute exceeds its table");
                } else {
                    let range = if size == 0 { 0..0 } else { start..stop };
                    let hash = le32(area, at + 12);
                    if (table.in_block || hash != 0) && !hash_fits(name, &area[range.clone()], hash) {
                        let what = "the hash of an attribute is wrong";
                        self.bad("xattr-hash-wrong", place.clone(), what);
                    }
                    if index == INDEX_SYSTEM && name == INLINE_DATA && !table.in_block {
                        all.inline = Some(size.into());
                    }
                    if index == INDEX_ENCRYPTION && name == b"c" {
                        all.context = Context::Length(size as usize);
                    }
                    if size > 0 {
                        values.push(start..start + (size as usize).next_multiple_of(4));
                    }
                }
            }
            at = end;
        }
        values.sort_by_key(|range| range.start);
        let mut used = at + 4;
        for range in values {
            if range.start < used {
                self.bad("xattr-values-overlap", place.clone(), "values of attributes overlap");
                break;
            }
            used = range.end;
        }
        Ok(blocks_512)
    }

    fn check_value_inode(&mut self, owner: &Slot, ino: u32, size: u32, place: Place) -> Result<u64> {
        let sb = self.sb();
        if !sb.incompat.contains(Incompat::EA_INODE) || ino < sb.first_ino || ino > sb.inodes_count() {
            let what = format!("an attribute refers to inode {ino}, which cannot hold a value");
            self.bad("xattr-value-inode-invalid", place, what);
            return Ok(0);
        }
        let target = self.slot(ino)?;
        let Some(target) = target.filter(|target| target.flags() & FL_EA_INODE != 0) else {
            let what = format!("an attribute refers to inode {ino}, which holds no value");
            self.bad("xattr-value-inode-invalid", place, what);
            return Ok(0);
        };
        if target.size() != u64::from(size) {
            let what = format!("an attribute has {size} bytes, its inode {ino} has {}", target.size());
            self.bad("xattr-value-inode-invalid", place, what);
        }
        *self.ea_refs.entry(ino).or_default() += 1;
        // Lustre stored the owner's number and generation, and did not count the blocks of values.
        let owned = target.raw.i_mtime.get() == owner.ino
            && target.raw.i_generation.get() == owner.raw.i_generation.get();
        if owned {
            self.owned_values.insert(ino);
            return Ok(0);
        }
        Ok(u64::from(size).div_ceil(u64::from(sb.block_size)) * u64::from(sb.block_size / 512))
    }

    /// Compares reference counts, after all inodes were scanned.
    pub(super) fn check_xattr_references(&mut self) -> Result<()> {
        let wrong: Vec<(u64, u32, String)> = self
            .shared
            .iter()
            .filter(|(_, shared)| shared.stored != shared.users)
            .map(|(&block, shared)| {
                let what = format!("h_refcount is {}, {} inodes use the block", shared.stored, shared.users);
                (block, shared.first_user, what)
            })
            .collect();
        for (block, ino, what) in wrong {
            self.bad("xattr-block-refcount-wrong", Place::inode(ino).at(block), what);
        }
        let value_inodes: Vec<u32> =
            self.inodes.used().filter(|(_, found)| found & kind::EA_INODE != 0).map(|(ino, _)| ino).collect();
        for ino in value_inodes {
            let Some(slot) = self.slot(ino)? else { continue };
            let stored = u64::from(slot.raw.i_ctime.get()) << 32 | u64::from(slot.raw.i_disk_version.get());
            let counted = self.ea_refs.get(&ino).copied().unwrap_or(0);
            if counted == 0 {
                let what = "no attribute refers to this attribute inode";
                self.bad("ea-inode-unreferenced", Place::inode(ino), what);
            } else if self.owned_values.contains(&ino) {
                continue;
            } else if stored != counted {
                let what = format!("the reference count is {stored}, {counted} attributes refer to it");
                self.bad("ea-inode-refcount-wrong", Place::inode(ino), what);
            }
            self.check_value_hash(&slot)?;
        }
        Ok(())
    }

    fn check_value_hash(&mut self, slot: &Slot) -> Result<()> {
        let size = slot.size();
        if size > VALUE_MAX {
            return Ok(());
        }
        let block_size = u64::from(self.sb().block_size);
        let mut value = vec![0u8; size as usize];
        for (logical, block, len) in map::run_list(&self.reader, slot, 1 << 16)? {
            for nth in 0..len {
                let at = ((logical + nth) * block_size) as usize;
                if at >= value.len() {
                    break;
                }
                if let Some(bytes) = self.reader.block(block + nth)? {
                    let end = value.len().min(at + bytes.len());
                    value[at..end].copy_from_slice(&bytes[..end - at]);
                }
            }
        }
        if crc32c(self.sb().csum_seed, &value) != slot.raw.i_atime.get() {
            let what = "the stored hash of an attribute inode is not that of its value";
            self.bad("ea-inode-hash-wrong", Place::inode(slot.ino), what);
        }
        Ok(())
    }
}

/// Whether a hash is that of a name and its value. Names hash as unsigned characters; some kernels hashed
/// them as signed ones.
fn hash_fits(name: &[u8], value: &[u8], hash: u32) -> bool {
    let signed = name.iter().fold(0u32, |hash, &byte| hash.rotate_left(5) ^ (byte as i8) as u32);
    [name_hash(name), signed].into_iter().any(|start| {
        let whole = value.chunks(4).fold(start, |hash, chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        });
        whole == hash
    })
}
