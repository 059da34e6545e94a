//! Workloads: all short sequences, and long random ones.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::sync::LazyLock;

/// A name below the worker's directory. There are few names, so that operations meet.
pub type Name = &'static str;

/// The files that workloads use.
pub const FILES: &[Name] = &["a", "b", "d/a"];
/// The directories. `d` exists from the start.
pub const DIRS: &[Name] = &["d", "e"];

/// Names below `e`, for transactions with many blocks.
static MANY: LazyLock<Vec<Name>> =
    LazyLock::new(|| (0..MOST_WIDE).map(|nth| &*format!("e/{nth:02}").leak()).collect());
/// The number of additional inodes that the prepared images have.
pub const MOST_WIDE: usize = 60;

/// One call. A call that fails (for example because a name is missing) changes nothing and is part of the
/// workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Creates an empty file.
    Create(Name),
    /// Creates a file with an owner, times and a size.
    Born(Name),
    /// Writes this number of bytes at an offset; at a multiple of 4096 as the kernel's cache does.
    Write(Name, u64, usize),
    /// Appends this number of bytes.
    Append(Name, usize),
    /// Sets the size.
    Truncate(Name, u64),
    /// Punches a hole.
    Punch(Name, u64, u64),
    /// Copies this number of bytes from an offset of a file to an offset of another: shared where possible.
    Copy((Name, u64), (Name, u64), u64),
    /// Renames, replacing the target.
    Rename(Name, Name),
    /// Exchanges two names.
    Exchange(Name, Name),
    /// Creates a second name.
    Link(Name, Name),
    /// Removes a name.
    Unlink(Name),
    /// Creates a directory.
    Mkdir(Name),
    /// Removes a directory.
    Rmdir(Name),
    /// Sets an extended attribute of this number of bytes.
    SetXattr(Name, usize),
    /// Removes the extended attribute.
    RemoveXattr(Name),
    /// Changes the permission bits.
    Chmod(Name, u32),
    /// Makes one file durable.
    Fsync(Name),
    /// Makes the contents of one file durable.
    Fdatasync(Name),
    /// Makes everything durable.
    Sync,
    /// Makes everything durable, and replaces the snapshot of the filesystem by a new one.
    Snapshot,
    /// Queries the change attribute.
    Query(Name),
    /// Keeps a file open until the end: when it is unlinked, it becomes an orphan.
    Open(Name),
    /// From this step on, the file's change attribute is queried during every change of it.
    Observe(Name),
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Op::Create(name) => write!(f, "create {name}"),
            Op::Born(name) => write!(f, "create {name} with all its attributes"),
            Op::Write(name, at, len) => write!(f, "write {name} {at}+{len}"),
            Op::Append(name, len) => write!(f, "append {name} {len}"),
            Op::Truncate(name, size) => write!(f, "truncate {name} {size}"),
            Op::Punch(name, at, len) => write!(f, "punch {name} {at}+{len}"),
            Op::Copy((from, at), (to, to_at), len) => write!(f, "copy {from} {at}+{len} to {to} {to_at}"),
            Op::Rename(from, to) => write!(f, "rename {from} {to}"),
            Op::Exchange(from, to) => write!(f, "exchange {from} {to}"),
            Op::Link(from, to) => write!(f, "link {from} {to}"),
            Op::Unlink(name) => write!(f, "unlink {name}"),
            Op::Mkdir(name) => write!(f, "mkdir {name}"),
            Op::Rmdir(name) => write!(f, "rmdir {name}"),
            Op::SetXattr(name, len) => write!(f, "setxattr {name} {len}"),
            Op::RemoveXattr(name) => write!(f, "removexattr {name}"),
            Op::Chmod(name, perm) => write!(f, "chmod {name} {perm:o}"),
            Op::Fsync(name) => write!(f, "fsync {name}"),
            Op::Fdatasync(name) => write!(f, "fdatasync {name}"),
            Op::Sync => write!(f, "sync"),
            Op::Snapshot => write!(f, "snapshot"),
            Op::Query(name) => write!(f, "query {name}"),
            Op::Open(name) => write!(f, "open {name}"),
            Op::Observe(name) => write!(f, "observe {name}"),
        }
    }
}

