//! Reading files of an image.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::Result;
use ivers_vfs::{Cred, Error, FileType, InodeRef, NameError, Vfs};

use super::super::stream::{CHUNK_MAX, packed};
use super::{FileHeader, Source};

/// An open image.
pub struct Image(pub Arc<Vfs>);

impl Source for Image {
    type File = InodeRef;

    fn header(&self, inode: &InodeRef) -> Result<FileHeader> {
        let attr = self.0.stat(inode);
        let target =
            if attr.kind == FileType::Symlink { self.0.read_link(&Cred::root(), inode)? } else { Vec::new() };
        Ok(FileHeader {
            name: Vec::new(),
            id: (0, inode.ino.0),
            has_links: attr.kind != FileType::Directory && attr.nlink > 1,
            mode: attr.mode(),
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            atime: packed(attr.atime),
            mtime: packed(attr.mtime),
            size: if attr.kind == FileType::Regular { attr.size } else { 0 },
            target,
        })
    }

    fn xattrs(&self, inode: &InodeRef) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let cred = Cred::root();
        let names = match self.0.list_xattr(&cred, inode) {
            Err(Error::Name(NameError::NotSupported)) => return Ok(Vec::new()),
            names => names?,
        };
        names
            .into_iter()
            .map(|name| {
                let value = self.0.get_xattr(&cred, inode, &name)?;
                Ok((name, value))
            })
            .collect()
    }

    fn names(&self, dir: &InodeRef) -> (Vec<Vec<u8>>, Result<()>) {
        let mut names = Vec::new();
        let whole = self.0.readdir(&Cred::root(), dir, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            ControlFlow::Continue(())
        });
        names.sort();
        (names, whole.map(drop).map_err(Into::into))
    }

    fn child(&self, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        Ok(self.0.lookup(&Cred::root(), dir, name)?)
    }

    fn read(&self, inode: &InodeRef, sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<u64> {
        let mut buffer = vec![0; CHUNK_MAX];
        let mut at = 0;
        loop {
            let (from, to) = match self.0.seek_data(inode, at) {
                Ok(from) => (from, self.0.seek_hole(inode, from)?),
                Err(Error::Name(NameError::NoSuchOffset)) => return Ok(self.0.stat(inode).size),
                Err(error) => return Err(error.into()),
            };
            at = from;
            while at < to {
                let room = usize::try_from(to - at).unwrap_or(usize::MAX).min(buffer.len());
                match self.0.read(&Cred::root(), inode, at, &mut buffer[..room])? {
                    0 => return Ok(at),
                    n => {
                        sink(at, &buffer[..n])?;
                        at += n as u64;
                    }
                }
            }
        }
    }
}
