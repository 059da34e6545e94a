//! Filling a directory of an open image with files that are named by path, as an archive does.
//!
//! A path never leaves the directory: `..` is refused, and no symbolic link is followed. If links to
//! directories are kept, they are followed with the directory as the root, as after chroot(2). Directories
//! get their times at the end, since each new name changes them.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use ivers_vfs::acl::{ACCESS, DEFAULT};
use ivers_vfs::{
    CreateSpec, Cred, Error, ErrorCursor, FileType, Ino, InodeRef, NameError, OpenMode, SetAttr, TimeSet,
    Timestamp, Vfs, WriteFlags, XattrMode,
};

use super::formats::explain_lack;
use super::inode_handle::InodeHandle;
use crate::archive::member::{Kind, Member};
use crate::output::format;

/// Longest path in bytes.
const PATH_MAX: usize = 64 << 10;
/// Symbolic links that one name may lead through.
const LINKS_MAX: u32 = 40;
/// Permissions of a directory that only the paths of other files name.
const IMPLIED_PERM: u32 = 0o755;

/// Splits a path into its names. `.` and empty names are left out.
pub fn names_of(path: &[u8]) -> Result<Vec<&[u8]>> {
    if path.len() > PATH_MAX {
        bail!("a path of {} bytes is too long", path.len());
    }
    let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let names: Vec<_> = names.collect();
    if names.contains(&&b".."[..]) {
        bail!("refused: the path contains \"..\"");
    }
    Ok(names)
}

/// A directory on the way to the last path.
struct Level {
    name: Vec<u8>,
    dir: InodeRef,
    /// Its files inherit an ACL.
    has_default_acl: bool,
}

/// Times that a directory gets at the end.
struct Times {
    dir: InodeHandle,
    atime: Timestamp,
    mtime: Timestamp,
}

/// Creates files below a directory.
pub struct Filler {
    vfs: Arc<Vfs>,
    cred: Cred,
    /// From the directory to that of the last path.
    levels: Vec<Level>,
    /// One entry for each directory that was named.
    times: HashMap<Ino, Times>,
    /// The times of directories that only the paths of other files name. `None`: those of the clock.
    implied_time: Option<Timestamp>,
    replaces: bool,
    keeps_links: bool,
}

/// A file that was created and is not complete.
pub struct Created {
    /// Its inode.
    pub inode: InodeRef,
    existed: bool,
    inherits: bool,
    /// The end of the data that was written.
    end: u64,
    /// While a regular file is written.
    open: Option<Open>,
}

impl Created {
    fn new(inode: InodeRef, existed: bool, inherits: bool) -> Self {
        Self { inode, existed, inherits, end: 0, open: None }
    }
}

/// An open of a new file. A server keeps files open for this client, so they must be closed.
struct Open {
    vfs: Arc<Vfs>,
    inode: InodeRef,
    errors: ErrorCursor,
}

impl Open {
    fn new(vfs: &Arc<Vfs>, cred: &Cred, inode: &InodeRef) -> Result<Self> {
        vfs.open(cred, inode, OpenMode::WRITE)?;
        Ok(Self { vfs: vfs.clone(), inode: inode.clone(), errors: vfs.error_cursor(inode) })
    }

    /// Closes the file. Returns an error if a server refuses its data now.
    fn close(self) -> Result<()> {
        Ok(self.vfs.flush_descriptor(&self.inode, &self.errors)?)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.vfs.close(&self.inode, OpenMode::WRITE);
    }
}

impl Filler {
    /// Fills `root`, a directory.
    pub fn new(vfs: Arc<Vfs>, root: InodeRef, implied_time: Option<Timestamp>) -> Result<Self> {
        let (cred, levels, times) = (Cred::root(), Vec::new(), HashMap::new());
        let mut filler = Self { vfs, cred, levels, times, implied_time, replaces: true, keeps_links: false };
        let root = filler.level(Vec::new(), root)?;
        filler.levels.push(root);
        Ok(filler)
    }

    /// Refuses to replace files from now on. All names come from one directory, so two that are equal here
    /// differ there: some formats do not distinguish all names.
    pub fn keep_existing(&mut self) {
        self.replaces = false;
    }

    /// Keeps symbolic links to directories from now on: what belongs into such a directory is created where
    /// the link leads.
    pub fn keep_directory_links(&mut self) {
        self.keeps_links = true;
    }

