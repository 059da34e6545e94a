//! The check of the free-space tree against the extents.

use super::space::Space;
use super::state::Checker;
use super::walk::Visit;
use crate::layout::bytes::read;
use crate::layout::features::RoCompat;
use crate::layout::key::{Key, kind, object};
use crate::layout::node::Node;
use crate::layout::raw::RawFreeSpaceInfo;
use ivers_vfs::Result;
use ivers_vfs::check::Place;

/// The flag of FREE_SPACE_INFO that says that the free space of the group is stored as bitmaps.
const USES_BITMAPS: u32 = 1;
/// The bytes of a bitmap.
const BITMAP_BYTES: u64 = 256;

struct FreeSpaceTree;

impl Visit for FreeSpaceTree {
    fn leaf(&mut self, checker: &mut Checker, leaf: &Node) -> Result<()> {
        for index in 0..leaf.count() {
            let (key, data) = (leaf.key(index), leaf.data(index));
            let has_group = checker.space.group(key.objectid).is_some();
            let taken = match key.kind {
                // mkfs.btrfs removes its first block groups, but not their items.
                kind::FREE_SPACE_INFO | kind::FREE_SPACE_EXTENT | kind::FREE_SPACE_BITMAP if !has_group => {
                    continue;
                }
                kind::FREE_SPACE_INFO => take_info(&mut checker.space, key, data),
                kind::FREE_SPACE_EXTENT => take_extent(&mut checker.space, key, data),
                kind::FREE_SPACE_BITMAP => take_bitmap(&mut checker.space, key, data),
                _ => Err("no item of this type belongs here".into()),
            };
            if let Err(what) = taken {
                let what = format!("item {key} of the free-space tree: {what}");
                checker.bad("free-space-wrong", Place::block(key.objectid), what);
            }
        }
        checker.charge()
    }
}

fn take_info(space: &mut Space, key: Key, data: &[u8]) -> std::result::Result<(), String> {
    let raw: RawFreeSpaceInfo = match read(data, 0) {
        Some(raw) if data.len() == size_of::<RawFreeSpaceInfo>() => raw,
        _ => return Err(format!("it has {} bytes", data.len())),
    };
    let group = space.groups.get_mut(&key.objectid).filter(|group| group.chunk.length == key.offset);
    let group = group.ok_or("there is no such block group")?;
    let flags = raw.flags.get();
    group.free = Some((raw.extent_count.get(), flags & USES_BITMAPS != 0));
    if flags & !USES_BITMAPS != 0 { Err(format!("its flags are {flags:#x}")) } else { Ok(()) }
}

/// Checks that the items of a group are of the kind that its FREE_SPACE_INFO names.
fn check_kind(space: &Space, key: Key, bitmaps: bool) -> std::result::Result<(u64, u64), String> {
    let is_whole = key.offset > 0 && key.offset.is_multiple_of(space.sector);
    let place = space.sectors(key.objectid, key.offset).filter(|_| is_whole);
    let place = place.ok_or("it is not in one block group")?;
    match space.group(key.objectid).and_then(|group| group.free) {
        Some((_, uses)) if uses == bitmaps => Ok(place),
        Some(_) => Err("the block group stores free space in the other way".into()),
        None => Err("the block group has no FREE_SPACE_INFO".into()),
    }
}

fn take_extent(space: &mut Space, key: Key, data: &[u8]) -> std::result::Result<(), String> {
    let (first, sectors) = check_kind(space, key, false)?;
    if !data.is_empty() {
        return Err(format!("it has {} bytes", data.len()));
    }
    // Linux merges adjacent free extents.
    let touches = first > 0
        && space.free.get(first - 1)
        && space.group(key.objectid).is_some_and(|group| group.chunk.start < key.objectid);
    // Keys are in order: an overlap has the first sector.
    if touches || space.free.get(first) || space.free.set_run(first, sectors).is_some() {
        return Err("it overlaps or touches the one before it".into());
    }
    Ok(())
}

fn take_bitmap(space: &mut Space, key: Key, data: &[u8]) -> std::result::Result<(), String> {
    let (first, sectors) = check_kind(space, key, true)?;
    if data.len() as u64 != sectors.div_ceil(8) || data.len() as u64 > BITMAP_BYTES {
        return Err(format!("a bitmap of {} bytes for {sectors} sectors", data.len()));
    }
    for at in (0..sectors).filter(|at| data[(at / 8) as usize] >> (at % 8) & 1 == 1) {
        if space.free.set_run(first + at, 1).is_some() {
            return Err("it overlaps the one before it".into());
        }
    }
    Ok(())
}

impl Checker {
    /// Walks the free-space tree, and compares it with the extents.
    pub(super) fn check_free_space(&mut self) -> Result<()> {
        let features = self.forest.volume.sb.ro_compat;
        let has_tree = self.root(object::FREE_SPACE_TREE).is_some();
        if !has_tree || !features.contains(RoCompat::FREE_SPACE_TREE) {
            if features.contains(RoCompat::FREE_SPACE_TREE) {
                self.bad("tree-missing", Place::filesystem(), "there is no free-space tree");
            }
            return Ok(());
        }
        if !features.contains(RoCompat::FREE_SPACE_TREE_VALID) {
            self.found.note("the free-space tree is marked as invalid: Linux builds it again");
            self.walk_by_id(object::FREE_SPACE_TREE, &mut super::walk::Nothing)?;
            return Ok(());
        }
        let sound = self.walk_by_id(object::FREE_SPACE_TREE, &mut FreeSpaceTree)?;
        if sound != Some(true) || !self.extents_sound {
            return Ok(());
        }
        let mut wrong = Vec::new();
        for (start, group) in &self.space.groups {
            wrong.extend(compare(&self.space, *start, group).into_iter().map(|what| (*start, what)));
        }
        for (start, what) in wrong {
            self.bad("free-space-wrong", Place::block(start), what);
        }
        Ok(())
    }
}

/// Compares the free space of a group with its extents. Returns the first run of sectors that is in both, and
/// the first that is in neither.
fn compare(space: &Space, start: u64, group: &super::space::Group) -> Vec<String> {
    let Some((first, sectors)) = space.sectors(start, group.chunk.length) else { return Vec::new() };
    let Some((count, _)) = group.free else {
        return vec!["the block group has no FREE_SPACE_INFO".into()];
    };
    let (end, mut at, mut runs, mut wrong) = (first + sectors, first, 0u64, [None, None]);
    while at < end {
        let used = space.used.get(at);
        let next = space.used.find(at, end - at, !used).unwrap_or(end);
        // Either all sectors of the run must be free, or none.
        let odd = space.free.find(at, next - at, used);
        if let Some(odd) = odd {
            wrong[usize::from(used)].get_or_insert(space.address(group, odd));
        }
        runs += u64::from(!used);
        at = next;
    }
    let mut said = Vec::new();
    if let Some(address) = wrong[1] {
        said.push(format!("the extent at {address} is recorded as free space"));
    }
    if let Some(address) = wrong[0] {
        said.push(format!("the free space at {address} is not recorded"));
    }
    if said.is_empty() && runs != u64::from(count) {
        said.push(format!("the block group has {runs} free extents, and counts {count}"));
    }
    said
}
