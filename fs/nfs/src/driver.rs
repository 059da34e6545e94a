//! The interface to the VFS.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ivers_nfs4::attr::{self, Fattr};
use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{AccessOk, ReadArgs, ReadDirArgs, access};
use ivers_nfs4::rpc::AuthSys;
use ivers_nfs4::types::{Bitmap, FileHandle, StateId, Verifier};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::*;

use crate::attributes::{self, FileAttributes};
use crate::client::{Client, Dial};
use crate::lease::Lease;
use crate::listing::{FIRST_COOKIE, Listings, Part, shown_number};
use crate::nodes::{Held, Node, Nodes};
use crate::open::{Facts, NfsOptions, find_root};
use crate::reply::take;

/// Bytes of a READDIR reply.
const READDIR_BYTES: u32 = 128 << 10;
/// Bytes of a reply beside its data or entries.
const REPLY_OVERHEAD: usize = 2048;
/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4096;
/// How long an unmount tries to tell the server.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Why nothing can be changed.
const READ_ONLY: &str = "the NFS client of this version only reads";
/// The cursors after `.` and `..`.
const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;

/// The driver.
pub struct Nfs {
    client: Arc<Client>,
    nodes: Arc<Nodes>,
    listings: Listings,
    /// The root never leaves the table.
    root: Held,
    facts: Facts,
    info: FsInfo,
    attribute_timeout: Duration,
    cache: OnceLock<CacheHandle>,
    lease: RankedMutex<rank::Driver<0>, Option<Lease>>,
}

impl Nfs {
    /// Connects to a server and opens a directory of it. `name` names the server in messages.
    pub fn open(name: &str, dial: Dial, options: &NfsOptions) -> Result<Arc<Self>> {
        let client = Client::connect(name.to_owned(), dial, options.identity.clone(), options.patience)?;
        let root = find_root(&client, options)?;
        let nodes = Arc::new(Nodes::default());
        let held = nodes.hold(&root.handle, root.fileid);
        let lease = Lease::keep(&client, root.facts.lease_seconds)?;
        Ok(Arc::new(Self {
            info: root.facts.info(held.node.ino, name),
            client,
            nodes,
            listings: Listings::default(),
            root: held,
            facts: root.facts,
            attribute_timeout: options.attribute_timeout,
            cache: OnceLock::new(),
            lease: RankedMutex::new(Some(lease)),
        }))
    }

    /// Returns the number of requests so far, repeated ones counted once.
    pub fn requests(&self) -> u64 {
        self.client.requests()
    }

    fn node<'a>(&self, inode: &'a Inode) -> &'a Arc<Node> {
        &inode.private::<Held>().node
    }

    fn place(&self, node: &Node) -> String {
        format!("{}, inode {}", self.client.name(), node.ino)
    }

    /// Sends operations on a file.
    fn on_file(&self, caller: &Cred, node: &Node, ops: &[Op]) -> Result<(crate::reply::Results, u64)> {
        let ops: Vec<Op> =
            std::iter::once(Op::PutFh(node.handle.clone())).chain(ops.iter().cloned()).collect();
        let (mut results, sent) = self.client.call(caller, &ops)?.ok(self.client.name())?;
        results.skip();
        Ok((results, sent))
    }

    /// Takes over the attributes of a file in a reply.
    fn learn(&self, node: &Node, file: &FileAttributes, sent: u64) {
        if node.apply(file, sent, self.attribute_timeout, self.cache.get()) {
            self.listings.forget(node.ino);
        }
    }

    /// Asks for the attributes of a file.
    fn ask(&self, caller: &Cred, node: &Node) -> Result<FileAttributes> {
        let (mut results, sent) = self.on_file(caller, node, &[Op::GetAttr(attributes::of_file())])?;
        let file = FileAttributes::take(&take!(results, GetAttr)?, &self.place(node))?;
        self.learn(node, &file, sent);
        Ok(file)
    }

    fn loaded(&self, held: Held, file: FileAttributes) -> LoadedInode {
        LoadedInode {
            ino: held.node.ino,
            generation: held.node.generation,
            attr: file.attr,
            counter: InitialCounter::Server(file.change),
            private: Box::new(held),
        }
    }

    /// Takes over a file that a reply names.
    fn found(&self, handle: &FileHandle, file: FileAttributes, sent: u64) -> Held {
        let held = self.nodes.hold(handle, file.fileid);
        self.learn(&held.node, &file, sent);
        held
    }

    fn granted(&self, node: &Node, auth: AuthSys, ok: &AccessOk, change: u64) -> u32 {
        // A right that the server did not check is checked when it is used.
        let granted = ok.access | !ok.supported;
        node.note_access(auth, granted, change, self.attribute_timeout);
        granted
    }

    /// Returns what ACCESS grants a caller.
    fn access(&self, caller: &Cred, node: &Node) -> Result<u32> {
        let auth = self.client.identity().auth(caller);
        if let Some(granted) = node.access_of(&auth) {
            return Ok(granted);
        }
        let ops = [Op::Access(all_rights()), Op::GetAttr(attributes::of_file())];
        let (mut results, sent) = self.on_file(caller, node, &ops)?;
        let ok = take!(results, Access)?;
        let file = FileAttributes::take(&take!(results, GetAttr)?, &self.place(node))?;
        self.learn(node, &file, sent);
        Ok(self.granted(node, auth, &ok, file.change))
    }

    /// Reads the part of a listing that follows `cookie`, and where to start in it.
    fn part(&self, caller: &Cred, node: &Node, cookie: u64) -> Result<(Arc<Part>, usize)> {
        if let Some(kept) = self.listings.continuation(node.ino, cookie) {
            return Ok(kept);
        }
        let session = self.client.session()?;
        let maxcount = READDIR_BYTES.min((session.reply_bytes_max - REPLY_OVERHEAD) as u32);
        let starts = cookie < FIRST_COOKIE;
        let args = ReadDirArgs {
            cookie: if starts { 0 } else { cookie },
            verifier: if starts { Verifier::default() } else { node.verifier() },
            dircount: maxcount,
            maxcount,
            attrs: attributes::of_entry(),
        };
        let place = self.place(node);
        let ops = [Op::GetAttr(attributes::of_file()), Op::ReadDir(args)];
        let (mut results, sent) = self.on_file(caller, node, &ops)?;
        let dir = FileAttributes::take(&take!(results, GetAttr)?, &place)?;
        let reply = take!(results, ReadDir)?;
        self.learn(node, &dir, sent);
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
        self.listings.keep(node.ino, &part, sent, dir.change, self.attribute_timeout);
        Ok((part, 0))
    }
}

