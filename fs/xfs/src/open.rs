//! Opening an image: what is refused, and what can only be read.

use crate::layout::features::RoCompat;
use crate::layout::superblock::Superblock;
use crate::live::Xfs;
use crate::live::{Session, journal_error};
use crate::log::{self, Opened};
use crate::write::space::Space;
use ivers_block::{BlockNo, BufferCache, ByteOffset, Device};
use ivers_journal::{Commits, Journal, JournalOptions, LogFormat};
use ivers_vfs::sync::RankedMutex;
use ivers_vfs::{DriverOptions, Error, FileType, NameError, Result, ServedEpoch, ValidUntil};
use std::sync::{Arc, Weak};

/// Lower bound of the memory for committed blocks that are not written in place yet, in bytes.
const MIN_JOURNAL_BYTES: u64 = 4 << 20;
/// `sb_qflags`: usage of users, projects or groups is counted.
const QUOTAS_ON: u16 = 0x1 | 0x8 | 0x40;

/// Bytes of the largest sector: the superblock's checksum is of its sector.
pub(crate) const HEAD_BYTES: u64 = 32 << 10;

/// Options of [`Xfs::open`].
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The options of all drivers.
    pub common: DriverOptions,
    /// Show what is in place, without what the log contains; only with [`DriverOptions::read_only`].
    pub no_replay: bool,
    /// Trust the epoch record even after a foreign writer.
    pub trust_foreign: bool,
    /// For tests of recovery: a transaction does one deferred work, and is durable when it ends. So a crash
    /// can come between any two transactions, and between an intent and its done record.
    pub commit_each_transaction: bool,
}

/// Recognises XFS by the first bytes of a device.
pub fn probe(head: &[u8]) -> bool {
    Superblock::probe(head)
}

/// Reads the superblock.
pub(crate) fn read_super(device: &dyn Device, place: &str) -> Result<Superblock> {
    let mut head = vec![0; device.size_bytes().min(HEAD_BYTES) as usize];
    device.read_at(ByteOffset(0), &mut head)?;
    Superblock::parse(&head, device.size_bytes(), place)
}

/// Returns why a filesystem can only be read, if so.
fn read_only_reason(device: &dyn Device, sb: &Superblock, options: &OpenOptions) -> Option<String> {
    let unknown = sb.ro_compat.difference(RoCompat::KNOWN).feature_names();
    Some(if options.common.read_only {
        "requested".into()
    } else if device.is_read_only() {
        "the image is read-only".into()
    } else if !unknown.is_empty() {
        format!("this driver cannot write the feature {}", unknown.join(", "))
    } else if !sb.is_v5() {
        "XFS of version 4 is only read".into()
    } else if let Some(what) = unwritable(sb) {
        format!("this driver cannot write {what}")
    } else {
        return None;
    })
}

/// Returns what of a filesystem of version 5 is only read, if anything.
fn unwritable(sb: &Superblock) -> Option<&'static str> {
    if sb.quota_flags & QUOTAS_ON != 0 {
        Some("a filesystem with quotas, which it would not keep right")
    } else if sb.realtime_blocks > 0 {
        Some("a filesystem with a realtime device")
    } else if sb.ignores_case() {
        Some("a filesystem that ignores the case of names")
    } else if !sb.has_aligned_clusters() {
        Some("a filesystem with unaligned inodes")
    } else {
        None
    }
}

impl Xfs {
    /// Checks an image and opens it. A dirty log is replayed: in memory if nothing may be written.
    pub fn open(device: Arc<dyn Device>, options: OpenOptions) -> Result<Arc<Self>> {
        let place = options.common.place.clone();
        let sb = read_super(&*device, &place)?;
        let read_only = read_only_reason(&*device, &sb, &options);
        let xfs = match read_only {
            Some(why) => Self::open_for_reading(device, sb, &options, why)?,
            None => Self::open_for_writing(device, sb, &options)?,
        };
        Ok(Arc::new(xfs))
    }

