//! Puts the items of transactions in place, in memory.
//!
//! Replay reads the log twice: first for the buffers that were freed later, which must not be replayed, then
//! for everything else. A structure whose LSN is that of the transaction or a later one is in place already.
//! Checksums are computed at the end, once for each structure.

use super::convert::{native_core, put_root};
use super::items::{Assembly, Item, Transaction};
use super::mappings::MappingIntent;
use super::parents::ParentIntent;
use super::refusal::{damaged, dirty, unfinished};
use super::ring::{Lsn, Ring};
use super::wire::{SECTOR, buffer, buffer::CHUNK, fields, kind};
use crate::layout::bytes::{MAGIC_INODE, number, read};
use crate::layout::checksum::{SelfDescription, has_valid_inode_crc, seal_inode};
use crate::layout::raw::*;
use crate::layout::superblock::Superblock;
use ivers_block::{BlockError, ByteOffset, Device, OverlayDevice};
use ivers_vfs::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::{offset_of, size_of};
use zerocopy::IntoBytes;

/// The largest buffer in sectors.
const BUFFER_SECTORS_MAX: u64 = 65536 / SECTOR as u64;
/// Memory that a replay may take beside twice the log, in bytes.
const SPARE_BYTES: u64 = 64 << 20;

/// What stops a replay.
enum Stop {
    Damaged(String),
    Other(Error),
}

impl From<String> for Stop {
    fn from(what: String) -> Self {
        Self::Damaged(what)
    }
}

impl From<&str> for Stop {
    fn from(what: &str) -> Self {
        Self::Damaged(what.to_owned())
    }
}

impl From<BlockError> for Stop {
    fn from(error: BlockError) -> Self {
        Self::Other(error.into())
    }
}

/// Freed buffers by sector and length, and how often each was freed.
type Cancelled = BTreeMap<(u64, u64), u32>;

struct Replay<'a> {
    overlay: &'a OverlayDevice,
    sb: &'a Superblock,
    cancelled: Cancelled,
    /// Changed buffers by sector, with their length and the LSN that they had; 0 if none was valid.
    buffers: BTreeMap<u64, (u64, u64)>,
    /// Changed inodes by offset.
    inodes: BTreeSet<u64>,
    /// Intents without a done item, by type and id.
    /// With their place among all that were seen.
    intents: BTreeMap<(u16, u64), (u64, FoundIntent)>,
    intents_seen: u64,
    /// The newest LSN of a record of each buffer, or of inodes in it, by sector and length.
    logged: BTreeMap<(u64, u64), Lsn>,
}

/// What a replay did.
pub(super) struct Done {
    /// Transactions.
    pub count: u64,
    /// Intents without a done item.
    pub intents: Vec<FoundIntent>,
    /// The newest LSN of a record of each buffer, or of inodes in it, by sector and length.
    pub logged: BTreeMap<(u64, u64), Lsn>,
}

/// An intent without a done item.
#[derive(Debug, Clone)]
pub struct FoundIntent {
    /// Its type in the log.
    pub kind: u16,
    /// Its number.
    pub id: u64,
    /// The start of its transaction.
    pub(crate) lsn: Lsn,
    /// Its regions.
    pub regions: Vec<Vec<u8>>,
}

/// Who must finish an intent.
#[derive(Debug, PartialEq, Eq)]
enum Finisher {
    /// A writer. Users see no difference before.
    WriterLater,
    /// A writer, before users see the files.
    WriterFirst,
    /// Linux.
    Linux,
}

impl FoundIntent {
    fn finisher(&self) -> std::result::Result<Finisher, String> {
        Ok(match self.kind {
            kind::ATTRIBUTE if ParentIntent::decode(&self.regions)?.is_none() => Finisher::Linux,
            kind::MAPPING => {
                MappingIntent::decode(&self.regions)?;
                Finisher::WriterFirst
            }
            kind::EXCHANGE => Finisher::Linux,
            _ => Finisher::WriterLater,
        })
    }