/// Without an unmount the client is gone as after a crash: the server hears nothing.
impl Drop for Nfs {
    fn drop(&mut self) {
        self.client.stop();
    }
}

fn all_rights() -> u32 {
    access::READ | access::LOOKUP | access::MODIFY | access::EXTEND | access::DELETE | access::EXECUTE
}

/// Returns the rights of ACCESS that a mask of the VFS needs.
fn needed(mask: u32, kind: FileType) -> u32 {
    let mut rights = 0;
    if mask & ivers_vfs::access::READ != 0 {
        rights |= access::READ;
    }
    if mask & ivers_vfs::access::WRITE != 0 {
        rights |= access::MODIFY | access::EXTEND;
    }
    if mask & ivers_vfs::access::EXECUTE != 0 {
        rights |= if kind == FileType::Directory { access::LOOKUP } else { access::EXECUTE };
    }
    rights
}

fn read_only<T>() -> Result<T> {
    Err(NameError::ReadOnly.into())
}

impl FileSystem for Nfs {
    fn info(&self) -> FsInfo {
        self.info.clone()
    }

    fn health(&self) -> Health {
        Health { read_only: Some(READ_ONLY.into()), no_change_attribute: self.facts.no_change_attribute() }
    }

    fn serves_change_attribute(&self) -> bool {
        self.facts.no_change_attribute().is_none()
    }

