//! The interface to the VFS.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use ivers_nfs4::attr::{self, Fattr};
use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{AccessOk, access};
use ivers_nfs4::rpc::AuthSys;
use ivers_nfs4::types::{Bitmap, FileHandle};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::*;

use crate::attributes::{self, FileAttributes};
use crate::client::{Client, Dial};
use crate::counters::Counters;
use crate::deferred;
use crate::file_open::Delegation;
use crate::kept::Contents;
use crate::lease::Lease;
use crate::listing::Listings;
use crate::nodes::{Held, Node, Nodes};
use crate::open::{Facts, NfsOptions, find_root};
use crate::opens::Opens;
use crate::owners::Owners;
use crate::reply::{Results, take};
use crate::unsent::{CacheOf, Sender};

/// Bytes of a reply beside its data or entries.
pub(crate) const REPLY_OVERHEAD: usize = 2048;
/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4096;
/// How long an unmount tries to tell the server.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The least time for the last requests of an unmount.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);

/// What the server does not have, as it said when it was asked.
#[derive(Default)]
pub(crate) struct Missing {
    pub(crate) clone: AtomicBool,
    pub(crate) copy: AtomicBool,
}

/// The driver.
pub struct Nfs {
    pub(crate) client: Arc<Client>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) listings: Listings,
    /// The root never leaves the table.
    root: Held,
    pub(crate) facts: Facts,
    /// A file of the filesystem that has these facts.
    pub(crate) facts_at: FileHandle,
    pub(crate) info: FsInfo,
    pub(crate) attribute_timeout: Duration,
    pub(crate) missing: Missing,
    pub(crate) owners: Owners,
    cache: OnceLock<CacheHandle>,
    pub(crate) sender: Arc<Sender>,
    me: Weak<Self>,
    lease: RankedMutex<rank::Driver<0>, Option<Lease>>,
    /// The persistent cache.
    pub(crate) contents: Option<Contents>,
}

impl Nfs {
    /// Connects to a server and opens a directory of it. `name` names the server in messages.
    pub fn open(name: &str, dial: Dial, options: &NfsOptions) -> Result<Arc<Self>> {
        let NfsOptions { identity, patience, connections, tls, minor_version, .. } = options.clone();
        let name_of_client = name.to_owned();
        let client =
            Client::connect(name_of_client, dial, identity, patience, connections, tls, minor_version)?;
        let root = find_root(&client, options)?;
        if let Some(why) = root.facts.cannot_keep().filter(|_| options.contents.is_some()) {
            let so = "so a persistent cache could return old bytes; mount without it";
            return Err(Error::Incompatible(format!("{name}: {why}, {so}")));
        }
        let nodes = Arc::new(Nodes::default());
        let held = nodes.hold(&root.handle, root.fileid);
        client.set_lease(Some(root.facts.lease_seconds));
        let lease = Lease::keep(&client)?;
        let opens =
            Opens::new(client.clone(), nodes.opens.clone(), (options.delegations, options.write_delegations));
        opens.start_returns()?;
        let sender = Arc::new(Sender::new(root.facts.space_avail));
        let nfs = Arc::new_cyclic(|me| Self {
            info: root.facts.info(held.node.ino, name),
            opens,
            client,
            nodes,
            listings: Listings::default(),
            root: held,
            facts: root.facts,
            facts_at: root.facts_at,
            attribute_timeout: options.attribute_timeout,
            missing: Missing::default(),
            owners: options.owners.clone(),
            cache: OnceLock::new(),
            sender,
            me: me.clone(),
            lease: RankedMutex::new(Some(lease)),
            contents: options.contents.clone().map(Contents::new),
        });
        if options.write_delegations {
            nfs.start_sender()?;
        }
        Ok(nfs)
    }

    /// Returns the number of requests so far, repeated ones counted once.
    pub fn requests(&self) -> u64 {
        self.client.requests()
    }

