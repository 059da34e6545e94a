//! Mounting: the checks, and the order of writes.
//!
//! 1. Parse the superblock and check its features. Nothing is written before.
//! 2. Find the journal through a temporary read-only instance and replay it: onto the device if that may be
//!    written, else onto an overlay in memory.
//! 3. Read the superblock again. Set `needs_recovery` (without a journal: clear the clean flag).
//! 4. Decide the epoch and make its OPEN record durable; a short session does that later.
//! 5. Process the orphans.

use crate::epoch::foreign_fields;
use crate::fs::{Ext4, ROOT_INO};
use crate::groups::Groups;
use crate::layout::features::{Compat, Incompat, RoCompat};
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::{
    MAGIC, STATE_ERROR, STATE_VALID, SUPERBLOCK_LEN, SUPERBLOCK_OFFSET, Superblock, decode, seal,
};
use crate::system_zone::SystemZone;
use crate::transaction::{Handle, Transactions, journal_error};
use ivers_block::{BufferCache, ByteOffset, Contents, Device, OverlayDevice};
use ivers_journal::jbd2::{Jbd2Log, Jbd2Options};
use ivers_journal::{Journal, JournalOptions};
use ivers_vfs::sync::RankedMutex;
use ivers_vfs::{Clock, CoarseClock, DriverOptions, Error, Result, Timestamp};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Weak};
use std::time::Duration;
use zerocopy::FromBytes;

/// Lower bound of the memory for committed blocks that are not written in place yet, in bytes.
const MIN_JOURNAL_BYTES: u64 = 4 << 20;

/// Options for opening an image.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// What all formats have.
    pub common: DriverOptions,
    /// Trust the epoch record even after a foreign writer.
    pub trust_foreign: bool,
    /// Do not replay the journal even in memory; only with [`DriverOptions::read_only`].
    pub no_replay: bool,
    /// The session is short and mostly changes metadata: its OPEN record becomes durable together with its
    /// first changes, which saves a commit. Before data is written in place, or a change attribute is handed
    /// out, the record is durable in any case.
    pub short_session: bool,
    /// The mark that the filesystem was not cleanly unmounted is this process's own, between two sessions.
    pub own_mark: bool,
    /// This process has just made the filesystem, which is of no use to others before it is closed: nothing
    /// is journalled, no epoch is recorded and no change attribute served. After a crash, e2fsck finds the
    /// filesystem unclean. With `stopped_clock`, equal calls give equal images.
    pub filling: bool,
    /// The clock stands still at this time. If the commit interval never ends either, and the caller commits,
    /// equal sessions of one writer leave equal images.
    pub stopped_clock: Option<Timestamp>,
}

impl From<DriverOptions> for OpenOptions {
    fn from(common: DriverOptions) -> Self {
        Self { common, ..Self::default() }
    }
}

/// Reads and checks the superblock of a device.
pub(crate) fn read_super(device: &dyn Device, place: &str) -> Result<(RawSuperblock, Superblock)> {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    if device.size_bytes() < (SUPERBLOCK_OFFSET + SUPERBLOCK_LEN as u64).0 {
        return Err(Error::Incompatible(format!(
            "{place} holds no ext2, ext3 or ext4 filesystem (the image has only {} bytes)",
            device.size_bytes()
        )));
    }
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    let sb = Superblock::parse(&bytes, device.size_bytes(), place)?;
    let raw = decode(&bytes, place)?;
    debug_assert_eq!(raw.s_magic.get(), MAGIC);
    Ok((raw, sb))
}

/// Returns why a filesystem can only be read. [`Superblock::parse`] refuses what cannot be read either.
pub(crate) fn unwritable_features(sb: &Superblock) -> Option<String> {
    let mut only_read = sb.ro_compat.difference(RoCompat::KNOWN).feature_names();
    only_read.extend(sb.incompat.difference(Incompat::KNOWN).feature_names());
    if sb.block_size > 4096 {
        return Some(format!("this driver cannot write blocks of {} bytes", sb.block_size));
    }
    (!only_read.is_empty()).then(|| format!("this driver cannot write the feature {}", only_read.join(", ")))
}