    fn open_for_reading(
        device: Arc<dyn Device>,
        mut sb: Superblock,
        options: &OpenOptions,
        why: String,
    ) -> Result<Self> {
        let place = options.common.place.clone();
        let (device, state) = match options.no_replay {
            true => (device, None),
            false => {
                let (device, state) = log::recover(device, &sb, &place)?;
                (device, Some(state))
            }
        };
        let log_state = match state.as_ref().map(|state| state.transactions) {
            None => "not replayed".to_owned(),
            Some(None) => "clean".to_owned(),
            Some(Some(count)) => {
                ::log::info!("{place}: {count} transactions of the log are replayed in memory");
                // The superblock may be in the log.
                sb = read_super(&*device, &place)?;
                format!("dirty: {count} transactions are replayed in memory")
            }
        };
        let cache = BufferCache::new(device, sb.block_size, options.common.budget.clone());
        let mut xfs = Self::assemble(sb, options, Arc::new(cache), Some(why), log_state);
        let clean_end = state.map(|state| state.end).filter(|end| end.clean);
        if clean_end.is_none() {
            xfs.counts = xfs.recount()?;
        }
        xfs.check_root()?;
        if let Some(end) = clean_end.filter(|_| xfs.sb.is_v5()) {
            match xfs.read_epoch(&end, options.trust_foreign)? {
                None => xfs.is_persistent = true,
                Some(until) => xfs.valid_until = until,
            }
        } else if xfs.sb.is_v5() {
            let why = if options.no_replay { "the log is not replayed" } else { "the log is dirty" };
            xfs.valid_until = ValidUntil::Unmount(Some(why));
        }
        Ok(xfs)
    }

    /// 1. Replay the log in place. 2. Finish what it left unfinished. 3. Make the OPEN record durable.
    ///    4. Free the inodes without names.
    fn open_for_writing(device: Arc<dyn Device>, sb: Superblock, options: &OpenOptions) -> Result<Self> {
        let place = options.common.place.clone();
        if options.no_replay {
            return Err(Error::Incompatible("a writable mount without replay".into()));
        }
        let Opened { log, transactions, intents, end } = log::open_for_writing(device.clone(), &sb, &place)?;
        // The superblock may have been in the log.
        let sb = read_super(&*device, &place)?;
        let cache = Arc::new(BufferCache::new(device, sb.block_size, options.common.budget.clone()));
        let seal = sb.clone();
        let hook = move |blocks: &[BlockNo], lsn, bytes: &mut [u8]| log::stamp(&seal, blocks, lsn, bytes);
        let usual = JournalOptions::default();
        let kept = (options.common.budget.limit() / 4).clamp(MIN_JOURNAL_BYTES, usual.checkpoint_bytes);
        let settled = usual
            .with_commit_interval(options.common.commit_interval)
            .with_checkpoint_bytes(kept)
            .with_commit_each_handle(options.commit_each_transaction)
            .with_write_hook(hook);
        let log_state = match transactions {
            None => "clean".to_owned(),
            Some(count) => {
                ::log::info!("{place}: {count} transactions of the log were replayed");
                format!("{count} transactions were replayed")
            }
        };
        let (costs, next_record) = (log.costs(), log.next_record());
        let journal = Journal::open(Box::new(log), cache.clone(), settled).map_err(journal_error)?;
        let mut xfs = Self::assemble(sb, options, cache, None, log_state);
        if !end.clean {
            xfs.counts = xfs.recount()?;
        }
        // An LSN never repeats: each session has another seed, and a repeated build has the same one.
        let space =
            Space::new(xfs.sb.clone(), place.clone(), journal.clone(), costs, xfs.counts).with_seed(end.head);
        if options.commit_each_transaction {
            space.set_works_a_roll(1);
        }
        xfs.session = Some(Session::new(space, Commits::new(journal), next_record));
        xfs.check_root()?;
        xfs.is_persistent = true;
        xfs.finish_intents(intents)?;
        xfs.free_leftovers()?;
        xfs.open_epoch(&end, options.trust_foreign)?;
        let freed = xfs.free_orphans()?;
        if freed > 0 {
            ::log::info!("{place}: {freed} inodes without names were freed");
        }
        Ok(xfs)
    }

    fn assemble(
        sb: Superblock,
        options: &OpenOptions,
        cache: Arc<BufferCache>,
        read_only: Option<String>,
        log_state: String,
    ) -> Self {
        Self {
            counts: sb.counts,
            sb,
            place: options.common.place.clone(),
            cache,
            read_only,
            log_state,
            session: None,
            epoch: ServedEpoch::default(),
            is_persistent: false,
            valid_until: ValidUntil::Unmount(None),
            root_private: RankedMutex::new(Weak::new()),
        }
    }

    fn check_root(&self) -> Result<()> {
        let root = self.dinode(self.sb.root).map_err(|error| match error {
            Error::Name(NameError::Stale) => Error::corrupt("there is no root directory", self.place.clone()),
            error => error,
        })?;
        if root.kind() != FileType::Directory {
            return Err(self.corrupt("the root is no directory", root.whose()));
        }
        Ok(())
    }
}
