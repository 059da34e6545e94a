//! Closing several files in one request.

use std::sync::Arc;

use ivers_nfs4::ops::v40::SeqState;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::types::StateId;
use ivers_vfs::Cred;

use crate::file_open::{Busy, FileOpen};
use crate::opens::Opens;

/// The most files that one request closes.
const CLOSES: usize = 32;

impl Opens {
    /// Sends CLOSE for files that were sent and that nobody needs open, several in one request. Others are
    /// left as they are.
    pub(crate) fn close_many(&self, files: &[Arc<FileOpen>]) {
        let mut closing = Vec::new();
        // Closed alone, after the others: that waits for threads that use the file, and they may wait for one
        // of the others.
        let mut alone = Vec::new();
        for file in files {
            let mut state = file.state.lock();
            state.sending = false;
            if state.busy || !state.is_idle() || state.locks.any() || !state.hidden.is_empty() {
                alone.extend(state.is_idle().then_some(file));
                continue;
            }
            let Some(stateid) = state.stateid else {
                state.access = 0;
                drop(state);
                self.table.remove_if_closed(file);
                continue;
            };
            state.busy = true;
            closing.push((file, Busy(file), stateid, state.opener()));
        }
        let most = self.client.pairs_max().min(CLOSES);
        while !closing.is_empty() {
            let auth = self.client.identity().auth(&closing[0].3);
            let same = |it: &&(_, Busy<'_>, _, Cred)| self.client.identity().auth(&it.3) == auth;
            let count = closing.iter().take(most).take_while(same).count();
            let some: Vec<_> = closing.drain(..count).collect();
            let each = |(file, _, stateid, _): &(&Arc<FileOpen>, Busy<'_>, StateId, Cred)| {
                [Op::PutFh(file.handle.clone()), Op::Close(SeqState { seqid: 0, stateid: *stateid })]
            };
            let ops: Vec<Op> = some.iter().flat_map(each).collect();
            let closed = match self.client.call(&some[0].3, &ops) {
                Ok(outcome) => {
                    outcome.results.iter().filter(|it| matches!(it, OpResult::Close(Ok(_)))).count()
                }
                Err(error) => {
                    log::info!("{}: CLOSE: {error}", self.client.name());
                    0
                }
            };
            for (nth, (file, busy, stateid, _)) in some.into_iter().enumerate() {
                let again = nth >= closed || {
                    let mut state = file.state.lock();
                    let is_same = state.stateid == Some(stateid);
                    if is_same {
                        (state.stateid, state.access) = (None, 0);
                    }
                    !is_same
                };
                drop(busy);
                // The server stopped at the first one that failed.
                if again {
                    alone.push(file);
                } else {
                    self.table.remove_if_closed(file);
                }
            }
        }
        alone.into_iter().for_each(|file| self.settle(file));
    }
}