/// The operations of the enumerated sequences. The files `a` (over two pages, synced) and `d/a` (short,
/// synced) exist at the start; `b` and `e` do not.
pub const ALPHABET: &[Op] = &[
    Op::Create("b"),
    Op::Born("b"),
    Op::Write("a", 100, 3000),
    Op::Write("b", 0, 6000),
    Op::Append("a", 5000),
    Op::Append("d/a", 1500),
    Op::Truncate("a", 1000),
    Op::Truncate("a", 20_000),
    Op::Rename("a", "b"),
    Op::Rename("d/a", "a"),
    Op::Rename("d", "e"),
    Op::Link("a", "b"),
    Op::Link("a", "d/b"),
    Op::Unlink("a"),
    Op::Unlink("d/a"),
    Op::Mkdir("e"),
    Op::Rmdir("e"),
    Op::SetXattr("a", 40),
    Op::SetXattr("d", 900),
    Op::Fsync("a"),
    Op::Fsync("b"),
    Op::Fdatasync("a"),
    Op::Sync,
    Op::Query("a"),
    Op::Query("d"),
    Op::Open("a"),
    Op::Observe("a"),
];

/// Computes FNV-1a. Rust's own hashes can change with the next version.
pub(crate) fn stable(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes
        .into_iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// The operations between a mount and an unmount, by one or more concurrent workers.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The name in reports, which also replays the workload.
    pub name: String,
    /// The operations of each worker.
    pub workers: Vec<Vec<Op>>,
    /// Whether a small limit on dirty data causes early write-back.
    pub small_cache: bool,
}

impl Workload {
    /// Returns whether the workload is mounted with `lazyversion`: half of the workloads are, always the same
    /// ones.
    pub fn is_lazyversion(&self) -> bool {
        self.name.bytes().filter(|byte| byte % 2 == 1).count() % 2 == 1
    }

    /// Returns the number of sequences of `len` operations.
    pub fn sequences(len: u32) -> usize {
        ALPHABET.len().pow(len)
    }

    /// Returns sequence number `index` of `len` operations.
    pub fn sequence(len: u32, index: usize) -> Self {
        let mut rest = index;
        let mut ops = Vec::new();
        for _ in 0..len {
            ops.push(ALPHABET[rest % ALPHABET.len()]);
            rest /= ALPHABET.len();
        }
        Self { name: format!("sequence {len}:{index}"), workers: vec![ops], small_cache: false }
    }

    /// Returns all sequences of one and two operations, `threes` random sequences of three, and long mixes.
    /// The seed determines the choice and the order.
    pub fn mixed(seed: u64, threes: usize) -> Vec<Self> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut mixed: Vec<Self> = (1..=2)
            .flat_map(|len| (0..Self::sequences(len)).map(move |nth| Self::sequence(len, nth)))
            .collect();
        let all = Self::sequences(3);
        mixed.extend((0..threes).map(|_| Self::sequence(3, rng.random_range(0..all))));
        mixed.extend((0..200).map(|nth| Self::long(rng.random_range(0..1 << 32), [1, 1, 3][nth % 3], 60)));
        mixed.shuffle(&mut rng);
        mixed
    }

    /// Returns all sequences of one operation first, then all of two, 2000 random ones of three, and long
    /// mixes, shuffled.
    pub fn short_first(seed: u64) -> Vec<Self> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut mixed: Vec<Self> = (0..Self::sequences(2)).map(|nth| Self::sequence(2, nth)).collect();
        let threes = Self::sequences(3);
        mixed.extend((0..2000).map(|_| Self::sequence(3, rng.random_range(0..threes))));
        mixed.extend((0..300).map(|nth| Self::long(rng.random_range(0..1 << 32), [1, 1, 3][nth % 3], 60)));
        mixed.shuffle(&mut rng);
        mixed.splice(0..0, (0..Self::sequences(1)).map(|nth| Self::sequence(1, nth)));
        mixed
    }

    /// Returns random workloads with files that share blocks.
    pub fn all_sharing(seed: u64) -> Vec<Self> {
        let mut rng = StdRng::seed_from_u64(seed);
        (0..500).map(|_| Self::sharing(rng.random_range(0..1 << 32), 40)).collect()
    }

    /// Returns random workloads with snapshots.
    pub fn all_snapshots(seed: u64) -> Vec<Self> {
        let mut rng = StdRng::seed_from_u64(seed);
        (0..500).map(|_| Self::snapshots(rng.random_range(0..1 << 32), 40)).collect()
    }

    /// Returns a random mix with snapshots, after which blocks are shared.
    pub fn snapshots(seed: u64, steps: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let ops = (0..steps).map(|_| if rng.random_bool(0.08) { Op::Snapshot } else { random_op(&mut rng) });
        Self { name: format!("snapshots {seed}:{steps}"), workers: vec![ops.collect()], small_cache: true }
    }

    /// Returns a random mix of `steps` operations for each of `workers`.
    pub fn long(seed: u64, workers: usize, steps: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let name = format!("long {seed}:{workers}:{steps}");
        let workers = (0..workers).map(|_| (0..steps).map(|_| random_op(&mut rng)).collect()).collect();
        Self { name, workers, small_cache: true }
    }

    /// Returns a workload with one transaction of so many metadata blocks that its descriptors span several
    /// sectors and blocks, and another that undoes it: `count` directories, each with attributes in separate
    /// blocks. Then files grow into the freed blocks while the log still holds their old contents.
    pub fn wide(count: usize) -> Self {
        let names = &MANY[..count.min(MANY.len())];
        let mut ops = vec![Op::Mkdir("e"), Op::Sync];
        ops.extend(names.iter().flat_map(|name| [Op::Mkdir(name), Op::SetXattr(name, 800)]));
        ops.extend([Op::Query("e"), Op::Sync]);
        ops.extend(names.iter().map(|name| Op::Rmdir(name)));
        ops.push(Op::Sync);
        for file in FILES {
            ops.extend([Op::Create(file), Op::Append(file, 500_000), Op::Fsync(file)]);
        }
        Self { name: format!("wide {count}"), workers: vec![ops], small_cache: false }
    }

    /// Returns a random mix in which files share blocks, if the format has them.
    pub fn sharing(seed: u64, steps: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let ops = (0..steps)
            .map(|_| if rng.random_bool(0.25) { random_copy(&mut rng) } else { random_op(&mut rng) });
        Self { name: format!("sharing {seed}:{steps}"), workers: vec![ops.collect()], small_cache: true }
    }

    /// Returns the workload with a name from a report.
    pub fn by_name(name: &str) -> Option<Self> {
        let (kind, rest) = name.split_once(' ')?;
        let numbers: Vec<u64> = rest.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
        match (kind, &numbers[..]) {
            ("sequence", &[len, index]) => Some(Self::sequence(len.try_into().ok()?, index.try_into().ok()?)),
            ("sharing", &[seed, steps]) => Some(Self::sharing(seed, steps.try_into().ok()?)),
            ("snapshots", &[seed, steps]) => Some(Self::snapshots(seed, steps.try_into().ok()?)),
            ("wide", &[count]) => Some(Self::wide(count.try_into().ok()?)),
            ("long", &[seed, workers, steps]) => {
                Some(Self::long(seed, workers.try_into().ok()?, steps.try_into().ok()?))
            }
            _ => None,
        }
    }

    /// Returns the number that determines all sampling of this workload, wherever and whenever it runs.
    pub fn number(&self, seed: u64) -> u64 {
        stable(self.name.bytes().chain(seed.to_le_bytes()))
    }

    /// Formats the operations for a report.
    pub fn script(&self) -> String {
        let mut text = String::new();
        for (worker, ops) in self.workers.iter().enumerate() {
            for op in ops {
                text += &format!("  worker {worker}: {op}\n");
            }
        }
        text
    }
}

