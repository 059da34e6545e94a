//! What a check has seen, and the checks of the superblock.

use super::reader::Reader;
use crate::layout::dinode::Dinode;
use crate::layout::superblock::{ROOT, Superblock, flags};
use ivers_block::Device;
use ivers_vfs::Result;
use ivers_vfs::check::{Bits, Findings, Memory, PathFinder, Place};
use std::sync::Arc;

/// What is known of an inode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    /// Entries of directories that refer to it.
    pub names: u32,
    pub links: u16,
    /// Its type as in entries of directories; 0: it is free.
    pub kind: u8,
    /// Its pointers are damaged, so that its contents are not read.
    pub damaged: bool,
}

/// A directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Directory {
    pub ino: u32,
    /// The directory that has a name for it; 0: none.
    pub parent: u32,
    /// What its `..` refers to; 0: nothing.
    pub dotdot: u32,
}

/// Fragments for each byte of an empty [`Bits`].
const FRAGMENTS_PER_BYTE: u64 = 4096;

/// The type of directories in entries.
pub(super) const DT_DIR: u8 = 4;

pub(crate) struct Checker {
    pub(super) reader: Arc<Reader>,
    pub sb: Superblock,
    memory: Memory,
    pub found: Findings,
    /// Fragments that have an owner.
    pub owned: Bits,
    /// The inodes of each group that has inodes in use.
    pub inodes: Vec<Option<Box<[Seen]>>>,
    /// In ascending order.
    pub directories: Vec<Directory>,
    /// Inodes with pointers past their size.
    pub past_end: Vec<u32>,
    /// Inodes with a wrong `di_blocks`, and what it must be.
    pub block_counts: Vec<(u32, u64)>,
}

impl Checker {
    pub(crate) fn new(device: Arc<dyn Device>, sb: Superblock, mut memory: Memory) -> Result<Self> {
        // What is allocated below, whatever is in use. A sparse image can claim to be very large.
        let groups = u64::from(sb.groups) * size_of::<Option<Box<[Seen]>>>() as u64;
        memory.keep(sb.size / FRAGMENTS_PER_BYTE + groups + sb.summary_bytes)?;
        let fs_type = crate::head::fs_type(&sb);
        Ok(Self {
            owned: Bits::new(sb.size),
            inodes: (0..sb.groups).map(|_| None).collect(),
            reader: Arc::new(Reader { device, sb: sb.clone() }),
            sb,
            memory,
            found: Findings::of(fs_type),
            directories: Vec::new(),
            past_end: Vec::new(),
            block_counts: Vec::new(),
        })
    }

    pub(super) fn bad(&mut self, code: &'static str, place: Place, what: impl Into<String>) {
        self.found.add(code, place, what);
    }

    /// Charges what is kept, and `more` bytes.
    pub(super) fn charge(&mut self, more: usize) -> Result<()> {
        let groups = self.inodes.iter().flatten().count();
        let inodes = groups * self.sb.inodes_per_group as usize * size_of::<Seen>();
        let vectors = self.inodes.capacity() * size_of::<Option<Box<[Seen]>>>()
            + self.directories.capacity() * size_of::<Directory>()
            + self.past_end.capacity() * size_of::<u32>()
            + self.block_counts.capacity() * size_of::<(u32, u64)>();
        self.memory.keep((self.owned.bytes_kept() + inodes + vectors + more) as u64)
    }

    /// What is known of an inode; `None`: its group has none in use, or it does not exist.
    pub(crate) fn seen(&self, ino: u32) -> Option<&Seen> {
        let (group, nth) = (ino / self.sb.inodes_per_group, ino % self.sb.inodes_per_group);
        self.inodes.get(group as usize)?.as_ref()?.get(nth as usize)
    }

    /// As [`Checker::seen`], to change it.
    pub(super) fn seen_mut(&mut self, ino: u32) -> Option<&mut Seen> {
        let (group, nth) = (ino / self.sb.inodes_per_group, ino % self.sb.inodes_per_group);
        self.inodes.get_mut(group as usize)?.as_mut()?.get_mut(nth as usize)
    }

