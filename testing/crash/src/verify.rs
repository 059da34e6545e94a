//! The checks of a recovered crash state against the histories.

use crate::history::{Handed, Identity, Meta, Node, Step, Tree, Worker, directory, read_snapshot, read_tree};
use crate::ops::Op;
use crate::states::State;
use crate::target::{Promises, Target};
use ivers_vfs::{Cred, Error, FileType, InodeRef, NameError, Vfs, WriteFlags};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Checks one worker's tree in a filesystem that was recovered from a crash state. `closed`: the session had
/// been closed cleanly. The error describes the broken promise.
pub fn worker(
    vfs: &Arc<Vfs>,
    history: &Worker,
    state: &State,
    closed: bool,
    target: &dyn Target,
) -> Result<(), String> {
    let promises = target.promises();
    let (at, durable_len) = (state.at, state.durable_len());
    let found = read_tree(vfs, history.index).map_err(|error| format!("cannot read the tree: {error}"))?;
    if promises.only_values {
        return values(vfs, history, &found, at, false, promises);
    }
    let steps = &history.steps;
    let newest = steps.iter().rposition(|step| step.begin <= at).unwrap_or(0);
    let oldest = durable_step(steps, durable_len);
    if !promises.lasting_numbers {
        return by_names(&found, steps, (oldest, newest), durable_len);
    }
    let names = match target.syncs_alone() {
        true => matching_commit(steps, newest, &found, durable_len)?,
        false => matching_step(steps, oldest, newest, &found, promises)?,
    };
    if promises.ordered_names {
        born_whole(steps, names, newest, &found)?;
    }
    snapshot(vfs, history, newest, durable_len)?;
    for (path, node) in &found {
        if node.meta.mode & 0o170000 == FileType::Regular.mode_bits() {
            data(path, node, steps, (names, newest), durable_len, promises)?;
        }
    }
    values(vfs, history, &found, at, closed && newest + 1 == steps.len(), promises)
}

/// Checks that the snapshot has the names, attributes and contents that its source had. A new one replaces it
/// in two steps: between them there is none.
fn snapshot(vfs: &Arc<Vfs>, history: &Worker, newest: usize, durable_len: usize) -> Result<(), String> {
    let steps = &history.steps;
    let made: Vec<usize> = (1..=newest).filter(|nth| steps[*nth].op == Some(Op::Snapshot)).collect();
    let durable = made.iter().rposition(|nth| steps[*nth].ok && steps[*nth].end <= durable_len);
    let possible = &made[durable.unwrap_or(0)..];
    if possible.is_empty() {
        return Ok(());
    }
    let found = read_snapshot(vfs, history.index).map_err(|error| format!("the snapshot: {error}"))?;
    let Some(found) = found else {
        let is_missing = durable.is_some() && possible.len() == 1;
        return if is_missing { Err("a durable snapshot is missing".into()) } else { Ok(()) };
    };
    let shown = |tree: &Tree| -> Vec<_> {
        tree.iter().map(|(path, node)| (path.clone(), node.meta.clone(), node.data.clone())).collect()
    };
    let now = shown(&found);
    if possible.iter().any(|nth| shown(&steps[*nth].tree) == now) {
        return Ok(());
    }
    let paths: Vec<_> = found.keys().collect();
    Err(format!("the snapshot is as the source was at none of the steps {possible:?}; it has {paths:?}"))
}

/// Promises under which the files of one history are identified by their own names.
const TOLD_APART: Promises = Promises {
    ordered_names: true,
    lasting_numbers: true,
    crash_safe_values: false,
    generations: true,
    only_values: false,
};

/// Checks a format without persistent inode numbers: each name referred to the same file at some step since
/// names were last durable, with bytes of that time; a file that durable_len its name throughout has it.
fn by_names(
    found: &Tree,
    steps: &[Step],
    (oldest, newest): (usize, usize),
    durable_len: usize,
) -> Result<(), String> {
    let kind = |node: &Node| node.meta.mode & 0o170000;
    let regular = FileType::Regular.mode_bits();
    let between = &steps[oldest..=newest];
    for (path, node) in found {
        let mut why = format!("{path}: no step since {oldest} had this name");
        let mut seen = HashSet::new();
        let held = |step: &Step| step.tree.get(path).filter(|old| kind(old) == kind(node)).map(|old| old.id);
        let is_one_of_these = between.iter().filter_map(held).filter(|id| seen.insert(*id)).any(|id| {
            if kind(node) != regular {
                return true;
            }
            // A rename makes a promise only if its new name shows, and this name can come from an earlier
            // step.
            let shown = between.iter().position(|step| held(step) == Some(id)).unwrap_or(0) + oldest;
            let same = Node { id, ..node.clone() };
            data(path, &same, steps, (shown, newest), durable_len, TOLD_APART)
                .inspect_err(|error| why.clone_from(error))
                .is_ok()
        });
        if !is_one_of_these {
            return Err(why);
        }
    }
    for (path, node) in steps[oldest].tree.iter() {
        let stays = between.iter().all(|step| step.tree.get(path).is_some_and(|now| now.id == node.id));
        if stays && !found.contains_key(path) {
            return Err(format!(
                "{path}: missing, although its name was durable at step {oldest} and never changed"
            ));
        }
    }
    Ok(())
}

