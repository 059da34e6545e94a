//! Attributes that programs set under a write delegation, and that are not sent yet.

use ivers_nfs4::attr::Attrs;
use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::SetAttrArgs;
use ivers_nfs4::types::{SetTime, StateId};
use ivers_vfs::{Attr, Cred, SetAttr, TimeSet, Timestamp};

use crate::attributes::wire_time;

/// The permission bits that may be deferred. The server may clear the others.
const PLAIN: u32 = 0o777;

/// Attributes to send in one SETATTR, after the data that was written before them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deferred {
    perm: Option<u32>,
    atime: Option<Timestamp>,
    mtime: Option<Timestamp>,
    /// Who set them.
    pub caller: Cred,
    /// Rises with each change of them.
    version: u64,
}

/// Returns a time that a program gave. `None` for the time of the server.
fn given(time: Option<TimeSet>) -> Option<Timestamp> {
    match time {
        Some(TimeSet::At(time)) => Some(time),
        Some(TimeSet::Now) | None => None,
    }
}

/// Returns whether these attributes may be deferred: the server sets the owner of a file to them without
/// fail. `now` has the attributes of the file. A change of the owner to the same one is none.
pub fn can_wait(set: &SetAttr, now: &Attr) -> bool {
    let is_now = |time| matches!(time, Some(TimeSet::Now));
    let is_plain = |perm: u32| perm & !PLAIN == 0;
    set.size.is_none()
        && set.flags.is_none()
        && set.project.is_none()
        && set.ctime.is_none()
        && !is_now(set.atime)
        && !is_now(set.mtime)
        && set.uid.is_none_or(|uid| uid == now.uid)
        && set.gid.is_none_or(|gid| gid == now.gid)
        && is_plain(now.perm & 0o7777)
        && set.perm.is_none_or(|perm| is_plain(perm & 0o7777) && set.keep_perm == 0)
}

impl Deferred {
    /// Adds newer attributes to those that wait.
    pub fn add(waiting: Option<Self>, set: &SetAttr, caller: &Cred) -> Self {
        let old = waiting.as_ref();
        Self {
            perm: set.perm.map(|perm| perm & PLAIN).or(old.and_then(|it| it.perm)),
            atime: given(set.atime).or(old.and_then(|it| it.atime)),
            mtime: given(set.mtime).or(old.and_then(|it| it.mtime)),
            caller: caller.clone(),
            version: old.map_or(0, |it| it.version + 1),
        }
    }

    /// Forgets those that a request of its own sets. Returns whether any are left.
    pub fn forget(&mut self, set: &SetAttr) -> bool {
        self.version += 1;
        self.perm = self.perm.filter(|_| set.perm.is_none());
        self.atime = self.atime.filter(|_| set.atime.is_none());
        // A change of the size sets the modification time.
        self.mtime = self.mtime.filter(|_| set.mtime.is_none() && set.size.is_none());
        self.has_any()
    }

    /// Bytes were written later: the server sets the modification time when it gets them. Returns whether any
    /// are left.
    pub fn written(&mut self) -> bool {
        self.version += 1;
        self.mtime = None;
        self.has_any()
    }

    fn has_any(&self) -> bool {
        self.perm.is_some() || self.atime.is_some() || self.mtime.is_some()
    }

    /// Returns whether times are among them. A later write would move them.
    pub fn sets_times(&self) -> bool {
        self.atime.is_some() || self.mtime.is_some()
    }

    fn attrs(&self) -> Attrs {
        let time = |time: Option<Timestamp>| time.map(|time| SetTime::Client(wire_time(time)));
        Attrs {
            mode: self.perm,
            time_access_set: time(self.atime),
            time_modify_set: time(self.mtime),
            ..Attrs::default()
        }
    }

    /// Returns the operation that sends them.
    pub fn op(&self, stateid: StateId) -> Op {
        Op::SetAttr(SetAttrArgs { stateid, attrs: self.attrs().encode() })
    }

    /// Returns the mode alone, if it is among them: until it is sent, the server decides by the old one.
    pub fn only_mode(&self) -> Option<Self> {
        self.perm.map(|_| Self { atime: None, mtime: None, ..self.clone() })
    }

    /// The mode of `sent` need not be sent any longer. Returns whether any are left.
    pub fn mode_is_sent(&mut self, sent: &Self) -> bool {
        self.version += 1;
        self.perm = self.perm.filter(|perm| Some(*perm) != sent.perm);
        self.has_any()
    }

    /// Puts them over attributes that the server sent.
    pub fn show_in(&self, attr: &mut Attr) {
        attr.perm = self.perm.unwrap_or(attr.perm);
        attr.atime = self.atime.unwrap_or(attr.atime);
        attr.mtime = self.mtime.unwrap_or(attr.mtime);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_vfs::{FileType, NewInode};

    fn at(sec: i64) -> Option<TimeSet> {
        Some(TimeSet::At(Timestamp { sec, nsec: 0 }))
    }

    #[test]
    fn only_what_the_server_takes_without_fail_may_wait() {
        let now = NewInode { perm: 0o600, ..NewInode::new(FileType::Regular, Timestamp::default()) }.attr(1);
        let plain = SetAttr { perm: Some(0o644), atime: at(1), mtime: at(2), ..SetAttr::default() };
        assert!(can_wait(&plain, &now) && can_wait(&SetAttr { uid: Some(now.uid), ..plain.clone() }, &now));
        for set in [
            SetAttr { size: Some(0), ..plain.clone() },
            SetAttr { uid: Some(now.uid + 1), ..plain.clone() },
            SetAttr { gid: Some(now.gid + 1), ..plain.clone() },
            SetAttr { perm: Some(0o4755), ..plain.clone() },
            SetAttr { mtime: Some(TimeSet::Now), ..plain.clone() },
        ] {
            assert!(!can_wait(&set, &now), "{set:?}");
        }
        assert!(!can_wait(&plain, &Attr { perm: 0o2755, ..now }), "a change of the owner clears this bit");
    }

    #[test]
    fn newer_attributes_and_later_bytes_replace_those_that_wait() {
        let caller = Cred::user(1, 1);
        let first =
            Deferred::add(None, &SetAttr { mtime: at(1), atime: at(1), ..SetAttr::default() }, &caller);
        let mut both =
            Deferred::add(Some(first.clone()), &SetAttr { mtime: at(2), ..SetAttr::default() }, &caller);
        assert!(both != first && both.attrs().time_access_set == first.attrs().time_access_set);
        assert!(both.written() && both.attrs().time_modify_set.is_none());
        assert!(!both.forget(&SetAttr { atime: at(3), ..SetAttr::default() }));
        let mut mode = Deferred::add(None, &SetAttr { perm: Some(0o640), ..SetAttr::default() }, &caller);
        assert!(mode.only_mode().is_some() && mode.forget(&SetAttr { size: Some(0), ..SetAttr::default() }));
    }
}
