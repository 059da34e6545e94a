//! The states that a medium can have after a crash, computed from the record of its writes.
//!
//! A **window** is the time between two flushes. Before its first write everything earlier is durable. Any
//! subset of its writes can have reached the medium, in any order, since only a flush orders them; a write in
//! progress can have reached some of its sectors. A forced write (FUA) that returned is durable, but says
//! nothing about the others. A flush of one of several devices ends no window: it makes durable what was
//! written to that device.
//!
//! A log whose records carry checksums promises more than an honest medium requires: it detects a commit
//! record whose sealed blocks are incomplete. For such logs the states also include media that ignored the
//! flush between the two.

use crate::history::bytes_of;
use crate::ops::stable;
use ivers_block::{ByteOffset, Device, MemDevice, OverlayDevice, Recorded};
use rand::rngs::StdRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

const SECTOR: usize = 512;
/// Up to this number of writes that can be lost, all subsets are states; above it, a sample.
const ALL_SUBSETS_UP_TO: usize = 6;
/// The number of subsets sampled of a larger window.
const SAMPLED_SUBSETS: usize = 24;
/// A write of more sectors than this is torn at a sample of this number of sectors, unless all tears are
/// requested.
const ALL_TEARS_UP_TO: usize = 8;
/// The number of single sectors of a sealed write that are lost in turn. Half of them are among its first
/// sectors, which describe the others.
const SAMPLED_LOSSES: usize = 4;
/// The number of these first sectors: a block.
const FIRST_SECTORS: usize = 8;

/// The origin of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Contains everything that was written so far.
    Prefix,
    /// Contains everything, but only this number of sectors of the last write.
    Torn(usize),
    /// Lacks these writes of the window, by index in the record.
    Omitted(Vec<usize>),
    /// Lacks these sectors of the write with this index in the record, although the medium acknowledged a
    /// flush and the record that seals the write.
    Unsealed(usize, Range<usize>),
}

/// One crash state.
#[derive(Debug, Clone)]
pub struct State {
    /// The length of the record at the crash; it determines what was acknowledged.
    pub at: usize,
    /// The origin of the state.
    pub kind: Kind,
}

impl State {
    /// Returns a hash that distinguishes the states of one record and is the same in every run.
    pub fn digest(&self) -> u64 {
        stable(format!("{self:?}").bytes())
    }

    /// Returns the length of the record that counts as durable: a flush that the medium ignored does not
    /// count.
    pub fn durable_len(&self) -> usize {
        match self.kind {
            Kind::Unsealed(write, _) => write,
            _ => self.at,
        }
    }
}

/// Enumerates the states of one record, in order.
pub struct States<'a> {
    record: &'a [Recorded],
    /// Contains everything up to the last flush.
    durable: Arc<OverlayDevice>,
    /// A checksum of the sectors of `durable` that differ from the base.
    sum: u64,
    sectors: HashMap<u64, u64>,
    seen: HashSet<(u64, u64)>,
    /// A generator for each kind of sample, so that a larger sample of one kind does not change another.
    tears: StdRng,
    subsets: StdRng,
    losses: StdRng,
    every_tear: bool,
    seals: &'a dyn Fn(&[u8]) -> bool,
}

fn sector_hash(sector: u64, bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (sector, bytes).hash(&mut hasher);
    hasher.finish()
}

impl<'a> States<'a> {
    /// Returns the states of a record made on `base`. The seed selects the samples.
    pub fn new(base: Arc<MemDevice>, record: &'a [Recorded], seed: u64) -> Self {
        Self {
            record,
            durable: Arc::new(OverlayDevice::new(base)),
            sum: 0,
            sectors: HashMap::new(),
            seen: HashSet::new(),
            tears: StdRng::seed_from_u64(seed ^ 1 << 32),
            subsets: StdRng::seed_from_u64(seed ^ 2 << 32),
            losses: StdRng::seed_from_u64(seed ^ 3 << 32),
            every_tear: false,
            seals: &|_| false,
        }
    }

    /// Includes every tear of every write, however large.
    pub fn torn_everywhere(self, every_tear: bool) -> Self {
        Self { every_tear, ..self }
    }

    /// Includes states in which a sealed write is incomplete; `seals` recognizes records that seal.
    pub fn sealed_by(self, seals: &'a dyn Fn(&[u8]) -> bool) -> Self {
        Self { seals, ..self }
    }