/// Returns the newest step whose names and attributes were promised as durable.
fn durable_step(steps: &[Step], at: usize) -> usize {
    let durable_up_to = |(nth, step): (usize, &Step)| match step.op {
        _ if !step.ok || step.end > at => 0,
        None | Some(Op::Sync | Op::Snapshot) => nth,
        Some(Op::Fsync(_)) => own_change(steps, nth),
        _ => 0,
    };
    steps.iter().enumerate().map(durable_up_to).max().unwrap_or(0)
}

/// Returns the newest change of names or attributes before a sync of the same inode. It must be durable, and
/// with ordered names so must everything before it; later changes need not be.
fn own_change(steps: &[Step], sync: usize) -> usize {
    let about = steps[sync].about;
    (1..sync)
        .rev()
        .find(|&nth| {
            let (step, before) = (&steps[nth], &steps[nth - 1]);
            step.ok && step.about == about && names_of(&step.tree) != names_of(&before.tree)
        })
        .unwrap_or(0)
}

/// Checks that a file shows all attributes of its creation unless an operation changed them. Its owner and
/// mode are ordered with the names.
fn born_whole(steps: &[Step], names: usize, newest: usize, found: &Tree) -> Result<(), String> {
    for (path, node) in found {
        let Some(birth) = (1..=names).find(|nth| {
            matches!(steps[*nth].op, Some(Op::Born(_)))
                && steps[*nth].ok
                && steps[*nth].about == Some(node.id)
        }) else {
            continue;
        };
        let later = &steps[birth + 1..=newest];
        if later.iter().any(|step| step.about == Some(node.id) && !changes_nothing(step)) {
            continue;
        }
        let shown = |node: &Node| (node.data.len(), node.atime, node.times.0);
        let born = steps[birth].tree.values().find(|other| other.id == node.id);
        if born.is_some_and(|born| shown(born) != shown(node)) {
            return Err(format!(
                "{path} has (size, atime, mtime) {:?}, but was created with {:?}",
                shown(node),
                born.map(shown)
            ));
        }
    }
    Ok(())
}

fn names_of(tree: &Tree) -> Vec<(&String, Identity, &Meta)> {
    tree.iter().map(|(path, node)| (path, node.id, &node.meta)).collect()
}

/// Returns the oldest step with the names and attributes found now. Later steps can look alike, and the order
/// of a step is a promise only if that step is known to show.
fn matching_step(
    steps: &[Step],
    oldest: usize,
    newest: usize,
    found: &Tree,
    promises: Promises,
) -> Result<usize, String> {
    if !promises.ordered_names {
        return Ok(newest);
    }
    let shown = names_of(found);
    if let Some(step) = (oldest..=newest).find(|&step| names_of(&steps[step].tree) == shown) {
        return Ok(step);
    }
    Err(format!(
        "the tree matches none of the steps {oldest}..={newest}\n  found: {shown:?}\n  after {oldest}: \
            {:?}\n  after {newest}: {:?}",
        names_of(&steps[oldest].tree),
        names_of(&steps[newest].tree),
    ))
}

/// The names of a file, and its attributes.
type Shown<'a> = (Vec<&'a String>, Option<&'a Meta>);

fn shown(tree: &Tree, id: Identity) -> Shown<'_> {
    let own = tree.iter().filter(|(_, node)| node.id == id);
    let (names, metas): (Vec<_>, Vec<_>) = own.map(|(path, node)| (path, &node.meta)).unzip();
    (names, metas.into_iter().next())
}

/// The directory of each name of a file, and the name in it. A renamed directory stays the same.
fn places(tree: &Tree, id: Identity) -> HashSet<(Option<Identity>, &str)> {
    let own = tree.iter().filter(|(_, node)| node.id == id);
    own.map(|(path, _)| match path.rsplit_once('/') {
        Some((dir, name)) => (tree.get(dir).map(|dir| dir.id), name),
        None => (None, path.as_str()),
    })
    .collect()
}

