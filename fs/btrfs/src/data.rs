//! Data on the devices: each sector is checked against its checksum, and another copy is read where it is
//! wrong.

use crate::compress::decompress;
use crate::filesystem::Btrfs;
use crate::inode::Vnode;
use crate::layout::checksum::Sum;
use crate::layout::items::{Compression, Regular};
use crate::layout::key::{Key, kind, object};
use crate::volume::BadCopy;
use ivers_vfs::{Error, Result};
use std::ops::ControlFlow;
use std::sync::Arc;

impl Btrfs {
    /// Returns the checksum of each sector from an address on, where there is one.
    fn checksums(&self, address: u64, sectors: usize) -> Result<Vec<Option<Sum>>> {
        let volume = &self.forest.volume;
        let tree = self
            .tree(object::CSUM_TREE)?
            .ok_or_else(|| Error::corrupt("there is no tree of checksums", volume.place.clone()))?;
        let (size, sector) = (volume.sb.checksum.size(), u64::from(volume.sb.sector_size));
        let key = |offset: u64| Key::new(object::EXTENT_CSUM, kind::EXTENT_CSUM, offset);
        let before = self.forest.last_at_most(&tree, key(address), |found, _| Ok(found))?;
        let first = before.filter(|found| found.kind == kind::EXTENT_CSUM).unwrap_or(key(address));
        let last = key(address.saturating_add((sectors as u64 - 1) * sector));
        let mut sums = vec![None; sectors];
        self.forest.scan(&tree, first, last, |found, data| {
            for (index, stored) in data.chunks_exact(size).enumerate() {
                let at = found.offset.saturating_add(index as u64 * sector);
                let place = at.checked_sub(address).map(|bytes| (bytes / sector) as usize);
                if let Some(sum) = place.and_then(|place| sums.get_mut(place)) {
                    let mut padded = Sum::default();
                    padded[..size].copy_from_slice(stored);
                    *sum = Some(padded);
                }
            }
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        Ok(sums)
    }

    /// Fills `buf`, whole sectors, from the extent at a logical address.
    fn read_extent(&self, file: &Vnode, address: u64, buf: &mut [u8]) -> Result<()> {
        let volume = &self.forest.volume;
        let sector = volume.sb.sector_size as usize;
        let sums = match file.has_checksums() {
            true => Some(self.checksums(address, buf.len() / sector)?),
            false => None,
        };
        let check = |index: usize, bytes: &[u8]| match sums.as_ref().map(|sums| sums[index]) {
            None => Ok(()),
            Some(None) => Err(BadCopy::Wrong("it has no checksum".into())),
            Some(Some(sum)) if volume.sb.checksum.of(bytes) == sum => Ok(()),
            Some(Some(_)) => Err(BadCopy::Wrong("bad checksum".into())),
        };
        // Usually the first copy is right, and is read at once. If a device fails, it may do so for a part.
        let at_once = volume.read_copy(address, 0, buf).is_ok();
        for (index, bytes) in buf.chunks_exact_mut(sector).enumerate() {
            let mut bad = Vec::new();
            if at_once {
                match check(index, bytes) {
                    Ok(()) => continue,
                    Err(why) => bad.push(why),
                }
            }
            let at = address + (index * sector) as u64;
            let found = (bad.len()..volume.copies(at)).any(|copy| {
                let read = volume.read_copy(at, copy, bytes).and_then(|()| check(index, bytes));
                read.map_err(|why| bad.push(why)).is_ok()
            });
            let (objectid, subvolume) = (file.objectid, file.subvolume);
            let what = || format!("address {at}, data of inode {objectid} of subvolume {subvolume}");
            if !found {
                return Err(as_file_data(volume.unreadable(&what(), bad)));
            }
            volume.report_bad_copies(what, at, &bad, bytes);
        }
        Ok(())
    }

    /// Fills `buf`, whole sectors, from byte `skip` of a part of an extent on.
    pub(crate) fn read_regular(
        &self,
        file: &Vnode,
        extent: &Regular,
        skip: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let from = extent.offset + skip;
        if extent.compression == Compression::None {
            return self.read_extent(file, extent.disk_bytenr + from, buf);
        }
        let id = (extent.disk_bytenr, extent.ram_bytes, file.has_checksums());
        let bytes = match self.decompressed.get(id) {
            Some(bytes) => bytes,
            None => {
                let mut stored = vec![0; extent.disk_num_bytes as usize];
                self.read_extent(file, extent.disk_bytenr, &mut stored)?;
                let sector = self.forest.volume.sb.sector_size as usize;
                let bytes = decompress(extent.compression, &stored, extent.ram_bytes as usize, sector);
                let bytes = Arc::new(bytes.map_err(|what| {
                    let at = format!("extent at address {} of inode {}", extent.disk_bytenr, file.objectid);
                    Error::corrupt(what, format!("{}, {at}", self.forest.volume.place))
                })?);
                self.decompressed.keep(id, bytes.clone());
                bytes
            }
        };
        // `FileExtent::decode` checked that the part lies inside.
        let from = from as usize;
        buf.copy_from_slice(&bytes[from..from + buf.len()]);
        Ok(())
    }
}

/// An error of a file's bytes, not of a structure.
fn as_file_data(error: Error) -> Error {
    match error {
        Error::Io(cause) => Error::FileData(cause),
        other => Error::FileData(other.to_string().into()),
    }
}