/// The condition of a filesystem at open and after replay.
#[derive(Debug, Default)]
struct Condition {
    /// The superblock records errors.
    errors: bool,
    /// The journal records an error.
    log_error: bool,
    /// The journal's contents are in effect.
    replayed: bool,
    /// The journal holds changes that are not in effect.
    left_in_log: bool,
}

impl Condition {
    /// Returns how the filesystem was closed before this open, for people.
    fn in_words(&self, clean: bool) -> &'static str {
        if self.errors || self.log_error {
            "errors are recorded: run e2fsck"
        } else if self.replayed {
            "not closed cleanly; the journal was replayed"
        } else if self.left_in_log {
            "not closed cleanly; the journal was not replayed"
        } else if !clean {
            "not closed cleanly, and no journal to replay: run e2fsck"
        } else {
            "closed cleanly"
        }
    }

    /// Returns why no change attribute may be served: the visible state still needs replay or repair. The
    /// mount after the repair would use the same values for a different state.
    fn unserved_reason(&self, fs: &Ext4, clean: bool, no_replay: bool) -> Option<&'static str> {
        if self.errors {
            Some("the superblock records errors: run e2fsck")
        } else if self.log_error {
            Some("the journal records an error: run e2fsck")
        } else if no_replay && (!clean || self.left_in_log) {
            Some("the journal was not replayed: mount without norecovery")
        } else if fs.read_only.is_none() || (clean && !self.left_in_log) || self.replayed {
            None
        } else if self.left_in_log {
            Some("the journal holds changes that the superblock does not announce: run e2fsck")
        } else {
            Some("the filesystem was not unmounted cleanly and there was no log to replay: run e2fsck")
        }
    }
}

