//! Regular files: bytes between the page cache and the device.

use super::filesystem::BlockPool;
use crate::error::Result;
use crate::inode::Inode;
use crate::requests::Cred;

/// Where written data is after [`FileOps::write_back`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The driver keeps it: durable after [`InodeOps::fsync`](super::InodeOps::fsync), at the latest. The VFS
    /// may forget the bytes.
    Durable,
    /// A server has it, and loses it if it restarts before [`InodeOps::fsync`](super::InodeOps::fsync)
    /// succeeds. The VFS keeps the bytes until then. If the server lost them, the driver calls
    /// [`CacheHandle::redirty`](super::CacheHandle::redirty), perhaps during that `fsync`. Only with
    /// [`ServerOps`](super::ServerOps).
    Unstable,
}

/// Bytes to write back, and their offset.
pub type DirtyRun = (u64, Vec<u8>);

/// What the VFS does after it has written all dirty pages of a file back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing, or it writes more pages back first.
    Nothing,
    /// It makes the data durable, as fdatasync(2) does.
    SyncData,
    /// It makes data and attributes durable, as fsync(2) does.
    Sync,
}

/// Operations on the data of regular files. `caller` is the user who asks, or [`Cred::system`] for work of
/// the VFS itself; a local format ignores it. Write-back has no caller: the bytes of a page may come from
/// several. A driver that needs one keeps that of the open ([`ServerOps::open`](super::ServerOps::open)).
pub trait FileOps {
    /// Fills `buf` from the device; holes, unwritten ranges and what is past the end are zeros. `offset` and
    /// the length are multiples of [`FsInfo::io_unit`](super::FsInfo::io_unit).
    fn read(&self, caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// Reserves free space for writing these bytes later (delayed allocation), or returns `NoSpace` now.
    /// Called before pages become dirty, and before a file grows past a multiple of
    /// [`FsInfo::reserve_granularity`](super::FsInfo::reserve_granularity) within a dirty page. Repeated
    /// calls for one range reserve once.
    fn reserve(&self, inode: &Inode, offset: u64, len: u64, pool: BlockPool) -> Result<()>;
    /// The pages of this range were dropped unwritten (truncate, delete, a failed write): releases their
    /// reservation. The range consists of whole units.
    fn unreserve(&self, _inode: &Inode, _offset: u64, _len: u64) {}
    /// Writes a run of page data: allocates what is missing, puts the data on the device, then maps it and
    /// raises the size on disk to at most `min(offset + data.len(), Attr::size)`, in that order, so that a
    /// crash never shows bytes of another file. `offset` is a multiple of
    /// [`FsInfo::io_unit`](super::FsInfo::io_unit); so is the length, unless `data` ends at the end of the
    /// file. The file may have grown since the pages were copied; then its last page is written again.
    ///
    /// Returns [`Error::FileData`](crate::Error::FileData) if the device refused the data and no structure
    /// of the format is affected, and [`Error::DataRefused`](crate::Error::DataRefused) if a later try would
    /// fail as well: the file keeps what it had, and the VFS releases the reservation of the range. After
    /// any other error the pages stay dirty with their reservation, and are written again later.
    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written>;
    /// Writes several runs back in order of their offsets, each as [`FileOps::write_back`] does. Returns the
    /// results of the first runs: at least one, and none after an error. One request of a protocol may carry
    /// several runs, and may also do what the VFS does `next`. Only called with
    /// [`ServerOps`](super::ServerOps).
    fn write_back_runs(&self, inode: &Inode, runs: Vec<DirtyRun>, _next: Next) -> Vec<Result<Written>> {
        let mut results = Vec::new();
        for (offset, data) in runs {
            results.push(self.write_back(inode, offset, &data));
            if matches!(results.last(), Some(Err(_))) {
                break;
            }
        }
        results
    }
    /// The space that an inode uses or has reserved, in units of 512 bytes. Reservations count, so that the
    /// figure does not change at write-back, and because some tools do not read a file that has a size and no
    /// blocks.
    fn blocks_512(&self, inode: &Inode) -> u64 {
        inode.with_attr(|attr| attr.blocks_512)
    }
    /// Changes the size, and calls [`Inode::changed`] with `Touch::Data`. The VFS has dropped the pages past
    /// the new end and set `Attr::size`. Growing makes a hole. If the new end is within a page, the page
    /// cache holds the rest of that page as zeros; the driver zeroes the rest of its block on the device
    /// where it must. After an error a growing file gets its old size back. A file that is cut keeps the new
    /// size, so cut it also if the device refuses those zeros.
    fn truncate(&self, caller: &Cred, inode: &Inode, size: u64) -> Result<()>;
}