/// Returns a step whose state was committed. The names and attributes found are those of the step, except for
/// files that a later fsync stored: such a file is as it was at its fsync. If the commit has names of it, it
/// keeps these names.
fn matching_commit(steps: &[Step], newest: usize, found: &Tree, durable_len: usize) -> Result<usize, String> {
    let is_sync = |step: &Step| matches!(step.op, Some(Op::Fsync(_) | Op::Fdatasync(_)));
    let syncs: Vec<_> = (0..=newest).filter(|nth| is_sync(&steps[*nth])).collect();
    let is_done = |step: &Step| step.ok && step.end <= durable_len;
    let oldest = (0..=newest).rev().find(|nth| {
        let step = &steps[*nth];
        matches!(step.op, None | Some(Op::Sync | Op::Snapshot)) && is_done(step)
    });
    let fits = |base: usize| {
        let before = &*steps[base].tree;
        let ids: HashSet<Identity> = found.values().chain(before.values()).map(|node| node.id).collect();
        let is_right = |id: &Identity| {
            let (now, was) = (shown(found, *id), shown(before, *id));
            now == was
                || syncs.iter().filter(|nth| steps[**nth].about == Some(*id)).any(|nth| {
                    let then = shown(&steps[*nth].tree, *id);
                    let names = if was.0.is_empty() { then.0 } else { was.0.clone() };
                    now == (names, then.1)
                })
        };
        let is_kept = |nth: &usize| {
            let (step, change) = (&steps[*nth], own_change(steps, *nth));
            let Some(id) = step.about.filter(|_| is_done(step) && change > base) else { return true };
            let now = (places(found, id), shown(found, id).1);
            let is_now = |later: &Step| (places(&later.tree, id), shown(&later.tree, id).1) == now;
            matches!(step.op, Some(Op::Fdatasync(_))) || steps[change..=newest].iter().any(is_now)
        };
        ids.iter().all(is_right) && syncs.iter().all(is_kept)
    };
    let oldest = oldest.unwrap_or(0);
    (oldest..=newest).find(|base| fits(*base)).ok_or_else(|| {
        format!(
            "the tree matches no commit of the steps {oldest}..={newest}, with what fsync stored\n  found: \
                {:?}\n  after {oldest}: {:?}\n  after {newest}: {:?}",
            names_of(found),
            names_of(&steps[oldest].tree),
            names_of(&steps[newest].tree),
        )
    })
}

/// Returns whether two identities mean one file, as far as the format can tell after a crash.
fn same_file(a: Identity, b: Identity, promises: Promises) -> bool {
    a.0 == b.0 && (a.1 == b.1 || !promises.generations)
}

/// Returns whether a step made the contents of a file durable, or ordered them before the state found.
fn binds_data(step: &Step, nth: usize, id: Identity, names: usize, at: usize, promises: Promises) -> bool {
    let about = step.about.is_some_and(|about| same_file(about, id, promises));
    let durable = step.ok
        && step.end <= at
        && match step.op {
            None | Some(Op::Sync | Op::Snapshot) => true,
            Some(Op::Fsync(_) | Op::Fdatasync(_)) => about,
            _ => false,
        };
    // A rename over a file, if it shows, must show the whole new file; only ordered names tell whether it
    // shows.
    durable || (promises.ordered_names && step.replaced && about && nth <= names)
}

/// Checks that the file contains only bytes that it held since they last became durable.
fn data(
    path: &str,
    node: &Node,
    steps: &[Step],
    (names, newest): (usize, usize),
    at: usize,
    promises: Promises,
) -> Result<(), String> {
    let from = (0..=newest)
        .rev()
        .find(|&nth| binds_data(&steps[nth], nth, node.id, names, at, promises))
        .unwrap_or(0);
    let mut versions: Vec<&Arc<[u8]>> = Vec::new();
    for step in &steps[from..=newest] {
        if let Some(version) = step.tree.values().find(|other| same_file(other.id, node.id, promises))
            && versions.last().is_none_or(|last| !Arc::ptr_eq(last, &version.data))
        {
            versions.push(&version.data);
        }
    }
    let (Some(least), Some(most)) =
        (versions.iter().map(|v| v.len()).min(), versions.iter().map(|v| v.len()).max())
    else {
        return Err(format!("{path} refers to an inode that never existed"));
    };
    let size = node.data.len();
    // A file that was created in between had no bytes before.
    let made_between = !steps[from].tree.values().any(|other| same_file(other.id, node.id, promises));
    if size > most || (size < least && !made_between) {
        return Err(format!("{path} has {size} bytes; it had {least} to {most} since step {from}"));
    }
    for (offset, byte) in node.data.iter().enumerate() {
        let held = versions.iter().any(|version| version.get(offset) == Some(byte));
        let hole = *byte == 0 && (made_between || versions.iter().any(|version| version.len() <= offset));
        if !held && !hole {
            return Err(format!("{path}: byte {offset} is {byte:#x}, which it never was since step {from}"));
        }
    }
    Ok(())
}