impl Ext4 {
    /// Checks an image, brings it into a consistent state, and opens it.
    pub fn open(device: Arc<dyn Device>, options: OpenOptions) -> Result<Arc<Self>> {
        let place = options.common.place.clone();
        let (raw, sb) = read_super(&*device, &place)?;
        let mut read_only = unwritable_features(&sb);
        if options.common.read_only {
            read_only = Some("requested".to_owned());
        } else if device.is_read_only() {
            read_only = Some("the image is read-only".to_owned());
        }
        let has_journal = sb.compat.contains(Compat::HAS_JOURNAL);
        if has_journal && (sb.journal_dev != 0 || sb.journal_inum == 0) {
            return Err(Error::Incompatible(format!(
                "{place}: the journal is on another device, which is not supported"
            )));
        }
        let mut condition =
            Condition { errors: raw.s_state.get() & STATE_ERROR != 0, ..Condition::default() };
        if condition.errors && read_only.is_none() {
            read_only = Some("the superblock records errors: run e2fsck".to_owned());
        }
        let marked_clean = raw.s_state.get() & STATE_VALID != 0 || options.own_mark;
        let clean = marked_clean && !sb.incompat.contains(Incompat::RECOVER);
        if !has_journal && !clean && read_only.is_none() {
            read_only =
                Some("the filesystem was not unmounted cleanly and has no journal: run e2fsck".to_owned());
        }
        let mut device = device;
        let mut clean = clean;
        if sb.torn {
            Self::assemble(device.clone(), &options, &sb, &raw, Some("temporary instance".to_owned()), None)?
                .check_torn_superblock()?;
            clean = false;
        }
        let (mut log, mut journal_blocks) = (None, Vec::new());
        if has_journal {
            let look = Self::assemble(
                device.clone(),
                &options,
                &sb,
                &raw,
                Some("temporary instance".to_owned()),
                None,
            )?;
            let map = look.journal_map()?;
            drop(look);
            journal_blocks = map.fs_ranges().to_vec();
            let jbd2 = Jbd2Options { block_size: sb.block_size, fs_blocks: sb.blocks_count(), uuid: None };
            let mut found =
                Jbd2Log::open(device.clone(), map.clone(), jbd2.clone()).map_err(journal_error)?;
            // The error may not have reached the superblock, and replay may clear the flag there.
            condition.log_error = found.recorded_error() != 0;
            if condition.log_error && read_only.is_none() {
                read_only = Some("the journal records an error: run e2fsck".to_owned());
            }
            // Without the flag, another program that relies on the flag regards the log as empty.
            if sb.incompat.contains(Incompat::RECOVER) && found.needs_recovery() && !options.no_replay {
                if read_only.is_some() {
                    device = Arc::new(OverlayDevice::new(device));
                    found = Jbd2Log::open(device.clone(), map, jbd2).map_err(journal_error)?;
                }
                let recovered = found.recover().map_err(journal_error)?;
                log::info!(
                    "{place}: journal replayed: {} transactions, {} blocks, {} revoked blocks skipped",
                    recovered.transactions,
                    recovered.blocks,
                    recovered.revoked
                );
                if let Some(damage) = &recovered.damaged {
                    log::warn!(
                        "{place}: replay stopped at transaction {}: bad checksum of a {} block (log block \
                         {}); later transactions are lost",
                        damage.sequence,
                        damage.what,
                        damage.log_block
                    );
                }
                clean = false;
                condition.replayed = true;
            } else if found.needs_recovery() && read_only.is_none() {
                if !options.no_replay {
                    found.recover().map_err(journal_error)?;
                    clean = false;
                    condition.replayed = true;
                } else {
                    return Err(Error::Incompatible("a writable mount without replay".to_owned()));
                }
            }
            condition.left_in_log = found.needs_recovery() && !condition.replayed;
            // A log that is in use and empty was replayed by the program that emptied it.
            condition.replayed |= sb.incompat.contains(Incompat::RECOVER) && !condition.left_in_log;
            log = Some(found);
        }
        let (raw, sb) = read_super(&*device, &place)?;
        let mut journal = None;
        if let (None, Some(mut log), false) = (&read_only, log, options.filling) {
            if let Some(Timestamp { sec, nsec }) = options.stopped_clock {
                let time = Duration::new(sec.try_into().unwrap_or(0), nsec);
                log = log.with_clock(Box::new(move || time));
            }
            log.prepare(sb.has_csum(), sb.incompat.contains(Incompat::BIT64)).map_err(journal_error)?;
            journal = Some(log);
        }
        let mut fs = Self::assemble(device, &options, &sb, &raw, read_only, journal)?;
        fs.system_zone = SystemZone::new(journal_blocks);
        if !clean {
            fs.recount()?;
        }
        if fs.read_only.is_none() {
            fs.mark_mounted()?;
        }
        // Replay can restore errors from the log.
        condition.errors |= raw.s_state.get() & STATE_ERROR != 0;
        fs.closed_before = condition.in_words(clean);
        match condition.unserved_reason(&fs, clean, options.no_replay) {
            Some(why) => fs.epoch.stop_serving(why),
            None if options.filling => fs.epoch.serve_nothing("the filesystem is being filled"),
            None => fs.open_epoch(&raw, clean, &options)?,
        }
        if fs.read_only.is_none() {
            let cleaned = fs.process_orphans(raw.s_last_orphan.get())?;
            if cleaned > 0 {
                log::info!("{place}: {cleaned} orphans processed");
            }
        }
        Ok(Arc::new(fs))
    }