    /// Visits every state once. `acknowledged` returns, for a length of the record, how much had been
    /// acknowledged; states with equal bytes and different results of it are visited separately. Each visit
    /// gets its own device.
    pub fn each(
        mut self,
        acknowledged: impl Fn(usize) -> u64,
        mut visit: impl FnMut(&State, OverlayDevice) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut from = 0;
        while from <= self.record.len() {
            let to = self.record[from..]
                .iter()
                .position(|op| *op == Recorded::Flush)
                .map_or(self.record.len(), |at| from + at);
            for state in self.of_window(from, to) {
                let sum = self.sum_of(from, &state);
                // If the bytes were already on the medium, ignoring the flush gives an honest state, with
                // fewer promises.
                if self.seen.insert((sum, acknowledged(state.durable_len()))) {
                    let device = self.build(from, &state)?;
                    visit(&state, device)?;
                }
            }
            self.make_durable(from, to)?;
            from = to + 1;
        }
        Ok(())
    }

    /// Returns the number of states and their bytes, without acknowledgements.
    pub fn each_content(self, mut visit: impl FnMut(&State, Vec<u8>)) -> anyhow::Result<usize> {
        let mut states = 0;
        self.each(
            |_| 0,
            |state, device| {
                states += 1;
                visit(state, bytes_of(&device)?);
                Ok(())
            },
        )?;
        Ok(states)
    }

    fn of_window(&mut self, from: usize, to: usize) -> Vec<State> {
        let mut states = Vec::new();
        for at in from..=to {
            states.push(State { at, kind: Kind::Prefix });
            if let Some(Recorded::Write { data, .. }) = (at < to).then(|| &self.record[at]) {
                let sectors = data.len().div_ceil(SECTOR);
                let mut tears: Vec<usize> = (1..sectors).collect();
                if sectors > ALL_TEARS_UP_TO {
                    let some = sample(&mut self.tears, tears.len(), ALL_TEARS_UP_TO);
                    if !self.every_tear {
                        tears = some.into_iter().map(|nth| tears[nth]).collect();
                    }
                }
                states.extend(tears.into_iter().map(|sectors| State { at, kind: Kind::Torn(sectors) }));
            }
        }
        // Writes are lost at the end of the window, after each forced write, and before each flush of a
        // device.
        let ends = (from..to).filter_map(|at| match self.record[at] {
            Recorded::Write { fua: true, .. } => Some(at + 1),
            Recorded::FlushRange { .. } => Some(at),
            _ => None,
        });
        let ends: Vec<usize> = ends.chain([to]).collect();
        for at in ends {
            let loose: Vec<usize> = (from..at)
                .filter(|&i| matches!(self.record[i], Recorded::Write { fua: false, .. }))
                .filter(|&i| !self.record[i..at].iter().any(|later| later.seals(&self.record[i])))
                .collect();
            if loose.len() <= ALL_SUBSETS_UP_TO {
                for mask in 1u32..1 << loose.len() {
                    let lost = (0..loose.len()).filter(|bit| mask & 1 << bit != 0).map(|bit| loose[bit]);
                    states.push(State { at, kind: Kind::Omitted(lost.collect()) });
                }
                continue;
            }
            // One write lost, all but one lost, and subsets of every density.
            for _ in 0..SAMPLED_SUBSETS {
                let one = loose[self.subsets.random_range(0..loose.len())];
                let density = self.subsets.random_range(0.05..0.95);
                let lost = match self.subsets.random_range(0..4) {
                    0 => vec![one],
                    1 => loose.iter().copied().filter(|&i| i != one).collect(),
                    _ => loose.iter().copied().filter(|_| self.subsets.random_bool(density)).collect(),
                };
                states.push(State { at, kind: Kind::Omitted(lost) });
            }
        }
        self.add_unsealed(from, to, &mut states);
        states
    }

    /// Finds a seal: a forced write directly after a flush, at the offset directly after the window's last
    /// write. It seals that write.
    fn add_unsealed(&mut self, from: usize, flush: usize, states: &mut Vec<State>) {
        let last = flush.checked_sub(1).filter(|&last| last >= from);
        let Some(
            [
                Recorded::Write { offset, data, .. },
                Recorded::Flush,
                Recorded::Write { offset: at, data: seal, fua: true },
            ],
        ) = last.and_then(|last| self.record.get(last..flush + 2))
        else {
            return;
        };
        if *at != *offset + data.len() as u64 || !(self.seals)(seal) {
            return;
        }
        let sectors = data.len().div_ceil(SECTOR);
        let mut losses: Vec<_> = std::iter::once(0..sectors).collect();
        if sectors <= SAMPLED_LOSSES {
            losses.extend((0..sectors).map(|at| at..at + 1));
        } else {
            for nth in 0..SAMPLED_LOSSES {
                let among = if nth % 2 == 0 { sectors.min(FIRST_SECTORS) } else { sectors };
                let at = self.losses.random_range(0..among);
                losses.push(at..at + 1);
            }
            losses.push(self.losses.random_range(1..sectors)..sectors);
        }
        states.extend(
            losses.into_iter().map(|lost| State { at: flush + 2, kind: Kind::Unsealed(flush - 1, lost) }),
        );
    }

