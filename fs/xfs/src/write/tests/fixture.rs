//! A filesystem that is changed by the operations of files, and a model of what must be in it.

use super::common::{Tree, digest};
use super::harness::{Image, Seeded, close};
use crate::fork::{ForkSource, Which};
use crate::inode::Dinode;
use crate::unit::Whose;
use crate::write::fork::MapRequest;
use crate::write::names::{Exchange, NewFile, Renaming};
use crate::write::space::Space;
use crate::write::tx::Tx;
use ivers_block::{BlockNo, FileBlock};
use ivers_oracle::LoopMount;
use ivers_vfs::{FileType, Result, Timestamp, XattrMode};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

pub const NOW: Timestamp = Timestamp { sec: 1_700_000_000, nsec: 123 };

/// What the model knows of an inode.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub entries: BTreeMap<Vec<u8>, u64>,
    pub parent: u64,
    pub links: u32,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Blocks with data, and the byte that fills each.
    pub blocks: BTreeMap<u64, u8>,
    pub blocks_end: u64,
    pub target: Vec<u8>,
}

pub struct Fixture {
    pub space: Space,
    pub inodes: BTreeMap<u64, Dinode>,
    pub models: BTreeMap<u64, Model>,
    pub root: u64,
}

/// Reads an inode.
pub fn load(tx: &Tx<'_>, ino: u64) -> Dinode {
    let sb = &tx.space().sb;
    let (cluster, at) = sb.inode_cluster(ino).unwrap();
    let bytes = tx.read_unit(&cluster, None, Whose::Inode(ino)).unwrap();
    let bytes = &bytes[at..at + sb.inode_size as usize];
    Dinode::decode(sb, bytes, ino, true).unwrap_or_else(|_| panic!("inode {ino} cannot be decoded"))
}

impl Fixture {
    /// Opens an image that is empty but for what [`Image::new`] makes.
    pub fn open(image: &Image) -> Self {
        let space = image.open();
        let root = space.sb.root;
        let mut fixture = Self { space, inodes: BTreeMap::new(), models: BTreeMap::new(), root };
        let dir = fixture.change(|tx| Ok(load(tx, image.directory)));
        let top = fixture.change(|tx| Ok(load(tx, root)));
        let entries = [(b"d".to_vec(), image.directory)].into();
        fixture.models.insert(root, Model { entries, parent: root, links: 3, ..Model::default() });
        fixture.models.insert(image.directory, Model { parent: root, links: 2, ..Model::default() });
        fixture.inodes.insert(root, top);
        fixture.inodes.insert(image.directory, dir);
        fixture
    }

