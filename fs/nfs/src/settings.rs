//! SETATTR, and what opens of the VFS are on the server.

use std::sync::atomic::Ordering::Relaxed;

use ivers_nfs4::attr::Attrs;
use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{SetAttrArgs, share};
use ivers_nfs4::types::{SetTime, StateId};
use ivers_vfs::*;

use crate::attributes::{self, FileAttributes};
use crate::driver::Nfs;
use crate::nodes::Node;

/// How often a file is changed to raise its change attribute.
const RAISES_MAX: usize = 40;

fn wire(time: TimeSet) -> SetTime {
    match time {
        TimeSet::Now => SetTime::Server,
        TimeSet::At(time) => SetTime::Client(attributes::wire_time(time)),
    }
}

/// Returns the attributes to send. A change time that a kernel keeps is not among them: the server's counts.
fn attributes_of(set: &SetAttr, old_perm: u32) -> Attrs {
    Attrs {
        size: set.size,
        mode: set.perm.map(|perm| perm & 0o7777 & !set.keep_perm | old_perm & set.keep_perm & 0o7777),
        owner: set.uid.map(attributes::wire_owner),
        owner_group: set.gid.map(attributes::wire_owner),
        time_access_set: set.atime.map(wire),
        time_modify_set: set.mtime.map(wire),
        ..Attrs::default()
    }
}

/// Returns the operations that set attributes of a file by `set`, and ask for all of them.
pub(crate) fn setting(node: &Node, set: Op) -> Vec<Op> {
    vec![Op::PutFh(node.handle.clone()), set, Op::GetAttr(attributes::of_file())]
}

/// Returns the share access that an open needs.
fn access_of(mode: OpenMode) -> u32 {
    let mut access = 0;
    if mode.intersects(OpenMode::READ | OpenMode::EXECUTE) {
        access |= share::READ;
    }
    if mode.intersects(OpenMode::WRITE | OpenMode::APPEND) {
        access |= share::WRITE;
    }
    if access == 0 { share::READ } else { access }
}

impl Nfs {
    pub(crate) fn set_attributes(&self, caller: &Cred, inode: &Inode, set: &SetAttr) -> Result<()> {
        if set.flags.is_some() || set.project.is_some() {
            return Err(NameError::NotSupported.into());
        }
        let node = self.node(inode);
        let attrs = attributes_of(set, inode.with_attr(|attr| attr.perm)).encode();
        if attrs.mask.is_empty() {
            return Ok(());
        }
        node.open.set_by_request(set);
        if set.perm.is_some() || set.uid.is_some() || set.gid.is_some() {
            // Programs that opened the file under a delegation may still read it after this change.
            self.opens.open_for_programs(&node.open);
        }
        let caller = if set.opened { node.open.writer() } else { caller.clone() };
        let op = |stateid| Op::SetAttr(SetAttrArgs { stateid, attrs: attrs.clone() });
        let changing = self.changing(node);
        let outcome = match set.size {
            Some(_) => {
                let ops = |stateid| vec![op(stateid), Op::GetAttr(attributes::of_file())];
                self.with_stateid(&caller, node, share::WRITE, ops)?
            }
            None => self.client.call(&caller, &setting(node, op(StateId::ANONYMOUS)))?,
        };
        let (mut results, sent) = outcome.up_to(2, &self.place(node))?;
        (0..2).for_each(|_| results.skip());
        if let Some(size) = set.size {
            node.open.with_unstable(|unstable| unstable.forget(size..u64::MAX));
        }
        changing.learn_or_expire(&mut results, sent)
    }

    /// Changes a file, without changing its contents, until its change attribute is at least `value`.
    pub(crate) fn raise_change(&self, inode: &Inode, value: u64) -> Result<()> {
        let (node, writer) = (self.node(inode), self.node(inode).open.writer());
        let perm = inode.with_attr(|attr| attr.perm & 0o7777);
        let mode = Attrs { mode: Some(perm), ..Attrs::default() };
        // Who may write may set the times to now. That is what a write does.
        let server = Some(SetTime::Server);
        let times = Attrs { time_access_set: server.clone(), time_modify_set: server, ..Attrs::default() };
        let mut attrs = mode.encode();
        for _ in 0..RAISES_MAX {
            if node.change_in_cache().wrapping_sub(value) as i64 >= 0 {
                return Ok(());
            }
            let changing = self.sending(node);
            let set = SetAttrArgs { stateid: StateId::ANONYMOUS, attrs: attrs.clone() };
            let outcome = self.client.call_in_manner(&writer, setting(node, Op::SetAttr(set)))?;
            match outcome.up_to(3, &self.place(node)) {
                Ok((mut results, sent)) => {
                    (0..2).for_each(|_| results.skip());
                    changing.learn_or_expire(&mut results, sent)?;
                }
                Err(Error::Name(NameError::Access | NameError::NotPermitted)) => attrs = times.encode(),
                Err(error) => return Err(error),
            }
        }
        log::error!("{}: the change attribute does not reach {value}", self.place(node));
        Err(ServerError::Failed.into())
    }

    /// Opens a file on the server for one more user.
    pub(crate) fn open_on_server(
        &self,
        caller: &Cred,
        node: &Node,
        mode: OpenMode,
    ) -> Result<Option<(FileAttributes, u64)>> {
        let opened = self.open_with(caller, node, access_of(mode));
        if matches!(opened, Err(Error::Name(NameError::Stale)))
            && self.client.is_version_40()
            && let Some(cache) = self.cache()
        {
            // Another client moved the name: the next lookup must ask the server.
            let parent = Ino(node.parent.load(Relaxed));
            self.listings.forget(parent);
            cache.invalidate(parent);
        }
        opened
    }

    fn open_with(&self, caller: &Cred, node: &Node, access: u32) -> Result<Option<(FileAttributes, u64)>> {
        if access != share::WRITE {
            return self.opens.open(&node.open, caller, access);
        }
        // A write of part of a page reads the rest of it.
        match self.opens.open(&node.open, caller, share::BOTH) {
            Err(Error::Name(NameError::Access)) => self.opens.open(&node.open, caller, access),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_sent_as_they_are_asked_for() {
        let set = SetAttr {
            perm: Some(0o644),
            keep_perm: 0o6000,
            uid: Some(7),
            mtime: Some(TimeSet::Now),
            ctime: Some(Timestamp::default()),
            ..SetAttr::default()
        };
        let attrs = attributes_of(&set, 0o4755);
        assert_eq!((attrs.mode, attrs.owner.as_deref()), (Some(0o4644), Some(&b"7"[..])));
        assert_eq!((attrs.time_modify_set, attrs.size), (Some(SetTime::Server), None));
        let only_ctime = SetAttr { ctime: Some(Timestamp::default()), ..SetAttr::default() };
        assert!(attributes_of(&only_ctime, 0).encode().mask.is_empty());
    }

    #[test]
    fn opens_need_what_their_mode_says() {
        assert_eq!(access_of(OpenMode::EXECUTE), share::READ);
        assert_eq!(access_of(OpenMode::APPEND), share::WRITE);
        assert_eq!(access_of(OpenMode::READ | OpenMode::WRITE), share::BOTH);
        assert_eq!(access_of(OpenMode::empty()), share::READ);
    }
}
