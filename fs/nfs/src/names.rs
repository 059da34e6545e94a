//! Changes of names: creating, linking, removing, renaming.
//!
//! None is executed twice (N10). If a request is in doubt, the names on the server show whether it was
//! executed.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ivers_nfs4::attr::Attrs;
use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{CreateArgs, OpenClaim, Opened, RenameArgs, share};
use ivers_nfs4::types::{ChangeInfo, CreateHow, CreateType, FileHandle, NfsTime, OpenHow, SetTime, SpecData};
use ivers_vfs::*;

use crate::all_names::Edit;
use crate::attributes::{self, FileAttributes};
use crate::driver::{Changing, Nfs, all_rights};
use crate::file_open::Hidden;
use crate::nodes::Node;
use crate::opens::open_op_wanting;
use crate::reply::{Results, take};

/// A file under a name.
struct Found {
    handle: FileHandle,
    file: FileAttributes,
    sent: u64,
}

/// A request to move a name.
struct Move<'a> {
    caller: &'a Cred,
    from: (&'a Node, &'a [u8]),
    to: (&'a Node, &'a [u8]),
    /// The file that is moved.
    file: &'a Node,
    /// Fails unless the file that is replaced has so many names: see [`names_of`].
    replaced_names: Option<u32>,
}

/// Returns how many names a file has, the hidden ones included.
fn names_of(inode: &Inode, node: &Node) -> u32 {
    inode.with_attr(|attr| attr.nlink).saturating_add(node.open.hidden_names())
}

/// Returns the operations that fail unless a file has so many names.
fn verify_names(node: &Node, names: Option<u32>) -> Vec<Op> {
    let verify = |numlinks| Op::Verify(Attrs { numlinks: Some(numlinks), ..Attrs::default() }.encode());
    names.map_or(Vec::new(), |names| vec![Op::PutFh(node.handle.clone()), verify(names)])
}

/// How far before now the access time is that marks a creation, at most: a tick of a clock.
const MARK_NANOSECONDS: u32 = 4_000_000;

/// The permission bit of a directory whose files get its group.
const SET_GROUP_ID: u32 = 0o2000;

/// Returns an access time that only one request has: not in the future, and as little before now as the times
/// that filesystems take from a clock that ticks.
fn mark() -> NfsTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = now.saturating_sub(Duration::from_nanos(u64::from(rand::random::<u32>() % MARK_NANOSECONDS)));
    NfsTime { seconds: time.as_secs() as i64, nseconds: time.subsec_nanos() }
}

/// Returns the access time to create a file with: the given one, or a mark.
fn creation_time(new: &NewInode) -> NfsTime {
    if new.atime == new.now { mark() } else { attributes::wire_time(new.atime) }
}

/// Returns whether a file with these attributes may be the one that a creation in doubt has made.
fn is_created(file: &Attr, new: &NewInode, access_time: NfsTime) -> bool {
    // A given access time says less than a mark.
    let has_given_mtime = new.mtime == new.now || file.mtime == new.mtime;
    file.kind == new.kind && attributes::wire_time(file.atime) == access_time && has_given_mtime
}

fn hidden_name() -> Vec<u8> {
    format!(".nfs{:016x}{:08x}", rand::random::<u64>(), rand::random::<u32>()).into_bytes()
}

/// Returns what CREATE makes; `None` for a regular file.
fn create_type(new: &NewInode) -> Option<CreateType> {
    let device = || SpecData {
        major: rustix::fs::major(u64::from(new.rdev)),
        minor: rustix::fs::minor(u64::from(new.rdev)),
    };
    Some(match new.kind {
        FileType::Regular => return None,
        FileType::Directory => CreateType::Dir,
        FileType::Symlink => CreateType::Lnk(new.target.clone()),
        FileType::CharDevice => CreateType::Chr(device()),
        FileType::BlockDevice => CreateType::Blk(device()),
        FileType::Fifo => CreateType::Fifo,
        FileType::Socket => CreateType::Sock,
    })
}

/// Returns the group that a server gives to a new file in this directory.
fn usual_group(caller: &Cred, dir: &Attr) -> u32 {
    if dir.perm & SET_GROUP_ID != 0 { dir.gid } else { caller.gid }
}

