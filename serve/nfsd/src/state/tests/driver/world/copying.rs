//! Copies that go on behind their reply, slice by slice.

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StateId};

use super::super::super::super::*;
use super::super::peer::{Op, Reply};
use super::{World, file};

/// A copy that the server is at.
#[derive(Debug)]
pub(super) struct Copying {
    client: ClientId,
    stateid: StateId,
    from: usize,
    to: usize,
    left: u64,
    slice: Option<(Permit, Permit)>,
}

impl World {
    pub(super) fn begin_copy(&mut self, op: &Op, client: ClientId) -> Step<Reply> {
        let Op::Copy { from, to, read, write } = *op else { unreachable!() };
        let wanted = CopyWanted { source: (file(from), read), target: (file(to), write), verifier: [0; 8] };
        if let Some(stateid) = self.state.copy_begin(self.now, client, None, &wanted)? {
            let left = 1 + self.dice.roll() % 3;
            self.copies.push(Copying { client, stateid, from, to, left, slice: None });
        }
        Ok(Reply::Status(NfsStat::Ok))
    }

    /// One half of a slice.
    pub(super) fn copy(&mut self, at: usize) {
        let mut copy = self.copies.swap_remove(at);
        if self.chance(16) {
            self.cancel(&copy);
        }
        let Some((read, write)) = copy.slice.take() else {
            match self.state.copy_slice(self.now, &copy.stateid) {
                Ok(slice) => copy.slice = Some(slice),
                Err(Stop::Fail(NfsStat::Delay) | Stop::Gate(_)) => self.done.note("slice waits"),
                Err(Stop::Fail(status)) => {
                    return self.state.copy_ends(self.now, &copy.stateid, status);
                }
                Err(stop) => unreachable!("{stop:?}"),
            }
            return self.copies.push(copy);
        };
        // What was decided for it holds still.
        self.vfs(copy.client, copy.from, false, None);
        self.vfs(copy.client, copy.to, true, None);
        self.state.end(self.now, read);
        self.state.end(self.now, write);
        copy.left -= 1;
        let end = (copy.left == 0).then_some(NfsStat::Ok);
        self.state.copy_progress(self.now, &copy.stateid, 1, end);
        self.done.note(if end.is_some() { "copied" } else { "slice" });
        if end.is_none() {
            self.copies.push(copy);
        }
    }

    fn cancel(&mut self, copy: &Copying) {
        match self.state.copy_cancel(copy.client, file(copy.to), &copy.stateid) {
            Ok(()) => {
                assert!(copy.slice.is_none(), "cancelled in the middle of a slice");
                self.done.note("cancelled");
                let known = self.state.copy_status(copy.client, file(copy.to), &copy.stateid);
                assert_eq!(known, Err(Stop::Fail(NfsStat::BadStateid)));
            }
            Err(Stop::Gate(_)) => assert!(copy.slice.is_some(), "there is nothing to wait for"),
            Err(stop) => assert_eq!(stop, Stop::Fail(NfsStat::BadStateid)),
        }
    }
}
