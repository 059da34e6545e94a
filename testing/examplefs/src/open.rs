//! Opening a filesystem.

use crate::*;
use ivers_block::OverlayDevice;
use ivers_journal::jbd2::{Jbd2Log, Jbd2Options, LogMap};
use ivers_vfs::epoch::{Found, OtherWriters, decide};

fn corrupt_super(place: &str, what: &str) -> Error {
    Error::corrupt(what, format!("{place}, superblock"))
}

fn read_super(device: &dyn Device, place: &str) -> Result<RawSuper> {
    if device.size_bytes() < BLOCK as u64 {
        return Err(corrupt_super(place, "the device is too small"));
    }
    let mut sb = RawSuper::new_zeroed();
    device.read_at(SUPER, sb.as_mut_bytes())?;
    sb.check(device.size_bytes()).map_err(|what| corrupt_super(place, what))?;
    Ok(sb)
}

impl ExampleFs {
    /// Opens a filesystem: replays the log, decides the epoch, frees the orphans. A read-only mount does all
    /// this too, and writes it into memory.
    pub fn open(device: Arc<dyn Device>, options: DriverOptions) -> Result<Self> {
        let DriverOptions { read_only, budget, commit_interval, place } = options;
        let read_only = read_only || device.is_read_only();
        let device = if read_only { Arc::new(OverlayDevice::new(device)) } else { device };
        let sb = read_super(&*device, &place)?;
        let map = LogMap::contiguous(BlockNo(1), sb.log_blocks.get());
        let fs_blocks = sb.blocks.get().into();
        let options = Jbd2Options { block_size: BLOCK as u32, fs_blocks, uuid: Some(sb.uuid) };
        let mut log = Jbd2Log::open(device.clone(), map, options).map_err(journal_error)?;
        let clean = !log.needs_recovery();
        log.recover().map_err(journal_error)?;
        // Of the superblock only the epoch record changes.
        let record = read_super(&*device, &place)?.epoch_record;
        let (record, uuid) = (Some(&record[..]), sb.uuid);
        let (fingerprint, trust_foreign, others) = ([0; 16], true, OtherWriters::Known(None));
        let found = Found { record, uuid, fingerprint, clean, trust_foreign, read_only, others };
        let epoch = decide(&found).map_err(|what| corrupt_super(&place, what))?.epoch;
        let sb = sb.with_epoch(epoch, true);
        // In place: if the medium ignores a flush, recovery drops the newest transactions of the log.
        device.write_fua(SUPER, sb.as_bytes())?;
        let cache = Arc::new(BufferCache::new(device.clone(), BLOCK as u32, budget));
        let options = JournalOptions::default().with_commit_interval(commit_interval);
        let journal = Journal::open(Box::new(log), cache.clone(), options);
        let mut fs = Self {
            place,
            sb,
            device,
            cache,
            journal: journal.map_err(journal_error)?,
            read_only,
            space: Arc::default(),
            free_inodes: RankedMutex::default(),
            epoch,
            stays_open: AtomicBool::new(false),
        };
        fs.space = Arc::new(fs.read_bitmap()?);
        for ino in (1..=u64::from(fs.sb.inodes.get())).map(Ino) {
            let raw = fs.raw_inode(ino)?;
            if raw.mode.get() == 0 {
                fs.free_inodes.lock().insert(ino);
            } else if raw.nlink.get() == 0 {
                // An orphan. Loading checks it.
                fs.load_inode(ino)?;
                fs.delete(ino, raw)?;
            }
        }
        Ok(fs)
    }
}
