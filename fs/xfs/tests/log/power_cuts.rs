//! Cuts the power at every write, replays the log in place, and compares with a model.

use crate::volume::{INODE, Volume, superblock};
use ivers_block::{BlockNo, ByteOffset, Device, FaultDevice, MemDevice, OverlayDevice, Unit};
use ivers_journal::{Handle, ObjectId};
use ivers_xfs::layout::checksum::SelfDescription;
use ivers_xfs::layout::superblock::Superblock;
use ivers_xfs::log::open_for_writing;
use ivers_xfs::mkfs::{MkfsOptions, mkfs};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BYTES: u64 = 64 << 20;
const BLOCK: usize = 4096;
const STEPS: u64 = 90;
/// Free inodes, and the root.
const INODES: std::ops::Range<u64> = 0..60;
/// The first of the blocks that are freed and reused, in the first group. Nothing else uses them.
const SPACE: u64 = 2000;
const UNITS: usize = 6;

/// A place that a handle changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cell {
    /// Unused bytes at the end of the list of free blocks: the number of the newest handle.
    Newest,
    /// The time of an inode.
    Inode(u64),
    /// A link between unlinked inodes.
    Link(u64),
    /// Unused bytes of the root of a B-tree.
    Root(u64, u64),
    /// Unused bytes of the head of a group.
    Head(u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    /// Logged, with this number in each block.
    Meta(u64),
    Free,
    /// File data, written past the journal.
    Data(u64),
}

/// What a crash must leave after a handle.
#[derive(Clone, Default)]
struct Model {
    cells: BTreeMap<Cell, u32>,
    units: Vec<Option<Content>>,
}

/// An image with a log that is so short that each run goes around it.
pub fn formatted(sector_size: u32, inode_size: u32, log_blocks: u32) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(BYTES));
    let options = MkfsOptions {
        uuid: [0x5A; 16],
        small: true,
        zeroed: true,
        sector_size,
        inode_size,
        groups: Some(2),
        ..MkfsOptions::default()
    };
    mkfs(&*device, &options).unwrap();
    let mut sector = vec![0; sector_size as usize];
    device.read_at(ByteOffset(0), &mut sector).unwrap();
    // `sb_logblocks`.
    sector[96..100].copy_from_slice(&log_blocks.to_be_bytes());
    SelfDescription::of(&sector).unwrap().seal(&mut sector, 0);
    device.write_at(ByteOffset(0), &sector).unwrap();
    device
}

fn first_inode(sb: &Superblock) -> u64 {
    sb.root
}

/// The block and the offset in it of a cell.
fn place(sb: &Superblock, cell: Cell) -> (BlockNo, usize) {
    let in_sector = |sector: u32, at: usize| {
        let byte = (sector * sb.sector_size) as usize + at;
        (BlockNo((byte / BLOCK) as u64), byte % BLOCK)
    };
    let in_inode = |number: u64, at: usize| {
        let (block, offset) = sb.inode_place(first_inode(sb) + number).unwrap();
        (block, offset + at)
    };
    match cell {
        Cell::Newest => in_sector(3, 400),
        Cell::Head(number) => in_sector(1 + number as u32 % 2, 480 + number as usize / 2 * 4),
        // The low half of a time of 64 bits.
        Cell::Inode(number) => in_inode(number, 44),
        Cell::Link(number) => in_inode(number, 96),
        Cell::Root(tree, number) => {
            let first = if sb.sector_size == 512 { 1 } else { 4 };
            (BlockNo(first + tree), 2000 + number as usize * 200)
        }
    }
}

fn value_of(sb: &Superblock, device: &dyn Device, cell: Cell) -> u32 {
    let (block, at) = place(sb, cell);
    let mut bytes = [0; 4];
    device.read_at(block.offset(BLOCK as u32) + at as u64, &mut bytes).unwrap();
    u32::from_be_bytes(bytes)
}

/// The blocks of a unit: one, several in a row, or several that are apart.
fn unit(index: usize) -> Unit {
    let first = SPACE + index as u64 * 10;
    let blocks: &[u64] = match index % 3 {
        0 => &[0],
        1 => &[0, 1, 2],
        _ => &[0, 1, 5],
    };
    Unit::new(&blocks.iter().map(|block| BlockNo(first + block)).collect::<Vec<_>>())
}

