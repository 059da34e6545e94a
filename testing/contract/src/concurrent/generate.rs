//! Random scripts. They are generated before the run: the result of a phase depends on timing, and the script
//! must not.

use super::script::{Phase, Script};
use crate::op::*;
use crate::subject::Limits;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Files that all actors use; their names stay.
const SHARED: [Name; 2] = ["a", "b"];
/// One file per actor: other actors only read it.
const OWN: [Name; 4] = ["o0", "o1", "o2", "o3"];
/// Mapped by all actors, never truncated.
const MAPPED: Name = "m";
/// Directories in which names are created and removed.
const DIRS: [Name; 2] = ["d", "e"];
const MOVING: [Name; 5] = ["d/x", "d/y", "e/x", "e/y", "x"];
/// Links of the shared files, which are created and removed.
const LINKS: [Name; 3] = ["d/l", "e/l", "l"];

/// The initial bytes of a shared file: a region per actor and one for all.
const REGION: u32 = 2048;
const WHOLE: u32 = 5 * REGION;

struct Author {
    rng: StdRng,
    limits: Limits,
    actors: usize,
    /// Whether this phase sets sizes.
    sizes: bool,
    /// The target of most operations of this phase.
    focus: Target,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    File(Name),
    Dir(Name),
    Mapped,
}

/// Returns the script of a seed.
pub(super) fn script(seed: u64, phases: usize, actors: usize, limits: Limits) -> Script {
    let rng = StdRng::seed_from_u64(seed);
    let mut author = Author { rng, limits, actors, sizes: false, focus: Target::File(SHARED[0]) };
    let setup = author.setup();
    Script { setup, phases: (0..phases).map(|_| author.phase()).collect() }
}

impl Author {
    fn one_of(&mut self, names: &[Name]) -> Name {
        names[self.rng.random_range(0..names.len())]
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_range(0..n) == 0
    }

    fn setup(&mut self) -> Vec<Op> {
        let files = SHARED.iter().chain(&OWN).chain([&MAPPED]);
        let make = |path: &Name, kind| Op::Create { path, kind, info: false };
        let mut ops: Vec<Op> = files.map(|path| make(path, Kind::File)).collect();
        ops.extend(DIRS.iter().map(|path| make(path, Kind::Directory)));
        ops.extend(["d/x", "e/y"].map(|path| make(&path, Kind::File)));
        ops.push(Op::Link { from: SHARED[0], to: LINKS[0], info: false });
        for path in SHARED.into_iter().chain([MAPPED]) {
            ops.push(Op::Write { on: On::At(path), at: 0, len: WHOLE, byte: 1, how: How::Plain });
        }
        ops.extend(self.holding());
        ops.extend(self.mapping());
        ops
    }

    /// Opens files in slots: the kernel keeps more state of open files.
    fn holding(&mut self) -> Vec<Op> {
        let mut ops = Vec::new();
        for (slot, path) in (0..).zip(SHARED) {
            let held = self.rng.random_bool(0.6);
            ops.push(if held { Op::Open { slot, path } } else { Op::Close { slot } });
        }
        ops
    }

    /// Maps the file for all actors in most scripts: mapping takes a while.
    fn mapping(&mut self) -> Option<Op> {
        let maps = self.limits.maps && self.rng.random_bool(0.7);
        maps.then_some(Op::Map { slot: 0, path: MAPPED })
    }

    fn phase(&mut self) -> Phase {
        let before = match self.rng.random_range(0..40) {
            0 => {
                let (held, mapped) = (self.holding(), self.mapping());
                std::iter::once(Op::Remount).chain(held).chain(mapped).collect()
            }
            1..3 => self.holding(),
            3..5 => vec![Op::Evict],
            5..7 => vec![Op::Sync { on: None }],
            _ => Vec::new(),
        };
        self.sizes = self.one_in(4);
        self.focus = match self.rng.random_range(0..10) {
            0..4 => Target::File(SHARED[0]),
            4..6 => Target::File(SHARED[1]),
            6 => Target::Mapped,
            _ => Target::Dir(self.one_of(&DIRS)),
        };
        let actors = self.rng.random_range(2..=self.actors);
        Phase { before, actors: (0..actors).map(|nth| self.list(nth)).collect() }
    }

    fn list(&mut self, actor: usize) -> Vec<Op> {
        let mut ops = Vec::new();
        for _ in 0..self.rng.random_range(1..=4) {
            let target = if self.one_in(4) { self.elsewhere(actor) } else { self.focus };
            match self.rng.random_range(0..20) {
                0..6 => {
                    let on = self.on(target);
                    ops.extend([Op::Query { on }, Op::Look { on }, Op::Query { on }]);
                }
                6..10 => ops.push(Op::Query { on: self.on(target) }),
                _ => ops.push(self.change(target, actor)),
            }
        }
        ops
    }