/// Returns the attributes of a new file. A server decides about owner and group itself, unless others were
/// asked for.
fn new_attributes(caller: &Cred, usual_group: u32, new: &NewInode, access_time: NfsTime) -> Attrs {
    let other_owner = new.uid != caller.uid;
    let owner = other_owner.then(|| attributes::wire_owner(new.uid));
    let owner_group = (other_owner || new.gid != usual_group).then(|| attributes::wire_owner(new.gid));
    Attrs {
        size: (new.size > 0).then_some(new.size),
        mode: (new.kind != FileType::Symlink).then_some(new.perm & 0o7777),
        time_access_set: Some(SetTime::Client(access_time)),
        time_modify_set: (new.mtime != new.now).then(|| SetTime::Client(attributes::wire_time(new.mtime))),
        owner,
        owner_group,
        ..Attrs::default()
    }
}

impl Nfs {
    /// What a request of this client did to the names of a directory.
    fn names_changed(
        &self,
        dir: &Node,
        change: (ChangeInfo, &[Edit<'_>]),
        file: Option<&FileAttributes>,
        sent: u64,
    ) {
        self.listings.forget(dir.ino);
        let file = file.map(|file| file.with_owners(&self.owners));
        dir.names_changed(change, file.as_deref(), sent, self.attribute_timeout, self.cache());
    }

    /// Takes the attributes of a directory whose names a request changed.
    fn take_directory(
        &self,
        dir: &Node,
        change: (ChangeInfo, &[Edit<'_>]),
        results: &mut Results,
        sent: u64,
    ) -> Result<Option<FileAttributes>> {
        let file = results.attributes(&self.place(dir))?;
        self.names_changed(dir, change, file.as_ref(), sent);
        Ok(file)
    }

    /// Handles the removal or replacement of a name. If other clients have changed the directory since
    /// `known`, the name may have been that of another file. Then the attributes of all delegated files
    /// become invalid.
    fn name_was_expected(&self, known: u64, info: &ChangeInfo) {
        if !info.atomic || info.before != known {
            self.client.void_all();
        }
    }

    /// A request was executed, and its reply is lost: asks for a directory that it changed.
    fn look_again(&self, caller: &Cred, dir: &Node) -> Result<()> {
        self.listings.forget(dir.ino);
        if let Some(cache) = self.cache() {
            cache.invalidate(dir.ino);
        }
        self.ask(caller, dir).map(drop)
    }

    /// Finds a name on the server.
    fn look(&self, caller: &Cred, dir: &Node, name: &[u8]) -> Result<Option<Found>> {
        let ops = [Op::Lookup(name.to_vec()), Op::GetFh(()), Op::GetAttr(attributes::of_file())];
        let (mut results, sent) = match self.on_file(caller, dir, &ops) {
            Err(Error::Name(NameError::NotFound)) => return Ok(None),
            other => other?,
        };
        results.skip();
        let handle = take!(results, GetFh)?;
        let file = FileAttributes::take(&take!(results, GetAttr)?, &self.place(dir))?;
        Ok(Some(Found { handle, file, sent }))
    }

    pub(crate) fn create_name(
        &self,
        caller: &Cred,
        dir: &Inode,
        name: &[u8],
        new: &NewInode,
    ) -> Result<LoadedInode> {
        let node = self.node(dir);
        let access_time = creation_time(new);
        let usual_group = dir.with_attr(|attr| usual_group(caller, attr));
        let attrs = new_attributes(caller, usual_group, new, access_time).encode();
        let wanted = self.opens.wanted(share::BOTH);
        let create = match create_type(new) {
            Some(kind) => Op::Create(CreateArgs { kind, name: name.to_vec(), attrs }),
            None => {
                let how = OpenHow::Create(CreateHow::Guarded(attrs));
                open_op_wanting(wanted, share::BOTH, how, OpenClaim::Null(name.to_vec()))
            }
        };
        let _asking = self.opens.table.returns.ask();
        let mut ops =
            vec![Op::PutFh(node.handle.clone()), create, Op::GetFh(()), Op::GetAttr(attributes::of_file())];
        // Names are made in it soon.
        ops.extend((new.kind == FileType::Directory).then_some(Op::Access(all_rights())));
        ops.extend([Op::PutFh(node.handle.clone()), Op::GetAttr(attributes::of_file())]);
        loop {
            if let Some(outcome) = self.client.call_once(caller, &ops)? {
                let run = outcome.run;
                let (results, sent) = outcome.up_to(2, self.client.name())?;
                return self.created(caller, (node, name), (new, wanted), results, (sent, run));
            }
            let Some(found) = self.look(caller, node, name)? else { continue };
            if !self.facts.has_fine_times() || !is_created(&found.file.attr, new, access_time) {
                return Err(NameError::Exists.into());
            }
            self.look_again(caller, node)?;
            return self.loaded_new(node, name, found);
        }
    }

    /// A file was created: takes over what the reply says of it.
    fn created(
        &self,
        caller: &Cred,
        (dir, name): (&Node, &[u8]),
        (new, wanted): (&NewInode, u32),
        mut results: Results,
        (sent, run): (u64, u64),
    ) -> Result<LoadedInode> {
        results.skip();
        let mut opened: Option<Opened> = None;
        let info = if new.kind == FileType::Regular {
            opened.insert(take!(results, Open)?).cinfo
        } else {
            take!(results, Create)?.cinfo
        };
        let reply = take!(results, GetFh).ok();
        let file = results.attributes(&self.place(dir))?;
        let is_directory = new.kind == FileType::Directory;
        let granted = if is_directory { take!(results, Access).ok() } else { None };
        results.skip();
        let edits = [Edit::Added(name)];
        self.take_directory(dir, (info, &edits), &mut results, sent)?;
        let (found, opened) = match (reply, file) {
            (Some(handle), Some(file)) => (Found { handle, file, sent }, opened),
            // The name can be another file's: then the open is not that file's.
            _ => (self.look(caller, dir, name)?.ok_or(NameError::Stale)?, None),
        };
        let change = found.file.change;
        let loaded = self.loaded_new(dir, name, found)?;
        if is_directory && let Some(held) = loaded.private.downcast_ref::<crate::nodes::Held>() {
            // Elsewhere a name may be another spelling of one that is there.
            if !self.info.names_alias && held.node.place().map(|(fsid, _)| fsid) == self.facts.fsid() {
                held.node.note_new_directory();
            }
            if let Some(ok) = granted {
                self.granted(&held.node, self.client.identity().auth(caller), &ok, (change, sent));
            }
        }
        if let Some(opened) = opened
            && let Some(held) = loaded.private.downcast_ref::<crate::nodes::Held>()
        {
            self.opens.created(&held.node.open, &opened, caller, wanted, (sent, run));
        }
        Ok(loaded)
    }

    fn loaded_new(
        &self,
        dir: &Node,
        name: &[u8],
        Found { handle, file, sent }: Found,
    ) -> Result<LoadedInode> {
        let held = self.found(&handle, file.clone(), sent);
        self.note_name(&held.node, dir, name);
        held.node.parent.store(dir.ino.0, Relaxed);
        Ok(self.loaded(held, file))
    }

    pub(crate) fn link_name(&self, caller: &Cred, dir: &Node, name: &[u8], node: &Node) -> Result<()> {
        let ops = [
            Op::PutFh(node.handle.clone()),
            Op::SaveFh(()),
            Op::PutFh(dir.handle.clone()),
            Op::Link(name.to_vec()),
            Op::GetAttr(attributes::of_file()),
            Op::RestoreFh(()),
            Op::GetAttr(attributes::of_file()),
        ];
        let changing = self.changing(node);
        loop {
            if let Some(outcome) = self.client.call_once(caller, &ops)? {
                let (mut results, sent) = outcome.up_to(4, self.client.name())?;
                (0..3).for_each(|_| results.skip());
                let info = take!(results, Link)?;
                self.take_directory(dir, (info, &[Edit::Added(name)]), &mut results, sent)?;
                self.note_name(node, dir, name);
                results.skip();
                return changing.learn_or_expire(&mut results, sent);
            }
            match self.look(caller, dir, name)? {
                None => {}
                Some(found) if found.handle == node.handle => {
                    node.expire(self.client.requests() + 1);
                    return self.look_again(caller, dir);
                }
                Some(_) => return Err(NameError::Exists.into()),
            }
        }
    }

    /// A file has lost a name. `file`: its attributes, if it still exists.
    fn lost_name(&self, (inode, changing): (&Inode, Changing<'_>), file: Option<FileAttributes>, sent: u64) {
        let hidden = self.node(inode).open.hidden_names();
        let names = file.as_ref().map_or(0, |file| file.names.saturating_sub(hidden));
        if let Some(file) = file {
            changing.learn(&file, sent);
        }
        inode.with_attr(|attr| attr.nlink = names);
    }

    /// Gives an open file a hidden name that it keeps until nobody has it open. `link`: as another name.
    fn hide(&self, caller: &Cred, dir: &Node, name: &[u8], inode: &Inode, link: bool) -> Result<()> {
        let node = self.node(inode);
        let hidden = Hidden { dir: dir.handle.clone(), name: hidden_name(), caller: caller.clone() };
        if link {
            self.link_name(caller, dir, &hidden.name, node)?;
        } else {
            let to = (dir, hidden.name.as_slice());
            let request = Move { caller, from: (dir, name), to, file: node, replaced_names: None };
            self.move_name(&request, None)?;
        }
        node.open.hide(hidden);
        Ok(())
    }

    /// Removes the last name of an open file: it keeps a hidden one.
    fn hide_removed(&self, caller: &Cred, dir: &Node, name: &[u8], inode: &Inode) -> Result<()> {
        self.hide(caller, dir, name, inode, false)?;
        let nlink = inode.with_attr(|attr| attr.nlink);
        inode.with_attr(|attr| attr.nlink = nlink.saturating_sub(1));
        self.node(inode).expire(self.client.requests() + 1);
        Ok(())
    }

    pub(crate) fn remove_name(&self, caller: &Cred, dir: &Node, name: &[u8], inode: &Inode) -> Result<()> {
        let node = self.node(inode);
        let is_used = inode.kind == FileType::Regular && node.open.has_users();
        // Its other names keep an open file. Another client may have removed them.
        let names = is_used.then(|| names_of(inode, node));
        if names.is_some_and(|names| names < 2) {
            return self.hide_removed(caller, dir, name, inode);
        }
        let mut ops = verify_names(node, names);
        let verified = ops.len();
        ops.extend([
            Op::PutFh(dir.handle.clone()),
            Op::Remove(name.to_vec()),
            Op::GetAttr(attributes::of_file()),
            Op::PutFh(node.handle.clone()),
            Op::GetAttr(attributes::of_file()),
        ]);
        let (known, changing) = (dir.change(), self.changing(node));
        loop {
            if let Some(outcome) = self.client.call_once(caller, &ops)? {
                if outcome.ended_within(verified) {
                    return self.hide_removed(caller, dir, name, inode);
                }
                let (mut results, sent) = outcome.up_to(verified + 2, self.client.name())?;
                (0..=verified).for_each(|_| results.skip());
                let info = take!(results, Remove)?;
                self.forget_name(node, dir, name);
                self.name_was_expected(known, &info);
                self.take_directory(dir, (info, &[Edit::Removed(name)]), &mut results, sent)?;
                results.skip();
                let file = results.attributes(&self.place(node))?;
                self.lost_name((inode, changing), file, sent);
                return Ok(());
            }
            let found = self.look(caller, dir, name)?;
            if found.is_some_and(|found| found.handle == node.handle) {
                continue;
            }
            drop(changing);
            self.forget_name(node, dir, name);
            self.look_again(caller, dir)?;
            self.lost_name_unseen(caller, inode)?;
            return Ok(());
        }
    }

    /// A file has lost a name by a request whose reply is lost.
    fn lost_name_unseen(&self, caller: &Cred, inode: &Inode) -> Result<()> {
        match self.ask(caller, self.node(inode)) {
            Ok(file) => inode.with_attr(|attr| attr.nlink = file.names),
            Err(Error::Name(NameError::Stale)) => inode.with_attr(|attr| attr.nlink = 0),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Moves a name. `target` is the file that has the new name. Returns whether it was moved: see
    /// [`Move::replaced_names`].
    fn move_name(&self, request: &Move<'_>, target: Option<&Inode>) -> Result<bool> {
        if !self.send_rename(request, target)? {
            return Ok(false);
        }
        let (from, to, file) = (request.from, request.to, request.file);
        if let Some(target) = target {
            self.forget_name(self.node(target), to.0, to.1);
        }
        self.forget_name(file, from.0, from.1);
        self.note_name(file, to.0, to.1);
        Ok(true)
    }

    fn send_rename(&self, request: &Move<'_>, target: Option<&Inode>) -> Result<bool> {
        let &Move { caller, from: (old_dir, old), to: (new_dir, new), file, replaced_names } = request;
        let crosses = old_dir.ino != new_dir.ino;
        let mut ops = target.map_or(Vec::new(), |target| verify_names(self.node(target), replaced_names));
        let verified = ops.len();
        ops.extend([
            Op::PutFh(old_dir.handle.clone()),
            Op::SaveFh(()),
            Op::PutFh(new_dir.handle.clone()),
            Op::Rename(RenameArgs { old: old.to_vec(), new: new.to_vec() }),
            Op::GetAttr(attributes::of_file()),
        ]);
        let of = |node: &Node| [Op::PutFh(node.handle.clone()), Op::GetAttr(attributes::of_file())];
        if crosses {
            ops.extend(of(old_dir));
        }
        ops.extend(of(file));
        if let Some(target) = target {
            ops.extend(of(self.node(target)));
        }
        let (known, changing) = ((old_dir.change(), new_dir.change()), self.changing(file));
        let target = target.map(|target| (target, self.changing(self.node(target))));
        loop {
            if let Some(outcome) = self.client.call_once(caller, &ops)? {
                if outcome.ended_within(verified) {
                    return Ok(false);
                }
                let (mut results, sent) = outcome.up_to(verified + 4, self.client.name())?;
                (0..verified + 3).for_each(|_| results.skip());
                let infos = take!(results, Rename)?;
                self.name_was_expected(known.0, &infos.source);
                if crosses {
                    self.name_was_expected(known.1, &infos.target);
                }
                let (removed, added) = (Edit::Removed(old), Edit::Added(new));
                let in_new = if crosses { &[added][..] } else { &[removed, added][..] };
                self.take_directory(new_dir, (infos.target, in_new), &mut results, sent)?;
                if crosses {
                    results.skip();
                    self.take_directory(old_dir, (infos.source, &[removed]), &mut results, sent)?;
                }
                results.skip();
                changing.learn_or_expire(&mut results, sent)?;
                if let Some(target) = target {
                    results.skip();
                    let gone = results.attributes(&self.place(self.node(target.0)))?;
                    self.lost_name(target, gone, sent);
                }
                return Ok(true);
            }
            let has = |found: Option<Found>| found.is_some_and(|found| found.handle == file.handle);
            if has(self.look(caller, old_dir, old)?) {
                continue;
            }
            if !has(self.look(caller, new_dir, new)?) {
                return Err(NameError::NotFound.into());
            }
            file.expire(self.client.requests() + 1);
            self.look_again(caller, new_dir)?;
            if crosses {
                self.look_again(caller, old_dir)?;
            }
            let target = target.map(|(target, _)| target);
            return target.map_or(Ok(()), |target| self.lost_name_unseen(caller, target)).map(|()| true);
        }
    }

    pub(crate) fn rename_name(&self, rename: &Rename<'_>) -> Result<()> {
        if rename.exchange {
            return Err(NameError::NotSupported.into());
        }
        let (old_dir, new_dir): (&Node, &Node) = (self.node(rename.old_dir), self.node(rename.new_dir));
        let (caller, file) = (rename.caller, self.node(rename.inode));
        let target = rename.target;
        let used = target.filter(|it| it.kind == FileType::Regular && self.node(it).open.has_users());
        if target.is_some()
            && file.open.owes()
            && let Some(cache) = self.cache()
        {
            // Otherwise a crash of this client could leave the name without the old bytes and the new ones.
            match cache.send(file.ino) {
                Err(error @ Error::Server(_)) => return Err(error),
                Err(error) => log::warn!("{}: bytes before a rename: {error}", self.place(file)),
                Ok(()) => {}
            }
        }
        let (from, to) = ((old_dir, rename.old_name), (new_dir, rename.new_name));
        let replaced_names = used.map(|used| names_of(used, self.node(used))).filter(|names| *names > 1);
        let request = Move { caller, from, to, file, replaced_names };
        // The other names of an open file keep it.
        let may_move = used.is_none() || replaced_names.is_some();
        if may_move && self.move_name(&request, target)? {
            file.parent.store(new_dir.ino.0, Relaxed);
            return Ok(());
        }
        if let Some(used) = used {
            match self.hide(caller, new_dir, rename.new_name, used, true) {
                // Without links the name is missing for a moment.
                Err(Error::Name(NameError::NotSupported | NameError::TooManyLinks)) => {
                    self.hide(caller, new_dir, rename.new_name, used, false)?;
                }
                hidden => hidden?,
            }
        }
        self.move_name(&Move { replaced_names: None, ..request }, target)?;
        file.parent.store(new_dir.ino.0, Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_names_and_marks_differ() {
        let (one, two) = (hidden_name(), hidden_name());
        assert!(one.starts_with(b".nfs") && one.len() == 28 && one != two);
        assert!(mark() != mark() && mark().nseconds < 1_000_000_000);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(mark().seconds <= now.as_secs() as i64 + 1);
    }

    #[test]
    fn a_given_access_time_replaces_the_mark() {
        let (now, given) = (Timestamp { sec: 5, nsec: 0 }, Timestamp { sec: 3, nsec: 0 });
        let new = NewInode { atime: given, mtime: given, ..NewInode::new(FileType::Regular, now) };
        let time = creation_time(&new);
        assert_eq!(time, attributes::wire_time(given));
        let made = new.attr(1);
        assert!(is_created(&made, &new, time));
        assert!(!is_created(&Attr { mtime: now, ..made }, &new, time));
        assert!(!is_created(&Attr { atime: now, ..made }, &new, time));
        assert!(!is_created(&Attr { kind: FileType::Fifo, ..made }, &new, time));
        assert_ne!(creation_time(&NewInode::new(FileType::Regular, now)), attributes::wire_time(now));
    }

    #[test]
    fn an_owner_is_sent_only_if_another_one_was_asked_for() {
        let now = Timestamp { sec: 5, nsec: 0 };
        let new = NewInode { uid: 7, gid: 8, perm: 0o640, ..NewInode::new(FileType::Directory, now) };
        let attrs = new_attributes(&Cred::user(7, 9), 8, &new, mark());
        assert_eq!((attrs.owner, attrs.owner_group), (None, None));
        assert_eq!((attrs.mode, attrs.time_modify_set), (Some(0o640), None));
        let attrs = new_attributes(&Cred::user(7, 9), 9, &new, mark());
        assert_eq!((attrs.owner, attrs.owner_group.as_deref()), (None, Some(&b"8"[..])));
        let attrs = new_attributes(&Cred::root(), 8, &new, mark());
        assert_eq!(attrs.owner.as_deref(), Some(&b"7"[..]));
        let link = NewInode { kind: FileType::Symlink, mtime: Timestamp::default(), ..new };
        let attrs = new_attributes(&Cred::root(), 8, &link, mark());
        assert!(attrs.mode.is_none() && attrs.time_modify_set.is_some());
    }

    #[test]
    fn a_directory_may_give_its_group_to_new_files() {
        let plain = NewInode { gid: 8, ..NewInode::new(FileType::Directory, Timestamp::default()) }.attr(1);
        assert_eq!(usual_group(&Cred::user(7, 9), &plain), 9);
        assert_eq!(usual_group(&Cred::user(7, 9), &Attr { perm: 0o2755, ..plain }), 8);
    }
}
