//! Paths of the inodes in findings.

use super::state::Checker;
use super::walk::without_damage;
use crate::layout::items::{RootRef, decode_names};
use crate::layout::key::{Key, kind, object};
use crate::numbers::{Object, pack, unpack};
use crate::tree::Tree;
use ivers_vfs::check::PathFinder;
use ivers_vfs::{Ino, Result};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// The most directories in a path.
const DEPTH_MAX: usize = 256;

/// A name of an inode: the tree and the number of its directory, and the name.
type Named = (u64, u64, Vec<u8>);

impl Checker {
    /// Adds paths to the findings, from the names that the inodes store.
    pub(super) fn add_paths(&mut self) -> Result<()> {
        let wanted = self.found.wanted_paths();
        // For the number of an inode: the number of its directory, and its name.
        let mut names: HashMap<u64, (u64, Vec<u8>)> = HashMap::new();
        for ino in &wanted {
            let (mut tree, object) = unpack(Ino(*ino));
            let Object::Inode(mut objectid) = object else { continue };
            for _ in 0..DEPTH_MAX {
                let Ok(Ino(child)) = pack(tree, Object::Inode(objectid)) else { break };
                if (tree, objectid) == (object::FS_TREE, object::FIRST_FREE) || names.contains_key(&child) {
                    break;
                }
                let Some((parent, dir, name)) = self.name_of(tree, objectid)? else { break };
                let Ok(Ino(dir_ino)) = pack(parent, Object::Inode(dir)) else { break };
                names.insert(child, (dir_ino, name));
                (tree, objectid) = (parent, dir);
            }
        }
        let parent_of = |ino: u64| names.get(&ino).map(|(dir, _)| *dir);
        let finder = PathFinder::find(&wanted, parent_of, object::FIRST_FREE, |finder| {
            names.iter().for_each(|(child, (dir, name))| finder.add(*dir, *child, name));
            Ok(())
        })?;
        self.found.set_paths(&finder);
        Ok(())
    }

    /// Returns one name of an inode. For the root of a subvolume, this is the name of the subvolume.
    fn name_of(&self, tree: u64, objectid: u64) -> Result<Option<Named>> {
        if objectid == object::FIRST_FREE {
            let root = self.forest.volume.sb.root;
            let roots = Tree { id: object::ROOT_TREE, root };
            let (first, last) =
                (Key::new(tree, kind::ROOT_BACKREF, 0), Key::new(tree, kind::ROOT_BACKREF, u64::MAX));
            return without_damage(self.forest.scan(&roots, first, last, |key, data| {
                let named = RootRef::decode(data).ok();
                let named = named.map(|it| (key.offset, it.dir, it.name.to_vec()));
                Ok(named.map_or(ControlFlow::Continue(()), ControlFlow::Break))
            }));
        }
        let Some(root) = self.root(tree) else { return Ok(None) };
        let (first, last) =
            (Key::new(objectid, kind::INODE_REF, 0), Key::new(objectid, kind::INODE_EXTREF, u64::MAX));
        without_damage(self.forest.scan(&root.tree, first, last, |key, data| {
            let names = decode_names(key, data).unwrap_or_default();
            let named = names.first().map(|it| (tree, it.parent, it.name.to_vec()));
            Ok(named.map_or(ControlFlow::Continue(()), ControlFlow::Break))
        }))
    }
}
