//! Walks of trees. A walk reads all copies of every block, and checks them against the pointer to the block.

use super::state::{Checker, Root, tree_name};
use crate::layout::key::{Key, object};
use crate::layout::node::{Expected, Node};
use crate::layout::superblock::TreeRoot;
use crate::tree::Tree;
use crate::volume::BadCopy;
use ivers_vfs::check::Place;
use ivers_vfs::{Error, Result};
use std::sync::Arc;

/// What a walk does with the leaves of a tree.
pub(super) trait Visit {
    /// Takes the next leaf. Leaves come in the order of their keys.
    fn leaf(&mut self, checker: &mut Checker, leaf: &Node) -> Result<()>;
}

/// For walks that only register blocks.
pub(super) struct Nothing;

impl Visit for Nothing {
    fn leaf(&mut self, _: &mut Checker, _: &Node) -> Result<()> {
        Ok(())
    }
}

/// One walk.
struct Walk<'a> {
    tree: Tree,
    dropped: Option<(Key, u8)>,
    visit: &'a mut dyn Visit,
    /// Visit also blocks that were visited before.
    again: bool,
}

/// Returns the code of a defect of a block, by the text of the error of [`Node::parse`] or [`Node::check`].
fn code_of(what: &str) -> &'static str {
    match what {
        "bad checksum" => "block-checksum-wrong",
        _ if what.starts_with("it names") || what.starts_with("it belongs") => "block-identity-wrong",
        _ if what.contains("generation") => "block-generation-wrong",
        _ if what.starts_with("key ") || what.contains("first key") || what.contains("keys of") => {
            "block-keys-wrong"
        }
        _ => "block-invalid",
    }
}

impl Checker {
    /// Reads the copies of a block, in order. Returns the first right one. If `all`, reads also the copies
    /// after it. Reports bad copies.
    fn read_block(&mut self, expected: &Expected, all: bool) -> Result<Option<Arc<Node>>> {
        let address = expected.bytenr;
        let mut right: Option<Arc<Node>> = None;
        let mut wrong: Vec<(usize, BadCopy)> = Vec::new();
        let volume = &self.forest.volume;
        let size = volume.sb.node_size as usize;
        for copy in 0..volume.copies(address) {
            if right.is_some() && !all {
                break;
            }
            let mut bytes = vec![0; size].into_boxed_slice();
            let parsed = volume.read_copy(address, copy, &mut bytes).and_then(|()| {
                let node = Node::parse(&volume.sb, address, bytes).map_err(BadCopy::Wrong)?;
                node.check(expected).map_err(BadCopy::Wrong)?;
                Ok(node)
            });
            match parsed {
                Ok(node) => right = right.or_else(|| Some(Arc::new(node))),
                Err(why) => wrong.push((copy, why)),
            }
        }
        if let Some(mending) = self.mending.as_mut().filter(|_| all) {
            mending.blocks += self.forest.volume.copies(address) as u64;
        }
        let missing = wrong.iter().find(|(_, why)| matches!(why, BadCopy::Missing(_)));
        let missing = missing.map(|(_, why)| why.to_string());
        wrong.retain(|(_, why)| !matches!(why, BadCopy::Missing(_)));
        let name = tree_name(expected.tree);
        match &right {
            Some(node) => {
                let bytes =
                    if wrong.is_empty() { Box::default() } else { node.sealed(&self.forest.volume.sb) };
                for (copy, why) in wrong {
                    let (code, done) = match self.mend(address, copy, &bytes) {
                        true => ("block-copy-mended", "was bad and is written again"),
                        false => ("block-copy-wrong", "is bad"),
                    };
                    let what = format!("copy {} of a block of {name} {done}: {why}", copy + 1);
                    self.bad(code, Place::block(address), what);
                }
            }
            None => {
                let io = wrong.iter().position(|(_, why)| matches!(why, BadCopy::Io(_)));
                if let (Some(at), 1, None) = (io, wrong.len(), &self.mending)
                    && let BadCopy::Io(error) = wrong.remove(at).1
                {
                    return Err(error.into());
                }
                let why = wrong.first().map(|(_, why)| why.to_string()).or(missing);
                let why = why.unwrap_or_else(|| "its address is in no chunk".into());
                let level = expected.level;
                let what = format!("a block of level {level} of {name} cannot be used: {why}");
                self.bad(code_of(&why), Place::block(address), what);
            }
        }
        Ok(right)
    }