    fn stat_fs(&self) -> Result<StatFs> {
        const WANTED: [u32; 6] = [
            attr::FILES_FREE,
            attr::FILES_TOTAL,
            attr::SPACE_AVAIL,
            attr::SPACE_FREE,
            attr::SPACE_TOTAL,
            attr::MAXNAME,
        ];
        let ops = [Op::GetAttr(Bitmap::of(WANTED))];
        let (mut results, _) = self.on_file(&Cred::system(), &self.root.node, &ops)?;
        let fattr: Fattr = take!(results, GetAttr)?;
        let attrs = attributes::decode(&fattr, self.client.name())?;
        let blocks = |bytes: Option<u64>| bytes.unwrap_or(0) / u64::from(self.info.block_size);
        Ok(StatFs {
            block_size: self.info.block_size,
            blocks: blocks(attrs.space_total),
            blocks_free: blocks(attrs.space_free),
            blocks_available: blocks(attrs.space_avail),
            files: attrs.files_total.unwrap_or(0),
            files_free: attrs.files_free.unwrap_or(0),
            name_max: self.info.name_max,
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let mut lines = vec![
            ("server".into(), self.client.name().to_owned()),
            ("protocol".into(), format!("NFSv4.{}", self.client.minor_version())),
            ("lease".into(), format!("{} s", self.facts.lease_seconds)),
            ("requests".into(), self.client.requests().to_string()),
        ];
        let kind = self.facts.change_attr_type.map_or("unknown".into(), |kind| kind.to_string());
        lines.push(("change_attr_type".into(), kind));
        lines
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        if let Some(lease) = &*self.lease.lock() {
            lease.end();
        }
        self.client.leave(LEAVE_TIMEOUT);
        // Its thread no longer waits for a reply.
        let lease = self.lease.lock().take();
        drop(lease);
        Ok(())
    }

    fn stop_waiting(&self) {
        self.client.stop();
    }

    fn server(&self) -> Option<&dyn ServerOps> {
        Some(self)
    }

    fn mounted(&self, cache: CacheHandle) {
        let _ = self.cache.set(cache);
    }
}

impl InodeOps for Nfs {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        let held = self.nodes.hold_number(ino).ok_or(NameError::Stale)?;
        let file = self.ask(&Cred::system(), &held.node)?;
        Ok(self.loaded(held, file))
    }

    fn log_inode(&self, _inode: &Inode) -> Result<()> {
        Ok(())
    }

    fn delete_inode(&self, _inode: &Inode) -> Result<()> {
        Ok(())
    }

    fn evict_inode(&self, inode: &Inode) {
        self.listings.forget(inode.ino);
        inode.private::<Held>().let_go();
    }

    fn release_ino(&self, ino: Ino) {
        self.nodes.release(ino);
    }

    fn fsync(&self, _inode: &Inode, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn read_link(&self, caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        let node = self.node(inode);
        let (mut results, _) = self.on_file(caller, node, &[Op::ReadLink(())])?;
        let target = take!(results, ReadLink)?;
        if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) {
            return Err(Error::corrupt("the server sent a target of a link that is none", self.place(node)));
        }
        Ok(target)
    }
}

impl DirectoryOps for Nfs {
    fn lookup(&self, caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        let node = self.node(dir);
        if let Some(known) = self.listings.take(node.ino, name, node.change()) {
            let held = self.found(&known.handle, known.file.clone(), known.sent);
            held.node.parent.store(node.ino.0, Relaxed);
            return Ok(Some(Child::Inode(self.loaded(held, known.file))));
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
        self.granted(&held.node, auth, &ok, file.change);
        held.node.parent.store(node.ino.0, Relaxed);
        Ok(Some(Child::Inode(self.loaded(held, file))))
    }

    fn parent(&self, caller: &Cred, dir: &Inode) -> Result<Ino> {
        let node = self.node(dir);
        if node.ino == self.info.root {
            return Ok(node.ino);
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

    fn create(&self, _: &Cred, _: &Inode, _: &[u8], _: &NewInode) -> Result<LoadedInode> {
        read_only()
    }

    fn unlink(&self, _: &Cred, _: &Inode, _: &[u8], _: &Inode) -> Result<()> {
        read_only()
    }

    fn rename(&self, _: &Rename<'_>) -> Result<()> {
        read_only()
    }
}

impl FileOps for Nfs {
    fn read(&self, caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let node = self.node(inode);
        let session = self.client.session()?;
        let most = (session.reply_bytes_max - REPLY_OVERHEAD) as u64;
        let most = most.min(self.facts.read_bytes_max) as usize;
        // Reads through an open come without the groups of its opener.
        let opener = node.opener(caller.uid).filter(|_| caller.access_checked && !caller.system);
        let caller = opener.map_or_else(|| caller.clone(), cred_of);
        let mut done = 0;
        while done < buf.len() {
            let count = (buf.len() - done).min(most);
            let args =
                ReadArgs { stateid: StateId::ANONYMOUS, offset: offset + done as u64, count: count as u32 };
            let (mut results, _) = self.on_file(&caller, node, &[Op::Read(args)])?;
            let ok = take!(results, Read)?;
            if ok.data.len() > count || (ok.data.is_empty() && !ok.eof) {
                return Err(Error::corrupt(
                    format!("the server answered a read of {count} bytes with {}", ok.data.len()),
                    self.place(node),
                ));
            }
            buf[done..done + ok.data.len()].copy_from_slice(&ok.data);
            done += ok.data.len();
            if ok.eof {
                break;
            }
        }
        buf[done..].fill(0);
        Ok(())
    }

    fn reserve(&self, _: &Inode, _: u64, _: u64, _: BlockPool) -> Result<()> {
        read_only()
    }

    fn write_back(&self, _: &Inode, _: u64, _: &[u8]) -> Result<Written> {
        read_only()
    }

    fn truncate(&self, _: &Cred, _: &Inode, _: u64) -> Result<()> {
        read_only()
    }
}

fn cred_of(auth: AuthSys) -> Cred {
    Cred { uid: auth.uid, gid: auth.gid, groups: auth.gids.0, ..Cred::trusted() }
}

impl ServerOps for Nfs {
    /// A query of the change attribute comes with [`Cred::system`]: it always asks (N9).
    fn revalidate(&self, caller: &Cred, inode: &Inode) -> Result<()> {
        let node = self.node(inode);
        if !caller.system && node.is_fresh() {
            return Ok(());
        }
        self.ask(caller, node).map(drop)
    }

    fn permission(&self, caller: &Cred, inode: &Inode, mask: u32) -> Result<()> {
        let needed = needed(mask, inode.kind);
        let granted = self.access(caller, self.node(inode))?;
        if needed & !granted == 0 { Ok(()) } else { Err(NameError::Access.into()) }
    }

    fn set_attr(&self, _: &Cred, _: &Inode, _: &SetAttr) -> Result<()> {
        read_only()
    }

    /// Close-to-open consistency: the attributes are asked for, whatever the timeout says.
    fn open(&self, caller: &Cred, inode: &Inode, _mode: OpenMode) -> Result<()> {
        let node = self.node(inode);
        if !caller.access_checked && self.client.identity().as_caller {
            node.note_opener(self.client.identity().auth(caller));
        }
        self.ask(caller, node).map(drop)
    }
}
