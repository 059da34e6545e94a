//! Reading what is copied.

mod host;
mod image;

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;

use anyhow::Result;
use ivers_vfs::FileType;

pub use host::{Host, open_stream};
pub use image::Image;

use super::stream::{FileHeader, FileId, Message, Sender};
use crate::image::cycle_guard::CycleGuard;
use crate::output::failure::{code, line, usage};
use crate::output::format;

/// A tree to read from.
pub trait Source {
    /// A file or directory.
    type File;

    /// Reads the attributes.
    fn header(&self, file: &Self::File) -> Result<FileHeader>;
    /// Reads the extended attributes that this user may read.
    fn xattrs(&self, file: &Self::File) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Reads the names in a directory, sorted. On error returns the names up to there.
    fn names(&self, dir: &Self::File) -> (Vec<Vec<u8>>, Result<()>);
    /// Looks up a name in a directory.
    fn child(&self, dir: &Self::File, name: &[u8]) -> Result<Self::File>;
    /// Passes the contents without holes to `sink`, with byte offsets. Returns the size in bytes.
    fn read(&self, file: &Self::File, sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<u64>;
}

/// How to read.
#[derive(Debug, Clone, Copy)]
pub struct ReadOptions {
    /// Copy directories with their contents.
    pub recursive: bool,
    /// Read extended attributes.
    pub preserve: bool,
    /// Read contents. A dry run needs names only.
    pub contents: bool,
    /// The destination directory, if it has the same origin: it is not copied into itself.
    pub exclude: Option<FileId>,
}

/// Reads operands of one origin.
pub struct Reader {
    origin: u32,
    options: ReadOptions,
    /// Files with several hard links that were read.
    linked: HashSet<FileId>,
    /// Directories of this operand that were entered.
    entered: CycleGuard<FileId>,
}

impl Reader {
    /// Creates a reader for an origin.
    pub fn new(origin: u32, options: ReadOptions) -> Self {
        Self { origin, options, linked: HashSet::new(), entered: CycleGuard::default() }
    }

    /// Reads one operand. A file that cannot be read becomes a [`Message::Problem`]; an error means that the
    /// stream cannot be written.
    pub fn read_operand<S: Source>(
        &mut self,
        source: &S,
        file: Result<S::File>,
        operand: &[u8],
        name: Option<&[u8]>,
        out: &mut Sender<impl Write>,
    ) -> Result<()> {
        let name = name.map(<[u8]>::to_vec);
        out.send(&Message::Operand { origin: self.origin, operand: operand.to_vec(), name })?;
        self.entered.clear();
        let done = match file {
            Ok(file) => self.read_file(source, &file, Vec::new(), &mut Vec::new(), out),
            Err(error) => problem(out, &[], &error),
        };
        done.and_then(|()| out.flush())
    }

    /// Reads one operand that is a stream.
    pub fn read_stream(
        &mut self,
        file: &File,
        operand: &[u8],
        name: Option<&[u8]>,
        out: &mut Sender<impl Write>,
    ) -> Result<()> {
        let name = name.map(<[u8]>::to_vec);
        out.send(&Message::Operand { origin: self.origin, operand: operand.to_vec(), name })?;
        out.send(&Message::File(host::stream_header()))?;
        // An error of reading ends the copy too: what was read is not all.
        let mut size = 0;
        if self.options.contents {
            size = host::read_stream(file, &mut |at, bytes| out.data(at, bytes))?;
        }
        out.send(&Message::End { size })?;
        out.flush()
    }

    fn read_file<S: Source>(
        &mut self,
        source: &S,
        file: &S::File,
        name: Vec<u8>,
        path: &mut Vec<Vec<u8>>,
        out: &mut Sender<impl Write>,
    ) -> Result<()> {
        let mut header = match source.header(file).and_then(|header| self.check(header, path)) {
            Ok(header) => header,
            Err(error) => return problem(out, path, &error),
        };
        let kind = header.kind()?;
        header.name.clone_from(&name);
        let id = header.id;
        if header.has_links && !self.linked.insert(id) {
            return out.send(&Message::Link { name, id });
        }
        out.send(&Message::File(header))?;
        if self.options.preserve && self.options.contents {
            match source.xattrs(file) {
                Ok(all) => {
                    all.into_iter().try_for_each(|(name, value)| out.send(&Message::Xattr(name, value)))?
                }
                Err(error) => problem(out, path, &error)?,
            }
        }
        let mut size = 0;
        if kind == FileType::Directory {
            self.read_below(source, file, path, out)?;
        } else if kind == FileType::Regular && self.options.contents {
            let mut broken = None;
            let read = source.read(file, &mut |offset, bytes| {
                size = offset + bytes.len() as u64;
                out.data(offset, bytes).map_err(|error| {
                    broken = Some(error);
                    anyhow::anyhow!("cannot write to the stream")
                })
            });
            if let Some(error) = broken {
                return Err(error);
            }
            match read {
                Ok(all) => size = all,
                Err(error) => problem(out, path, &error)?,
            }
        }
        out.send(&Message::End { size })
    }

    /// Checks whether a file may be copied.
    fn check(&mut self, header: FileHeader, path: &[Vec<u8>]) -> Result<FileHeader> {
        if header.kind()? != FileType::Directory {
            return Ok(header);
        }
        if !self.options.recursive {
            return Err(usage("is a directory: use --recursive"));
        }
        if self.options.exclude == Some(header.id) {
            return Err(usage("cannot copy a directory into itself"));
        }
        let path_len = path.iter().map(Vec::len).sum();
        self.entered.enter(header.id, path.len(), path_len, || "the source".into())?;
        Ok(header)
    }

    fn read_below<S: Source>(
        &mut self,
        source: &S,
        dir: &S::File,
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
                Ok(child) => self.read_file(source, &child, name, path, out)?,
                Err(error) => problem(out, path, &error)?,
            }
            path.pop();
        }
        Ok(())
    }
}

fn problem(out: &mut Sender<impl Write>, path: &[Vec<u8>], error: &anyhow::Error) -> Result<()> {
    out.send(&Message::Problem { path: display_path(b"", path), code: code(error), line: line(error) })
}

/// Returns a path below an operand, for a terminal.
pub fn display_path(operand: &[u8], names: &[Vec<u8>]) -> String {
    names.iter().fold(format::name(operand), |mut path, name| {
        if !path.is_empty() && !path.ends_with('/') {
            path.push('/');
        }
        path + &format::name(name)
    })
}