    pub(crate) fn node<'a>(&self, inode: &'a Inode) -> &'a Arc<Node> {
        &inode.private::<Held>().node
    }

    pub(crate) fn place(&self, node: &Node) -> String {
        format!("{}, inode {}", self.client.name(), node.ino)
    }

    pub(crate) fn cache(&self) -> Option<&CacheHandle> {
        self.cache.get()
    }

    /// Sends operations on a file.
    pub(crate) fn on_file(&self, caller: &Cred, node: &Node, ops: &[Op]) -> Result<(Results, u64)> {
        let ops: Vec<Op> =
            std::iter::once(Op::PutFh(node.handle.clone())).chain(ops.iter().cloned()).collect();
        let (mut results, sent) = self.client.call(caller, &ops)?.ok(self.client.name())?;
        results.skip();
        Ok((results, sent))
    }

    /// As [`Nfs::on_file`], if the first `needed` operations succeeded.
    pub(crate) fn on_file_up_to(
        &self,
        caller: &Cred,
        node: &Node,
        ops: &[Op],
        needed: usize,
    ) -> Result<(Results, u64)> {
        let ops: Vec<Op> =
            std::iter::once(Op::PutFh(node.handle.clone())).chain(ops.iter().cloned()).collect();
        let (mut results, sent) = self.client.call(caller, &ops)?.up_to(needed + 1, self.client.name())?;
        results.skip();
        Ok((results, sent))
    }

    /// The result of a change. What a server says wrong stops that change, and not the mount.
    pub(crate) fn change<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Err(error @ (Error::Corrupt { .. } | Error::Io(_) | Error::FileData(_))) => {
                log::error!("{}: {error}", self.client.name());
                Err(ServerError::Failed.into())
            }
            other => other,
        }
    }

    /// Takes over the attributes of a file in a reply.
    pub(crate) fn learn(&self, node: &Node, file: &FileAttributes, sent: u64) {
        let file = file.with_owners(&self.owners);
        if node.apply(&file, sent, self.attribute_timeout, self.cache.get()) {
            self.listings.forget(node.ino);
        }
    }

    /// Begins a request that changes a file. Call it before the request is sent.
    pub(crate) fn changing<'a>(&'a self, node: &'a Node) -> Changing<'a> {
        node.change_begins();
        Changing { nfs: self, node, reply: None, was_cached: false }
    }

    /// Begins a request that sends what was changed in the cache: programs have seen that already.
    pub(crate) fn sending<'a>(&'a self, node: &'a Node) -> Changing<'a> {
        node.change_begins();
        Changing { nfs: self, node, reply: None, was_cached: true }
    }

    /// Asks for the attributes of a file.
    pub(crate) fn ask(&self, caller: &Cred, node: &Node) -> Result<FileAttributes> {
        let (mut results, sent) = self.on_file(caller, node, &[Op::GetAttr(attributes::of_file())])?;
        let file = FileAttributes::take(&take!(results, GetAttr)?, &self.place(node))?;
        self.learn(node, &file, sent);
        Ok(file)
    }

    pub(crate) fn loaded(&self, held: Held, file: FileAttributes) -> LoadedInode {
        LoadedInode {
            ino: held.node.ino,
            generation: held.node.generation,
            attr: file.with_owners(&self.owners).attr.clone(),
            counter: InitialCounter::Server(file.change),
            private: Box::new(held),
        }
    }

    /// Takes over a file that a reply names.
    pub(crate) fn found(&self, handle: &FileHandle, file: FileAttributes, sent: u64) -> Held {
        let held = self.nodes.hold(handle, file.fileid);
        self.learn(&held.node, &file, sent);
        held
    }

    /// Notes a name of a file, if opens need one (NFSv4.0).
    pub(crate) fn note_name(&self, node: &Node, dir: &Node, name: &[u8]) {
        if self.client.is_version_40() {
            node.open.with_names(|names| names.note(&dir.handle, name));
        }
    }

    /// Notes that a file has lost a name.
    pub(crate) fn forget_name(&self, node: &Node, dir: &Node, name: &[u8]) {
        node.open.with_names(|names| names.forget(&dir.handle, name));
    }

    /// Returns the delegation of a file, if its attributes are current under it.
    pub(crate) fn covered_by(&self, node: &Node) -> Option<Delegation> {
        let delegation = node.open.delegation().filter(|it| self.opens.is_usable(it))?;
        node.is_covered(&delegation, self.client.void_before()).then_some(delegation)
    }

    /// Whether the attributes of a file count as current for this caller.
    fn is_current(&self, caller: &Cred, node: &Node) -> bool {
        !caller.system && node.is_fresh() || self.covered_by(node).is_some()
    }

    /// Stores what ACCESS granted, and returns it. `at` has the change attribute in the same reply, and the
    /// number of its request.
    pub(crate) fn granted(&self, node: &Node, auth: AuthSys, ok: &AccessOk, at: (u64, u64)) -> u32 {
        // A right that the server did not check is checked when it is used.
        let granted = ok.access | !ok.supported;
        node.note_access(auth, granted, at, self.attribute_timeout);
        granted
    }

    /// Returns what ACCESS grants a caller.
    pub(crate) fn access(&self, caller: &Cred, node: &Node) -> Result<u32> {
        self.send_mode(node)?;
        let auth = self.client.identity().auth(caller);
        if let Some(granted) = node.access_of(&auth, self.covered_by(node).as_ref()) {
            Counters::count(&self.client.counters().access_hits);
            return Ok(granted);
        }
        let ops = [Op::Access(all_rights()), Op::GetAttr(attributes::of_file())];
        let (mut results, sent) = self.on_file(caller, node, &ops)?;
        let ok = take!(results, Access)?;
        let file = FileAttributes::take(&take!(results, GetAttr)?, &self.place(node))?;
        self.learn(node, &file, sent);
        Ok(self.granted(node, auth, &ok, (file.change, sent)))
    }
}

