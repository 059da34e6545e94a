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

impl Ufs {
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
        let per_block = self.sb.pointers_per_block();
        let (mut rest, mut level, mut span) = (block.0 - DIRECT, 1, per_block);
        while rest >= span {
            rest -= span;
            level += 1;
            if level > 3 {
                return Ok(Run { start: None, blocks: u64::MAX - block.0 });
            }
            span *= per_block;
        }
        let mut pointer = file.pointers[DIRECT as usize + level - 1];
        // `span` is the number of file blocks below `pointer`, `rest` the position in them.
        while pointer != 0 {
            self.check_frags(file.ino, pointer, 1)?;
            span /= per_block;
            let byte = rest / span * u64::from(self.sb.pointer_size());
            rest %= span;
            let size = u64::from(self.sb.fragment_size);
            let bytes = self.fragment(file.ino, pointer + byte / size)?;
            let fields = Fields::new(&bytes, self.sb.order);
            let pointers = ((byte % size) as usize..bytes.len()).step_by(self.sb.pointer_size() as usize);
            let mut pointers = pointers.map(|at| match self.sb.pointer_size() {
                4 => fields.u32(at).into(),
                _ => fields.u64(at),
            });
            if span == 1 {
                return self.run(file, pointers);
            }
            pointer = pointers.next().unwrap_or(0);
        }
        Ok(Run { start: None, blocks: span - rest })
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