fn read_unit(device: &dyn Device, unit: &Unit) -> Vec<u8> {
    let mut bytes = vec![0; unit.len() * BLOCK];
    for (block, part) in unit.iter().zip(bytes.chunks_exact_mut(BLOCK)) {
        device.read_at(block.offset(BLOCK as u32), part).unwrap();
    }
    bytes
}

/// What a metadata unit contains: a directory's data, as far as the log looks at it.
fn contents(sb: &Superblock, unit: &Unit, n: u64) -> Vec<u8> {
    let mut bytes = vec![0; unit.len() * BLOCK];
    for block in bytes.chunks_exact_mut(BLOCK) {
        block[100..108].copy_from_slice(&n.to_be_bytes());
        block[4000..4008].copy_from_slice(&n.to_be_bytes());
    }
    bytes[..4].copy_from_slice(b"XDD3");
    bytes[8..16].copy_from_slice(&sb.sector_of(unit.first()).to_be_bytes());
    bytes[24..40].copy_from_slice(&sb.meta_uuid);
    bytes
}

struct Run {
    rng: StdRng,
    device: Arc<FaultDevice>,
    volume: Volume,
    model: Model,
    history: Vec<Model>,
    /// Length of the record, and the newest handle that is durable then.
    acknowledged: Vec<(usize, u64)>,
    /// Units that were freed, and whether that is durable.
    freed: BTreeMap<usize, Arc<AtomicBool>>,
    /// Blocks that large transactions log in whole, beside others.
    big: u64,
}

impl Run {
    fn new(seed: u64, base: Arc<dyn Device>, model: Model, first: u64) -> Self {
        let device = Arc::new(FaultDevice::new(base));
        let (volume, _) = Volume::open(device.clone());
        let mut history = vec![Model::default(); first as usize];
        history.push(model.clone());
        let rng = StdRng::seed_from_u64(seed);
        let acknowledged = vec![(0, first)];
        let big = u64::from(volume.journal.max_credits()) / 8192;
        Self { rng, device, volume, model, history, acknowledged, freed: BTreeMap::new(), big }
    }

    fn set(&mut self, handle: &Handle, cell: Cell, n: u32) {
        let (block, at) = place(&self.volume.sb, cell);
        match cell {
            Cell::Inode(number) => {
                let ino = first_inode(&self.volume.sb) + number;
                self.volume.change(handle, ino, |inode| inode.put(44, &n.to_be_bytes()));
            }
            Cell::Link(number) => {
                let (unit, offset) = self.volume.place(first_inode(&self.volume.sb) + number);
                let buffer = self.volume.cache.get_unit(&unit).unwrap();
                handle.modify_range(&buffer, offset + 96..offset + 104, |bytes| {
                    // The write in place computes the checksum.
                    bytes.copy_from_slice(&[n.to_be_bytes(), [0; 4]].concat());
                });
            }
            _ => {
                let buffer = self.volume.cache.get(block).unwrap();
                handle.modify_range(&buffer, at..at + 4, |bytes| bytes.copy_from_slice(&n.to_be_bytes()));
            }
        }
        self.model.cells.insert(cell, n);
    }

    fn free(&mut self, handle: &Handle, index: usize) {
        handle.forget_unit(&unit(index));
        self.note_freed(handle, index);
    }

    fn note_freed(&mut self, handle: &Handle, index: usize) {
        let durable = Arc::new(AtomicBool::new(false));
        self.freed.insert(index, durable.clone());
        handle.on_commit(Box::new(move || durable.store(true, Ordering::SeqCst)));
        self.model.units[index] = Some(Content::Free);
    }

    fn change_unit(&mut self, handle: &Handle, index: usize, n: u64) {
        let reusable = self.freed.get(&index).is_none_or(|durable| durable.load(Ordering::SeqCst));
        let unit = unit(index);
        match self.model.units[index] {
            Some(Content::Meta(_)) if self.rng.random_bool(0.3) => self.free(handle, index),
            Some(Content::Meta(_)) => {
                let buffer = self.volume.cache.get_unit(&unit).unwrap();
                for block in 0..unit.len() {
                    for at in [100, 4000] {
                        let at = block * BLOCK + at;
                        handle.modify_range(&buffer, at..at + 8, |bytes| {
                            bytes.copy_from_slice(&n.to_be_bytes());
                        });
                    }
                }
                self.model.units[index] = Some(Content::Meta(n));
            }
            Some(Content::Data(_)) => self.note_freed(handle, index),
            _ if reusable && self.rng.random_bool(0.5) => {
                for block in unit.iter() {
                    let data = n.to_le_bytes().repeat(BLOCK / 8);
                    self.device.write_at(block.offset(BLOCK as u32), &data).unwrap();
                }
                self.model.units[index] = Some(Content::Data(n));
            }
            // As metadata they may be reused before the commit.
            _ => {
                let bytes = contents(&self.volume.sb, &unit, n);
                let buffer = self.volume.cache.new_unit(&unit).unwrap();
                handle.modify(&buffer, |all| all.copy_from_slice(&bytes));
                self.model.units[index] = Some(Content::Meta(n));
            }
        }
    }

