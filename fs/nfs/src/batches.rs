//! Attributes of many files in few requests.
//!
//! A request has PUTFH and GETATTR for each file. The server stops at the first operation that fails. Its
//! file gets this error, and the next request continues with the file after it.

use std::sync::Arc;

use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_vfs::{Cred, Error, Result, ServerError};

use crate::attributes::{self, FileAttributes};
use crate::driver::{Nfs, REPLY_OVERHEAD};
use crate::nodes::Node;
use crate::reply::unexpected;
use crate::requests::Outcome;
use crate::session::Session;

/// The most bytes that PUTFH and GETATTR of a file take in a request.
const REQUEST_BYTES: usize = 256;
/// The bytes that their results take. Only owners with names of hundreds of bytes take more.
const REPLY_BYTES: usize = 1024;
/// Bytes of a request besides these operations: credentials, SEQUENCE.
const REQUEST_OVERHEAD: usize = 1024;

/// Returns how many files a request of this session can ask for.
fn files_max(session: &Session) -> usize {
    let operations = session.operations_max.saturating_sub(1) / 2;
    let request = session.request_bytes_max.saturating_sub(REQUEST_OVERHEAD) / REQUEST_BYTES;
    let reply = session.reply_bytes_max.saturating_sub(REPLY_OVERHEAD) / REPLY_BYTES;
    operations.min(request).min(reply).max(1)
}

impl Nfs {
    /// Asks for the attributes of files. Returns one result for each.
    pub(crate) fn ask_many(&self, caller: &Cred, nodes: &[&Arc<Node>]) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = Vec::with_capacity(nodes.len());
        let mut alone = false;
        while let Some(left) = nodes.get(results.len()..).filter(|left| !left.is_empty()) {
            let sent = self.client.session().and_then(|session| {
                let most = if alone { 1 } else { files_max(&session) };
                let batch = &left[..most.min(left.len())];
                let ops: Vec<Op> = batch
                    .iter()
                    .flat_map(|node| [Op::PutFh(node.handle.clone()), Op::GetAttr(attributes::of_file())])
                    .collect();
                self.client.call(caller, &ops)
            });
            match sent {
                Ok(outcome) => {
                    let before = results.len();
                    self.take_batch(left, outcome, &mut results);
                    if results.len() == before {
                        results.push(Err(unexpected()));
                    }
                }
                // Each further request would wait as long as this one did.
                Err(Error::Server(ServerError::Timeout)) => {
                    results.resize_with(nodes.len(), || Err(ServerError::Timeout.into()));
                }
                Err(error) if alone => results.push(Err(error)),
                // The reply may have been too long: ask for one file at a time.
                Err(_) => alone = true,
            }
        }
        results
    }

    /// Takes over the results of a request for the first of `nodes`, up to and including one that failed.
    fn take_batch(&self, nodes: &[&Arc<Node>], outcome: Outcome, results: &mut Vec<Result<()>>) {
        let Outcome { status, results: answers, sent, .. } = outcome;
        let failed = || crate::status::error(status, self.client.name());
        for (nth, (node, answer)) in nodes.iter().zip(answers.chunks(2)).enumerate() {
            match answer {
                [OpResult::PutFh(Ok(())), OpResult::GetAttr(Ok(fattr))] => {
                    let taken = FileAttributes::take(fattr, &self.place(node));
                    results.push(taken.map(|file| self.learn(node, &file, sent)));
                }
                // This file is the first one of the next request, so its reply fits there.
                _ if nth > 0 && matches!(status, NfsStat::RepTooBig | NfsStat::Resource) => return,
                _ => return results.push(Err(failed())),
            }
        }
    }
}