    fn may_replace(&self) -> Result<()> {
        if self.replaces {
            return Ok(());
        }
        bail!("this format does not distinguish the name from that of another file, which is kept")
    }

    fn level(&self, name: Vec<u8>, dir: InodeRef) -> Result<Level> {
        let has_default_acl = match self.vfs.get_xattr(&self.cred, &dir, DEFAULT) {
            Ok(_) => true,
            Err(Error::Name(NameError::NoAttribute | NameError::NotSupported)) => false,
            Err(error) => return Err(error.into()),
        };
        Ok(Level { name, dir, has_default_acl })
    }

    fn parent(&self) -> Result<&Level> {
        self.levels.last().context("the directory to fill is missing")
    }

    fn root(&self) -> Result<&InodeRef> {
        Ok(&self.levels.first().context("the directory to fill is missing")?.dir)
    }

    /// Returns the directory that a symbolic link in `dir` leads to. The directory to fill is the root: `..`
    /// stays there, and an absolute target starts there.
    fn linked_directory(&self, dir: &InodeRef, link: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        let root = self.root()?;
        let (mut at, mut links) = (dir.clone(), 0);
        let mut next = Some(link.clone());
        // Names that are left, the next one last.
        let mut rest: Vec<Vec<u8>> = Vec::new();
        loop {
            match next.take() {
                Some(inode) if inode.kind == FileType::Symlink => {
                    links += 1;
                    if links > LINKS_MAX {
                        bail!("refused: {} leads through too many symbolic links", format::name(name));
                    }
                    let target = self.vfs.read_link(&self.cred, &inode)?;
                    if target.starts_with(b"/") {
                        at = root.clone();
                    }
                    let names = target.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
                    rest.extend(names.rev().map(<[u8]>::to_vec));
                }
                Some(inode) => at = inode,
                None => {}
            }
            if at.kind != FileType::Directory {
                bail!("refused: {} is a symbolic link, and not to a directory", format::name(name));
            }
            let Some(step) = rest.pop() else { return Ok(at) };
            if step != b".." || at.ino != root.ino {
                let found = self.vfs.lookup(&self.cred, &at, &step);
                next = Some(found.with_context(|| format!("the target of the link {}", format::name(name)))?);
            }
        }
    }

    /// Goes to the directory with this path. Creates it if it does not exist.
    fn enter(&mut self, path: &[&[u8]]) -> Result<()> {
        let known =
            self.levels.iter().skip(1).zip(path).take_while(|(level, name)| level.name == **name).count();
        self.levels.truncate(known + 1);
        for name in &path[known..] {
            let parent = &self.parent()?.dir;
            let dir = match self.vfs.lookup(&self.cred, parent, name) {
                Ok(inode) if inode.kind == FileType::Directory => inode,
                Ok(inode) if inode.kind == FileType::Symlink && self.keeps_links => {
                    self.linked_directory(parent, &inode, name)?
                }
                Ok(inode) if inode.kind == FileType::Symlink => {
                    bail!(
                        "refused: {} is a symbolic link; --keep-directory-symlink follows it",
                        format::name(name)
                    );
                }
                Ok(inode) => bail!("{} is a {}", format::name(name), format::kind_in_words(inode.kind)),
                Err(Error::Name(NameError::NotFound)) => self.create_implied(name)?,
                Err(error) => return Err(error.into()),
            };
            let level = self.level(name.to_vec(), dir)?;
            self.levels.push(level);
        }
        Ok(())
    }

    fn create_implied(&mut self, name: &[u8]) -> Result<InodeRef> {
        let spec = CreateSpec::of(FileType::Directory, IMPLIED_PERM);
        let (dir, _) = self.vfs.create(&self.cred, &self.parent()?.dir, name, &spec, false)?;
        if let Some(time) = self.implied_time {
            self.note_times(&dir, time, time);
        }
        Ok(dir)
    }

    fn note_times(&mut self, dir: &InodeRef, atime: Timestamp, mtime: Timestamp) {
        self.times.insert(dir.ino, Times { dir: InodeHandle::new(&self.vfs, dir), atime, mtime });
    }

