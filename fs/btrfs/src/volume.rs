//! Logical addresses: where their copies are, and reading one that is right.

use crate::devices::{Devices, Member};
use crate::layout::chunk::{BadChunk, Chunk};
use crate::layout::superblock::Superblock;
use ivers_block::{BlockError, ByteOffset, Device};
use ivers_vfs::sync::{RankedRwLock, rank};
use ivers_vfs::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The most chunks, and stripes of all chunks, that are kept in memory.
pub(crate) const CHUNKS_MAX: usize = 1 << 18;
const STRIPES_MAX: usize = 1 << 20;

/// The devices, and the chunks on them.
pub(crate) struct Volume {
    pub sb: Superblock,
    /// The image's name in errors.
    pub place: String,
    members: HashMap<u64, Member>,
    /// The members whose superblock was one commit behind when they were opened.
    behind: Vec<u64>,
    chunks: RankedRwLock<rank::Leaf, Chunks>,
    /// Copies that were wrong or unreadable, where another one was right.
    bad_copies: AtomicU64,
    /// The number of those that were mended.
    mended_copies: AtomicU64,
    /// Mend bad copies.
    mends: AtomicBool,
}

/// All chunks, by address.
#[derive(Default)]
struct Chunks {
    by_start: BTreeMap<u64, Arc<Chunk>>,
    stripes: usize,
}

impl Chunks {
    fn at(&self, address: u64) -> Option<&Arc<Chunk>> {
        let before = self.by_start.range(..=address).next_back().map(|(_, chunk)| chunk);
        before.filter(|chunk| address < chunk.end())
    }
}

/// Why a copy cannot be used.
#[derive(Debug)]
pub(crate) enum BadCopy {
    /// Its bytes are wrong.
    Wrong(String),
    /// It is on this device, which is not there.
    Missing(u64),
    /// The device failed.
    Io(BlockError),
}