/// A guard for a request that changes a file. Keep it until the request has ended. If it is dropped without a
/// reply, the outcome of the request is unknown.
pub(crate) struct Changing<'a> {
    nfs: &'a Nfs,
    node: &'a Node,
    /// The number of its request, if its reply had attributes.
    reply: Option<u64>,
    /// The change attribute that programs see counts this change.
    was_cached: bool,
}

impl Changing<'_> {
    /// Stores the attributes in the reply. If it has none, marks the known ones as out of date.
    pub(crate) fn learn_or_expire(self, results: &mut Results, sent: u64) -> Result<()> {
        match results.attributes(&self.nfs.place(self.node))? {
            Some(file) => self.learn(&file, sent),
            None => self.node.expire(self.nfs.client.requests() + 1),
        }
        Ok(())
    }

    /// Stores the attributes in the reply.
    pub(crate) fn learn(mut self, file: &FileAttributes, sent: u64) {
        self.nfs.learn(self.node, file, sent);
        self.reply = Some(sent);
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.node.change_ended(self.nfs.client.requests() + 1, self.reply);
        if !self.was_cached
            && let Some(cache) = self.nfs.cache()
        {
            cache.changed_by_request(self.node.ino);
        }
    }
}

/// Without an unmount the client is gone as after a crash: the server hears nothing.
impl Drop for Nfs {
    fn drop(&mut self) {
        self.client.stop();
        self.nodes.opens.returns.stop();
        self.sender.stop();
    }
}

