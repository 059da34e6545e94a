//! Cuts the power at every write, recovers, and compares with a model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ivers_block::{BlockNo, Device, FaultDevice};
use ivers_journal::{Handle, LogObject};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::driver::*;
use crate::log::RangeLog;

/// Every handle writes its number into cell 0.
const STAMP: u64 = 300;
/// Blocks that are freed and reused, as metadata and as file data.
const BLOCKS: std::ops::Range<u64> = 301..311;
const CLUSTERS: std::ops::Range<u64> = 320..322;
/// Blocks to whose cells the intents add.
const SUMS: std::ops::Range<u64> = 330..332;
const STEPS: u64 = 110;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    /// Logged.
    Meta,
    /// Freed: any contents.
    Free,
    /// File data, written past the journal.
    Data(u64),
}

/// What a crash must leave after a handle.
#[derive(Clone, Default)]
struct Model {
    content: BTreeMap<u64, Content>,
    /// Cells of metadata blocks and clusters.
    cells: BTreeMap<(u64, u64), u64>,
    cores: BTreeMap<(u64, u64), u64>,
    intents: BTreeSet<Intent>,
    /// What the cells of `SUMS` are when every intent is done.
    sums: BTreeMap<(u64, u64), u64>,
}

struct Run {
    rng: StdRng,
    device: Arc<FaultDevice>,
    fs: Fs,
    model: Model,
    history: Vec<Model>,
    /// Length of the record, and the newest handle that is durable then.
    acknowledged: Vec<(usize, u64)>,
    /// Blocks that were freed, and whether that is durable.
    freed: BTreeMap<u64, Arc<AtomicBool>>,
    relogged: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let device = Arc::new(FaultDevice::new(Arc::new(formatted())));
        let fs = Fs::open(device.clone());
        let mut model = Model::default();
        BLOCKS.for_each(|block| {
            model.content.insert(block, Content::Free);
        });
        let history = vec![model.clone()];
        let rng = StdRng::seed_from_u64(seed);
        Self {
            rng,
            device,
            fs,
            model,
            history,
            acknowledged: vec![(0, 0)],
            freed: BTreeMap::new(),
            relogged: 0,
        }
    }

    fn set_cell(&mut self, handle: &Handle, block: u64, n: u64) {
        let number = self.rng.random_range(0..CELLS);
        self.fs.set(handle, block, number, n);
        self.model.cells.insert((block, number), n);
    }

    fn initialize(&mut self, handle: &Handle, block: u64, n: u64) {
        self.fs.initialize(handle, block, n);
        (0..CELLS).for_each(|number| {
            self.model.cells.insert((block, number), n);
        });
    }

    fn free(&mut self, handle: &Handle, block: u64) {
        handle.forget(BlockNo(block));
        let durable = Arc::new(AtomicBool::new(false));
        self.freed.insert(block, durable.clone());
        handle.on_commit(Box::new(move || durable.store(true, Ordering::SeqCst)));
        self.model.content.insert(block, Content::Free);
        self.model.cells.retain(|&(of, _), _| of != block);
    }

    fn change_block(&mut self, handle: &Handle, block: u64, n: u64) {
        let reusable = self.freed.get(&block).is_none_or(|durable| durable.load(Ordering::SeqCst));
        match self.model.content[&block] {
            Content::Meta if self.rng.random_bool(0.25) => self.free(handle, block),
            Content::Meta => self.set_cell(handle, block, n),
            Content::Free if reusable && self.rng.random_bool(0.5) => {
                let data = n.to_le_bytes().repeat(BLOCK as usize / 8);
                self.device.write_at(BlockNo(block).offset(BLOCK), &data).unwrap();
                self.model.content.insert(block, Content::Data(n));
            }
            // As metadata it may be reused before the commit.
            Content::Free => {
                self.initialize(handle, block, n);
                self.model.content.insert(block, Content::Meta);
            }
            Content::Data(_) => {
                let durable = Arc::new(AtomicBool::new(false));
                self.freed.insert(block, durable.clone());
                handle.on_commit(Box::new(move || durable.store(true, Ordering::SeqCst)));
                self.model.content.insert(block, Content::Free);
            }
        }
    }

    fn change_cluster(&mut self, handle: &Handle, block: u64, n: u64) {
        match self.rng.random_range(0..10) {
            // The cores are freed and created again, in one transaction.
            0 => {
                handle.forget(BlockNo(block));
                self.initialize(handle, block, n);
                (0..CORES).for_each(|core| {
                    self.model.cores.insert((block, core), n);
                });
            }
            1..4 => self.set_cell(handle, block, n),
            _ => {
                let core = self.rng.random_range(0..CORES);
                let object: Arc<dyn LogObject> = Core::new(block, core, n);
                handle.log_object(&object).unwrap();
                self.model.cores.insert((block, core), n);
            }
        }
    }

    fn promise(&mut self, handle: &Handle, n: u64) {
        let intent = Intent {
            number: n,
            block: self.rng.random_range(SUMS),
            cell: self.rng.random_range(0..CELLS),
            add: n,
        };
        let object: Arc<dyn LogObject> = Arc::new(intent);
        handle.log_object(&object).unwrap();
        self.model.intents.insert(intent);
        *self.model.sums.entry((intent.block, intent.cell)).or_default() += intent.add;
    }

    /// Finishes an intent, or replaces it by another one as a rolling transaction does.
    fn proceed(&mut self, intent: Intent, n: u64) {
        let handle = self.fs.journal.begin_finishing(intent.id(), 700).unwrap();
        self.model.intents.remove(&intent);
        if self.rng.random_bool(0.2) {
            let next = Intent { number: n + 10_000, ..intent };
            let object: Arc<dyn LogObject> = Arc::new(next);
            handle.log_object(&object).unwrap();
            handle.finish_object(intent.id(), Some(Vec::new()));
            self.model.intents.insert(next);
            self.relogged += 1;
        } else {
            self.fs.finish(&handle, intent);
        }
        self.end(handle, n);
    }

    /// Ends the handle with number `n`.
    fn end(&mut self, handle: Handle, n: u64) {
        self.fs.set(&handle, STAMP, 0, n);
        drop(handle);
        self.history.push(self.model.clone());
    }

    fn commit(&mut self, n: u64) {
        self.fs.journal.commit_all().unwrap();
        self.acknowledged.push((self.device.len(), n));
    }

    fn step(&mut self, n: u64) {
        while let Some(id) = self.fs.journal.push(70).unwrap() {
            if let Some(&oldest) = self.model.intents.iter().find(|i| i.id() == id) {
                return self.proceed(oldest, n);
            }
            // It is finished, but not durably.
            self.commit(n - 1);
        }
        if self.model.intents.len() >= 3 || !self.model.intents.is_empty() && self.rng.random_bool(0.2) {
            let at = self.rng.random_range(0..self.model.intents.len());
            let intent = *self.model.intents.iter().nth(at).unwrap();
            return self.proceed(intent, n);
        }
        let handle = self.fs.journal.begin(CREDITS).unwrap();
        let mut touched = BTreeSet::new();
        for _ in 0..self.rng.random_range(1..4) {
            match self.rng.random_range(0..10) {
                0 if touched.insert(0) => self.promise(&handle, n),
                1..5 => {
                    let cluster = self.rng.random_range(CLUSTERS);
                    self.change_cluster(&handle, cluster, n);
                }
                _ => {
                    let block = self.rng.random_range(BLOCKS);
                    if touched.insert(block) {
                        self.change_block(&handle, block, n);
                    }
                }
            }
        }
        self.end(handle, n);
    }
}