    fn elsewhere(&mut self, actor: usize) -> Target {
        match self.rng.random_range(0..6) {
            0..2 => Target::File(OWN[actor % OWN.len()]),
            2 => Target::File(self.one_of(&SHARED)),
            3 => Target::Mapped,
            4 => Target::Dir(self.one_of(&DIRS)),
            _ => Target::Dir(""),
        }
    }

    /// Refers to a file by name or, if it is open, by slot.
    fn on(&mut self, target: Target) -> On<'static> {
        match target {
            Target::Mapped => On::At(MAPPED),
            Target::Dir(path) => On::At(path),
            Target::File(path) => match SHARED.iter().position(|shared| *shared == path) {
                Some(slot) if self.rng.random_bool(0.5) => On::Open(slot as u8),
                _ => On::At(path),
            },
        }
    }

    fn change(&mut self, target: Target, actor: usize) -> Op {
        match target {
            Target::Dir(_) => self.name_change(),
            Target::Mapped if self.rng.random_bool(0.6) => {
                let at = self.rng.random_range(0..WHOLE);
                Op::Store { slot: 0, at, byte: self.rng.random() }
            }
            Target::Mapped | Target::File(_) => self.file_change(target, actor),
        }
    }

    fn file_change(&mut self, target: Target, actor: usize) -> Op {
        let (mut target, mut on) = (target, self.on(target));
        let info = self.rng.random_bool(0.3);
        let nth = self.rng.random_range(0..XATTRS);
        let what = self.rng.random_range(0..100);
        // Only the first actor writes files that others use.
        if what < 56 && actor > 0 && !self.limits.shares_pages {
            target = Target::File(OWN[actor % OWN.len()]);
            on = self.on(target);
        }
        match what {
            0..50 => self.write(on, target, actor),
            50..56 if self.sizes && target != Target::Mapped => {
                Op::Truncate { on, size: self.rng.random_range(0..2 * WHOLE) }
            }
            50..66 => {
                let perm: u32 = self.rng.random_range(0..0o100);
                // On AFFS permission to read a directory includes searching it.
                Op::Chmod { on, perm: 0o700 | perm | (perm & 0o44) >> 2 }
            }
            66..80 => {
                let (len, byte) = (self.rng.random_range(1..60), self.rng.random());
                Op::SetXattr { on, nth, len, byte, info }
            }
            80..85 => Op::RemoveXattr { on, nth, info },
            85..91 => Op::Link { from: self.one_of(&SHARED), to: self.one_of(&LINKS), info },
            91..98 => Op::Sync { on: Some(on) },
            98 => Op::Sync { on: None },
            _ => Op::Evict,
        }
    }

    fn write(&mut self, on: On<'static>, target: Target, actor: usize) -> Op {
        let byte = self.rng.random();
        let how = match self.rng.random_range(0..12) {
            0 => How::Direct,
            1 => How::Sync,
            _ => How::Plain,
        };
        if let (true, true, Target::File(path), true) =
            (self.sizes, self.limits.appends, target, self.rng.random_bool(0.3))
        {
            let len = self.rng.random_range(1..3000);
            return Op::Write { on: On::At(path), at: 0, len, byte, how: How::Append };
        }
        let own = actor as u32 * REGION;
        let (at, len) = match self.rng.random_range(0..10) {
            0..5 => (own + self.rng.random_range(0..REGION / 2), self.rng.random_range(1..REGION / 2)),
            5..8 => (self.rng.random_range(0..WHOLE - 9), self.rng.random_range(1..9)),
            8 => (0, WHOLE),
            // Past the initial end.
            _ if target == Target::Mapped => (0, WHOLE),
            _ => (WHOLE - 100, self.rng.random_range(1..3 * WHOLE)),
        };
        Op::Write { on, at, len, byte, how }
    }

    fn name_change(&mut self) -> Op {
        let info = self.rng.random_bool(0.3);
        match self.rng.random_range(0..100) {
            0..30 => Op::Create { path: self.one_of(&MOVING), kind: Kind::File, info },
            30..55 => Op::Remove { path: self.one_of(&MOVING), info },
            55..80 => {
                let over =
                    [Over::Replace, Over::Replace, Over::Refuse, Over::Exchange][self.rng.random_range(0..4)];
                Op::Rename { from: self.one_of(&MOVING), to: self.one_of(&MOVING), over, info }
            }
            80..88 => Op::Link { from: self.one_of(&SHARED), to: self.one_of(&LINKS), info },
            88..94 => Op::Remove { path: self.one_of(&LINKS), info },
            94..97 => {
                Op::Rename { from: self.one_of(&LINKS), to: self.one_of(&LINKS), over: Over::Replace, info }
            }
            _ => {
                let perm = [0o700, 0o711, 0o755][self.rng.random_range(0..3)];
                Op::Chmod { on: On::At(self.one_of(&DIRS)), perm }
            }
        }
    }
}
