//! Directories: finding and listing names. What changes them is in `names`.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{ReadDirArgs, ReadDirOk};
use ivers_nfs4::types::Bitmap;
use ivers_vfs::*;

use crate::attributes::{self, FileAttributes};
use crate::counters::Counters;
use crate::driver::{Nfs, REPLY_OVERHEAD, all_rights};
use crate::listing::{self, FIRST_COOKIE, Part, shown_number};
use crate::nodes::Node;
use crate::reply::{Results, take};

/// Bytes of a READDIR reply.
const READDIR_BYTES: u32 = 128 << 10;
/// The cursors after `.` and `..`.
const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;

impl Nfs {
    /// Returns the operation that reads the part of a listing that follows `cookie`.
    fn read_dir_op(&self, node: &Node, cookie: u64) -> Result<Op> {
        let session = self.client.session()?;
        let maxcount = READDIR_BYTES.min((session.reply_bytes_max - REPLY_OVERHEAD) as u32);
        let start = listing::start(maxcount);
        let starts = cookie < FIRST_COOKIE;
        let args = if starts { start } else { ReadDirArgs { cookie, verifier: node.verifier(), ..start } };
        Ok(Op::ReadDir(args))
    }

    /// Reads the part of a listing that follows `cookie`, and where to start in it.
    fn part(&self, caller: &Cred, node: &Node, cookie: u64) -> Result<(Arc<Part>, usize)> {
        if let Some(kept) = self.listings.confirmed(node.ino, cookie, node.change()) {
            return Ok(kept);
        }
        if let Some(kept) = self.listings.continuation(node.ino, cookie) {
            return Ok(kept);
        }
        if cookie < FIRST_COOKIE
            && let Some(first) = self.listings.take_first(node.ino, caller.uid, node.change())
        {
            return Ok((first, 0));
        }
        let ahead = if cookie < FIRST_COOKIE { self.ahead_of(node) } else { Vec::new() };
        let mut ops = vec![Op::GetAttr(attributes::of_file()), self.read_dir_op(node, cookie)?];
        ops.extend(self.ops_ahead(&ahead));
        let (mut results, sent) = self.on_file_up_to(caller, node, &ops, 2)?;
        let dir = FileAttributes::take(&take!(results, GetAttr)?, &self.place(node))?;
        let reply = take!(results, ReadDir)?;
        // Before the listing itself: fewer are kept than a request can bring.
        self.take_ahead(caller, &ahead, &mut results, sent);
        self.learn(node, &dir, sent);
        Ok((self.listed(node, cookie, reply, dir.change, sent)?, 0))
    }

    /// A program opens a directory to list it: asks in one request what the program may do, and for the start
    /// of the listing. If the listing is known, asks instead whether it is current, and for the attributes of
    /// the files in it.
    pub(crate) fn open_directory(&self, caller: &Cred, node: &Arc<Node>) -> Result<()> {
        if self.attribute_timeout.is_zero() {
            return Ok(());
        }
        if self.listings.has_whole(node.ino, node.change()) {
            return self.ask_for_tree(caller, node);
        }
        let auth = self.client.identity().auth(caller);
        if node.access_of(&auth, None).is_some() && node.is_fresh() {
            return Ok(());
        }
        let ahead = self.ahead_of(node);
        let mut ops =
            vec![Op::Access(all_rights()), Op::GetAttr(attributes::of_file()), self.read_dir_op(node, 0)?];
        ops.extend(self.ops_ahead(&ahead));
        // If the caller may not list it, READDIR fails.
        let (mut results, sent) = self.on_file_up_to(caller, node, &ops, 2)?;
        let ok = take!(results, Access)?;
        let file = FileAttributes::take(&take!(results, GetAttr)?, &self.place(node))?;
        self.learn(node, &file, sent);
        self.granted(node, auth, &ok, (file.change, sent));
        if let Ok(reply) = take!(results, ReadDir) {
            self.take_ahead(caller, &ahead, &mut results, sent);
            let first = self.listed(node, 0, reply, file.change, sent)?;
            self.listings.keep_first(node.ino, &first, caller.uid, file.change, self.attribute_timeout);
        }
        Ok(())
    }

    /// Finds out whether a new directory is empty: another client may have made a name in it at once. This
    /// takes a request of its own. A listing moves the access time, and the request that makes the directory
    /// stores its mark there.
    fn look_inside(&self, caller: &Cred, node: &Node) -> Result<()> {
        let list = ReadDirArgs { dircount: 512, attrs: Bitmap::default(), ..listing::start(1024) };
        let ops = [Op::GetAttr(attributes::of_file()), Op::ReadDir(list)];
        let (mut results, sent) = self.on_file_up_to(caller, node, &ops, 1)?;
        let dir = FileAttributes::take(&take!(results, GetAttr)?, &self.place(node))?;
        self.learn(node, &dir, sent);
        // Some servers list these names although they must not.
        let is_dot = |name: &[u8]| matches!(name, b"." | b"..");
        if take!(results, ReadDir).is_ok_and(|it| it.eof && it.entries.iter().all(|it| is_dot(&it.name))) {
            // Listed after the attributes were read: the directory was empty then, or has changed since.
            node.note_empty(dir.change, &self.nodes.names_kept);
        }
        Ok(())
    }

