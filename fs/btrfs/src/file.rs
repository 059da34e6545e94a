//! Contents of files, and targets of symbolic links.

use crate::compress::decompress;
use crate::filesystem::Btrfs;
use crate::inode::Vnode;
use crate::layout::items::{BadExtent, FileExtent, Regular};
use crate::layout::key::{Key, kind};
use crate::tree::Tree;
use ivers_vfs::{Error, MappedRange, RangeKind, Result};
use std::ops::ControlFlow;

/// The longest target of a symbolic link.
const LINK_MAX: u64 = 4095;

/// A part of a file.
struct Span {
    start: u64,
    /// The byte after it.
    end: u64,
    content: Content,
}

enum Content {
    Hole,
    Prealloc,
    /// All bytes of the extent, decompressed.
    Inline(Vec<u8>),
    Regular(Regular),
}

impl Btrfs {
    /// Returns what is at a byte of a file, and how far. `end` is above `at`.
    fn span(&self, file: &Vnode, at: u64) -> Result<Span> {
        let key = Key::new(file.objectid, kind::EXTENT_DATA, at);
        let last = Key { offset: u64::MAX, ..key };
        let tree = &self.tree_of(file)?;
        let covering = self.forest.last_at_most(tree, key, |found, data| {
            if (found.objectid, found.kind) != (key.objectid, key.kind) {
                return Ok(None);
            }
            self.decode_extent(file, tree, found, data).map(|span| Some(span).filter(|span| at < span.end))
        })?;
        if let Some(span) = covering.flatten() {
            return Ok(span);
        }
        let next = match at.checked_add(1) {
            Some(next) => self.forest.scan(tree, Key { offset: next, ..key }, last, |found, _| {
                Ok(ControlFlow::Break(found.offset))
            })?,
            None => None,
        };
        Ok(Span { start: at, end: next.unwrap_or(u64::MAX), content: Content::Hole })
    }

    fn decode_extent(&self, file: &Vnode, tree: &Tree, key: Key, data: &[u8]) -> Result<Span> {
        let sector_size = self.forest.volume.sb.sector_size;
        let extent = FileExtent::decode(data, key.offset, sector_size).map_err(|bad| match bad {
            BadExtent::Damaged(what) => self.forest.corrupt(what, tree, key),
            BadExtent::Unsupported(what) => {
                let place = &self.forest.volume.place;
                Error::Incompatible(format!("{place}, inode {}: {what}", file.objectid))
            }
        })?;
        let end = key.offset + extent.len(sector_size);
        let content = match extent {
            FileExtent::Hole { .. } => Content::Hole,
            FileExtent::Prealloc { .. } => Content::Prealloc,
            FileExtent::Regular(regular) => Content::Regular(regular),
            FileExtent::Inline { compression, ram_bytes, data } => {
                let bytes = decompress(compression, data, ram_bytes as usize, sector_size as usize);
                Content::Inline(bytes.map_err(|what| self.forest.corrupt(what, tree, key))?)
            }
        };
        Ok(Span { start: key.offset, end, content })
    }

    /// Fills `buf` from a byte of a file on. Both ends are multiples of the sector size.
    pub(crate) fn read_file(&self, file: &Vnode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let inside = file.size().saturating_sub(offset).min(buf.len() as u64) as usize;
        // Whole sectors are read, because checksums are of sectors.
        let sector = self.forest.volume.sb.sector_size as usize;
        let wanted = inside.next_multiple_of(sector).min(buf.len());
        let mut done = 0;
        while done < wanted {
            let at = offset.saturating_add(done as u64);
            let span = self.span(file, at)?;
            let len = (span.end - at).min((wanted - done) as u64) as usize;
            let (part, skip) = (&mut buf[done..done + len], at - span.start);
            match &span.content {
                Content::Hole | Content::Prealloc => part.fill(0),
                Content::Inline(bytes) => {
                    let stored = bytes.get(skip as usize..).unwrap_or_default();
                    let count = stored.len().min(len);
                    part[..count].copy_from_slice(&stored[..count]);
                    part[count..].fill(0);
                }
                Content::Regular(extent) => self.read_regular(file, extent, skip, part)?,
            }
            done += len;
        }
        // Bytes past the end are not defined on the device.
        buf[inside..].fill(0);
        Ok(())
    }

    /// Whether a file has its contents in an item.
    pub(crate) fn has_inline(&self, file: &Vnode) -> Result<bool> {
        Ok(matches!(self.span(file, 0)?.content, Content::Inline(_)))
    }

    /// The contents that a file has in an item.
    pub(crate) fn inline_bytes(&self, file: &Vnode) -> Result<Option<Vec<u8>>> {
        Ok(match self.span(file, 0)?.content {
            Content::Inline(bytes) => Some(bytes),
            _ => None,
        })
    }

    /// Whether the sector at a byte has zeros that are not stored.
    pub(crate) fn has_zeros(&self, file: &Vnode, at: u64) -> Result<bool> {
        Ok(matches!(self.span(file, at)?.content, Content::Hole | Content::Prealloc))
    }

    /// Returns what is at a byte of a file, and how far.
    pub(crate) fn map_file(&self, file: &Vnode, offset: u64) -> Result<MappedRange> {
        let sector = u64::from(self.forest.volume.sb.sector_size);
        let span = self.span(file, offset - offset % sector)?;
        let kind = match span.content {
            Content::Hole => RangeKind::Hole,
            Content::Prealloc => RangeKind::Unwritten,
            Content::Inline(_) | Content::Regular(_) => RangeKind::Data,
        };
        Ok(MappedRange { start: span.start, len: span.end - span.start, kind })
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn link_target(&self, link: &Vnode) -> Result<Vec<u8>> {
        let tree = self.tree_of(link)?;
        let bad = |what: String| {
            let key = Key::new(link.objectid, kind::EXTENT_DATA, 0);
            self.forest.corrupt(what, &tree, key)
        };
        if link.size() == 0 || link.size() > LINK_MAX {
            return Err(bad(format!("the target of a symbolic link has {} bytes", link.size())));
        }
        match self.span(link, 0)?.content {
            // mkfs.btrfs stores a zero after the target.
            Content::Inline(mut bytes) if bytes.len() as u64 >= link.size() => {
                bytes.truncate(link.size() as usize);
                Ok(bytes)
            }
            _ => Err(bad("a symbolic link has no target".into())),
        }
    }
}
