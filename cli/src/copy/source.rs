//! The end of a copy that reads.

mod host;
mod image;

use std::collections::HashSet;
use std::io::Write;

use anyhow::Result;
use ivers_vfs::FileType;

pub use host::Host;
pub use image::Image;

use super::stream::{Item, Message, Number, Sender};
use crate::dirs::Dirs;
use crate::failure::{code, line, usage};
use crate::show;

/// What can be read from.
pub trait Source {
    /// One file of it.
    type Node;

    /// What is copied besides contents and extended attributes.
    fn look(&self, node: &Self::Node) -> Result<Item>;
    /// The extended attributes that this user may read.
    fn xattrs(&self, node: &Self::Node) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// The names in a directory as far as they can be read, sorted, and why there are no more.
    fn names(&self, dir: &Self::Node) -> (Vec<Vec<u8>>, Result<()>);
    /// What is behind a name in a directory.
    fn child(&self, dir: &Self::Node, name: &[u8]) -> Result<Self::Node>;
    /// The contents without the holes; says how large the file is.
    fn pour(&self, node: &Self::Node, sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<u64>;
}

/// How to read.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// Directories with all that is in them.
    pub recursive: bool,
    /// Extended attributes too.
    pub preserve: bool,
    /// Where the copy goes, if that is on the same filesystem: it is not copied into itself.
    pub avoid: Option<Number>,
}

/// Reads from one origin.
pub struct Emitter {
    origin: u32,
    wish: Wish,
    /// Files with several names that have been there.
    twins: HashSet<Number>,
    /// Directories of this word that have been there.
    dirs: Dirs<Number>,
}

impl Emitter {
    /// For an origin of this number.
    pub fn new(origin: u32, wish: Wish) -> Self {
        Self { origin, wish, twins: HashSet::new(), dirs: Dirs::default() }
    }

    /// Read one word of the command line, whatever becomes of its parts. An error means that nobody listens.
    pub fn emit<S: Source>(
        &mut self,
        source: &S,
        node: Result<S::Node>,
        shown: &str,
        name: Option<&[u8]>,
        out: &mut Sender<impl Write>,
    ) -> Result<()> {
        let name = name.map(<[u8]>::to_vec);
        out.send(&Message::Source { origin: self.origin, shown: shown.to_owned(), name })?;
        self.dirs.clear();
        let done = match node {
            Ok(node) => self.file(source, &node, Vec::new(), &mut Vec::new(), out),
            Err(error) => problem(out, &[], &error),
        };
        done.and_then(|()| out.flush())
    }

    fn file<S: Source>(
        &mut self,
        source: &S,
        node: &S::Node,
        name: Vec<u8>,
        path: &mut Vec<Vec<u8>>,
        out: &mut Sender<impl Write>,
    ) -> Result<()> {
        let mut item = match source.look(node).and_then(|item| self.admit(item, path)) {
            Ok(item) => item,
            Err(error) => return problem(out, path, &error),
        };
        let kind = item.kind()?;
        item.name.clone_from(&name);
        let number = item.number;
        if item.has_twins && !self.twins.insert(number) {
            return out.send(&Message::Link { name, number });
        }
        out.send(&Message::Item(item))?;
        if self.wish.preserve {
            match source.xattrs(node) {
                Ok(all) => {
                    all.into_iter().try_for_each(|(name, value)| out.send(&Message::Xattr(name, value)))?
                }
                Err(error) => problem(out, path, &error)?,
            }
        }
        let mut size = 0;
        if kind == FileType::Directory {
            self.below(source, node, path, out)?;
        } else if kind == FileType::Regular {
            let mut gone = None;
            let poured = source.pour(node, &mut |offset, bytes| {
                size = offset + bytes.len() as u64;
                out.data(offset, bytes).map_err(|error| {
                    gone = Some(error);
                    anyhow::anyhow!("nobody listens")
                })
            });
            if let Some(error) = gone {
                return Err(error);
            }
            match poured {
                Ok(all) => size = all,
                Err(error) => problem(out, path, &error)?,
            }
        }
        out.send(&Message::End { size })
    }

    /// Whether a file may be copied at all.
    fn admit(&mut self, item: Item, path: &[Vec<u8>]) -> Result<Item> {
        if item.kind()? != FileType::Directory {
            return Ok(item);
        }
        if !self.wish.recursive {
            return Err(usage("is a directory: copy it with --recursive"));
        }
        if self.wish.avoid == Some(item.number) {
            return Err(usage("a directory is not copied into itself"));
        }
        let path_len = path.iter().map(Vec::len).sum();
        self.dirs.enter(item.number, path.len(), path_len, || "the source".into())?;
        Ok(item)
    }

    fn below<S: Source>(
        &mut self,
        source: &S,
        dir: &S::Node,
        path: &mut Vec<Vec<u8>>,
        out: &mut Sender<impl Write>,
    ) -> Result<()> {
        let (names, whole) = source.names(dir);
        if let Err(error) = whole {
            problem(out, path, &error)?;
        }
        for name in names {
            path.push(name.clone());
            match source.child(dir, &name) {
                Ok(child) => self.file(source, &child, name, path, out)?,
                Err(error) => problem(out, path, &error)?,
            }
            path.pop();
        }
        Ok(())
    }
}

fn problem(out: &mut Sender<impl Write>, path: &[Vec<u8>], error: &anyhow::Error) -> Result<()> {
    out.send(&Message::Problem { path: shown_path("", path), code: code(error), line: line(error) })
}

/// A path below a word of the command line, for people.
pub fn shown_path(word: &str, names: &[Vec<u8>]) -> String {
    names.iter().fold(word.to_owned(), |mut path, name| {
        if !path.is_empty() && !path.ends_with('/') {
            path.push('/');
        }
        path + &show::name(name)
    })
}
