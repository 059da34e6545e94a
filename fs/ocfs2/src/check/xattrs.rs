//! Extended attributes: their areas, and the clusters of values.

use super::state::Checker;
use crate::layout::bytes::u32_at;
use crate::layout::dinode::Dinode;
use crate::layout::extents::Keys;
use crate::layout::shape::XATTR_BLOCK;
use crate::layout::xattr::{BLOCK_HEADER_AT, TREE_LIST_AT, VALUE_LIST_AT, Value, entries, is_tree};
use crate::map::Owner;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::ops::ControlFlow;

impl Checker {
    /// Checks the attributes of an inode, of which the block is `block`.
    pub(super) fn check_attributes(&mut self, inode: &Dinode, block: &[u8]) -> Result<()> {
        let place = Place::inode(inode.ino);
        if inode.inline_xattr_bytes() > 0 {
            self.check_area(inode, &place, &block[block.len() - inode.inline_xattr_bytes()..])?;
        }
        if inode.xattr_loc == 0 {
            return Ok(());
        }
        let place = place.at(inode.xattr_loc);
        if !self.claim_block(inode.ino, inode.xattr_loc) {
            return Ok(());
        }
        let read = self.fs.structure(inode.xattr_loc, &XATTR_BLOCK);
        let Some(block) = self.caught("xattr-invalid", place.clone(), read)? else { return Ok(()) };
        if !is_tree(&block) {
            return self.check_area(inode, &place, &block[BLOCK_HEADER_AT..]);
        }
        let owner = Owner { ino: inode.ino, keys: Keys::Hashes };
        let read = self.fs.parse_list(&block[TREE_LIST_AT..], owner);
        let Some(list) = self.caught("xattr-invalid", place, read)? else { return Ok(()) };
        let Some((_, extents)) = self.claim_extents(inode, Keys::Hashes, &list)? else { return Ok(()) };
        let fs = self.fs.clone();
        for extent in extents {
            let place = Place::inode(inode.ino).at(extent.start);
            let read = fs.each_bucket(inode.ino, &extent, &mut |area| {
                self.check_area(inode, &place, area)?;
                Ok(ControlFlow::Continue(()))
            });
            self.caught("xattr-invalid", place.clone(), read)?;
        }
        Ok(())
    }

    fn check_area(&mut self, inode: &Dinode, place: &Place, area: &[u8]) -> Result<()> {
        let entries = match entries(area) {
            Ok(entries) => entries,
            Err(what) => {
                self.bad("xattr-invalid", place.clone(), what);
                return Ok(());
            }
        };
        for entry in entries {
            let Value::Outside(root, size) = entry.value else { continue };
            let owner = Owner { ino: inode.ino, keys: Keys::Clusters };
            let read = self.fs.parse_list(root.get(VALUE_LIST_AT..).unwrap_or_default(), owner);
            let Some(list) = self.caught("xattr-invalid", place.clone(), read)? else { continue };
            let claimed = self.claim_extents(inode, Keys::Clusters, &list)?;
            let Some((clusters, _)) = claimed else { continue };
            let bytes = clusters * u64::from(self.fs.sb.cluster_size());
            if clusters != u64::from(u32_at(root, 0)) || size > bytes {
                let name = entry.name.escape_ascii();
                let what = format!(
                    "the value of {name} has {size} bytes in {} clusters, it has {clusters}",
                    u32_at(root, 0)
                );
                self.bad("xattr-value-wrong", place.clone(), what);
            }
        }
        Ok(())
    }
}
