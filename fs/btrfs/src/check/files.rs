//! The check of a subvolume: its inodes one after the other, and then the names that connect them.

use super::inode::Current;
use super::state::{Checker, Root};
use super::subvolume::Subvolume;
use super::walk::Visit;
use crate::layout::key::{Key, kind, object};
use crate::layout::node::Node;
use ivers_vfs::Result;
use ivers_vfs::check::{Place, unreachable};

/// The objects of the cache of free inode numbers, which newer versions of Linux do not have.
const FREE_INODES: [u64; 2] = [-11i64 as u64, -12i64 as u64];
/// A walk of one subvolume.
struct FileWalk {
    subvolume: Subvolume,
    current: Option<Current>,
}

impl Visit for FileWalk {
    fn leaf(&mut self, checker: &mut Checker, leaf: &Node) -> Result<()> {
        for index in 0..leaf.count() {
            self.item(checker, leaf.key(index), leaf.data(index));
        }
        checker.beside = self.subvolume.bytes_kept();
        checker.charge()
    }
}

impl FileWalk {
    fn item(&mut self, checker: &mut Checker, key: Key, data: &[u8]) {
        if self.current.as_ref().is_none_or(|current| current.objectid != key.objectid) {
            self.finish(checker);
        }
        if key.objectid == object::ORPHANS && key.kind == kind::ORPHAN_ITEM {
            self.subvolume.orphans.remove(&key.offset);
            return;
        }
        if FREE_INODES.contains(&key.objectid) {
            return;
        }
        if !(object::FIRST_FREE..=object::LAST_FREE).contains(&key.objectid) {
            return checker.bad_item(
                "item-unexpected",
                self.subvolume.tree,
                key,
                "no object of a subvolume has this number",
            );
        }
        let mut current = self.current.take().unwrap_or_else(|| Current::new(key.objectid));
        current.item(&mut self.subvolume, checker, key, data);
        self.current = Some(current);
    }

    fn finish(&mut self, checker: &mut Checker) {
        if let Some(current) = self.current.take() {
            current.finish(&mut self.subvolume, checker);
        }
    }
}

impl Checker {
    /// Walks a subvolume, and checks everything in it.
    pub(super) fn check_subvolume(&mut self, root: &Root) -> Result<()> {
        self.add_root(&root.tree);
        let mut walk = FileWalk { subvolume: Subvolume::new(root.tree.id), current: None };
        let sound = self.walk(root, &mut walk, true)?;
        walk.finish(self);
        self.trees_sound &= sound;
        if let Some(stored) = self.roots.get_mut(&root.item_key()) {
            stored.sound = sound;
        }
        // A name that seems to be missing may be in a part that cannot be read.
        if sound {
            self.check_connections(&mut walk.subvolume);
            if !walk.subvolume.names.agrees() {
                walk.subvolume.names.keep_entries();
                self.quiet = true;
                walk.subvolume.dirs.clear();
                let again = self.walk(root, &mut walk, true);
                walk.finish(self);
                self.quiet = false;
                again?;
                for (count, name) in walk.subvolume.names.take_differences() {
                    self.report_name(&walk.subvolume, &name, count);
                }
            }
        }
        self.beside = 0;
        Ok(())
    }

    fn check_connections(&mut self, walk: &mut Subvolume) {
        walk.dirs.dedup_by_key(|(dir, _)| *dir);
        let lost = unreachable(&walk.dirs, |dir| *dir, object::FIRST_FREE);
        for (dir, is_circle) in lost {
            let (code, what) = match is_circle {
                true => ("directory-cycle", "the directory is inside itself"),
                false => ("directory-unconnected", "the root does not lead to the directory"),
            };
            walk.bad(self, code, dir, what);
        }
        if walk.dirs.first().is_none_or(|(dir, _)| *dir != object::FIRST_FREE) {
            let what = format!("tree {}: there is no root directory", walk.tree);
            self.bad("root-invalid", Place::filesystem(), what);
        }
        for orphan in std::mem::take(&mut walk.orphans) {
            walk.bad(self, "orphan-item-missing", orphan, "the inode has no name and no orphan item");
        }
    }
}