fn random_op(rng: &mut StdRng) -> Op {
    let file = FILES[rng.random_range(0..FILES.len())];
    let other = FILES[rng.random_range(0..FILES.len())];
    match rng.random_range(0..100) {
        0..7 => Op::Create(file),
        7..10 => Op::Born(file),
        10..22 => Op::Write(file, rng.random_range(0..30_000), rng.random_range(1..9_000)),
        22..28 => Op::Write(file, rng.random_range(0..7) * 4096, rng.random_range(1..4) * 4096),
        28..36 => Op::Append(file, rng.random_range(1..9_000)),
        36..42 => Op::Truncate(file, rng.random_range(0..40_000)),
        42..45 => Op::Punch(file, rng.random_range(0..20_000), rng.random_range(1..20_000)),
        45..52 => Op::Rename(file, other),
        52..54 => Op::Exchange(file, other),
        54..58 => Op::Link(file, other),
        58..64 => Op::Unlink(file),
        64..67 => Op::Mkdir(DIRS[rng.random_range(0..DIRS.len())]),
        67..69 => Op::Rmdir(DIRS[rng.random_range(0..DIRS.len())]),
        69..72 => Op::SetXattr(file, rng.random_range(1..900)),
        72..74 => Op::RemoveXattr(file),
        74..77 => Op::Chmod(file, rng.random_range(0..0o1000)),
        77..84 => Op::Fsync(file),
        84..86 => Op::Fdatasync(file),
        86..88 => Op::Sync,
        88..91 => Op::Open(file),
        91..92 => Op::Observe(file),
        _ => Op::Query(file),
    }
}

fn random_copy(rng: &mut StdRng) -> Op {
    let place = |rng: &mut StdRng| (FILES[rng.random_range(0..FILES.len())], rng.random_range(0..4) * 4096);
    let len = if rng.random() { 1 << 20 } else { rng.random_range(1..5) * 4096 };
    Op::Copy(place(rng), place(rng), len)
}