    /// Returns the writes of a state that are not durable yet.
    fn writes(&self, from: usize, state: &State) -> Vec<(ByteOffset, &'a [u8])> {
        let mut writes = Vec::new();
        let end = state.at + usize::from(matches!(state.kind, Kind::Torn(_)));
        for (at, op) in self.record.iter().enumerate().take(end).skip(from) {
            let Recorded::Write { offset, data, .. } = op else { continue };
            let bytes = match &state.kind {
                Kind::Torn(sectors) if at == state.at => &data[..sectors * SECTOR],
                Kind::Omitted(lost) if lost.contains(&at) => continue,
                Kind::Unsealed(write, lost) if *write == at => {
                    let behind = (lost.end * SECTOR).min(data.len());
                    writes.push((*offset + behind as u64, &data[behind..]));
                    &data[..lost.start * SECTOR]
                }
                _ => data,
            };
            writes.push((*offset, bytes));
        }
        writes
    }

    fn build(&self, from: usize, state: &State) -> anyhow::Result<OverlayDevice> {
        let device = OverlayDevice::new(self.durable.clone());
        for (offset, bytes) in self.writes(from, state) {
            device.write_at(offset, bytes)?;
        }
        Ok(device)
    }

    fn sum_of(&self, from: usize, state: &State) -> u64 {
        let mut changed: HashMap<u64, u64> = HashMap::new();
        for (offset, bytes) in self.writes(from, state) {
            for_sectors(offset.0, bytes, |sector, hash| {
                changed.insert(sector, hash);
            });
        }
        changed.iter().fold(self.sum, |sum, (sector, hash)| {
            sum ^ hash ^ self.sectors.get(sector).copied().unwrap_or_default()
        })
    }

    fn make_durable(&mut self, from: usize, to: usize) -> anyhow::Result<()> {
        let state = State { at: to, kind: Kind::Prefix };
        self.sum = self.sum_of(from, &state);
        for (offset, bytes) in self.writes(from, &state) {
            self.durable.write_at(offset, bytes)?;
            let sectors = &mut self.sectors;
            for_sectors(offset.0, bytes, |sector, hash| {
                sectors.insert(sector, hash);
            });
        }
        Ok(())
    }
}

