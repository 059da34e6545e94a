//! Changes, runs, and the dirty mark, which says that a session did not end cleanly.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ivers_block::{BlockNo, Buffer, BufferCache, Contents, Timer, write_in_place};
use ivers_sync::{Held, rank};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::batch::Batch;
use crate::{OrderedError, Result};

pub(crate) const STAGES: usize = 5;
/// Tells the timer to run as soon as possible.
const RUN: u32 = 1;

/// When a change is written within its batch; see the crate documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// What nothing points to yet.
    Fresh,
    /// A name that is removed; a chain that becomes longer than its size requires.
    Detach,
    /// A change of a detached object.
    Turn,
    /// A name that is added, a size, a first block.
    Attach,
    /// A chain that becomes as short as its size requires.
    Cut,
}

/// What a format does for write ordering.
///
/// Both methods are called with a change open and no other lock held. They may take the driver's locks and
/// must not open a change.
pub trait Volume: Send + Sync {
    /// Sets (`dirty`) or removes the dirty mark of the volume.
    fn mark(&self, change: &Change<'_>, dirty: bool) -> Result<()>;
    /// Marks ranges as free: no pointer on the medium leads to them. They were passed to [`Change::free`], in
    /// a unit of the driver's choice.
    fn release(&self, change: &Change<'_>, freed: &[Range<u64>]) -> Result<()>;
}

/// Blocks that the format keeps in several copies. A driver changes the first copy; each write also goes to
/// the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// The blocks of the first copy.
    pub first: Range<BlockNo>,
    /// The number of further copies, which follow the first without gaps.
    pub copies: u64,
}

impl Mirror {
    /// Returns those of `blocks` that have copies, with the block numbers of copy `nth`.
    fn of(&self, blocks: &[(BlockNo, Contents)], nth: u64) -> Vec<(BlockNo, Contents)> {
        let len = self.first.end - self.first.start;
        let inside = blocks.iter().filter(|(block, _)| self.first.contains(block));
        inside.map(|(block, data)| (*block + nth * len, data.clone())).collect()
    }
}

/// Options of write ordering for a volume.
#[derive(Debug, Clone)]
pub struct OrderedOptions {
    /// Approximate longest time from a change to its write.
    pub interval: Duration,
    /// Bytes of unwritten blocks that start a run earlier.
    pub waiting_bytes: u64,
    /// Blocks that are kept in several copies.
    pub mirror: Option<Mirror>,
}

impl Default for OrderedOptions {
    /// Five seconds (as for ext4's commits), 16 MiB, no copies.
    fn default() -> Self {
        Self { interval: Duration::from_secs(5), waiting_bytes: 16 << 20, mirror: None }
    }
}

/// The batch of a change, for [`Ordered::settle`]. The default ticket is durable already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(u64);

/// Statistics since the volume was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Batches written.
    pub runs: u64,
    /// Blocks written, including copies. A block counts once for each stage that changes it.
    pub blocks: u64,
    /// Flushes.
    pub flushes: u64,
}

struct State {
    batch: Batch,
    /// The number of the batch that collects changes.
    collecting: u64,
    /// All batches below this are durable.
    durable_below: u64,
    marked: bool,
    closed: bool,
    failed: Option<String>,
}

impl State {
    fn check(&self) -> Result<()> {
        match &self.failed {
            Some(cause) => Err(OrderedError::Stopped { cause: cause.clone() }),
            None if self.closed => Err(OrderedError::Closed),
            None => Ok(()),
        }
    }
}

struct Inner {
    cache: Arc<BufferCache>,
    volume: Arc<dyn Volume>,
    options: OrderedOptions,
    running: Mutex<()>,
    gate: RwLock<()>,
    state: Mutex<State>,
    timer: Timer,
    runs: AtomicU64,
    blocks: AtomicU64,
    flushes: AtomicU64,
}

/// Write ordering for one volume; see the crate documentation.
pub struct Ordered {
    inner: Arc<Inner>,
}

/// Changes that belong to one batch. No batch closes while a change is open, so keep it short.
pub struct Change<'a> {
    inner: &'a Inner,
    // Dropped in this order.
    _gate: RwLockReadGuard<'a, ()>,
    /// `None` in a run: its caller has waited already.
    _held: Option<Held>,
}