impl std::fmt::Display for BadCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wrong(what) => what.fmt(f),
            Self::Missing(devid) => write!(f, "device {devid} is missing"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl Volume {
    /// Creates a volume that knows no chunk.
    pub(crate) fn new(devices: Devices, place: String) -> Self {
        let Devices { sb, members, behind, .. } = devices;
        let chunks = RankedRwLock::new(Chunks::default());
        let (bad_copies, mended_copies) = (AtomicU64::new(0), AtomicU64::new(0));
        let mends = AtomicBool::new(false);
        Self { sb, place, members, behind, chunks, bad_copies, mended_copies, mends }
    }

    /// Adds a chunk from its item, unless it is known.
    pub(crate) fn add_chunk(&self, start: u64, item: &[u8]) -> Result<()> {
        let chunk = Chunk::decode(start, item, self.sb.sector_size).map_err(|bad| match bad {
            BadChunk::Damaged(what) => Error::corrupt(what, self.place.clone()),
            BadChunk::Unsupported(what) => Error::Incompatible(format!("{}: {what}", self.place)),
        })?;
        let mut chunks = self.chunks.write();
        if chunks.by_start.get(&start).is_some_and(|known| **known == chunk) {
            return Ok(());
        }
        let before = chunks.by_start.range(..chunk.end()).next_back();
        if before.is_some_and(|(_, before)| before.end() > start) {
            return Err(Error::corrupt(format!("the chunk at {start} overlaps another"), self.place.clone()));
        }
        for stripe in &chunk.stripes {
            let Some(member) = self.members.get(&stripe.devid) else { continue };
            if stripe.offset + chunk.bytes_per_device() > member.device.size_bytes() {
                let what = format!("the chunk at {start} ends past device {}", stripe.devid);
                return Err(Error::corrupt(what, self.place.clone()));
            }
        }
        chunks.stripes += chunk.stripes.len();
        if chunks.by_start.len() >= CHUNKS_MAX || chunks.stripes > STRIPES_MAX {
            return Err(Error::Incompatible(format!("{}: it has too many chunks", self.place)));
        }
        chunks.by_start.insert(start, Arc::new(chunk));
        Ok(())
    }

    /// All chunks, by address.
    pub(crate) fn chunks(&self) -> Vec<Arc<Chunk>> {
        self.chunks.read().by_start.values().cloned().collect()
    }

    /// The devices, by number.
    pub(crate) fn members(&self) -> impl Iterator<Item = (u64, &Member)> {
        self.members.iter().map(|(devid, member)| (*devid, member))
    }

    /// Returns the members whose superblock was one commit behind when they were opened.
    pub(crate) fn behind(&self) -> &[u64] {
        &self.behind
    }

    /// Copies that were wrong so far.
    pub(crate) fn bad_copies(&self) -> u64 {
        self.bad_copies.load(Ordering::Relaxed)
    }

    /// Returns the number of copies that were mended.
    pub(crate) fn mended_copies(&self) -> u64 {
        self.mended_copies.load(Ordering::Relaxed)
    }

    /// Makes each later read mend the bad copies that it finds. Addresses must not be freed and reused while
    /// they are read.
    pub(crate) fn mend_copies(&self) {
        self.mends.store(true, Ordering::Relaxed);
    }

    /// Ends the mending of [`Self::mend_copies`].
    pub(crate) fn stop_mending(&self) {
        self.mends.store(false, Ordering::Relaxed);
    }

    fn chunk(&self, address: u64) -> Option<Arc<Chunk>> {
        self.chunks.read().at(address).cloned()
    }

    /// How many copies an address has; 0: it is in no chunk.
    pub(crate) fn copies(&self, address: u64) -> usize {
        self.chunk(address).map_or(0, |chunk| chunk.profile.copies)
    }

    /// Calls `each` for each part of `len` bytes of a copy: with its range in the bytes, its device, and its
    /// offset on the device.
    fn each_part(
        &self,
        address: u64,
        copy: usize,
        len: usize,
        mut each: impl FnMut(std::ops::Range<usize>, &dyn Device, ByteOffset) -> ivers_block::Result<()>,
    ) -> std::result::Result<(), BadCopy> {
        let mut done = 0;
        while done < len {
            let at = address.saturating_add(done as u64);
            let chunk = self.chunk(at);
            let piece = chunk.as_ref().and_then(|chunk| chunk.piece(at, (len - done) as u64));
            let place = piece.and_then(|piece| Some((piece.len as usize, piece.place(copy)?)));
            let Some((part, (stripe, on_device))) = place else {
                return Err(BadCopy::Wrong(format!("address {at} is in no chunk")));
            };
            let member = self.members.get(&stripe.devid).filter(|it| it.uuid == stripe.device_uuid);
            let Some(member) = member else {
                return Err(BadCopy::Missing(stripe.devid));
            };
            each(done..done + part, &*member.device, ByteOffset(on_device)).map_err(BadCopy::Io)?;
            done += part;
        }
        Ok(())
    }

    /// Returns the devices that should have parts of a copy of `len` bytes.
    pub(crate) fn devices_of(&self, address: u64, copy: usize, len: usize) -> Vec<u64> {
        let mut found = Vec::new();
        let mut done = 0;
        while done < len {
            let at = address.saturating_add(done as u64);
            let Some(chunk) = self.chunk(at) else { break };
            let Some(piece) = chunk.piece(at, (len - done) as u64) else { break };
            found.extend(piece.place(copy).map(|(stripe, _)| stripe.devid));
            done += piece.len as usize;
        }
        found
    }

    /// Fills `buf` from one copy.
    pub(crate) fn read_copy(
        &self,
        address: u64,
        copy: usize,
        buf: &mut [u8],
    ) -> std::result::Result<(), BadCopy> {
        self.each_part(address, copy, buf.len(), |range, device, at| device.read_at(at, &mut buf[range]))
    }

    /// Writes one copy.
    pub(crate) fn write_copy(
        &self,
        address: u64,
        copy: usize,
        bytes: &[u8],
    ) -> std::result::Result<(), BadCopy> {
        self.each_part(address, copy, bytes.len(), |range, device, at| device.write_at(at, &bytes[range]))
    }

    /// Writes all copies of some bytes.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = address.saturating_add(done as u64);
            let lost = |what: &str| Error::corrupt(format!("address {at} {what}"), self.place.clone());
            let chunk = self.chunk(at).ok_or_else(|| lost("is in no chunk"))?;
            let piece = chunk.piece(at, (bytes.len() - done) as u64);
            let piece = piece.ok_or_else(|| lost("is in no stripe"))?;
            let part = &bytes[done..done + piece.len as usize];
            for copy in 0..chunk.profile.copies {
                let (stripe, on_device) = piece.place(copy).ok_or_else(|| lost("is in no stripe"))?;
                let member = self.members.get(&stripe.devid).filter(|it| it.uuid == stripe.device_uuid);
                let member = member.ok_or_else(|| lost("is on a missing device"))?;
                member.device.write_at(ByteOffset(on_device), part)?;
            }
            done += part.len();
        }
        Ok(())
    }

    /// Makes durable what was written to all devices.
    pub(crate) fn flush(&self) -> Result<()> {
        for member in self.members.values() {
            member.device.flush()?;
        }
        Ok(())
    }

    /// Counts and logs bad copies. Mends them, if the filesystem is writable. `bad` has the errors of the
    /// first copies, in order; `right` has the bytes of the next copy; `what` names the block or the data.
    pub(crate) fn report_bad_copies(
        &self,
        what: impl Fn() -> String,
        address: u64,
        bad: &[BadCopy],
        right: &[u8],
    ) {
        for (copy, why) in bad.iter().enumerate().filter(|(_, copy)| !matches!(copy, BadCopy::Missing(_))) {
            self.bad_copies.fetch_add(1, Ordering::Relaxed);
            let (place, what) = (&self.place, what());
            if !self.mends.load(Ordering::Relaxed) {
                log::warn!("{place}: a copy of {what} is bad: {why}; another one is used");
                continue;
            }
            match self.write_copy(address, copy, right) {
                Ok(()) => {
                    log::warn!("{place}: a copy of {what} was bad and is written again: {why}");
                    self.mended_copies.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    log::warn!(
                        "{place}: a copy of {what} is bad: {why}; it cannot be written again: {error}"
                    );
                }
            }
        }
    }

    /// Reads `len` bytes, from the first copy that `accept` takes. `what` names them in errors.
    pub(crate) fn read_accepted<T>(
        &self,
        what: impl Fn() -> String,
        address: u64,
        len: usize,
        accept: impl Fn(Box<[u8]>) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let mut bad = Vec::new();
        for copy in 0..self.copies(address) {
            let mut bytes = vec![0; len].into_boxed_slice();
            let read = self.read_copy(address, copy, &mut bytes);
            let kept = if bad.is_empty() { Vec::new() } else { bytes.to_vec() };
            match read.and_then(|()| accept(bytes).map_err(BadCopy::Wrong)) {
                Ok(taken) => {
                    self.report_bad_copies(what, address, &bad, &kept);
                    return Ok(taken);
                }
                Err(why) => bad.push(why),
            }
        }
        Err(self.unreadable(&what(), bad))
    }

    /// The error if no copy is right: an I/O error only if every copy has one.
    pub(crate) fn unreadable(&self, what: &str, bad: Vec<BadCopy>) -> Error {
        let place = format!("{}, {what}", self.place);
        let wrong = bad.iter().find_map(|copy| match copy {
            BadCopy::Io(_) => None,
            other => Some(other.to_string()),
        });
        match (wrong, bad.into_iter().next()) {
            (Some(why), _) => Error::corrupt(why, place),
            (None, Some(BadCopy::Io(error))) => error.into(),
            (None, _) => Error::corrupt("its address is in no chunk", place),
        }
    }
}
