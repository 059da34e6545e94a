//! Logical addresses: where their copies are, and reading one that is right.

use crate::devices::{Devices, Member};
use crate::layout::chunk::{BadChunk, Chunk};
use crate::layout::superblock::Superblock;
use ivers_block::{BlockError, ByteOffset};
use ivers_vfs::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

/// The most chunks, and stripes of all chunks, that are kept in memory.
pub(crate) const CHUNKS_MAX: usize = 1 << 18;
const STRIPES_MAX: usize = 1 << 20;

/// The devices, and the chunks on them.
pub(crate) struct Volume {
    pub sb: Superblock,
    /// The image's name in errors.
    pub place: String,
    members: HashMap<u64, Member>,
    chunks: BTreeMap<u64, Chunk>,
    stripes: usize,
    /// Copies that were wrong or unreadable, where another one was right.
    bad_copies: AtomicU64,
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
        let Devices { sb, members, .. } = devices;
        Self { sb, place, members, chunks: BTreeMap::new(), stripes: 0, bad_copies: AtomicU64::new(0) }
    }

    /// Adds a chunk from its item, unless it is known.
    pub(crate) fn add_chunk(&mut self, start: u64, item: &[u8]) -> Result<()> {
        let chunk = Chunk::decode(start, item, self.sb.sector_size).map_err(|bad| match bad {
            BadChunk::Damaged(what) => Error::corrupt(what, self.place.clone()),
            BadChunk::Unsupported(what) => Error::Incompatible(format!("{}: {what}", self.place)),
        })?;
        if self.chunks.get(&start) == Some(&chunk) {
            return Ok(());
        }
        let before = self.chunks.range(..chunk.end()).next_back();
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
        self.stripes += chunk.stripes.len();
        if self.chunks.len() >= CHUNKS_MAX || self.stripes > STRIPES_MAX {
            return Err(Error::Incompatible(format!("{}: it has too many chunks", self.place)));
        }
        self.chunks.insert(start, chunk);
        Ok(())
    }

    /// All chunks, by address.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.values()
    }

    /// Copies that were wrong so far.
    pub(crate) fn bad_copies(&self) -> u64 {
        self.bad_copies.load(Ordering::Relaxed)
    }

    fn chunk(&self, address: u64) -> Option<&Chunk> {
        self.chunks.range(..=address).next_back().map(|(_, chunk)| chunk).filter(|it| address < it.end())
    }

    /// How many copies an address has; 0: it is in no chunk.
    pub(crate) fn copies(&self, address: u64) -> usize {
        self.chunk(address).map_or(0, |chunk| chunk.profile.copies)
    }

    /// Fills `buf` from one copy.
    pub(crate) fn read_copy(
        &self,
        address: u64,
        copy: usize,
        buf: &mut [u8],
    ) -> std::result::Result<(), BadCopy> {
        let mut done = 0;
        while done < buf.len() {
            let at = address.saturating_add(done as u64);
            let piece = self.chunk(at).and_then(|chunk| chunk.piece(at, (buf.len() - done) as u64));
            let place = piece.and_then(|piece| Some((piece.len as usize, piece.place(copy)?)));
            let Some((len, (stripe, on_device))) = place else {
                return Err(BadCopy::Wrong(format!("address {at} is in no chunk")));
            };
            let member = self.members.get(&stripe.devid).filter(|it| it.uuid == stripe.device_uuid);
            let Some(member) = member else {
                return Err(BadCopy::Missing(stripe.devid));
            };
            let part = &mut buf[done..done + len];
            member.device.read_at(ByteOffset(on_device), part).map_err(BadCopy::Io)?;
            done += len;
        }
        Ok(())
    }

    /// Counts and reports copies that were wrong, where another one was right. `what` names them.
    pub(crate) fn report_bad_copies(&self, what: impl Fn() -> String, bad: &[BadCopy]) {
        for copy in bad.iter().filter(|copy| !matches!(copy, BadCopy::Missing(_))) {
            log::warn!("{}: a copy of {} is bad: {copy}; another one is used", self.place, what());
            self.bad_copies.fetch_add(1, Ordering::Relaxed);
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
            match read.and_then(|()| accept(bytes).map_err(BadCopy::Wrong)) {
                Ok(taken) => {
                    self.report_bad_copies(what, &bad);
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
