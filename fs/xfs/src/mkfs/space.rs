//! Which blocks of an allocation group are used, and by what.

use super::geometry::{Plan, Tree};
use super::options::MkfsOptions;
use std::ops::Range;

/// What uses blocks. The numbers are those of the reverse map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Headers = -3,
    Log = -4,
    /// The B-trees of free space and of reverse mappings, and the list of free blocks.
    Group = -5,
    InodeTrees = -6,
    Inodes = -7,
    ReferenceCounts = -8,
}

/// The blocks of one allocation group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub number: u32,
    pub len: u32,
    /// The used runs in order. Neighbours have different owners, or a gap between them.
    pub used: Vec<(Range<u32>, Owner)>,
    /// The free runs in order.
    pub free: Vec<Range<u32>>,
    /// The blocks of the list of free blocks. They count as used here, and as free for users.
    pub free_list: Range<u32>,
    /// The log, in one group.
    pub log: Option<Range<u32>>,
    /// The first chunk of inodes, in the first group.
    pub chunk: Option<Range<u32>>,
}

impl Group {
    /// Places everything in a group: headers, roots, log, list of free blocks, inodes.
    pub fn new(plan: &Plan, options: &MkfsOptions, number: u32) -> Self {
        let mut used = vec![(0..plan.header_blocks(), Owner::Headers)];
        for tree in &plan.trees {
            let owner = match tree {
                Tree::FreeByBlock | Tree::FreeBySize | Tree::ReverseMap => Owner::Group,
                Tree::Inodes | Tree::FreeInodes => Owner::InodeTrees,
                Tree::ReferenceCounts => Owner::ReferenceCounts,
            };
            append(&mut used, 1, owner);
        }
        let log = (number == plan.log_group()).then(|| append(&mut used, plan.log_blocks, Owner::Log));
        let free_list = append(&mut used, plan.free_list, Owner::Group);
        // xfs_repair computes the place of the root directory in the same way.
        let chunk = (number == 0).then(|| {
            let align = plan.inode_alignment(options).0.max(1);
            let start = free_list.end.next_multiple_of(align);
            let chunk = start..start + plan.chunk_blocks();
            used.push((chunk.clone(), Owner::Inodes));
            chunk
        });
        let len = plan.group_len(number);
        let mut free = Vec::new();
        let mut at = 0;
        for (run, _) in &used {
            if run.start > at {
                free.push(at..run.start);
            }
            at = run.end;
        }
        if len > at {
            free.push(at..len);
        }
        Self { number, len, used, free, free_list, log, chunk }
    }

    /// Blocks of the free runs.
    pub fn free_blocks(&self) -> u32 {
        self.free.iter().map(|run| run.end - run.start).sum()
    }

    /// Blocks that are free for users.
    pub fn usable_blocks(&self) -> u64 {
        u64::from(self.free_blocks() + (self.free_list.end - self.free_list.start))
    }
}

/// Adds a run after the last one, and returns it. It becomes a part of the last one if the owner is the same.
fn append(used: &mut Vec<(Range<u32>, Owner)>, blocks: u32, owner: Owner) -> Range<u32> {
    let start = used.last().map_or(0, |(run, _)| run.end);
    match used.last_mut().filter(|(_, last)| *last == owner) {
        Some((run, _)) => run.end += blocks,
        None if blocks > 0 => used.push((start..start + blocks, owner)),
        None => {}
    }
    start..start + blocks
}
