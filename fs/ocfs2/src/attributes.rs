//! Changing extended attributes: those at the end of an inode and those in its block are written again, each
//! as a whole. Attributes in buckets are only read.

use crate::alloc::{Origin, Sub};
use crate::change::Change;
use crate::layout::bytes::{put_u16, put_u64, u16_at, u64_at};
use crate::layout::dinode::{Dinode, XATTR_LOC_AT, dyn_features, put_features};
use crate::layout::extents::{ExtentList, Keys, REFCOUNTED};
use crate::layout::shape::XATTR_BLOCK;
use crate::layout::xattr::{
    BLOCK_HEADER_AT, LOCAL_MAX, Stored, VALUE_LIST_AT, VALUE_MAX, acl_to_disk, is_tree, put, room, stored,
    value_root,
};
use crate::map::Owner;
use crate::volume::{Ocfs2, private_of};
use crate::write::BATCH_CREDITS;
use ivers_block::BlockNo;
use ivers_vfs::{Error, Inode, Logged, NameError, Result, Touch, XattrMode};
use std::ops::Range;

/// New attributes, and the clusters that were claimed for their values.
#[derive(Default)]
pub(crate) struct Values {
    pub attributes: Vec<Stored>,
    pub claimed: Vec<Range<u64>>,
}

impl Ocfs2 {
    /// Releases clusters that were claimed.
    pub(crate) fn unclaim(&self, claimed: impl IntoIterator<Item = Range<u64>>) -> Result<()> {
        let mut space = self.space()?;
        claimed.into_iter().for_each(|range| space.busy.remove(range));
        Ok(())
    }

    /// Prepares attributes by their full names, and writes values that do not fit to clusters.
    pub(crate) fn place_values(&self, new: &[(Vec<u8>, Vec<u8>)]) -> Result<Values> {
        let mut values = Values::default();
        for (name, value) in new {
            if let Err(error) = self.place_value(&mut values, name, value) {
                self.unclaim(values.claimed)?;
                return Err(error);
            }
        }
        Ok(values)
    }

    fn place_value(&self, values: &mut Values, name: &[u8], value: &[u8]) -> Result<()> {
        let mut attribute = Stored::new(name).ok_or(NameError::NotSupported)?;
        let value =
            if attribute.is_acl() { acl_to_disk(value).ok_or(NameError::Invalid)? } else { value.to_vec() };
        if value.len() as u64 > VALUE_MAX {
            return Err(NameError::TooLarge.into());
        }
        attribute.outside = (value.len() > LOCAL_MAX).then_some(value.len() as u64);
        attribute.bytes = value;
        if attribute.outside.is_some() {
            let size = u64::from(self.sb.cluster_size());
            let count = (attribute.bytes.len() as u64).div_ceil(size);
            let range = self.claim(&mut *self.space()?, 0, (count, count), 0)?;
            values.claimed.push(range.clone());
            let start = range.start * u64::from(self.sb.blocks_per_cluster);
            attribute.bytes.resize((count * size) as usize, 0);
            let at = BlockNo(start).offset(self.sb.block_size);
            self.cache.device().write_at(at, &attribute.bytes).map_err(Error::file_data)?;
            attribute.bytes = value_root(start, count as u32);
        }
        values.attributes.push(attribute);
        Ok(())
    }

    /// The attributes at the end of an inode, and those in its block.
    fn stored_attributes(&self, dinode: &Dinode) -> Result<[Vec<Stored>; 2]> {
        let damaged = |what: &str| self.corrupt(dinode.ino, what);
        let mut found = [Vec::new(), Vec::new()];
        if dinode.inline_xattr_bytes() > 0 {
            let block = self.block_of(dinode)?;
            found[0] = stored(&block[block.len() - dinode.inline_xattr_bytes()..]).map_err(damaged)?;
        }
        if dinode.xattr_loc != 0 {
            let block = self.structure(dinode.xattr_loc, &XATTR_BLOCK)?;
            if is_tree(&block) {
                let what = "its extended attributes are in buckets, which are only read";
                log::warn!("{}, inode {}: {what}", self.place, dinode.ino);
                return Err(NameError::NotSupported.into());
            }
            found[1] = stored(&block[BLOCK_HEADER_AT..]).map_err(damaged)?;
        }
        Ok(found)
    }

    /// Refuses an inode whose attributes cannot be freed.
    pub(crate) fn check_attributes_removable(&self, dinode: &Dinode) -> Result<()> {
        self.stored_attributes(dinode).map(drop)
    }

    /// Divides attributes between an inode and its block. `None` is a new inode.
    fn divide(&self, dinode: Option<&Dinode>, all: &[Stored]) -> Result<[Vec<Stored>; 2]> {
        let mut rooms = [
            room(dinode.map_or(0, Dinode::inline_xattr_bytes)),
            room(self.sb.block_size as usize - BLOCK_HEADER_AT),
        ];
        let mut parts = [Vec::new(), Vec::new()];
        for attribute in all {
            let size = attribute.size();
            let nth = rooms.iter().position(|room| *room >= size).ok_or(NameError::NoSpace)?;
            rooms[nth] -= size;
            parts[nth].push(attribute.clone());
        }
        Ok(parts)
    }

