//! Changes, runs, and the mark that tells of a session that did not end.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ivers_block::{Buffer, BufferCache, Timer, write_home};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::batch::Batch;
use crate::{OrderedError, Result};

pub(crate) const STAGES: usize = 5;
/// A wish to the timer: run as soon as possible.
const RUN: u32 = 1;

/// When a change goes home, within its batch; see the crate's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// What nothing points to yet.
    Fresh,
    /// A name that goes; a chain that becomes longer than it must be.
    Detach,
    /// What is changed of something while it is detached.
    Turn,
    /// A name that comes, a size, a first block.
    Attach,
    /// A chain that becomes no longer than it must be.
    Cut,
}

/// What the format does for the order of writes.
///
/// Both calls are made with a change open and no other lock held: they may take the driver's locks, but open no change.
pub trait Volume: Send + Sync {
    /// Say on the volume that somebody is at work on it, or that he has finished.
    fn mark(&self, change: &Change<'_>, at_work: bool) -> Result<()>;
    /// Mark these as free: nothing on the medium points to them any more. They are what was given to [`Change::free`], in the driver's own unit.
    fn release(&self, change: &Change<'_>, freed: &[Range<u64>]) -> Result<()>;
}

/// Blocks that are kept in several copies: each is written with the first, so that a driver changes only that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// The blocks of the first copy.
    pub first: Range<u64>,
    /// How many copies follow it, one behind the other.
    pub copies: u64,
}

impl Mirror {
    /// The parts of sorted blocks that have copies, as they are written to copy `nth`.
    fn of(&self, blocks: &[(u64, Arc<[u8]>)], nth: u64) -> Vec<(u64, Arc<[u8]>)> {
        let len = self.first.end - self.first.start;
        let inside = blocks.iter().filter(|(block, _)| self.first.contains(block));
        inside.map(|(block, data)| (block + nth * len, data.clone())).collect()
    }
}

/// How a volume is kept in order.
#[derive(Debug, Clone)]
pub struct OrderedOptions {
    /// A change goes home at the latest about this long after it was made.
    pub interval: Duration,
    /// Or when so many bytes of blocks are waiting.
    pub waiting_bytes: u64,
    /// What is kept in several copies.
    pub mirror: Option<Mirror>,
}

impl Default for OrderedOptions {
    /// Five seconds as ext4's commits, 16 MiB, no copies.
    fn default() -> Self {
        Self { interval: Duration::from_secs(5), waiting_bytes: 16 << 20, mirror: None }
    }
}

/// Names the batch that a change is in: what [`Ordered::settle`] makes durable. The default is durable already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(u64);

/// Counts since the volume was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Batches that went home.
    pub runs: u64,
    /// Blocks written, copies included; one that several stages change counts for each.
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

/// The order of writes of one volume: see the crate's page.
pub struct Ordered {
    inner: Arc<Inner>,
}

/// Changes that belong together. While it is open no batch is closed: keep it short.
pub struct Change<'a> {
    inner: &'a Inner,
    _gate: RwLockReadGuard<'a, ()>,
}

impl Change<'_> {
    /// Changes a buffer; `edit` is applied to each version of it that has the stage's changes, so it sets bytes and depends on none.
    pub fn put(&self, buffer: &Arc<Buffer>, stage: Stage, edit: impl Fn(&mut [u8])) {
        self.inner.state.lock().batch.put(buffer, stage, &edit);
    }

    /// A block that nothing points to, filled with zeros.
    pub fn fresh(&self, block: u64) -> Result<Arc<Buffer>> {
        let mut state = self.inner.state.lock();
        let buffer = self.inner.cache.get_zeroed(block)?;
        state.batch.put(&buffer, Stage::Fresh, &|bytes| bytes.fill(0));
        Ok(buffer)
    }

    /// Gives up what something has pointed to, in the driver's own unit. It stays marked as taken until [`Volume::release`].
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

    /// What makes this change durable when it is settled.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.inner.state.lock().collecting)
    }
}