/// Drivers write whole sectors; a partial sector is counted by its own bytes.
fn for_sectors(offset: u64, bytes: &[u8], mut visit: impl FnMut(u64, u64)) {
    for (nth, piece) in bytes.chunks(SECTOR).enumerate() {
        let at = offset + (nth * SECTOR) as u64;
        visit(at, sector_hash(at, piece));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, byte: u8, sectors: usize, fua: bool) -> Recorded {
        Recorded::Write { offset: ByteOffset(offset), data: vec![byte; sectors * SECTOR].into(), fua }
    }

    fn visit_all(record: &[Recorded]) -> Vec<(State, Vec<u8>)> {
        let base = Arc::new(MemDevice::new(8 * SECTOR as u64));
        let mut all = Vec::new();
        States::new(base, record, 1)
            .sealed_by(&|record| record[0] == 3)
            .each(
                |_| 0,
                |state, device| {
                    let mut bytes = vec![0; 8 * SECTOR];
                    device.read_at(ByteOffset(0), &mut bytes)?;
                    all.push((state.clone(), bytes.iter().copied().step_by(SECTOR).collect()));
                    Ok(())
                },
            )
            .unwrap();
        all
    }

    #[test]
    fn a_window_yields_every_subset_and_every_tear_once() {
        let record = [write(0, 1, 1, false), write(1024, 2, 2, false), Recorded::Flush];
        let mut found: Vec<Vec<u8>> =
            visit_all(&record).into_iter().map(|(_, bytes)| bytes[..4].to_vec()).collect();
        found.sort();
        let expected = [[0, 0, 0, 0], [0, 0, 2, 2], [1, 0, 0, 0], [1, 0, 2, 0], [1, 0, 2, 2]]
            .map(|bytes| bytes.to_vec());
        assert_eq!(found, expected);
    }

    #[test]
    fn large_writes_are_torn_at_a_sample_of_sectors_or_at_all() {
        let torn = |everywhere: bool| {
            let mut tears = Vec::new();
            let base = Arc::new(MemDevice::new(64 * SECTOR as u64));
            let data: Vec<u8> = (0..40).flat_map(|sector| [sector + 1; SECTOR]).collect();
            let record = [Recorded::Write { offset: ByteOffset(0), data: data.into(), fua: false }];
            let states = States::new(base, &record, 1).torn_everywhere(everywhere);
            states
                .each(
                    |_| 0,
                    |state, _| {
                        tears.extend(if let Kind::Torn(at) = state.kind { Some(at) } else { None });
                        Ok(())
                    },
                )
                .unwrap();
            tears.sort_unstable();
            tears
        };
        assert_eq!(torn(true), (1..40).collect::<Vec<_>>());
        assert_eq!((torn(false).len(), torn(false)), (ALL_TEARS_UP_TO, torn(false)));
    }

    #[test]
    fn flushed_and_forced_writes_are_never_lost() {
        let record = [
            write(0, 1, 1, false),
            Recorded::Flush,
            write(512, 2, 1, false),
            write(1024, 3, 1, true),
            write(1536, 4, 1, false),
        ];
        for (state, bytes) in visit_all(&record) {
            assert!(state.at < 2 || bytes[0] == 1, "{state:?}");
            assert!(state.at < 4 || bytes[2] == 3, "{state:?}");
        }
        let all: Vec<_> = visit_all(&record).into_iter().map(|(_, bytes)| bytes[..4].to_vec()).collect();
        assert!(all.contains(&vec![1, 0, 3, 4]) && all.contains(&vec![1, 0, 3, 0]));
    }

    #[test]
    fn a_flush_of_one_device_leaves_the_writes_to_the_other_loose() {
        let half = 4 * SECTOR as u64;
        let record = [
            write(0, 1, 1, false),
            write(half, 2, 1, false),
            Recorded::FlushRange { offset: ByteOffset(0), len: half },
            write(512, 3, 1, true),
            Recorded::Flush,
            write(1024, 4, 1, false),
        ];
        let all = visit_all(&record);
        for (state, bytes) in &all {
            assert!(state.at < 3 || bytes[0] == 1, "{state:?}");
            assert!(state.at < 5 || bytes[4] == 2, "{state:?}");
        }
        let shows = |wanted: [u8; 3]| all.iter().any(|(_, bytes)| [bytes[0], bytes[4], bytes[1]] == wanted);
        assert!(shows([0, 2, 0]) && shows([1, 0, 0]) && shows([1, 0, 3]) && shows([1, 2, 3]));
    }

    #[test]
    fn a_sealed_write_may_lack_any_sector_if_a_flush_was_ignored() {
        let sealed = [
            write(0, 1, 1, false),
            write(1024, 2, 2, false),
            Recorded::Flush,
            write(2048, 3, 1, true),
            write(512, 4, 1, false),
        ];
        let unsealed = |record: &[Recorded]| -> Vec<Vec<u8>> {
            let states = visit_all(record).into_iter();
            let lied = states.filter(|(state, _)| matches!(state.kind, Kind::Unsealed(..)));
            lied.map(|(state, bytes)| {
                assert_eq!((state.at, state.durable_len()), (4, 1));
                bytes[..5].to_vec()
            })
            .collect()
        };
        let expected = [[1, 0, 0, 0, 3], [1, 0, 0, 2, 3], [1, 0, 2, 0, 3]].map(|bytes| bytes.to_vec());
        assert_eq!(unsealed(&sealed), expected);
        // Not forced; not adjacent; a record that does not seal; no write.
        for other in
            [write(2048, 3, 1, false), write(2560, 3, 1, true), write(2048, 4, 1, true), Recorded::Flush]
        {
            let mut record = sealed.to_vec();
            record[3] = other;
            assert!(unsealed(&record).is_empty());
        }
    }

    #[test]
    fn an_ignored_flush_without_effect_keeps_the_normal_state() {
        let base = Arc::new(MemDevice::new(8 * SECTOR as u64));
        let record = [write(0, 0, 1, false), Recorded::Flush, write(512, 3, 1, true)];
        let mut kinds = Vec::new();
        let all = States::new(base, &record, 1).sealed_by(&|record| record[0] == 3);
        all.each(
            |at| at as u64,
            |state, _| {
                kinds.push((state.at, state.kind.clone()));
                Ok(())
            },
        )
        .unwrap();
        assert!(
            kinds.contains(&(3, Kind::Unsealed(0, 0..1))) && kinds.contains(&(3, Kind::Prefix)),
            "{kinds:?}"
        );
    }

    #[test]
    fn equal_states_with_different_promises_are_visited_separately() {
        let base = Arc::new(MemDevice::new(4096));
        let record = [write(0, 1, 1, false), Recorded::Flush, Recorded::Flush];
        let mut count = 0;
        States::new(base, &record, 1)
            .each(
                |at| at as u64,
                |_, _| {
                    count += 1;
                    Ok(())
                },
            )
            .unwrap();
        // Nothing written; the write in progress, absent and present; one flush; two flushes.
        assert_eq!(count, 5);
    }
}