    /// Runs one transaction that must succeed.
    pub fn change<R>(&self, change: impl FnOnce(&mut Tx<'_>) -> Result<R>) -> R {
        let mut tx = self.space.begin(self.space.journal.max_credits()).unwrap();
        let result = change(&mut tx).unwrap_or_else(|error| panic!("{error}"));
        tx.finish().unwrap();
        result
    }

    fn clones<const N: usize>(&self, inos: [u64; N]) -> [Dinode; N] {
        inos.map(|ino| self.inodes[&ino].clone())
    }

    fn put<const N: usize>(&mut self, inodes: [Dinode; N]) {
        self.inodes.extend(inodes.map(|inode| (inode.ino, inode)));
    }

    pub fn is_dir(&self, ino: u64) -> bool {
        self.inodes[&ino].kind() == FileType::Directory
    }

    pub fn create(&mut self, dir: u64, name: &[u8], kind: FileType, target: &[u8]) -> u64 {
        let [mut parent] = self.clones([dir]);
        let new = NewFile {
            kind,
            perm: 0o755,
            uid: 1,
            gid: 2,
            rdev: if kind == FileType::CharDevice { 0x1230_0845 } else { 0 },
            target,
            xattrs: &[],
            now: NOW,
        };
        let inode = self.change(|tx| tx.create(&mut parent, name, &new));
        let ino = inode.ino;
        self.put([parent, inode]);
        let is_dir = kind == FileType::Directory;
        let links = if is_dir { 2 } else { 1 };
        let model = Model { parent: dir, links, target: target.to_vec(), ..Model::default() };
        assert!(self.models.insert(ino, model).is_none(), "inode {ino} is in use");
        self.model(dir).entries.insert(name.to_vec(), ino);
        self.model(dir).links += u32::from(is_dir);
        ino
    }

    pub fn model(&mut self, ino: u64) -> &mut Model {
        self.models.get_mut(&ino).unwrap()
    }

    pub fn link(&mut self, dir: u64, name: &[u8], ino: u64) {
        let [mut parent, mut inode] = self.clones([dir, ino]);
        self.change(|tx| tx.link(&mut parent, name, &mut inode, NOW));
        self.put([parent, inode]);
        self.model(dir).entries.insert(name.to_vec(), ino);
        self.model(ino).links += 1;
    }

    /// Notes that an inode lost a link, and frees it if it was the last.
    fn lost_link(&mut self, ino: u64) {
        let is_dir = self.is_dir(ino);
        self.model(ino).links -= if is_dir { 2 } else { 1 };
        if self.models[&ino].links > 0 {
            return;
        }
        self.models.remove(&ino);
        let mut inode = self.inodes.remove(&ino).unwrap();
        while !self.change(|tx| tx.release_inode(&mut inode, 7)) {}
    }

    pub fn unlink(&mut self, dir: u64, name: &[u8]) {
        let ino = self.models[&dir].entries[name];
        let [mut parent, mut inode] = self.clones([dir, ino]);
        self.change(|tx| tx.unlink(&mut parent, name, &mut inode, NOW));
        self.put([parent, inode]);
        self.model(dir).entries.remove(name);
        let is_dir = self.is_dir(ino);
        self.model(dir).links -= u32::from(is_dir);
        self.lost_link(ino);
    }

    /// Whether `ino` is `dir`, or above it.
    pub fn is_above(&self, ino: u64, dir: u64) -> bool {
        let mut at = dir;
        while at != ino {
            if at == self.root {
                return false;
            }
            at = self.models[&at].parent;
        }
        true
    }

    pub fn rename(&mut self, dir: u64, name: &[u8], new_dir: u64, new_name: &[u8]) {
        let ino = self.models[&dir].entries[name];
        let replaced = self.models[&new_dir].entries.get(new_name).copied();
        let [mut from, mut to, mut inode] = self.clones([dir, new_dir, ino]);
        let mut old = replaced.map(|ino| self.inodes[&ino].clone());
        self.change(|tx| {
            tx.rename(Renaming {
                dir: &mut from,
                name,
                inode: &mut inode,
                new_dir: (dir != new_dir).then_some(&mut to),
                new_name,
                replaced: old.as_mut(),
                now: NOW,
            })
        });
        if dir != new_dir {
            self.put([to]);
        }
        self.put([from, inode]);
        self.inodes.extend(old.map(|old| (old.ino, old)));
        self.model(dir).entries.remove(name);
        self.model(new_dir).entries.insert(new_name.to_vec(), ino);
        if self.is_dir(ino) {
            self.model(dir).links -= 1;
            self.model(new_dir).links += 1;
            self.model(ino).parent = new_dir;
        }
        if let Some(replaced) = replaced {
            let is_dir = self.is_dir(replaced);
            self.model(new_dir).links -= u32::from(is_dir);
            self.lost_link(replaced);
        }
    }

    pub fn exchange(&mut self, dir: u64, name: &[u8], other_dir: u64, other_name: &[u8]) {
        let (a, b) = (self.models[&dir].entries[name], self.models[&other_dir].entries[other_name]);
        let [mut from, mut to, mut inode, mut other] = self.clones([dir, other_dir, a, b]);
        self.change(|tx| {
            tx.exchange(Exchange {
                dir: &mut from,
                name,
                inode: &mut inode,
                other_dir: (dir != other_dir).then_some(&mut to),
                other_name,
                other: &mut other,
                now: NOW,
            })
        });
        if dir != other_dir {
            self.put([to]);
        }
        self.put([from, inode, other]);
        for (moved, from, to) in [(a, dir, other_dir), (b, other_dir, dir)] {
            if self.is_dir(moved) {
                self.model(from).links -= 1;
                self.model(to).links += 1;
                self.model(moved).parent = to;
            }
        }
        self.model(dir).entries.insert(name.to_vec(), b);
        self.model(other_dir).entries.insert(other_name.to_vec(), a);
    }

    pub fn set_xattr(&mut self, ino: u64, name: &str, value: Option<&[u8]>) {
        self.edit(ino, |tx, inode| tx.set_attribute(inode, name.as_bytes(), value, XattrMode::Any));
        match value {
            Some(value) => self.model(ino).xattrs.insert(name.to_owned(), value.to_vec()),
            None => self.model(ino).xattrs.remove(name),
        };
    }

    /// Changes an inode in a way that the model does not know.
    pub fn edit(&mut self, ino: u64, edit: impl FnOnce(&mut Tx<'_>, &mut Dinode) -> Result<()>) {
        let [mut inode] = self.clones([ino]);
        self.change(|tx| {
            edit(tx, &mut inode)?;
            inode.log(tx)
        });
        self.put([inode]);
    }

    /// Loads an inode that something else changed.
    pub fn reload(&mut self, ino: u64) {
        let inode = self.change(|tx| Ok(load(tx, ino)));
        self.put([inode]);
    }

    /// Maps file blocks that are holes, and fills those that are not unwritten.
    pub fn write(&mut self, ino: u64, first: u64, count: u64, fill: u8, unwritten: bool) {
        let [mut inode] = self.clones([ino]);
        let size = u64::from(self.space.sb.block_size);
        self.change(|tx| {
            let mut at = FileBlock(first);
            while at.0 < first + count {
                let mapping = ForkSource::map(tx, &inode.data, at, ino)?;
                let max = mapping.len.min(first + count - at.0) as u32;
                if mapping.block.is_none() {
                    let request = MapRequest { at, min: 1, max, goal: None, unwritten, ahead: 0 };
                    at = tx.map_extent(&mut inode, Which::Data, request)?.unwrap().end();
                } else {
                    at += max.into();
                }
            }
            inode.set_size(inode.size().max((first + count) * size));
            if !unwritten {
                tx.convert_range(&mut inode, FileBlock(first), FileBlock(first + count), false)?;
            }
            inode.log(tx)
        });
        if !unwritten {
            let blocks = self
                .change(|tx| tx.mapped_blocks(&inode.data, inode.unit(Which::Data, FileBlock(first), count)));
            self.fill(&blocks, fill);
        }
        self.put([inode]);
        let model = self.model(ino);
        model.blocks_end = model.blocks_end.max(first + count);
        for block in first..first + count {
            if unwritten {
                model.blocks.entry(block).or_insert(0);
            } else {
                model.blocks.insert(block, fill);
            }
        }
    }

    fn fill(&self, blocks: &[BlockNo], fill: u8) {
        let size = self.space.sb.block_size;
        for block in blocks {
            self.space.cache.device().write_at(block.offset(size), &vec![fill; size as usize]).unwrap();
        }
    }

    /// Makes a hole.
    pub fn punch(&mut self, ino: u64, first: u64, count: u64) {
        let [mut inode] = self.clones([ino]);
        loop {
            let done = self.change(|tx| {
                let end = FileBlock(first + count);
                let done = tx.unmap_range(&mut inode, Which::Data, FileBlock(first), end, 5)?;
                inode.log(tx)?;
                Ok(done)
            });
            if done {
                break;
            }
        }
        self.put([inode]);
        self.model(ino).blocks.retain(|block, _| !(first..first + count).contains(block));
    }

    /// What the model says, in the form of [`seen`].
    pub fn expected(&self) -> Tree {
        let mut tree = Tree::new();
        let mut dirs = vec![(self.root, String::new())];
        while let Some((dir, prefix)) = dirs.pop() {
            for (name, ino) in &self.models[&dir].entries {
                let path = format!("{prefix}/{}", name.escape_ascii());
                let model = &self.models[ino];
                let size = self.space.sb.block_size as usize;
                let mut content = model.target.clone();
                if self.inodes[ino].kind() == FileType::Regular {
                    content = vec![0; model.blocks_end as usize * size];
                    for (block, fill) in &model.blocks {
                        content[*block as usize * size..][..size].fill(*fill);
                    }
                }
                let kind = self.inodes[ino].kind();
                let line = line(kind, model.links, &content, &model.xattrs);
                tree.insert(path.clone(), line);
                if self.is_dir(*ino) {
                    dirs.push((*ino, path));
                }
            }
        }
        tree
    }
}

fn line(kind: FileType, links: u32, content: &[u8], xattrs: &BTreeMap<String, Vec<u8>>) -> String {
    let xattrs: Vec<_> =
        xattrs.iter().map(|(name, value)| format!("{name}={}:{:x}", value.len(), digest(value))).collect();
    format!("{kind:?} links={links} {}:{:x} {xattrs:?}", content.len(), digest(content))
}

/// The tree that Linux shows.
fn seen(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut dirs = vec![(root.to_owned(), String::new())];
    while let Some((dir, prefix)) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{prefix}/{}", entry.file_name().as_bytes().escape_ascii());
            let meta = entry.path().symlink_metadata().unwrap();
            let of = meta.file_type();
            let (kind, content) = if of.is_dir() {
                (FileType::Directory, Vec::new())
            } else if of.is_symlink() {
                let target = std::fs::read_link(entry.path()).unwrap();
                (FileType::Symlink, target.into_os_string().into_encoded_bytes())
            } else if of.is_file() {
                (FileType::Regular, std::fs::read(entry.path()).unwrap())
            } else {
                (if of.is_fifo() { FileType::Fifo } else { FileType::CharDevice }, Vec::new())
            };
            let names = xattr::list(entry.path()).unwrap();
            let value = |name: &std::ffi::OsStr| xattr::get(entry.path(), name).unwrap().unwrap();
            let xattrs = names.map(|name| (name.to_str().unwrap().to_owned(), value(&name))).collect();
            let links = std::os::unix::fs::MetadataExt::nlink(&meta) as u32;
            tree.insert(path.clone(), line(kind, links, &content, &xattrs));
            if meta.is_dir() {
                dirs.push((entry.path(), path));
            }
        }
    }
    tree
}

/// Closes the filesystem, and lets everything judge it.
pub fn judge(image: &Image, fixture: Fixture, what: &str) {
    let expected = fixture.expected();
    close(fixture.space);
    image.judge(what);
    let mounted = LoopMount::new(&image.path, "ro").unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_seen(&expected, mounted.path(), what);
    mounted.unmount().unwrap();
}

/// Compares the tree that Linux shows with the model.
pub fn assert_seen(expected: &Tree, root: &Path, what: &str) {
    let found = seen(root);
    for (path, line) in expected {
        assert_eq!(found.get(path), Some(line), "{what}: {path}");
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

/// A random name.
pub fn name(random: &mut Seeded) -> Vec<u8> {
    let len = if random.one_in(8) { random.below(240) } else { random.below(20) };
    format!("{}{}", random.below(100_000), "n".repeat(len as usize)).into_bytes()
}