pub(crate) fn all_rights() -> u32 {
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

impl FileSystem for Nfs {
    fn info(&self) -> FsInfo {
        self.info.clone()
    }

    fn health(&self) -> Health {
        Health { read_only: None, no_change_attribute: self.facts.no_change_attribute() }
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
        let lease = self.client.lease_seconds();
        let mut lines = vec![
            ("server".into(), self.client.name().to_owned()),
            ("protocol".into(), format!("NFSv4.{}", self.client.minor_version())),
            ("lease".into(), lease.map_or("unknown".into(), |seconds| format!("{seconds} s"))),
            ("requests".into(), self.client.requests().to_string()),
        ];
        let kind = self.facts.change_attr_type.map_or("unknown".into(), |kind| kind.to_string());
        lines.push(("change_attr_type".into(), kind));
        lines
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut fields = self.client.counters().fields();
        fields.extend(self.contents.iter().flat_map(Contents::counters));
        fields
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        if let Some(lease) = &*self.lease.lock() {
            lease.end();
        }
        let until = Instant::now() + LEAVE_TIMEOUT;
        if self.opens.delegates_writes {
            self.stop_sender(until);
        }
        self.opens.close_all(until);
        self.opens.return_all(until);
        // After the time limit, an answer is unlikely: the rest gets little time.
        self.client.leave(until.saturating_duration_since(Instant::now()).max(LAST_TIMEOUT));
        // Its thread no longer waits for a reply.
        let lease = self.lease.lock().take();
        drop(lease);
        Ok(())
    }

    fn stop_waiting(&self) {
        self.client.stop();
    }

    fn xattrs(&self) -> Option<&dyn XattrOps> {
        self.facts.has_xattrs().then_some(self as &dyn XattrOps)
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        (self.client.minor_version() >= 2).then_some(self as &dyn BlockMapOps)
    }

    fn allocation(&self) -> Option<&dyn AllocateOps> {
        (self.client.minor_version() >= 2).then_some(self as &dyn AllocateOps)
    }

    fn clones(&self) -> Option<&dyn CloneOps> {
        (self.client.minor_version() >= 2).then_some(self as &dyn CloneOps)
    }

    fn server(&self) -> Option<&dyn ServerOps> {
        Some(self)
    }

    fn locks(&self) -> Option<&dyn LockOps> {
        Some(self)
    }

    fn mounted(&self, cache: CacheHandle) {
        let (nodes, handle) = (Arc::downgrade(&self.nodes), cache.clone());
        let _ = self.opens.lock_listener.set(Box::new(move |file| {
            if let Some(node) = nodes.upgrade().and_then(|nodes| nodes.find(file)) {
                handle.lock_available(node.ino);
            }
        }));
        let (nodes, nfs) = (Arc::downgrade(&self.nodes), self.me.clone());
        let send = move |node: &Node, cache: &CacheHandle| {
            nfs.upgrade().map_or(Ok(()), |nfs| nfs.send_recalled(node, cache))
        };
        let of_vfs = CacheOf { nodes, cache: cache.clone(), send: Box::new(send) };
        let _ = self.opens.cached.set(Box::new(of_vfs));
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

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.opens.forget(&self.node(inode).open);
        Ok(())
    }

    fn evict_inode(&self, inode: &Inode) {
        self.listings.forget(inode.ino);
        self.nodes.opens.leave(&self.node(inode).open);
        inode.private::<Held>().let_go();
    }

    fn release_ino(&self, ino: Ino) {
        self.nodes.release(ino);
    }

    /// Names and attributes are durable when the server replies.
    fn fsync(&self, inode: &Inode, _data_only: bool) -> Result<()> {
        self.change(self.commit(self.node(inode)))
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

impl ServerOps for Nfs {
    fn sends_callers(&self) -> bool {
        self.client.identity().as_caller
    }

    /// A query of the change attribute comes with [`Cred::system`]. It always asks the server (N9), unless
    /// the newest reply is current under a delegation.
    fn revalidate(&self, caller: &Cred, inode: &Inode) -> Result<()> {
        let node = self.node(inode);
        if self.is_current(caller, node) {
            Counters::count(&self.client.counters().attribute_hits);
            return Ok(());
        }
        self.ask(caller, node).map(drop)
    }

    fn revalidate_many(&self, caller: &Cred, inodes: &[&Inode]) -> Vec<Result<()>> {
        let is_asked = |inode: &&&Inode| !self.is_current(caller, self.node(inode));
        let asked: Vec<_> = inodes.iter().filter(is_asked).map(|inode| self.node(inode)).collect();
        let mut answers = self.ask_many(caller, &asked).into_iter();
        let mut next = asked.iter().peekable();
        let one = |inode: &&Inode| match next.next_if(|node| Arc::ptr_eq(node, self.node(inode))) {
            Some(_) => answers.next().unwrap_or(Ok(())),
            None => Ok(()),
        };
        inodes.iter().map(one).collect()
    }

    fn permission(&self, caller: &Cred, inode: &Inode, mask: u32) -> Result<()> {
        let needed = needed(mask, inode.kind);
        if inode.kind == FileType::Directory && mask & ivers_vfs::access::READ != 0 {
            self.open_directory(caller, self.node(inode))?;
        }
        let granted = self.access(caller, self.node(inode))?;
        if needed & !granted == 0 { Ok(()) } else { Err(NameError::Access.into()) }
    }

    fn set_attr(&self, caller: &Cred, inode: &Inode, set: &SetAttr) -> Result<()> {
        self.change(self.set_attributes(caller, inode, set))
    }

    /// Close-to-open consistency: the attributes are asked for, whatever the timeout says, except by the
    /// creator of a file.
    fn open(&self, caller: &Cred, inode: &Inode, mode: OpenMode) -> Result<()> {
        let node = self.node(inode);
        if !caller.access_checked && self.client.identity().as_caller {
            node.note_opener(self.client.identity().auth(caller));
        }
        self.send_mode(node)?;
        let was_created = node.open.is_unclaimed() && node.is_fresh();
        match self.open_on_server(caller, node, mode)? {
            Some((file, sent)) => self.learn(node, &file, sent),
            None if was_created || self.covered_by(node).is_some() => {}
            None => {
                self.ask(caller, node)?;
            }
        }
        Ok(())
    }

    fn close(&self, inode: &Inode, _mode: OpenMode) {
        let node = self.node(inode);
        if node.open.hidden_names() > 0 {
            // The last close removes the name, and the file if it has no other.
            if inode.with_attr(|attr| attr.nlink) == 0 {
                node.open.with_unstable(|unstable| unstable.forget(0..u64::MAX));
            } else if let Err(error) = self.commit(node) {
                log::warn!("{}: cannot commit a removed file: {error}", self.place(node));
            }
        } else if self.nodes.opens.is_crowded()
            && let Err(error) = self.commit(node)
        {
            log::info!("{}: stays open: {error}", self.place(node));
        }
        self.opens.close(&node.open, |_| self.leave_to_sender(node, inode));
    }

    fn changed(&self, inode: &Inode, touch: Touch) -> bool {
        let node = self.node(inode);
        inode.kind == FileType::Regular
            && self.covered_by(node).is_some_and(|it| it.write.is_some())
            && node.open.note_cached(touch == Touch::Data)
            // A file that is not open has no close that would leave it to the sender.
            && (node.open.is_used() || self.leave_to_sender(node, inode))
    }

    fn catch_up(&self, inode: &Inode, value: u64) -> Result<()> {
        self.raise_change(inode, value)
    }

    fn keep_attributes(&self, caller: &Cred, inode: &Inode, set: &SetAttr) -> bool {
        let node = self.node(inode);
        inode.kind == FileType::Regular
            && inode.with_attr(|attr| deferred::can_wait(set, attr))
            && self.covered_by(node).is_some_and(|it| it.write.is_some())
            && node.open.defer(caller, &self.client.identity().auth(caller), set)
            && (node.open.is_used() || self.leave_to_sender(node, inode))
    }

    fn send_attributes(&self, inode: &Inode) -> Result<()> {
        self.change(self.send_deferred(self.node(inode)))
    }

    fn defers_close(&self, inode: &Inode) -> bool {
        inode.kind == FileType::Regular && self.may_defer_close(self.node(inode), inode)
    }

    fn send_all(&self) {
        self.send_everything();
    }
}