    /// Reads the root block of the log tree. The other blocks of logs are not checked.
    pub(super) fn check_log_root(&mut self) -> Result<()> {
        let sb = &self.forest.volume.sb;
        if !sb.has_log() {
            return Ok(());
        }
        // An fsync writes it before the commit that it belongs to.
        let root = TreeRoot { generation: sb.generation.saturating_add(1), ..sb.log_root };
        self.read_block(&Expected::root_of(object::TREE_LOG, root), true).map(drop)
    }

    /// Walks a tree. Returns whether all of it could be read.
    pub(super) fn walk(&mut self, root: &Root, visit: &mut dyn Visit, again: bool) -> Result<bool> {
        let expected = Expected::root_of(root.tree.id, root.tree.root);
        let mut walk = Walk { tree: root.tree, dropped: root.dropped, visit, again };
        self.walk_block(&expected, &mut walk)
    }

    fn walk_block(&mut self, expected: &Expected, walk: &mut Walk) -> Result<bool> {
        let Some((sector, _)) = self.space.sectors(expected.bytenr, 1) else {
            let what = format!("a pointer in {} leads to no chunk", tree_name(expected.tree));
            self.bad("block-out-of-range", Place::block(expected.bytenr), what);
            return Ok(false);
        };
        let is_new = !self.space.visited.get(sector);
        // The block itself is still right, but another pointer to it may be wrong.
        let Some(node) = self.cached(expected, is_new)? else { return Ok(false) };
        if is_new {
            self.space.visited.set_run(sector, 1);
            self.charge()?;
        }
        if is_new || walk.again {
            if is_new {
                self.add_block(expected, &node, walk.dropped)?;
            }
            if node.level == 0 {
                walk.visit.leaf(self, &node)?;
            }
        }
        if node.level == 0 || !(is_new || walk.again) {
            return Ok(true);
        }
        let mut sound = true;
        for index in 0..node.count() {
            if is_dropped(&node, index, walk.dropped) {
                continue;
            }
            let below = node.expected_below(index, expected);
            if is_new && below.generation > node.generation {
                let what = format!(
                    "it has generation {}, and its child {} has {}",
                    node.generation, below.bytenr, below.generation
                );
                self.bad("block-generation-wrong", Place::block(expected.bytenr), what);
            }
            sound &= self.walk_block(&below, walk)?;
        }
        debug_assert!(walk.tree.id == expected.tree);
        Ok(sound)
    }

    /// Returns a block: from memory, if all its copies were read before.
    fn cached(&mut self, expected: &Expected, is_new: bool) -> Result<Option<Arc<Node>>> {
        if !is_new
            && let Some(node) = self.forest.cache.get(expected.bytenr)
            && node.check(expected).is_ok()
        {
            return Ok(Some(node));
        }
        let node = self.read_block(expected, is_new)?;
        if let Some(node) = &node {
            self.forest.cache.insert(expected.bytenr, node.clone());
        }
        Ok(node)
    }
}

/// Returns whether an interrupted deletion of a subvolume has released the block that a pointer leads to.
pub(super) fn is_dropped(node: &Node, index: usize, dropped: Option<(Key, u8)>) -> bool {
    let Some((key, level)) = dropped else { return false };
    if node.level < level {
        return false;
    }
    match node.level == level {
        true => node.key(index) < key,
        false => index + 1 < node.count() && node.key(index + 1) <= key,
    }
}

/// Returns `None` for damage that a search found: the walk of that tree has reported it.
pub(super) fn without_damage<T>(result: Result<Option<T>>) -> Result<Option<T>> {
    match result {
        Err(Error::Corrupt { .. }) => Ok(None),
        other => other,
    }
}