    fn step(&mut self, n: u64) {
        let handle = self.volume.journal.begin(self.volume.journal.max_credits()).unwrap();
        let mut touched = BTreeSet::new();
        for _ in 0..self.rng.random_range(1..5) {
            let cell = match self.rng.random_range(0..6) {
                0 => Cell::Inode(self.rng.random_range(INODES)),
                1 => Cell::Inode(self.rng.random_range(0..4)),
                2 => Cell::Link(self.rng.random_range(INODES)),
                3 => Cell::Root(self.rng.random_range(0..3), self.rng.random_range(0..8)),
                4 => Cell::Head(self.rng.random_range(0..8)),
                _ => {
                    let index = self.rng.random_range(0..UNITS);
                    if touched.insert(index) {
                        self.change_unit(&handle, index, n);
                    }
                    continue;
                }
            };
            self.set(&handle, cell, n as u32);
        }
        // Some transactions take several records.
        if self.rng.random_bool(0.3) {
            for tree in 0..3 {
                let (root, _) = place(&self.volume.sb, Cell::Root(tree, 0));
                handle.modify(&self.volume.cache.get(root).unwrap(), |_| ());
            }
            for block in BlockNo(SPACE + 100).run(self.big) {
                let buffer = self.volume.cache.get(block).unwrap();
                handle.modify(&buffer, |_| ());
            }
            for index in 0..2 {
                if matches!(self.model.units[index], Some(Content::Meta(_))) {
                    let buffer = self.volume.cache.get_unit(&unit(index)).unwrap();
                    handle.modify(&buffer, |_| ());
                }
            }
        }
        self.set(&handle, Cell::Newest, n as u32);
        drop(handle);
        self.history.push(self.model.clone());
    }

    fn commit(&mut self, n: u64) {
        self.volume.journal.commit_all().unwrap();
        self.acknowledged.push((self.device.len(), n));
    }

    /// Handles `from..=to`, with commits and pushes between them.
    fn steps(&mut self, from: u64, to: u64) {
        for n in from..=to {
            self.step(n);
            if n % 2 == 0 || self.rng.random_bool(0.3) {
                self.commit(n);
            }
            // Most pushes come from commits that do not fit.
            if self.rng.random_bool(0.03) {
                let percent = self.rng.random_range(0..=100);
                self.volume.journal.push(percent).unwrap();
            }
        }
        self.commit(to);
    }

    fn must(&self, cut: usize) -> u64 {
        self.acknowledged.iter().filter(|&&(len, _)| len <= cut).map(|&(_, n)| n).max().unwrap()
    }
}

/// Replays the log in place. Returns the number of the newest handle, after comparing everything.
fn recover_and_check(device: Arc<dyn Device>, history: &[Model], must: u64, place: &str) -> u64 {
    let opened = open_for_writing(device.clone(), &superblock(&*device), place)
        .unwrap_or_else(|error| panic!("{place}: {error}"));
    assert!(opened.intents.is_empty());
    let sb = superblock(&*device);
    // The list has no blocks there at first.
    let newest = match value_of(&sb, &*device, Cell::Newest) {
        u32::MAX => 0,
        newest => u64::from(newest),
    };
    assert!(newest >= must, "{place}: {must} was acknowledged, found {newest}");
    let model = &history[newest as usize];
    for (&cell, &n) in &model.cells {
        assert_eq!(value_of(&sb, &*device, cell), n, "{place}: at {newest}, {cell:?}");
    }
    for (index, content) in model.units.iter().enumerate() {
        let bytes = read_unit(&*device, &unit(index));
        match content {
            Some(Content::Data(n)) => {
                let data = n.to_le_bytes().repeat(bytes.len() / 8);
                assert!(bytes == data, "{place}: at {newest}, unit {index} lost its data");
            }
            Some(Content::Meta(n)) => {
                let kind = SelfDescription::of(&bytes).unwrap_or_else(|| panic!("{place}: unit {index}"));
                assert!(kind.has_valid_crc(&bytes), "{place}: at {newest}, unit {index} has a bad checksum");
                let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
                for block in (0..bytes.len()).step_by(BLOCK) {
                    assert_eq!(number(block + 100), *n, "{place}: at {newest}, unit {index}");
                    assert_eq!(number(block + 4000), *n, "{place}: at {newest}, unit {index}");
                }
            }
            _ => {}
        }
    }
    newest
}