/// Finishes what recovery reports and expects every sum.
fn finish_and_check(device: Arc<dyn Device>, log: RangeLog, intents: &[Intent], model: &Model, place: &str) {
    let fs = Fs::with_log(device.clone(), log);
    if !intents.is_empty() {
        assert!(fs.journal.begin(1).is_err(), "{place}: handles begin before the intents are adopted");
    }
    fs.finish_recovered(intents);
    fs.journal.shutdown().unwrap();
    for (&(block, number), &sum) in &model.sums {
        assert_eq!(cell_on(&*device, block, number), sum, "{place}: block {block}, cell {number}");
    }
    let (mut log, recovered) = recover(&device);
    assert!(recovered.intents.is_empty(), "{place}: reported again");
    assert!(!ivers_journal::LogFormat::needs_recovery(&log), "{place}");
    log.recover(&mut Recovered::default()).unwrap();
}

/// Compares the device with the model of the newest handle that recovery found.
fn check<'a>(
    device: &dyn Device,
    intents: &[Intent],
    history: &'a [Model],
    must: u64,
    place: &str,
) -> &'a Model {
    let newest = cell_on(device, STAMP, 0);
    assert!(newest >= must, "{place}: {must} was acknowledged, found {newest}");
    let model = &history[newest as usize];
    for (&(block, number), &n) in &model.cells {
        assert_eq!(cell_on(device, block, number), n, "{place}: at {newest}, block {block}, cell {number}");
    }
    for (&(block, core), &n) in &model.cores {
        assert_eq!(core_on(device, block, core), n, "{place}: at {newest}, block {block}, core {core}");
    }
    for (&block, &content) in &model.content {
        if let Content::Data(n) = content {
            let data = n.to_le_bytes().repeat(BLOCK as usize / 8);
            assert!(read(device, block) == data, "{place}: at {newest}, block {block} lost its data");
        }
    }
    let expected: Vec<Intent> = model.intents.iter().copied().collect();
    let mut found = intents.to_vec();
    found.sort_unstable();
    assert_eq!(found, expected, "{place}: at {newest}, unfinished intents");
    model
}