    /// The inodes in use.
    pub(crate) fn seen_inodes(&self) -> impl Iterator<Item = (u32, &Seen)> {
        let groups = (0..).zip(&self.inodes).filter_map(|(group, inodes)| Some((group, inodes.as_ref()?)));
        let inodes =
            groups.flat_map(|(group, inodes)| (group * self.sb.inodes_per_group..).zip(inodes.iter()));
        inodes.filter(|(_, seen)| seen.kind != 0)
    }

    /// What is known of a directory.
    pub(crate) fn directory(&self, ino: u32) -> Option<&Directory> {
        let nth = self.directories.binary_search_by_key(&ino, |dir| dir.ino).ok()?;
        self.directories.get(nth)
    }

    /// Decodes an inode that is in use.
    pub(super) fn dinode(&self, ino: u32) -> Result<Option<Dinode>> {
        let (fragment, at) = self.sb.inode_place(ino);
        let bytes = self.reader.read(fragment, 1)?;
        let bytes = &bytes[at..at + self.sb.inode_size() as usize];
        Ok(Dinode::parse(bytes, &self.sb, ino).ok().flatten())
    }

    /// Compares the copies of the superblock, and claims the fragments of all structures.
    pub(super) fn check_superblock(&mut self) -> Result<()> {
        if self.sb.flags & flags::FS_NEEDSFSCK != 0 {
            let what = "the filesystem is marked as damaged (FS_NEEDSFSCK)";
            self.bad("repair-required", Place::filesystem(), what);
        } else if !self.sb.clean {
            self.found.note("the filesystem was not unmounted cleanly");
            if self.sb.flags & flags::FS_SUJ != 0 {
                self.found
                    .note("the journal of soft updates is not replayed: fsck_ffs of FreeBSD replays it");
            }
        }
        let frags = u64::from(self.sb.superblock_bytes).div_ceil(self.sb.fragment_size.into());
        for group in 0..self.sb.groups {
            let first = self.sb.structure(group, 0);
            let start = if group == 0 { 0 } else { first };
            let end = self.sb.structure(group, 3);
            if end > self.sb.group_base(group) + self.sb.group_frags(group) {
                let what = "the group has no space for its inodes";
                self.bad("group-too-small", Place::group(group), what);
            }
            self.owned.set_run(start, end - start);
            let at = first * u64::from(self.sb.fragment_size);
            let end = self.sb.size * u64::from(self.sb.fragment_size);
            let wrong = match Superblock::parse(&self.reader.read(first, frags)?, at, end, "") {
                Ok(copy) => {
                    (copy.geometry() != self.sb.geometry()).then(|| "it has another geometry".to_owned())
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(what) = wrong {
                let what = format!("the copy of the superblock is wrong: {what}");
                self.bad("superblock-copy-wrong", Place::group(group).at(first), what);
            }
        }
        let (start, frags) = (self.sb.summary_start, self.sb.summary_frags());
        self.owned.set_run(start, frags);
        self.charge(0)
    }

    /// Looks for the paths of the inodes of findings.
    pub(super) fn find_paths(&mut self) -> Result<()> {
        let mut directories = std::mem::take(&mut self.directories);
        directories.retain(|dir| self.is_readable(dir.ino));
        let parent_of = |ino: u64| {
            let nth = directories.binary_search_by_key(&ino, |dir| dir.ino.into()).ok()?;
            Some(directories[nth].parent.into())
        };
        let wanted = self.found.wanted_paths();
        let finder = PathFinder::find(&wanted, parent_of, ROOT.into(), |finder| {
            for dir in &directories {
                let Some(inode) = self.dinode(dir.ino)? else { continue };
                self.reader.for_each_entry(&inode, &mut |_, entry| {
                    let entry = entry.iter();
                    entry.for_each(|entry| finder.add(dir.ino.into(), entry.ino.into(), entry.name));
                })?;
            }
            Ok(())
        })?;
        self.found.set_paths(&finder);
        Ok(())
    }
}