/// A crash at `cut`: of the writes that no flush made durable, some are there.
fn crash(device: &FaultDevice, cut: usize, coin: &mut StdRng, all: bool) -> OverlayDevice {
    let kept: Vec<bool> = (0..cut).map(|_| all || coin.random_bool(0.5)).collect();
    device.image_where(cut, |at| kept[at]).unwrap()
}

fn run(seed: u64, sector_size: u32, inode_size: u32, log_blocks: u32) {
    let model = Model { units: vec![None; UNITS], ..Model::default() };
    let mut run = Run::new(seed, formatted(sector_size, inode_size, log_blocks), model, 0);
    run.steps(1, STEPS);
    let stats = run.volume.journal.stats();
    let around = u64::from(log_blocks) * BLOCK as u64;
    assert!(stats.checkpoints > 1 && stats.revokes > 0, "seed {seed}: {stats:?}");
    assert!(stats.journal_bytes > around, "seed {seed}: not once around the log: {stats:?}");
    for cut in 0..=run.device.len() {
        let must = run.must(cut);
        for round in 0..3 {
            let mut coin = StdRng::seed_from_u64(seed ^ (cut as u64) << 8 ^ round);
            let place = format!("seed {seed}, cut {cut}, round {round}");
            let image: Arc<dyn Device> = Arc::new(crash(&run.device, cut, &mut coin, round == 0));
            let recording = Arc::new(FaultDevice::new(image));
            let newest = recover_and_check(recording.clone(), &run.history, must, &place);
            // The power fails again during recovery.
            let again = coin.random_range(0..=recording.len());
            let image: Arc<dyn Device> = Arc::new(crash(&recording, again, &mut coin, false));
            let place = format!("{place}, again at {again}");
            assert_eq!(recover_and_check(image.clone(), &run.history, must, &place), newest, "{place}");
            if cut % 16 == 0 {
                continue_and_cut(image, run.history[newest as usize].clone(), newest, seed, &place);
            }
        }
    }
}

/// Continues the log of a crashed session, and cuts the power again.
fn continue_and_cut(image: Arc<dyn Device>, model: Model, newest: u64, seed: u64, place: &str) {
    let mut next = Run::new(seed ^ newest << 32, image, model, newest);
    next.steps(newest + 1, newest + 4);
    next.volume.journal.shutdown().unwrap();
    let mut coin = StdRng::seed_from_u64(seed ^ newest);
    for _ in 0..4 {
        let cut = coin.random_range(0..=next.device.len());
        let image: Arc<dyn Device> = Arc::new(crash(&next.device, cut, &mut coin, false));
        let place = format!("{place}, continued and cut at {cut}");
        recover_and_check(image, &next.history, next.must(cut), &place);
    }
    let last = newest + 4;
    let image: Arc<dyn Device> = Arc::new(next.device.image(next.device.len()).unwrap());
    let (volume, transactions) = Volume::open(image.clone());
    assert_eq!(transactions, None, "{place}: the log is clean");
    assert_eq!(volume.journal.newest_patch(ObjectId { kind: INODE, number: volume.sb.root }), None);
    assert_eq!(recover_and_check(image, &next.history, last, place), last);
}

#[test]
fn every_crash_state_recovers() {
    for seed in 0..12 {
        run(seed, 512, 512, 48);
    }
    for seed in 12..16 {
        run(seed, 4096, 512, 48);
        run(seed, 512, 1024, 48);
    }
    // Transactions of several records between flushes.
    for seed in 16..22 {
        run(seed, 512, 512, 160);
    }
}