    /// Finds a file. Follows no symbolic link, except to a directory on the way if such links are kept.
    pub fn find(&mut self, path: &[&[u8]]) -> Result<Option<InodeRef>> {
        let mut inode = self.root()?.clone();
        for (at, name) in path.iter().enumerate() {
            if inode.kind != FileType::Directory {
                return Ok(None);
            }
            let found = match self.vfs.lookup(&self.cred, &inode, name) {
                Ok(inode) => inode,
                Err(Error::Name(NameError::NotFound)) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let is_followed = self.keeps_links && found.kind == FileType::Symlink && at + 1 < path.len();
            inode = if is_followed { self.linked_directory(&inode, &found, name)? } else { found };
        }
        Ok(Some(inode))
    }

    /// Creates a file. An existing directory stays; an existing file of another type is replaced, unless one
    /// of both is a directory.
    pub fn create(&mut self, path: &[&[u8]], member: &Member) -> Result<Created> {
        let Kind::File(kind) = member.kind else { bail!("a member of unknown type") };
        let Some((name, dirs)) = path.split_last() else {
            let inode = self.root()?.clone();
            if kind != FileType::Directory {
                bail!("has no name to create it under");
            }
            return Ok(Created::new(inode, true, false));
        };
        self.enter(dirs)?;
        let time = |time| Some(TimeSet::At(time));
        let spec = CreateSpec {
            rdev: member.rdev,
            target: member.target.clone(),
            uid: Some(member.uid),
            gid: Some(member.gid),
            atime: time(member.atime.unwrap_or(member.mtime)),
            mtime: time(member.mtime),
            ..CreateSpec::of(kind, member.perm)
        };
        let level = self.parent()?;
        let inherits = level.has_default_acl;
        let (vfs, dir) = (&self.vfs, &level.dir);
        match vfs.create(&self.cred, dir, name, &spec, false) {
            Err(Error::Name(NameError::Exists)) => {}
            created => {
                let (inode, _) = explain_lack(vfs, format::special_files(kind), created)?;
                return self.opened(Created::new(inode, false, inherits));
            }
        }
        let mut found = vfs.lookup(&self.cred, dir, name)?;
        if kind == FileType::Directory && found.kind == FileType::Symlink && self.keeps_links {
            found = self.linked_directory(dir, &found, name)?;
        }
        if kind == FileType::Directory && found.kind == FileType::Directory {
            return Ok(Created::new(found, true, inherits));
        }
        if kind == FileType::Directory || found.kind == FileType::Directory {
            bail!("exists and is a {}", format::kind_in_words(found.kind));
        }
        self.may_replace()?;
        vfs.unlink(&self.cred, dir, name, false)?;
        let (inode, _) = vfs.create(&self.cred, dir, name, &spec, false)?;
        self.opened(Created::new(inode, false, inherits))
    }

    fn opened(&self, mut created: Created) -> Result<Created> {
        if created.inode.kind == FileType::Regular {
            created.open = Some(Open::new(&self.vfs, &self.cred, &created.inode)?);
        }
        Ok(created)
    }

    /// Writes contents.
    pub fn write(&self, created: &mut Created, offset: u64, bytes: &[u8]) -> Result<()> {
        // Nobody reads them again: pages of the cache would cost more than the rest of a small file.
        let flags = WriteFlags::CACHED_BY_CALLER;
        let write =
            || self.vfs.write_with_outcome(&self.cred, &created.inode, offset, bytes, flags)?.complete();
        match write() {
            // Dirty data reserves more than it takes once it is written.
            Err(Error::Name(NameError::NoSpace)) => {
                self.vfs.sync()?;
                write()?
            }
            written => written?,
        };
        created.end = created.end.max(offset + bytes.len() as u64);
        Ok(())
    }

    /// Sets what is left of the attributes: all contents are written. Closes the file.
    pub fn finish(&mut self, mut created: Created, member: &Member) -> Result<()> {
        let finished = self.set_rest(&created, member);
        let closed = created.open.take().map_or(Ok(()), Open::close);
        finished.and(closed)
    }

    fn set_rest(&mut self, created: &Created, member: &Member) -> Result<()> {
        let (vfs, cred, inode) = (&self.vfs, &self.cred, &created.inode);
        if inode.kind == FileType::Regular && created.end < member.size {
            let size = SetAttr { size: Some(member.size), ..SetAttr::default() };
            vfs.set_attr(cred, inode, &size)?;
        }
        let mut rest = SetAttr::default();
        if created.existed {
            let owner = SetAttr { uid: Some(member.uid), gid: Some(member.gid), ..SetAttr::default() };
            match vfs.set_attr(cred, inode, &owner) {
                // The format stores no owners.
                Ok(_) | Err(Error::Name(NameError::NotPermitted)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut failed = None;
        for (name, value) in &member.xattrs {
            match vfs.set_xattr(cred, inode, name, value, XattrMode::Any) {
                // Attributes of namespaces that this filesystem lacks are omitted.
                Ok(()) | Err(Error::Name(NameError::NotSupported | NameError::NotPermitted)) => {}
                Err(error) => failed = failed.or(Some(anyhow!("attribute {}: {error}", format::name(name)))),
            }
        }
        if created.existed || created.inherits {
            let missing = [ACCESS, DEFAULT].into_iter();
            for acl in missing.filter(|acl| !member.xattrs.iter().any(|(name, _)| name == acl)) {
                match vfs.remove_xattr(cred, inode, acl) {
                    Ok(()) | Err(Error::Name(NameError::NoAttribute | NameError::NotSupported)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let is_link = inode.kind == FileType::Symlink;
        if !is_link && (created.existed || created.inherits || !member.xattrs.is_empty()) {
            // The mask of an ACL is part of the mode.
            rest.perm = Some(member.perm);
        }
        let atime = member.atime.unwrap_or(member.mtime);
        if inode.kind == FileType::Directory {
            if rest.perm.is_some() {
                vfs.set_attr(cred, inode, &rest)?;
            }
            let inode = inode.clone();
            self.note_times(&inode, atime, member.mtime);
            // It may have a default ACL now.
            self.levels
                .truncate(self.levels.iter().take_while(|level| level.dir.ino != inode.ino).count().max(1));
        } else if rest.perm.is_some() || member.size > 0 {
            rest.atime = Some(TimeSet::At(atime));
            rest.mtime = Some(TimeSet::At(member.mtime));
            vfs.set_attr(cred, inode, &rest)?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Creates a hard link to a file that exists. Replaces an existing file as [`Filler::create`] does.
    pub fn link(&mut self, path: &[&[u8]], target: &InodeRef) -> Result<()> {
        let (name, dirs) = path.split_last().context("has no name to create it under")?;
        if target.kind == FileType::Directory {
            bail!("a hard link to a directory");
        }
        self.enter(dirs)?;
        let dir = &self.parent()?.dir;
        let linked = self.vfs.link(&self.cred, target, dir, name, false);
        if !matches!(linked, Err(Error::Name(NameError::Exists))) {
            return explain_lack(&self.vfs, Some("hard links"), linked).map(drop);
        }
        let found = self.vfs.lookup(&self.cred, dir, name)?;
        if found.ino == target.ino {
            return Ok(());
        }
        if found.kind == FileType::Directory {
            bail!("exists and is a directory");
        }
        self.may_replace()?;
        self.vfs.unlink(&self.cred, dir, name, false)?;
        Ok(self.vfs.link(&self.cred, target, dir, name, false).map(drop)?)
    }

    /// Changes permissions and owner of a file that exists.
    pub fn change(
        &mut self,
        path: &[&[u8]],
        perm: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        let inode = self.find(path)?.context("no such file")?;
        // A change of the owner removes set-id bits.
        for set in [SetAttr { uid, gid, ..SetAttr::default() }, SetAttr { perm, ..SetAttr::default() }] {
            self.vfs.set_attr(&self.cred, &inode, &set)?;
        }
        Ok(())
    }

    /// Sets the times of directories. The image is not synced.
    pub fn set_times(self) -> Result<()> {
        let mut all: Vec<_> = self.times.into_iter().collect();
        all.sort_by_key(|(ino, _)| *ino);
        for (_, times) in all {
            let dir = times.dir.get(&self.vfs)?;
            let set = SetAttr {
                atime: Some(TimeSet::At(times.atime)),
                mtime: Some(TimeSet::At(times.mtime)),
                ..SetAttr::default()
            };
            self.vfs.set_attr(&self.cred, &dir, &set)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_directory() {
        assert_eq!(names_of(b"/./a//b/.").unwrap(), [b"a", b"b"]);
        assert_eq!(names_of(b"./").unwrap(), Vec::<&[u8]>::new());
        for bad in [&b".."[..], b"a/../b", b"/..", b"a/.."] {
            assert!(names_of(bad).is_err(), "{}", bad.escape_ascii());
        }
        assert!(names_of(&vec![b'a'; PATH_MAX + 1]).is_err());
    }
}