/// Debug builds count an open change, and a wait for a batch, as a lock of this rank: a batch waits for open
/// changes.
fn held() -> Held {
    Held::before_waiting::<rank::Handle>()
}

impl Change<'_> {
    /// Changes a buffer. `edit` runs once for each version that includes the stage, so it must set bytes
    /// without reading them.
    pub fn put(&self, buffer: &Arc<Buffer>, stage: Stage, edit: impl Fn(&mut [u8])) {
        self.inner.state.lock().batch.put(buffer, stage, &edit);
    }

    /// Returns the buffer of a block that nothing points to, filled with zeros.
    pub fn fresh(&self, block: BlockNo) -> Result<Arc<Buffer>> {
        let mut state = self.inner.state.lock();
        let buffer = self.inner.cache.get_zeroed(block)?;
        state.batch.put(&buffer, Stage::Fresh, &|bytes| bytes.fill(0));
        Ok(buffer)
    }

    /// Frees a range that was in use, in a unit of the driver's choice. It stays marked as used until
    /// [`Volume::release`].
    pub fn free(&self, what: Range<u64>) {
        if what.is_empty() {
            return;
        }
        let mut state = self.inner.state.lock();
        state.batch.since.get_or_insert_with(std::time::Instant::now);
        match state.batch.freed.last_mut() {
            Some(last) if last.end == what.start => last.end = what.end,
            _ => state.batch.freed.push(what),
        }
    }

    /// Returns the ticket with which [`Ordered::settle`] makes this change durable.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.inner.state.lock().collecting)
    }
}

impl Ordered {
    /// Starts write ordering for the metadata of `volume`, which are blocks of `cache`. Writes nothing yet.
    pub fn new(cache: Arc<BufferCache>, volume: Arc<dyn Volume>, options: OrderedOptions) -> Result<Self> {
        let state = State {
            batch: Batch::default(),
            collecting: 1,
            durable_below: 1,
            marked: false,
            closed: false,
            failed: None,
        };
        let interval = options.interval;
        let inner = Arc::new(Inner {
            cache,
            volume,
            options,
            running: Mutex::new(()),
            gate: RwLock::new(()),
            state: Mutex::new(state),
            timer: Timer::default(),
            runs: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
        });
        inner.timer.start("ivers-order", Arc::downgrade(&inner), interval, move |inner: &Inner, bits| {
            let due = {
                let state = inner.state.lock();
                if state.check().is_err() {
                    return ControlFlow::Break(());
                }
                state.batch.since.is_some_and(|since| since.elapsed() >= interval / 2)
            };
            if bits & RUN != 0 || due {
                // An error stops all writing, and later calls report it.
                let _ = inner.run();
            }
            ControlFlow::Continue(())
        })?;
        Ok(Self { inner })
    }

    /// Makes the dirty mark durable. Call it before data is written in place; [`Ordered::change`] does so
    /// itself.
    pub fn begin(&self) -> Result<()> {
        let _held = held();
        self.inner.begin()
    }