impl Ordered {
    /// Keeps the metadata of `volume` in order, which are blocks of `cache`. Nothing is written yet.
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
        inner.timer.start(
            "ivers-order",
            Arc::downgrade(&inner),
            interval,
            move |inner: &Inner, wishes| {
                let due = {
                    let state = inner.state.lock();
                    if state.check().is_err() {
                        return ControlFlow::Break(());
                    }
                    state.batch.since.is_some_and(|since| since.elapsed() >= interval / 2)
                };
                if wishes & RUN != 0 || due {
                    // An error stops all writing, which is how everybody learns of it.
                    let _ = inner.run();
                }
                ControlFlow::Continue(())
            },
        )?;
        Ok(Self { inner })
    }

    /// Has the dirty mark on the medium. Before data is written in place; [`Ordered::change`] calls it by itself.
    pub fn begin(&self) -> Result<()> {
        {
            let state = self.inner.state.lock();
            state.check()?;
            if state.marked {
                return Ok(());
            }
        }
        let _running = self.inner.running.lock();
        if self.inner.state.lock().marked {
            return Ok(());
        }
        self.inner.mark(true)?;
        self.inner.state.lock().marked = true;
        Ok(())
    }

    /// Opens a change. Under none of the driver's locks, and not twice by one thread.
    pub fn change(&self) -> Result<Change<'_>> {
        self.begin()?;
        let limit = self.inner.options.waiting_bytes / u64::from(self.inner.cache.block_size());
        let waiting = self.inner.state.lock().batch.blocks();
        if waiting > 2 * limit {
            self.inner.run()?;
        } else if waiting > limit {
            self.inner.timer.wish(RUN);
        }
        let gate = self.inner.gate.read();
        self.inner.state.lock().check()?;
        Ok(Change { inner: &self.inner, _gate: gate })
    }

    /// Makes everything durable that was changed, and all file data that was written, before this call.
    pub fn sync(&self) -> Result<()> {
        self.inner.run()
    }

    /// Makes a change durable, and whatever is in its batch. Free if it is already.
    pub fn settle(&self, ticket: Ticket) -> Result<()> {
        let durable = {
            let state = self.inner.state.lock();
            state.check()?;
            ticket.0 < state.durable_below
        };
        if durable { Ok(()) } else { self.inner.run() }
    }

    /// Brings home what was freed too: afterwards all that is free can be given to somebody. True if anything was waiting for that.
    pub fn release(&self) -> Result<bool> {
        let freed = !self.inner.state.lock().batch.freed.is_empty();
        if freed {
            self.inner.run()?;
        }
        Ok(freed)
    }

    /// Makes everything durable, takes the dirty mark away and refuses further changes.
    pub fn close(&self) -> Result<()> {
        self.inner.timer.stop();
        // A second run marks as free what the first one has made sure of.
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

    /// Writes nothing more: what is in memory cannot be trusted.
    pub fn stop(&self, cause: impl std::fmt::Display) {
        self.inner.state.lock().failed.get_or_insert_with(|| cause.to_string());
    }

    /// Refuses where nothing is written any more.
    pub fn check(&self) -> Result<()> {
        self.inner.state.lock().check()
    }

    /// Why nothing is written any more, if so.
    pub fn stopped(&self) -> Option<String> {
        self.inner.state.lock().failed.clone()
    }

    /// Counts so far.
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
    /// Passes a result on; an error stops all writing.
    fn or_stop<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.state.lock().failed.get_or_insert_with(|| error.to_string());
        }
        result
    }

    /// Brings one batch home, and flushes in any case.
    fn run(&self) -> Result<()> {
        let _running = self.running.lock();
        self.run_alone()
    }

    /// The same, by who holds `running`.
    fn run_alone(&self) -> Result<()> {
        let (batch, number) = {
            // No change is half made behind this.
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
            let change = Change { inner: self, _gate: self.gate.read() };
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
            // The first stage flushes in any case: file data was written before it.
            if blocks.is_empty() && later_stage {
                continue;
            }
            write_home(&**device, size, &blocks)?;
            self.blocks.fetch_add(blocks.len() as u64, Ordering::Relaxed);
            if let Some(mirror) = &self.options.mirror {
                for nth in 1..=mirror.copies {
                    let copies = mirror.of(&blocks, nth);
                    write_home(&**device, size, &copies)?;
                    self.blocks.fetch_add(copies.len() as u64, Ordering::Relaxed);
                }
            }
            device.flush()?;
            self.flushes.fetch_add(1, Ordering::Relaxed);
            later_stage = true;
        }
        Ok(())
    }

    /// Sets or takes away the dirty mark, durably and alone. The caller holds `running`.
    fn mark(&self, at_work: bool) -> Result<()> {
        let marked = {
            let change = Change { inner: self, _gate: self.gate.read() };
            self.volume.mark(&change, at_work)
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
