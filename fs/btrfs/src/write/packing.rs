//! Compressing data before it is written: which files, and whether it is worth it.

use super::change::Need;
use super::tx::Tx;
use crate::compressor::CompressWith;
use crate::filesystem::Btrfs;
use crate::inode::{Vnode, file_of, vnode_of};
use crate::layout::items::{COMPRESSED_MAX, Compression, inode_flags};
use crate::layout::key::Key;
use ivers_vfs::{Error, FileType, Inode, NameError, NewInode, Result};
use std::sync::atomic::Ordering;

/// The property that says how a file is compressed. New files and directories take it from their directory.
pub(crate) const PROPERTY: &[u8] = b"btrfs.compression";
/// What names of properties begin with.
pub(crate) const PROPERTIES: &[u8] = b"btrfs.";
/// The most compressed bytes that are stored in an item: `max_inline` of Linux.
const INLINE_MAX: usize = 2048;
/// If this many pieces of a file in a row do not shrink, only every `THEN_EACH`th piece is tried.
const TRIED_MAX: u32 = 8;
const THEN_EACH: u32 = 16;

/// A piece of data: its length in bytes and, if it is compressed, the method and the compressed bytes. A
/// compressed piece becomes one extent, an uncompressed one may become several.
pub(super) struct Piece {
    pub len: usize,
    pub packed: Option<(Compression, Vec<u8>)>,
}

/// The flags that a value of the property stands for. `None`: it is not valid.
pub(super) fn flags_of_property(value: Option<&[u8]>) -> Option<u64> {
    match value {
        None | Some(b"") => Some(0),
        Some(b"no" | b"none") => Some(inode_flags::NOCOMPRESS),
        Some(value) => {
            std::str::from_utf8(value).ok().and_then(CompressWith::parse).map(|_| inode_flags::COMPRESS)
        }
    }
}

impl Btrfs {
    /// How new data of a file is compressed.
    fn compression_of(&self, vnode: &Vnode) -> Result<Option<CompressWith>> {
        let flags = vnode.item.lock().flags();
        if flags & (inode_flags::PLAIN | inode_flags::NOCOMPRESS) != 0 {
            return Ok(None);
        }
        if flags & inode_flags::COMPRESS == 0 {
            return Ok(self.compress);
        }
        let _trees = self.live.read();
        let property = match self.xattr(vnode, PROPERTY) {
            Ok(value) => CompressWith::of_property(&value),
            Err(Error::Name(NameError::NoAttribute)) => None,
            Err(error) => return Err(error),
        };
        Ok(property.or(self.compress).or(Some(CompressWith::default())))
    }

    /// Compresses data in pieces, where that saves space.
    pub(super) fn pack(&self, vnode: &Vnode, data: &[u8]) -> Result<Vec<Piece>> {
        let Some(with) = self.compression_of(vnode)? else {
            return Ok(vec![Piece { len: data.len(), packed: None }]);
        };
        let sector = self.sector() as usize;
        let mut pieces: Vec<Piece> = Vec::new();
        for part in data.chunks(COMPRESSED_MAX as usize) {
            let packed = match part.len() > sector && is_worth_trying(vnode) {
                true => with.compress(part, sector).map(|bytes| (with.method, bytes)),
                false => None,
            };
            if packed.is_some() {
                vnode.not_shrunk.store(0, Ordering::Relaxed);
            } else if part.len() > sector {
                vnode.not_shrunk.fetch_add(1, Ordering::Relaxed);
            }
            match pieces.last_mut() {
                Some(last) if packed.is_none() && last.packed.is_none() => last.len += part.len(),
                _ => pieces.push(Piece { len: part.len(), packed }),
            }
        }
        Ok(pieces)
    }

    /// Stores the contents of a small file in an item if they compress well enough. Returns whether it did.
    pub(super) fn write_inline(&self, inode: &Inode, data: &[u8]) -> Result<bool> {
        let sector = self.sector();
        let vnode = vnode_of(inode);
        let end = data.len() as u64;
        if end >= sector || vnode.size() > end || inode.size() > end {
            return Ok(false);
        }
        let Some(with) = self.compression_of(vnode)? else { return Ok(false) };
        let most = INLINE_MAX.min(data.len().saturating_sub(1));
        let Some(stored) = with.compress_to(data, most, sector as usize) else { return Ok(false) };
        self.change(Need::WriteBack, |tx| {
            tx.may_change(vnode)?;
            let file = file_of(vnode);
            // Preallocated space may follow the end. Linux stores no contents of such a file in an item.
            // If a writer has reserved space after this sector, it relies on the space of this sector too.
            let has_more = !tx.extents_in(file, sector, i64::MAX as u64, 1)?.is_empty()
                || !vnode.reserved.lock().pieces_in(sector, u64::MAX).is_empty();
            if has_more || stored.len() > tx.most_inline() {
                return Ok(false);
            }
            tx.touch(file);
            let dropped = tx.drop_whole_range(file, 0, sector)?;
            tx.insert_inline_packed(file, &stored, end, with.method)?;
            tx.live.features |= with.method.feature();
            let released = vnode.reserved.lock().remove(0, sector);
            tx.live.reserved = tx.live.reserved.saturating_sub(released);
            tx.edit_item(inode, |item| {
                let raw = item.raw_mut();
                raw.nbytes = (raw.nbytes.get().saturating_sub(dropped) + end).into();
            });
            tx.raise_size(inode, end, end)?;
            inode.logged_in_background();
            tx.write_inode(inode)?;
            Ok(true)
        })
    }
}

fn is_worth_trying(vnode: &Vnode) -> bool {
    let failed = vnode.not_shrunk.load(Ordering::Relaxed);
    failed < TRIED_MAX || failed.is_multiple_of(THEN_EACH)
}

impl Tx<'_> {
    /// The attributes of a new inode, with the property that it takes from its directory. Their keys lack its
    /// number.
    pub(super) fn attributes_of_new(&self, dir: &Vnode, new: &NewInode) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut attributes = new.xattrs.clone();
        let has_property = matches!(new.kind, FileType::Regular | FileType::Directory);
        if has_property && dir.item.lock().flags() & inode_flags::PLAIN == 0 {
            match self.fs.xattr(dir, PROPERTY) {
                Ok(value) => attributes.push((PROPERTY.to_vec(), value)),
                Err(Error::Name(NameError::NoAttribute)) => {}
                Err(error) => return Err(error),
            }
        }
        self.encode_new_attributes(&attributes)
    }
}