    /// Takes over the results of [`Nfs::ops_ahead`], up to the first one that failed. If it matters, the
    /// program learns of it when it lists that directory.
    fn take_ahead(&self, caller: &Cred, ahead: &[Arc<Node>], results: &mut Results, sent: u64) {
        let auth = self.client.identity().auth(caller);
        for node in ahead {
            results.skip();
            let (Ok(ok), Ok(fattr), Ok(reply)) =
                (take!(results, Access), take!(results, GetAttr), take!(results, ReadDir))
            else {
                break;
            };
            let Ok(file) = FileAttributes::take(&fattr, &self.place(node)) else { break };
            self.learn(node, &file, sent);
            self.granted(node, auth.clone(), &ok, (file.change, sent));
            if reply.eof && self.listed(node, 0, reply, file.change, sent).is_ok() {
                self.listings.confirm_whole(node.ino, file.change, self.attribute_timeout);
            }
        }
    }

    /// Checks and keeps a part of a listing. `change` is the change attribute that the directory had before.
    fn listed(
        &self,
        node: &Node,
        cookie: u64,
        reply: ReadDirOk,
        change: u64,
        sent: u64,
    ) -> Result<Arc<Part>> {
        let place = self.place(node);
        node.note_verifier(reply.verifier);
        let part = Part::check(reply, cookie, self.facts.name_max() as usize, &place)?;
        self.listings.count(node.ino, cookie, &part, &place)?;
        for item in &part.items {
            if let Some((handle, file)) = &item.attributes.file
                && let Some(known) = self.nodes.find(handle)
            {
                self.learn(&known, file, sent);
            }
        }
        let part = Arc::new(part);
        self.listings.keep(node.ino, &part, sent, change, self.attribute_timeout);
        self.listings.add_to_whole(node.ino, cookie, &part, change);
        Ok(part)
    }
}

impl DirectoryOps for Nfs {
    fn lookup(&self, caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        let node = self.node(dir);
        if let Some(known) = self.listings.take(node.ino, name, node.change()) {
            let held = self.found(&known.handle, known.file.clone(), known.sent);
            self.note_name(&held.node, node, name);
            held.node.parent.store(node.ino.0, Relaxed);
            return Ok(Some(Child::Inode(self.loaded(held, known.file))));
        }
        if node.take_new() {
            self.look_inside(caller, node)?;
        }
        if node.lacks(name) {
            Counters::count(&self.client.counters().absent_names);
            return Ok(None);
        }
        let auth = self.client.identity().auth(caller);
        let ops = [
            Op::PutFh(node.handle.clone()),
            Op::Lookup(name.to_vec()),
            Op::GetFh(()),
            Op::GetAttr(attributes::of_file()),
            Op::Access(all_rights()),
        ];
        let (mut results, sent) = match self.client.call(caller, &ops)?.ok(self.client.name()) {
            Err(Error::Name(NameError::NotFound)) => return Ok(None),
            answered => answered?,
        };
        results.skip();
        results.skip();
        let handle = take!(results, GetFh)?;
        let file = FileAttributes::take(&take!(results, GetAttr)?, &self.place(node))?;
        let ok = take!(results, Access)?;
        let held = self.found(&handle, file.clone(), sent);
        self.note_name(&held.node, node, name);
        self.granted(&held.node, auth, &ok, (file.change, sent));
        held.node.parent.store(node.ino.0, Relaxed);
        Ok(Some(Child::Inode(self.loaded(held, file))))
    }

    fn parent(&self, caller: &Cred, dir: &Inode) -> Result<Ino> {
        let node = self.node(dir);
        if node.ino == self.info.root {
            return Ok(node.ino);
        }
        // As with other names: within the attribute timeout.
        let known = Ino(node.parent.load(Relaxed));
        if known.0 != 0 && node.is_fresh() && self.nodes.find_number(known).is_some() {
            return Ok(known);
        }
        let ops = [Op::LookupP(()), Op::GetFh(()), Op::GetAttr(attributes::of_file())];
        let (mut results, sent) = self.on_file(caller, node, &ops)?;
        results.skip();
        let handle = take!(results, GetFh)?;
        let file = FileAttributes::take(&take!(results, GetAttr)?, &self.place(node))?;
        let ino = self.found(&handle, file, sent).node.ino;
        node.parent.store(ino.0, Relaxed);
        Ok(ino)
    }

    fn readdir(
        &self,
        caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let node = self.node(dir);
        let kind = Some(FileType::Directory);
        if cursor < AFTER_DOT
            && emit(&DirEntry { ino: node.ino, name: b".", kind, next: AFTER_DOT }).is_break()
        {
            return Ok(());
        }
        if cursor < AFTER_DOT_DOT {
            let ino = match node.parent.load(Relaxed) {
                0 => self.parent(caller, dir).unwrap_or(node.ino),
                parent => Ino(parent),
            };
            if emit(&DirEntry { ino, name: b"..", kind, next: AFTER_DOT_DOT }).is_break() {
                return Ok(());
            }
        }
        let mut cookie = cursor;
        loop {
            let (part, start) = self.part(caller, node, cookie)?;
            for item in part.items.iter().skip(start) {
                let handle = item.attributes.file.as_ref().map(|(handle, _)| handle);
                let known = handle.and_then(|handle| self.nodes.find(handle)).map(|node| node.ino);
                let ino = shown_number(known, &item.attributes);
                let entry = DirEntry { ino, name: &item.name, kind: item.attributes.kind, next: item.cookie };
                if emit(&entry).is_break() {
                    return Ok(());
                }
                cookie = item.cookie;
            }
            if part.eof {
                return Ok(());
            }
        }
    }

    fn create(&self, caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        self.change(self.create_name(caller, dir, name, new))
    }

    fn link(&self, caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.change(self.link_name(caller, self.node(dir), name, self.node(inode)))
    }

    fn unlink(&self, caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.change(self.remove_name(caller, self.node(dir), name, inode))
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        self.change(self.rename_name(rename))
    }
}