    /// Fails if the image cannot be used with this intent: by a writer, who finishes what it can, or by a
    /// reader.
    fn check_usable(&self, is_writer: bool, place: &str) -> Result<()> {
        let finisher = self.finisher().map_err(|what| damaged(place, &what))?;
        let what = format!("it has an unfinished {} intent", self.name());
        match finisher {
            Finisher::Linux => Err(dirty(place, &format!("{what}, which is not supported"))),
            Finisher::WriterFirst if !is_writer => Err(unfinished(place, &what)),
            _ => Ok(()),
        }
    }

    /// What it does, for messages.
    pub fn name(&self) -> &'static str {
        kind::INTENTS.iter().find(|(intent, ..)| *intent == self.kind).map_or("unknown", |(.., name)| name)
    }
}

/// Replays records, for a writer who will finish the intents, or for a reader.
pub(super) fn replay(
    ring: &Ring<'_>,
    records: &[u32],
    overlay: &OverlayDevice,
    sb: &Superblock,
    is_writer: bool,
) -> Result<Done> {
    let place = ring.place;
    let mut replay = Replay {
        overlay,
        sb,
        cancelled: BTreeMap::new(),
        buffers: BTreeMap::new(),
        inodes: BTreeSet::new(),
        intents: BTreeMap::new(),
        intents_seen: 0,
        logged: BTreeMap::new(),
    };
    let memory_max = 2 * u64::from(ring.len) * SECTOR as u64 + SPARE_BYTES;
    each_transaction(ring, records, |transaction| replay.note_cancelled(transaction))?;
    let mut count = 0;
    each_transaction(ring, records, |transaction| {
        count += 1;
        replay.apply(transaction)?;
        if overlay.memory_bytes() > memory_max {
            return Err(Stop::Other(dirty(place, "it takes too much memory to replay it")));
        }
        Ok(())
    })?;
    replay.intents.values().try_for_each(|(_, intent)| intent.check_usable(is_writer, place))?;
    replay.seal()?;
    let mut intents: Vec<_> = replay.intents.into_values().collect();
    intents.sort_by_key(|(nth, _)| *nth);
    let intents = intents.into_iter().map(|(_, intent)| intent).collect();
    Ok(Done { count, intents, logged: replay.logged })
}

fn each_transaction(
    ring: &Ring<'_>,
    records: &[u32],
    mut done: impl FnMut(&Transaction) -> std::result::Result<(), Stop>,
) -> Result<()> {
    let mut assembly = Assembly::default();
    for sector in records {
        let record = ring
            .record(*sector)?
            .ok_or_else(|| damaged(ring.place, "a log record changed while it was read"))?;
        assembly.add(&record, &mut done).map_err(|stop| match stop {
            Stop::Damaged(what) => damaged(ring.place, &format!("record at sector {sector}: {what}")),
            Stop::Other(error) => error,
        })?;
    }
    Ok(())
}

/// A decoded buffer item.
struct BufferItem<'a> {
    sector: u64,
    sectors: u64,
    has_type: bool,
    /// Offset in the buffer and bytes of each run of changed chunks.
    runs: Vec<(usize, &'a [u8])>,
}

impl<'a> BufferItem<'a> {
    fn decode(item: &Item<'a>) -> std::result::Result<Self, Stop> {
        let head = item.regions.first().ok_or("an item has no regions")?;
        let raw: RawBufItem = read(head, 0).ok_or("a buffer item is too short")?;
        let (sector, sectors) = (raw.blf_blkno.get(), u64::from(raw.blf_len.get()));
        let words = raw.blf_map_size.get() as usize;
        let map = words
            .checked_mul(4)
            .and_then(|len| head.get(size_of::<RawBufItem>()..)?.get(..len))
            .ok_or("the map of a buffer item is too short")?;
        if !(1..=BUFFER_SECTORS_MAX).contains(&sectors) {
            return Err(format!("a buffer has {sectors} sectors").into());
        }
        let is_set = |chunk: usize| map.get(chunk / 8).is_some_and(|byte| byte >> (chunk % 8) & 1 != 0);
        let chunks = sectors as usize * SECTOR / CHUNK;
        let mut regions = item.regions.iter().skip(1);
        let (mut runs, mut chunk) = (Vec::new(), 0);
        while chunk < chunks {
            let end = (chunk..chunks).find(|chunk| !is_set(*chunk)).unwrap_or(chunks);
            if end > chunk {
                // A long run may be in several regions.
                let mut at = chunk * CHUNK;
                while at < end * CHUNK {
                    let Some(region) = regions.next() else {
                        return Err("a buffer item has fewer regions than its map says".into());
                    };
                    let len = region.len().min(end * CHUNK - at);
                    if len == 0 {
                        return Err("a region of a buffer item is empty".into());
                    }
                    runs.push((at, &region[..len]));
                    at += len;
                }
            }
            chunk = end + 1;
        }
        let has_type = raw.blf_flags.get() >> buffer::TYPE_SHIFT != 0;
        Ok(Self { sector, sectors, has_type, runs })
    }
}