    pub(crate) fn check_attributes_fit(&self, dinode: Option<&Dinode>, all: &[Stored]) -> Result<()> {
        self.divide(dinode, all).map(drop)
    }

    pub(crate) fn fs_set_xattr(
        &self,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let wanted = Stored::new(name).ok_or(NameError::NotSupported)?;
        let private = private_of(inode);
        let new: Vec<_> = value.map(|value| (name.to_vec(), value.to_vec())).into_iter().collect();
        let values = self.place_values(&new)?;
        let set = self.change(BATCH_CREDITS, |change| {
            change.ensure(Sub::Blocks, 1, 0)?;
            let mut dinode = private.state.write();
            let mut all = self.stored_attributes(&dinode)?.concat();
            let old = all.iter().position(|other| other.is_same(&wanted));
            mode.check(old.is_some(), value.is_none())?;
            let old = old.map(|nth| all.remove(nth));
            all.extend(values.attributes.iter().cloned());
            self.check_attributes_fit(Some(&dinode), &all)?;
            if let Some(old) = old {
                change.free_value(&dinode, &old)?;
            }
            values.claimed.iter().try_for_each(|range| change.take_claimed(range.clone()))?;
            change.put_attributes(&mut dinode, &all)?;
            drop(dinode);
            inode.changed(Touch::Metadata, Logged::Anyway);
            change.log(inode, &mut private.state.write())
        });
        if set.is_err() {
            self.unclaim(values.claimed)?;
        }
        set
    }
}

impl Change<'_> {
    /// Writes all attributes of an inode.
    pub fn put_attributes(&mut self, dinode: &mut Dinode, all: &[Stored]) -> Result<()> {
        let fs = self.fs;
        let [inline, outside] = fs.divide(Some(dinode), all)?;
        let (seed, generation) = (fs.sb.uuid_hash, fs.sb.generation);
        let area = dinode.inline_xattr_bytes();
        let mut place = dinode.xattr_loc;
        if outside.is_empty() && place != 0 {
            let origin: Origin = {
                let bytes = fs.structure(place, &XATTR_BLOCK)?;
                (u16_at(&bytes, 0x08), u16_at(&bytes, 0x0A), u64_at(&bytes, 0x28))
            };
            self.free_block(Sub::Blocks, place, origin)?;
            place = 0;
        } else if !outside.is_empty() && place == 0 {
            let taken = self.block(Sub::Blocks)?;
            place = taken.block;
            self.put_new(place, XATTR_BLOCK.check_at, |bytes| {
                XATTR_BLOCK.put(bytes, place, generation);
                put_u16(bytes, 0x0A, taken.bit);
            })?;
        }
        if place != 0 {
            self.put_shape(place, &XATTR_BLOCK, |bytes| put(&mut bytes[BLOCK_HEADER_AT..], &outside, seed))?;
        }
        let has_any = area > 0 || place != 0;
        self.put_inode(dinode, |bytes| {
            let start = bytes.len() - area;
            if area > 0 {
                put(&mut bytes[start..], &inline, seed);
            }
            put_u64(bytes, XATTR_LOC_AT, place);
            let flag = dyn_features::HAS_XATTR;
            put_features(bytes, if has_any { flag } else { 0 }, if has_any { 0 } else { flag });
        })
    }

    /// Frees the clusters of a value.
    fn free_value(&mut self, dinode: &Dinode, attribute: &Stored) -> Result<()> {
        if attribute.outside.is_none() {
            return Ok(());
        }
        let owner = Owner { ino: dinode.ino, keys: Keys::Clusters };
        let root = self.fs.parse_list(attribute.bytes.get(VALUE_LIST_AT..).unwrap_or_default(), owner)?;
        let mut nodes = vec![root];
        // No value has as many nodes: damage could lead to one block again and again.
        for _ in 0..VALUE_MAX / 4096 + 1 {
            let Some(ExtentList { depth, records }) = nodes.pop() else { return Ok(()) };
            for record in records {
                if record.flags & REFCOUNTED != 0 {
                    return Err(self.fs.corrupt(dinode.ino, "files share the value of an attribute"));
                }
                if depth > 0 {
                    nodes.push(self.fs.extent_block(record.start, depth - 1, owner)?);
                    self.free_node(record.start)?;
                } else {
                    let first = self.fs.sb.cluster_of(record.start);
                    self.free_clusters(first..first + u64::from(record.clusters))?;
                }
            }
        }
        if nodes.is_empty() { Ok(()) } else { Err(self.fs.corrupt(dinode.ino, "a value has too many nodes")) }
    }

    /// Frees a value, or else the block of attributes, of an inode that is deleted. Returns whether there may
    /// be more.
    pub fn drop_attributes(&mut self, dinode: &mut Dinode) -> Result<bool> {
        let mut all = self.fs.stored_attributes(dinode)?.concat();
        let Some(nth) = all.iter().position(|attribute| attribute.outside.is_some()) else {
            if dinode.xattr_loc != 0 {
                self.put_attributes(dinode, &[])?;
            }
            return Ok(false);
        };
        let gone = all.remove(nth);
        self.free_value(dinode, &gone)?;
        self.put_attributes(dinode, &all)?;
        Ok(true)
    }
}