    fn assemble(
        dev: Arc<dyn Device>,
        options: &OpenOptions,
        sb: &Superblock,
        raw: &RawSuperblock,
        read_only: Option<String>,
        log: Option<Jbd2Log>,
    ) -> Result<Self> {
        let cache = Arc::new(BufferCache::new(dev.clone(), sb.block_size, options.common.budget.clone()));
        let free = u64::from(raw.s_free_blocks_count_lo.get())
            | if sb.incompat.contains(Incompat::BIT64) {
                u64::from(raw.s_free_blocks_count_hi.get()) << 32
            } else {
                0
            };
        let free_inodes = raw.s_free_inodes_count.get().min(sb.inodes_count());
        let groups = Groups::new(
            sb.clone(),
            cache.clone(),
            options.common.place.clone(),
            free.min(sb.blocks_count()),
            u64::from(free_inodes),
        );
        let journal = match log {
            Some(log) => {
                let usual = JournalOptions::default();
                // Committed blocks stay in memory until they are written in place. Large transactions need a
                // minimum.
                let kept =
                    (options.common.budget.limit() / 4).clamp(MIN_JOURNAL_BYTES, usual.checkpoint_bytes);
                let interval = options.common.commit_interval;
                let settled = usual.with_commit_interval(interval).with_checkpoint_bytes(kept);
                Journal::open(Box::new(log), cache.clone(), settled).map_err(journal_error)?
            }
            // While the clock stands still, the caller decides when to write: a thread would do so at other
            // times in each run.
            None if read_only.is_some() || options.stopped_clock.is_some() => Journal::none(cache.clone()),
            None => Journal::none_with_interval(cache.clone(), options.common.commit_interval)
                .map_err(journal_error)?,
        };
        let now = options.stopped_clock.unwrap_or_else(|| CoarseClock.now());
        // Sessions at the same time still begin with different generations.
        let session = u32::from(raw.s_mnt_count.get()).wrapping_mul(0x85EB_CA6B);
        Ok(Self {
            sb: sb.clone(),
            place: options.common.place.clone(),
            cache,
            dev,
            groups: Arc::new(groups),
            read_only,
            closed_before: "closed cleanly",
            journal: Transactions::new(journal),
            epoch: Default::default(),
            open_waits: AtomicBool::new(false),
            orphans: Default::default(),
            reservation_windows: Default::default(),
            system_zone: Default::default(),
            root_private: RankedMutex::new(Weak::new()),
            wrapped: Default::default(),
            boot: Default::default(),
            overhead: Default::default(),
            growing: Default::default(),
            filling: options.filling,
            stopped_clock: options.stopped_clock,
            closed: AtomicBool::new(false),
            stays_unclean: AtomicBool::new(
                sb.compat.contains(Compat::HAS_JOURNAL) && raw.s_state.get() & STATE_VALID == 0,
            ),
            next_generation: AtomicU32::new((now.sec as u32).wrapping_mul(0x9E37_79B9) ^ now.nsec ^ session),
        })
    }

    /// Decides whether a superblock with a wrong checksum may be used. After a torn write, each field is from
    /// before or after that write, and every structure whose checksum depends on its UUID and position is
    /// valid. Refuses a damaged superblock.
    fn check_torn_superblock(&self) -> Result<()> {
        let vouched = (0..self.sb.groups().min(16))
            .try_for_each(|group| self.groups.read_desc(group).map(drop))
            .and_then(|()| self.raw_inode(ROOT_INO).map(drop));
        match vouched {
            Ok(()) => {
                log::warn!(
                    "{}: the superblock's checksum is wrong, but its fields match other structures: \
                     assuming a write torn by a crash",
                    self.place
                );
                Ok(())
            }
            Err(error) => Err(Error::corrupt(
                format!("bad checksum, and its fields do not match other structures ({error}): run e2fsck"),
                format!("{}, superblock", self.place),
            )),
        }
    }

