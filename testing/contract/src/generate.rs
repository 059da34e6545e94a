//! Random operations, most of which do something.

use crate::model::{Model, Verdict};
use crate::op::*;
use rand::Rng;
use rand::rngs::StdRng;

const NAMES: [Name; 5] = ["a", "b", "c", "d", "e"];
const BELOW: [Name; 25] = [
    "a/a", "a/b", "a/c", "a/d", "a/e", "b/a", "b/b", "b/c", "b/d", "b/e", "c/a", "c/b", "c/c", "c/d", "c/e",
    "d/a", "d/b", "d/c", "d/d", "d/e", "e/a", "e/b", "e/c", "e/d", "e/e",
];
/// Collapse and insert require multiples of the block size; this is a multiple of all block sizes in use.
const BLOCK: u32 = 4096;
const USUAL: u32 = 64 << 10;
const LARGE: u32 = 3 << 20;

fn any_name(rng: &mut StdRng) -> Name {
    if rng.random_bool(0.5) {
        NAMES[rng.random_range(0..NAMES.len())]
    } else {
        BELOW[rng.random_range(0..BELOW.len())]
    }
}

fn slot(rng: &mut StdRng) -> u8 {
    rng.random_range(0..SLOTS)
}

fn on(rng: &mut StdRng) -> On<'static> {
    match rng.random_range(0..10) {
        0..3 => On::Open(slot(rng)),
        3 => On::At(""),
        _ => On::At(any_name(rng)),
    }
}

fn offset(rng: &mut StdRng) -> u32 {
    if rng.random_range(0..40) == 0 { rng.random_range(0..LARGE) } else { rng.random_range(0..USUAL) }
}

/// Returns the next operation: it has a meaning in this state and mostly succeeds.
pub(crate) fn next(rng: &mut StdRng, model: &Model) -> Op {
    let mut tries = 0;
    loop {
        let op = any(rng, model);
        let wanted = match model.judge(&op) {
            Verdict::Done => true,
            Verdict::Fails => rng.random_range(0..40) == 0,
            Verdict::Skip => false,
        };
        tries += 1;
        if wanted || tries > 1000 {
            return op;
        }
    }
}

fn any(rng: &mut StdRng, model: &Model) -> Op {
    let info = rng.random_bool(0.3);
    match rng.random_range(0..1000) {
        0..15 => Op::Born {
            path: any_name(rng),
            perm: 0o600 | rng.random_range(0..0o100),
            size: offset(rng),
            info,
        },
        15..70 => {
            let kind =
                [Kind::File, Kind::File, Kind::File, Kind::Directory, Kind::Symlink][rng.random_range(0..5)];
            Op::Create { path: any_name(rng), kind, info }
        }
        70..110 => Op::Remove { path: any_name(rng), info },
        110..160 => {
            let over = [Over::Replace, Over::Replace, Over::Refuse, Over::Exchange][rng.random_range(0..4)];
            Op::Rename { from: any_name(rng), to: any_name(rng), over, info }
        }
        160..185 => Op::Link { from: any_name(rng), to: any_name(rng), info },
        185..215 => Op::Open { slot: slot(rng), path: any_name(rng) },
        215..230 => Op::Close { slot: slot(rng) },
        230..390 => write(rng),
        390..410 => Op::Truncate { on: on(rng), size: offset(rng) },
        410..435 => range(rng, model),
        435..450 => Op::Map { slot: slot(rng), path: any_name(rng) },
        450..500 => {
            let slot = slot(rng);
            // The first and the last mapped page.
            let len = model.maps[usize::from(slot)].map_or(1, |(_, len)| len.max(1));
            let at = if rng.random_bool(0.5) { rng.random_range(0..len.min(4096)) } else { len - 1 };
            Op::Store { slot, at, byte: rng.random() }
        }
        500..508 => Op::Unmap { slot: slot(rng) },
        508..540 => {
            let perm: u32 = rng.random_range(0..0o100);
            // On AFFS permission to read a directory includes searching it.
            Op::Chmod { on: on(rng), perm: 0o700 | perm | (perm & 0o44) >> 2 }
        }
        540..550 => Op::Chown { on: on(rng), uid: rng.random_range(0..4), gid: rng.random_range(0..4) },
        550..570 => {
            // In the range of formats whose time begins at 1978 or 1980.
            let sec = rng.random_bool(0.6).then(|| rng.random_range(400_000_000..2_000_000_000));
            Op::Times { on: on(rng), sec }
        }
        570..595 => {
            let len =
                if rng.random_bool(0.9) { rng.random_range(1..100) } else { rng.random_range(100..900) };
            Op::SetXattr { on: on(rng), nth: rng.random_range(0..XATTRS), len, byte: rng.random(), info }
        }
        595..608 => Op::RemoveXattr { on: on(rng), nth: rng.random_range(0..XATTRS), info },
        608..618 => Op::SetAcl { on: on(rng), mask: rng.random_range(0..8) },
        618..624 => Op::RemoveAcl { on: on(rng) },
        624..680 => Op::Look { on: on(rng) },
        680..700 => Op::Sync { on: rng.random_bool(0.8).then(|| on(rng)) },
        700..706 => Op::Evict,
        706..709 => Op::Remount,
        709..713 => Op::Snapshot { read_only: rng.random() },
        _ => Op::Query { on: on(rng) },
    }
}

fn write(rng: &mut StdRng) -> Op {
    let len = match rng.random_range(0..100) {
        0..55 => 1,
        55..98 => rng.random_range(1..9000),
        _ => rng.random_range(1..LARGE),
    };
    let how = match rng.random_range(0..20) {
        0 => How::Direct,
        1 => How::Sync,
        2 if len < USUAL => How::Append,
        _ => How::Plain,
    };
    Op::Write { on: on(rng), at: offset(rng), len, byte: rng.random(), how }
}

fn range(rng: &mut StdRng, model: &Model) -> Op {
    let (on, at, len) = (on(rng), offset(rng), rng.random_range(1..20_000));
    let space = match rng.random_range(0..6) {
        0 => Space::Allocate,
        1 => Space::Keep,
        2 => Space::Punch,
        3 => Space::Zero,
        4 => Space::Collapse,
        _ => Space::Insert,
    };
    if !matches!(space, Space::Collapse | Space::Insert) {
        return Op::Range { on, space, at, len };
    }
    let size = model.id(on).map_or(0, |id| model.nodes[&id].bytes.len()) as u32;
    let at = rng.random_range(0..=size.saturating_sub(1) / BLOCK) * BLOCK;
    Op::Range { on, space, at, len: rng.random_range(1..4) * BLOCK }
}