fn run(seed: u64) {
    let mut run = Run::new(seed);
    for n in 1..=STEPS {
        run.step(n);
        if n % 2 == 0 || run.rng.random_bool(0.3) {
            run.commit(n);
        }
        if run.rng.random_bool(0.1) {
            run.fs.journal.push(100).unwrap();
        }
    }
    run.commit(STEPS);
    let stats = run.fs.journal.stats();
    assert!(stats.checkpoints > 3 && stats.revokes > 0 && run.relogged > 0, "seed {seed}: {stats:?}");
    let Run { device, history, acknowledged, .. } = run;
    let mut unfinished = 0;
    // A transaction writes the stamp always: one LSN goes with one handle.
    let mut stamps: BTreeMap<u64, u64> = BTreeMap::new();
    for cut in 0..=device.len() {
        let must = acknowledged.iter().filter(|&&(len, _)| len <= cut).map(|&(_, n)| n).max().unwrap();
        for round in 0..3 {
            let mut coin = StdRng::seed_from_u64(seed ^ (cut as u64) << 8 ^ round);
            let kept: Vec<bool> = (0..cut).map(|_| round == 0 || coin.random_bool(0.5)).collect();
            let image: Arc<dyn Device> = Arc::new(device.image_where(cut, |i| kept[i]).unwrap());
            let place = format!("seed {seed}, cut {cut}, round {round}");
            let lsn = stamped_lsn(&*image, STAMP);
            let n = cell_on(&*image, STAMP, 0);
            assert_eq!(*stamps.entry(lsn).or_insert(n), n, "{place}: LSN {lsn} is not that of these bytes");
            CLUSTERS.chain(SUMS).for_each(|block| {
                stamped_lsn(&*image, block);
            });
            let (log, recovered) = recover(&image);
            let model = check(&*image, &recovered.intents, &history, must, &place);
            unfinished += recovered.intents.len();
            // As after a crash at the end of recovery.
            let (_, again) = recover(&image);
            check(&*image, &again.intents, &history, must, &place);
            if round == 0 {
                finish_and_check(image, log, &recovered.intents, model, &place);
            } else if !recovered.intents.is_empty() && cut % 4 == 0 {
                cut_while_finishing(image, log, &recovered.intents, model, &mut coin, &place);
            }
        }
    }
    assert!(unfinished > 100, "seed {seed}: the cuts leave too few intents");
}

/// Cuts the power while the intents are finished, recovers again, and finishes the rest.
fn cut_while_finishing(
    image: Arc<dyn Device>,
    log: RangeLog,
    intents: &[Intent],
    model: &Model,
    coin: &mut StdRng,
    place: &str,
) {
    let recording = Arc::new(FaultDevice::new(image));
    // The log was opened on the image: open it again on the recording.
    drop(log);
    let (log, again) = recover(&(recording.clone() as Arc<dyn Device>));
    assert_eq!(again.intents, intents);
    let fs = Fs::with_log(recording.clone(), log);
    fs.finish_recovered(intents);
    fs.journal.shutdown().unwrap();
    let cut = coin.random_range(0..=recording.len());
    let kept: Vec<bool> = (0..cut).map(|_| coin.random_bool(0.5)).collect();
    let image: Arc<dyn Device> = Arc::new(recording.image_where(cut, |i| kept[i]).unwrap());
    let (log, rest) = recover(&image);
    finish_and_check(image, log, &rest.intents, model, &format!("{place}, cut again at {cut}"));
}

#[test]
fn every_crash_state_recovers() {
    for seed in 0..6 {
        run(seed);
    }
}