impl Replay<'_> {
    fn note_cancelled(&mut self, transaction: &Transaction) -> std::result::Result<(), Stop> {
        for item in transaction.items()?.iter().filter(|item| item.kind == kind::BUFFER) {
            let head = item.regions.first().and_then(|head| read::<RawBufItem>(head, 0));
            let raw = head.ok_or("a buffer item is too short")?;
            if raw.blf_flags.get() & buffer::CANCEL != 0 {
                *self.cancelled.entry((raw.blf_blkno.get(), raw.blf_len.get().into())).or_default() += 1;
            }
        }
        Ok(())
    }

    fn apply(&mut self, transaction: &Transaction) -> std::result::Result<(), Stop> {
        let lsn = transaction.lsn;
        let items = transaction.items()?;
        // The order within a transaction: new inodes and buffers, inodes, the links of unlinked inodes in
        // buffers, freed buffers.
        let (mut inode_links, mut cancels) = (Vec::new(), Vec::new());
        for item in &items {
            match item.kind {
                kind::ICREATE => self.create_inodes(item, lsn)?,
                kind::BUFFER => {
                    // A freed buffer has no map that matters.
                    let raw: Option<RawBufItem> = item.regions.first().and_then(|head| read(head, 0));
                    let raw = raw.ok_or("a buffer item is too short")?;
                    let flags = raw.blf_flags.get();
                    if flags & buffer::CANCEL != 0 {
                        cancels.push((raw.blf_blkno.get(), u64::from(raw.blf_len.get())));
                    } else if flags & buffer::INODES != 0 {
                        inode_links.push(item);
                    } else {
                        self.change_buffer(&BufferItem::decode(item)?, lsn)?;
                    }
                }
                _ => {}
            }
        }
        for item in &items {
            match item.kind {
                kind::INODE => self.change_inode(item, lsn)?,
                // Quotas are not read.
                kind::ICREATE | kind::BUFFER | kind::DQUOT | kind::QUOTA_OFF => {}
                other => self.note_intent(other, item, lsn)?,
            }
        }
        for item in inode_links {
            self.change_inode_links(&BufferItem::decode(item)?, lsn)?;
        }
        for key in cancels {
            if let Some(count) = self.cancelled.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.cancelled.remove(&key);
                }
            }
        }
        Ok(())
    }

    fn note_intent(&mut self, item_kind: u16, item: &Item<'_>, lsn: Lsn) -> std::result::Result<(), Stop> {
        let head: Option<RawIntentItem> = item.regions.first().and_then(|head| read(head, 0));
        let id = head.ok_or("an intent is too short")?.id.get();
        for (intent, done, ..) in kind::INTENTS {
            if item_kind == intent {
                let regions = item.regions.iter().map(|region| region.to_vec()).collect();
                let found = FoundIntent { kind: intent, id, lsn, regions };
                self.intents.insert((intent, id), (self.intents_seen, found));
                self.intents_seen += 1;
                return Ok(());
            }
            if item_kind == done {
                self.intents.remove(&(intent, id));
                return Ok(());
            }
        }
        Err(format!("a log item has the unknown type {item_kind:#x}").into())
    }

    fn read_at(&self, at: u64, len: usize) -> std::result::Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; len];
        self.overlay.read_at(ByteOffset(at), &mut bytes)?;
        Ok(bytes)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> std::result::Result<(), Stop> {
        Ok(self.overlay.write_at(ByteOffset(at), bytes)?)
    }

    /// The byte at which a buffer starts.
    fn byte_of(&self, sector: u64, sectors: u64) -> std::result::Result<u64, Stop> {
        let end = sector.checked_add(sectors).and_then(|end| end.checked_mul(SECTOR as u64));
        match end.filter(|end| *end <= self.sb.blocks * u64::from(self.sb.block_size)) {
            Some(end) => Ok(end - sectors * SECTOR as u64),
            None => Err(format!("a buffer lies at sector {sector}, outside the filesystem").into()),
        }
    }

    fn change_buffer(&mut self, item: &BufferItem<'_>, lsn: Lsn) -> std::result::Result<(), Stop> {
        let (sector, sectors) = (item.sector, item.sectors);
        if self.cancelled.contains_key(&(sector, sectors)) {
            return Ok(());
        }
        self.logged.insert((sector, sectors), lsn);
        let start = self.byte_of(sector, sectors)?;
        let stored = self.read_at(start, sectors as usize * SECTOR)?;
        let in_place = SelfDescription::of(&stored).and_then(|kind| {
            // Left by another filesystem, it says nothing. Nor does it if a crash interrupted its write.
            let own = kind.has_uuid(&stored, &self.sb.meta_uuid) || kind.has_uuid(&stored, &self.sb.uuid);
            let whole = own && kind.has_valid_crc(&stored);
            kind.lsn(&stored).filter(|in_place| whole && !matches!(*in_place, 0 | u64::MAX))
        });
        if in_place.is_some_and(|in_place| Lsn::from(in_place) >= lsn) {
            return Ok(());
        }
        for (at, bytes) in &item.runs {
            self.write_at(start + *at as u64, bytes)?;
        }
        // A buffer takes the place of those that overlap it.
        let lowest = sector.saturating_sub(BUFFER_SECTORS_MAX);
        let overlaps = |(at, (len, _)): (&u64, &(u64, u64))| (at + len > sector).then_some(*at);
        let old: Vec<u64> = self.buffers.range(lowest..sector + sectors).filter_map(overlaps).collect();
        let mut had = in_place.unwrap_or(0);
        for at in old {
            let before = self.buffers.remove(&at);
            if let Some((len, lsn)) = before.filter(|_| at == sector)
                && len == sectors
            {
                had = lsn;
            }
        }
        // A buffer without a type is a part of a larger one. It was logged with the right checksum.
        if item.has_type {
            self.buffers.insert(sector, (sectors, had));
        }
        Ok(())
    }

    /// Replays the links between unlinked inodes. Nothing else of these buffers is valid.
    fn change_inode_links(&mut self, item: &BufferItem<'_>, lsn: Lsn) -> std::result::Result<(), Stop> {
        if self.cancelled.contains_key(&(item.sector, item.sectors)) {
            return Ok(());
        }
        self.logged.insert((item.sector, item.sectors), lsn);
        let start = self.byte_of(item.sector, item.sectors)?;
        let (each, field) = (self.sb.inode_size as usize, offset_of!(RawDinode, di_next_unlinked));
        for at in (0..item.sectors as usize * SECTOR).step_by(each) {
            let link = at + field;
            let run = item.runs.iter().find(|(from, bytes)| *from <= link && link + 4 <= from + bytes.len());
            let Some((from, bytes)) = run else { continue };
            self.write_at(start + link as u64, &bytes[link - from..link - from + 4])?;
            self.inodes.insert(start + at as u64);
        }
        Ok(())
    }

    fn create_inodes(&mut self, item: &Item<'_>, lsn: Lsn) -> std::result::Result<(), Stop> {
        let raw: Option<RawIcreateItem> = item.regions.first().and_then(|head| read(head, 0));
        let raw = raw.ok_or("an item of new inodes is too short")?;
        let (count, blocks, each) = (raw.icl_count.get(), raw.icl_length.get(), self.sb.inode_size);
        if raw.icl_isize.get() != each
            || count > 64.max(1 << self.sb.inopb_bits)
            || count != blocks << self.sb.inopb_bits
        {
            return Err(format!("an item of new inodes has {count} inodes in {blocks} blocks").into());
        }
        let (ag, first) = (raw.icl_ag.get(), raw.icl_agbno.get());
        let last = first.checked_add(blocks.saturating_sub(1));
        if last.and_then(|last| self.sb.ag_block(ag, last)).is_none() {
            return Err("an item of new inodes lies outside its group".into());
        }
        let block = self.sb.ag_block(ag, first).ok_or("an item of new inodes lies outside its group")?;
        let sector = self.sb.sector_of(block);
        let sectors = u64::from(blocks) << (self.sb.block_bits - 9);
        // The clusters of the chunk are buffers of their own.
        let near = (sector.saturating_sub(BUFFER_SECTORS_MAX), 0)..(sector + sectors, 0);
        if self.cancelled.range(near).any(|((at, len), _)| at + len > sector) {
            return Ok(());
        }
        let cluster = u64::from(self.sb.cluster_blocks()) << (self.sb.block_bits - 9);
        for at in (sector..sector + sectors).step_by(cluster as usize) {
            self.logged.insert((at, cluster.min(sector + sectors - at)), lsn);
        }
        let start = block.offset(self.sb.block_size).0;
        for index in 0..count {
            let ino = (u64::from(ag) << self.sb.ag_block_bits | u64::from(first)) << self.sb.inopb_bits;
            let mut core = RawDinode::new_free(raw.icl_gen.get(), ino + u64::from(index));
            core.di_uuid = self.sb.meta_uuid;
            let mut bytes = core.as_bytes().to_vec();
            bytes.resize(each as usize, 0);
            let at = start + u64::from(index * each);
            self.write_at(at, &bytes)?;
            self.inodes.insert(at);
        }
        Ok(())
    }

    fn change_inode(&mut self, item: &Item<'_>, lsn: Lsn) -> std::result::Result<(), Stop> {
        let raw: Option<RawInodeItem> = item.regions.first().and_then(|head| read(head, 0));
        let raw = raw.ok_or("an inode item is too short")?;
        let ino = raw.ilf_ino.get();
        let bad = |what: &str| Stop::Damaged(format!("the item of inode {ino}: {what}"));
        let (block, offset) = self.sb.inode_place(ino).ok_or_else(|| bad("there is no such inode"))?;
        let cluster = (raw.ilf_blkno.get(), u64::from(raw.ilf_len.get()));
        if self.cancelled.contains_key(&cluster) {
            return Ok(());
        }
        self.logged.insert(cluster, lsn);
        let at = block.offset(self.sb.block_size).0 + offset as u64;
        let mut bytes = self.read_at(at, self.sb.inode_size as usize)?;
        let stored: RawDinode = read(&bytes, 0).ok_or_else(|| bad("inodes are too small"))?;
        if stored.di_magic.get() != MAGIC_INODE {
            return Err(bad("the inode in place has no magic"));
        }
        let in_place = stored.di_lsn.get();
        // Several transactions can have one LSN: then the inode in place may be the older one. An inode whose
        // checksum is wrong was being written.
        let whole = has_valid_inode_crc(&bytes) && !matches!(in_place, 0 | u64::MAX);
        if whole && Lsn::from(in_place) > lsn {
            return Ok(());
        }
        let core = item.regions.get(1).ok_or_else(|| bad("it has no core"))?;
        let core = native_core(core).ok_or_else(|| bad("its core is invalid"))?;
        bytes[..offset_of!(RawDinode, di_next_unlinked)]
            .copy_from_slice(&core[..offset_of!(RawDinode, di_next_unlinked)]);
        bytes[offset_of!(RawDinode, di_changecount)..core.len()]
            .copy_from_slice(&core[offset_of!(RawDinode, di_changecount)..]);
        bytes[offset_of!(RawDinode, di_lsn)..][..8].copy_from_slice(&lsn.raw().to_be_bytes());
        let literal = &mut bytes[size_of::<RawDinode>()..];
        let split = usize::from(core[offset_of!(RawDinode, di_forkoff)]) * 8;
        if split > literal.len() {
            return Err(bad("its attributes start past its end"));
        }
        let has_attributes = split != 0;
        let split = if has_attributes { split } else { literal.len() };
        let (data, attributes) = literal.split_at_mut(split);
        let logged = raw.ilf_fields.get();
        let mut regions = item.regions.iter().skip(2);
        let mut put = |space: &mut [u8], root: bool| -> std::result::Result<(), Stop> {
            let region = regions.next().ok_or_else(|| bad("a region is missing"))?;
            if root {
                return put_root(space, region)
                    .ok_or_else(|| bad("the root of its extent B-tree does not fit"));
            }
            space.get_mut(..region.len()).ok_or_else(|| bad("a fork does not fit"))?.copy_from_slice(region);
            Ok(())
        };
        if logged & (fields::DATA_BYTES | fields::DATA_EXTENTS | fields::DATA_ROOT) != 0 {
            put(data, logged & fields::DATA_ROOT != 0)?;
        }
        if logged & (fields::ATTR_BYTES | fields::ATTR_EXTENTS | fields::ATTR_ROOT) != 0 && has_attributes {
            put(attributes, logged & fields::ATTR_ROOT != 0)?;
        }
        if logged & fields::DEVICE != 0 {
            data.get_mut(..4)
                .ok_or_else(|| bad("a device number does not fit"))?
                .copy_from_slice(&raw.ilf_rdev.get().to_be_bytes());
        }
        self.write_at(at, &bytes)?;
        self.inodes.insert(at);
        Ok(())
    }

    /// Computes the checksums of what changed. Buffers keep the LSN that they had. A crash during their write
    /// can leave the first sectors new and the others old: Linux would trust a new LSN in the first one, and
    /// not replay the rest.
    fn seal(&self) -> Result<()> {
        let device = |stop: Stop| match stop {
            Stop::Damaged(what) => Error::Io(what.into()),
            Stop::Other(error) => error,
        };
        for (&sector, &(sectors, had)) in &self.buffers {
            let at = sector * SECTOR as u64;
            let mut bytes = self.read_at(at, sectors as usize * SECTOR).map_err(device)?;
            if let Some(kind) = SelfDescription::of(&bytes) {
                kind.seal(&mut bytes, had);
                self.write_at(at, &bytes).map_err(device)?;
            }
        }
        for &at in &self.inodes {
            let mut bytes = self.read_at(at, self.sb.inode_size as usize).map_err(device)?;
            if number(&bytes, 0, 2) == Some(MAGIC_INODE.into()) {
                seal_inode(&mut bytes);
                self.write_at(at, &bytes).map_err(device)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{mappings, parents::regions};
    use super::*;
    use crate::fork::{Extent, Which};
    use crate::layout::superblock::FsBlock;
    use ivers_block::FileBlock;

    #[test]
    fn unfinished_intents_say_who_must_finish_them() {
        let parent = regions((131, 5), None, Some((b"name", &[1; 12])));
        let mut of_user = parent.clone();
        of_user[0][24] = 1;
        let extent = Extent { file_block: FileBlock(0), start: FsBlock(9), len: 1, unwritten: false };
        let mapping = MappingIntent { ino: 131, which: Which::Data, extent, removes: true };
        for (kind, regions, finisher, name) in [
            (0x1236, vec![], Finisher::WriterLater, "free extent"),
            (0x1240, vec![], Finisher::WriterLater, "reverse map"),
            (0x1242, vec![], Finisher::WriterLater, "reference count"),
            (0x1244, mappings::regions(1, &mapping), Finisher::WriterFirst, "mapping"),
            (0x1246, parent, Finisher::WriterLater, "attribute"),
            (0x1246, of_user, Finisher::Linux, "attribute"),
            (0x1248, vec![], Finisher::Linux, "exchange"),
        ] {
            let intent = FoundIntent { kind, id: 1, lsn: Lsn { cycle: 1, sector: 0 }, regions };
            for is_writer in [false, true] {
                let usable = match finisher {
                    Finisher::WriterLater => true,
                    Finisher::WriterFirst => is_writer,
                    Finisher::Linux => false,
                };
                let checked = intent.check_usable(is_writer, "image");
                assert_eq!(checked.is_ok(), usable, "{kind:#x}");
                checked.map_err(|error| error.to_string()).unwrap_or_else(|said| {
                    assert!(said.contains(name), "{said}");
                });
            }
            assert_eq!(intent.finisher(), Ok(finisher), "{kind:#x}");
        }
        let cut =
            FoundIntent { kind: 0x1246, id: 1, lsn: Lsn { cycle: 1, sector: 0 }, regions: vec![vec![0; 16]] };
        assert!(cut.finisher().is_err());
    }
}