    /// Opens a change. The caller holds no lock of its driver and no other change.
    pub fn change(&self) -> Result<Change<'_>> {
        let held = held();
        self.inner.begin()?;
        let limit = self.inner.options.waiting_bytes / u64::from(self.inner.cache.block_size());
        let waiting = self.inner.state.lock().batch.blocks();
        if waiting > 2 * limit {
            self.inner.run()?;
        } else if waiting > limit {
            self.inner.timer.request(RUN);
        }
        let gate = self.inner.gate.read();
        self.inner.state.lock().check()?;
        Ok(Change { inner: &self.inner, _gate: gate, _held: Some(held) })
    }

    /// Makes durable all changes and all file data written before this call.
    pub fn sync(&self) -> Result<()> {
        let _held = held();
        self.inner.run()
    }

    /// Makes the batch of a change durable. Costs nothing if it is durable already.
    pub fn settle(&self, ticket: Ticket) -> Result<()> {
        let _held = held();
        let durable = {
            let state = self.inner.state.lock();
            state.check()?;
            ticket.0 < state.durable_below
        };
        if durable { Ok(()) } else { self.inner.run() }
    }

    /// Makes freed ranges available for allocation. Returns whether there were any.
    pub fn release(&self) -> Result<bool> {
        let _held = held();
        let freed = !self.inner.state.lock().batch.freed.is_empty();
        if freed {
            self.inner.run()?;
        }
        Ok(freed)
    }

    /// Makes all changes durable, removes the dirty mark and refuses further changes.
    pub fn close(&self) -> Result<()> {
        let _held = held();
        self.inner.timer.stop();
        // The first run makes removed pointers durable; the second one marks their ranges as free.
        self.inner.run()?;
        self.inner.run()?;
        let _running = self.inner.running.lock();
        let mut state = self.inner.state.lock();
        state.check()?;
        let marked = std::mem::take(&mut state.marked);
        drop(state);
        if marked {
            self.inner.mark(false)?;
        }
        self.inner.state.lock().closed = true;
        Ok(())
    }

    /// Stops all writing because what is in memory cannot be trusted.
    pub fn stop(&self, cause: impl std::fmt::Display) {
        self.inner.state.lock().failed.get_or_insert_with(|| cause.to_string());
    }

    /// Returns an error if writing has stopped or the volume is closed.
    pub fn check(&self) -> Result<()> {
        self.inner.state.lock().check()
    }

    /// Returns why writing stopped, if it did.
    pub fn stopped(&self) -> Option<String> {
        self.inner.state.lock().failed.clone()
    }

    /// Returns the statistics so far.
    pub fn figures(&self) -> Figures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            runs: get(&self.inner.runs),
            blocks: get(&self.inner.blocks),
            flushes: get(&self.inner.flushes),
        }
    }
}

impl Inner {
    fn begin(&self) -> Result<()> {
        {
            let state = self.state.lock();
            state.check()?;
            if state.marked {
                return Ok(());
            }
        }
        let _running = self.running.lock();
        if self.state.lock().marked {
            return Ok(());
        }
        self.mark(true)?;
        self.state.lock().marked = true;
        Ok(())
    }

    /// Returns `result`; an error stops all writing.
    fn or_stop<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.state.lock().failed.get_or_insert_with(|| error.to_string());
        }
        result
    }

    /// Writes one batch. Flushes even if the batch is empty.
    fn run(&self) -> Result<()> {
        let _running = self.running.lock();
        self.run_alone()
    }

    /// As [`Inner::run`]. The caller holds `running`.
    fn run_alone(&self) -> Result<()> {
        let (batch, number) = {
            // Holding the gate means that no change is incomplete.
            let _gate = self.gate.write();
            let mut state = self.state.lock();
            state.check()?;
            let number = state.collecting;
            state.collecting += 1;
            (std::mem::take(&mut state.batch), number)
        };
        let written = self.write(&batch);
        self.or_stop(written)?;
        self.state.lock().durable_below = number + 1;
        if !batch.freed.is_empty() {
            let change = Change { inner: self, _gate: self.gate.read(), _held: None };
            let released = self.volume.release(&change, &batch.freed);
            self.or_stop(released)?;
        }
        self.runs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        let device = self.cache.device();
        let size = self.cache.block_size();
        let mut later_stage = false;
        for stage in 0..STAGES {
            let blocks = batch.of_stage(stage);
            // The first stage always flushes: file data was written before it.
            if blocks.is_empty() && later_stage {
                continue;
            }
            write_in_place(&**device, size, &blocks)?;
            self.blocks.fetch_add(blocks.len() as u64, Ordering::Relaxed);
            if let Some(mirror) = &self.options.mirror {
                for nth in 1..=mirror.copies {
                    let copies = mirror.of(&blocks, nth);
                    write_in_place(&**device, size, &copies)?;
                    self.blocks.fetch_add(copies.len() as u64, Ordering::Relaxed);
                }
            }
            device.flush()?;
            self.flushes.fetch_add(1, Ordering::Relaxed);
            later_stage = true;
        }
        Ok(())
    }

    /// Sets or removes the dirty mark durably, with no other change in its batch. The caller holds `running`.
    fn mark(&self, dirty: bool) -> Result<()> {
        let marked = {
            let change = Change { inner: self, _gate: self.gate.read(), _held: None };
            self.volume.mark(&change, dirty)
        };
        self.or_stop(marked)?;
        self.run_alone()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.timer.stop();
    }
}