fn changes_nothing(step: &Step) -> bool {
    !step.ok
        || matches!(
            step.op,
            None | Some(
                Op::Query(_) | Op::Fsync(_) | Op::Fdatasync(_) | Op::Sync | Op::Snapshot | Op::Open(_)
            )
        )
}

/// Checks C4, and C3 if the session was closed cleanly and nothing happened afterwards.
pub(crate) fn values(
    vfs: &Arc<Vfs>,
    history: &Worker,
    found: &Tree,
    at: usize,
    at_rest: bool,
    promises: Promises,
) -> Result<(), String> {
    if !promises.crash_safe_values {
        return Ok(());
    }
    let mut known: HashMap<Identity, Vec<&Handed>> = HashMap::new();
    for handed in history.handed.iter().filter(|handed| handed.at <= at) {
        known.entry(handed.id).or_default().push(handed);
    }
    for (path, node) in found {
        let Some(handed) = known.get(&node.id) else { continue };
        let place = format!("/{}/{path}", directory(history.index));
        let inode = vfs.resolve(&Cred::root(), &place, false).map_err(|e| format!("{place}: {e}"))?;
        let Some(now) = vfs.change(&inode) else {
            return Err(format!("{place} has no change attribute after recovery"));
        };
        for old in handed {
            if now < old.value {
                return Err(format!("{place}: the value decreased from {} to {now}", old.value));
            }
            if now == old.value && *node != old.node {
                return Err(format!("{place}: {now} stands for another state than at step {}", old.step));
            }
        }
        if let Some(last) = handed.last().filter(|_| at_rest)
            && history.steps[last.step..].iter().all(changes_nothing)
            && now != last.value
        {
            return Err(format!(
                "{place}: {} became {now} across a clean unmount without a change",
                last.value
            ));
        }
    }
    Ok(())
}

/// Checks that a file that grows by a write past its end reads as zeros in between, whatever a lost append
/// left past the end.
fn grows_by_zeros(vfs: &Vfs, inode: &InodeRef, node: &Node) -> Result<(), String> {
    const PAGE: usize = 4096;
    let size = node.data.len();
    let at = size.next_multiple_of(PAGE) + PAGE;
    match vfs.write(&Cred::root(), inode, at as u64, b"far", WriteFlags::empty()) {
        Err(Error::Name(NameError::NoSpace)) => return Ok(()),
        written => written.map_err(|error| format!("cannot extend after recovery: {error}"))?,
    };
    // Reads past the cache, in which the tail is zero anyway. The new page is written back for that; the page
    // with the old end is not dirty, because nothing has touched it.
    let from = size / PAGE * PAGE;
    let mut found = vec![0xEE; at + 3 - from];
    let got = vfs
        .read_direct(&Cred::root(), inode, from as u64, &mut found)
        .map_err(|error| format!("cannot read after extending: {error}"))?;
    let held = node.data[from..].iter().copied().chain(std::iter::repeat_n(0, at - size)).chain(*b"far");
    match found.iter().zip(held).position(|(byte, held)| *byte != held) {
        Some(byte) => Err(format!(
            "extended after recovery: byte {} is {:#x} (size was {size})",
            from + byte,
            found[byte]
        )),
        None if got < found.len() => Err(format!("extended after recovery: reads end at {}", from + got)),
        None => Ok(()),
    }
}

/// Extends and changes every file, after the checks, and checks that its value exceeds all values handed out,
/// if values are stored.
pub fn moves_on(vfs: &Arc<Vfs>, histories: &[Worker], at: usize, promises: Promises) -> Result<(), String> {
    for history in histories {
        let found =
            read_tree(vfs, history.index).map_err(|error| format!("cannot read the tree: {error}"))?;
        // One name of each file is enough; a second name would show the effects of the first.
        let mut seen = HashSet::new();
        for (path, node) in found.iter().filter(|(_, node)| seen.insert(node.id)) {
            let place = format!("/{}/{path}", directory(history.index));
            let inode = vfs.resolve(&Cred::root(), &place, false).map_err(|e| format!("{place}: {e}"))?;
            if inode.kind != FileType::Regular {
                continue;
            }
            if !promises.only_values {
                grows_by_zeros(vfs, &inode, node).map_err(|what| format!("{place}: {what}"))?;
            }
            vfs.write(&Cred::root(), &inode, 0, b"after", WriteFlags::empty())
                .map_err(|error| format!("{place}: cannot write after recovery: {error}"))?;
            let Some(now) = vfs.change(&inode).filter(|_| promises.crash_safe_values) else { continue };
            for old in history.handed.iter().filter(|old| old.at <= at && old.id == node.id) {
                if now <= old.value {
                    return Err(format!(
                        "{place}: changed after recovery, but {now} is not above {}",
                        old.value
                    ));
                }
            }
        }
    }
    Ok(())
}