    /// Adds up the groups: after an unclean stop the superblock's counts are stale.
    fn recount(&self) -> Result<()> {
        let (mut blocks, mut inodes) = (0i64, 0i64);
        for group in 0..self.sb.groups() {
            let desc = self.groups.read_desc(group)?;
            blocks += i64::from(desc.free_blocks);
            inodes += i64::from(desc.free_inodes);
        }
        self.groups.free_blocks.store(blocks, std::sync::atomic::Ordering::Relaxed);
        self.groups.free_inodes.store(inodes, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    /// The superblock as this session has it in memory.
    pub(crate) fn raw_super(&self) -> Result<RawSuperblock> {
        let (block, byte) = self.sb.superblock_place();
        decode(&self.cache.get(block)?.read()[byte..], &self.place)
    }

    /// Changes the superblock within a transaction.
    pub(crate) fn modify_super(&self, h: &mut Handle, f: impl FnOnce(&mut RawSuperblock)) -> Result<()> {
        let buffer = self.cache.get(self.sb.superblock_place().0)?;
        h.modify(&buffer, |bytes| self.edit_super(bytes, f))
    }

    fn edit_super(&self, bytes: &mut [u8], f: impl FnOnce(&mut RawSuperblock)) {
        let byte = self.sb.superblock_place().1;
        let bytes = &mut bytes[byte..byte + SUPERBLOCK_LEN];
        if let Ok(raw) = RawSuperblock::mut_from_bytes(bytes) {
            f(raw);
            seal(raw);
        }
    }

    /// Changes the superblock on the device durably, and flushes. For the end of a session, when no
    /// transaction is open.
    pub(crate) fn write_super(&self, f: impl FnOnce(&mut RawSuperblock)) -> Result<()> {
        let (place, bytes) = self.changed_super(f)?;
        self.dev.write_fua(place, &bytes)?;
        Ok(self.dev.flush()?)
    }

    /// Changes the superblock in memory. Returns what to write, and where.
    fn changed_super(&self, f: impl FnOnce(&mut RawSuperblock)) -> Result<(ByteOffset, Contents)> {
        let (block, _) = self.sb.superblock_place();
        let buffer = self.cache.get(block)?;
        buffer.modify(|bytes| self.edit_super(bytes, f));
        Ok((block.offset(self.sb.block_size), buffer.snapshot()))
    }

    /// Marks the start of a session, so that the next mount after a crash sees it.
    fn mark_mounted(&self) -> Result<()> {
        // While the filesystem is filled, the log stays empty and proves nothing.
        let journal = self.sb.compat.contains(Compat::HAS_JOURNAL) && !self.filling;
        let orphan_file = self.has_orphan_file();
        let mark = |raw: &mut RawSuperblock| {
            if orphan_file {
                // Only this mount adds orphans until it closes the filesystem: the next mount after a crash
                // must process them.
                raw.s_feature_ro_compat =
                    (raw.s_feature_ro_compat.get() | RoCompat::ORPHAN_PRESENT.bits()).into();
            }
            if journal {
                raw.s_feature_incompat = (raw.s_feature_incompat.get() | Incompat::RECOVER.bits()).into();
            } else {
                raw.s_state = (raw.s_state.get() & !STATE_VALID).into();
            }
        };
        // No flush: nothing was written before that this session relies on. The write itself is durable, so
        // that a medium that ignores flushes cannot lose the mark and the record OPEN in the log together.
        let (place, bytes) = self.changed_super(mark)?;
        Ok(self.dev.write_fua(place, &bytes)?)
    }

    /// Writes the counts and marks the end of the session. Everything else is durable.
    pub(crate) fn mark_closed(&self, foreign: [u32; 4]) -> Result<()> {
        let order = std::sync::atomic::Ordering::Relaxed;
        let free = self.groups.free_blocks.load(order).max(0) as u64;
        let inodes = self.groups.free_inodes.load(order).max(0) as u32;
        let no_orphans = self.orphan_file_is_empty();
        let unclean = self.stays_unclean.load(order);
        self.write_super(|raw| {
            if no_orphans {
                raw.s_feature_ro_compat =
                    (raw.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits()).into();
            }
            raw.s_free_blocks_count_lo = (free as u32).into();
            raw.s_free_blocks_count_hi = ((free >> 32) as u32).into();
            raw.s_free_inodes_count = inodes.into();
            raw.s_feature_incompat = (raw.s_feature_incompat.get() & !Incompat::RECOVER.bits()).into();
            if !unclean {
                raw.s_state = (raw.s_state.get() | STATE_VALID).into();
            }
            raw.s_mnt_count = (foreign[0] as u16).into();
            raw.s_mtime = foreign[1].into();
            raw.s_wtime = foreign[2].into();
        })
    }

    /// The superblock fields as unmount will leave them: this mount counted, its time, the time of the last
    /// write.
    pub(crate) fn unmount_fields(&self) -> Result<[u32; 4]> {
        let buffer = self.cache.get(self.sb.superblock_place().0)?;
        let bytes = buffer.read();
        let byte = self.sb.superblock_place().1;
        let (raw, _) = RawSuperblock::ref_from_prefix(&bytes[byte..])
            .map_err(|_| Error::corrupt("the superblock is too short", self.place.clone()))?;
        let mut fields = foreign_fields(raw);
        let now = self.now().sec as u32;
        if self.filling {
            // As mkfs leaves them: no session has begun yet.
            fields[2] = now;
            return Ok(fields);
        }
        fields[0] = u32::from(raw.s_mnt_count.get().saturating_add(1));
        fields[1] = now;
        // One second ago: a foreign writer in the same second stores another time and is detected.
        fields[2] = now.saturating_sub(1);
        Ok(fields)
    }
}
