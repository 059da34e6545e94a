//! Where the blocks of a file are: direct pointers, and up to three levels of indirect blocks.

use crate::layout::Fields;
use crate::layout::dinode::Dinode;
use crate::layout::superblock::DIRECT;
use crate::volume::Ufs;
use ivers_block::FileBlock;
use ivers_vfs::{Error, Result};

/// Successive blocks of a file that are together on the device, or in one hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The fragment of the first one; `None`: a hole.
    pub start: Option<u64>,
    /// At least 1.
    pub blocks: u64,
}

/// The way from an inode to a file block that has no direct pointer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    /// Indirect blocks on the way: 1 to 3.
    pub level: u32,
    /// The first file block of this level, and the place of the block in it.
    base: u64,
    rest: u64,
}

impl Path {
    /// The pointer of the inode.
    pub fn root(&self) -> usize {
        DIRECT as usize + self.level as usize - 1
    }

    /// The pointer in the indirect block of a height, from `level` down to 1.
    pub fn slot(&self, height: u32, per_block: u64) -> u64 {
        self.rest / per_block.pow(height - 1) % per_block
    }

    /// Names the indirect block of a height: the height, and the first file block below it.
    pub fn node(&self, height: u32, per_block: u64) -> (u32, u64) {
        let span = per_block.pow(height);
        (height, self.base + self.rest / span * span)
    }
}

impl Ufs {
    /// Returns the way to a file block; `None`: it has a direct pointer, or no file is that long.
    pub(crate) fn path(&self, block: u64) -> Option<Path> {
        let per_block = self.sb.pointers_per_block();
        let (mut base, mut span) = (DIRECT, per_block);
        for level in 1..=3 {
            if block < base {
                return None;
            }
            if block - base < span {
                return Some(Path { level, base, rest: block - base });
            }
            base += span;
            span *= per_block;
        }
        None
    }

    /// Reads the pointers of an indirect block, from one on to the end of its fragment.
    fn pointers_in(&self, ino: u32, node: u64, slot: u64) -> Result<impl Iterator<Item = u64> + use<>> {
        let (step, size) = (u64::from(self.sb.pointer_size()), u64::from(self.sb.fragment_size));
        let byte = slot * step;
        self.check_frags(ino, node, self.sb.frags_per_block.into())?;
        let bytes = self.fragment(ino, node + byte / size)?;
        let order = self.sb.order;
        let pointers = (byte % size..size).step_by(step as usize).map(move |at| {
            let fields = Fields::new(&bytes, order);
            if step == 4 { fields.u32(at as usize).into() } else { fields.u64(at as usize) }
        });
        Ok(pointers)
    }

    /// Reads a pointer of an indirect block.
    pub(crate) fn pointer_in(&self, ino: u32, node: u64, slot: u64) -> Result<u64> {
        Ok(self.pointers_in(ino, node, slot)?.next().unwrap_or(0))
    }

    /// Returns the run that begins at a block of a file. The blocks after the run may continue it.
    pub(crate) fn map(&self, file: &Dinode, block: FileBlock) -> Result<Run> {
        if file.is_snapshot() {
            let what =
                "it is a snapshot, which only FreeBSD reads; mount the snapshot there, and copy its files";
            return Err(Error::Incompatible(format!("{}, inode {}: {what}", self.place, file.ino)));
        }
        if block.0 < DIRECT {
            let direct = &file.pointers[block.0 as usize..DIRECT as usize];
            return self.run(file, direct.iter().copied());
        }
        let Some(path) = self.path(block.0) else {
            return Ok(Run { start: None, blocks: u64::MAX - block.0 });
        };
        let per_block = self.sb.pointers_per_block();
        let (mut height, mut pointer) = (path.level, file.pointers[path.root()]);
        loop {
            if pointer == 0 {
                let span = per_block.pow(height);
                return Ok(Run { start: None, blocks: span - path.rest % span });
            }
            let mut pointers = self.pointers_in(file.ino, pointer, path.slot(height, per_block))?;
            if height == 1 {
                return self.run(file, pointers);
            }
            (height, pointer) = (height - 1, pointers.next().unwrap_or(0));
        }
    }

    /// Returns the run at the start of successive pointers, of which there is at least one.
    fn run(&self, file: &Dinode, mut pointers: impl Iterator<Item = u64>) -> Result<Run> {
        let (first, step) = (pointers.next().unwrap_or(0), u64::from(self.sb.frags_per_block));
        if first == 0 {
            let more = pointers.take_while(|&pointer| pointer == 0).count() as u64;
            return Ok(Run { start: None, blocks: 1 + more });
        }
        self.check_frags(file.ino, first, 1)?;
        let follows = |(nth, pointer): &(u64, u64)| first.checked_add(nth * step) == Some(*pointer);
        let more = (1u64..).zip(pointers).take_while(follows).count() as u64;
        Ok(Run { start: Some(first), blocks: 1 + more })
    }
}
