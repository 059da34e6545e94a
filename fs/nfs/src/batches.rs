//! Attributes of many files in few requests.
//!
//! A request has PUTFH and GETATTR for each file. The server stops at the first operation that fails. Its
//! file gets this error, and the next request continues with the file after it.

use std::collections::VecDeque;
use std::sync::Arc;

use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_vfs::{Cred, Error, Result, ServerError};

use crate::attributes::{self, FileAttributes};
use crate::driver::{Nfs, REPLY_OVERHEAD, all_rights};
use crate::nodes::Node;
use crate::reply::{take, unexpected};
use crate::requests::Outcome;
use crate::session::Session;

/// The most bytes that PUTFH and GETATTR of a file take in a request.
const REQUEST_BYTES: usize = 256;
/// The bytes that their results take. Only owners with names of hundreds of bytes take more.
const REPLY_BYTES: usize = 1024;
/// The most files that are looked at to find those to ask for.
const VISITED_MAX: usize = 4096;
/// Bytes of a request besides these operations: credentials, SEQUENCE.
const REQUEST_OVERHEAD: usize = 1024;

/// Returns how many files a request of this session can ask for.
fn files_max(session: &Session) -> usize {
    let operations = session.operations_max.saturating_sub(1) / 2;
    let request = session.request_bytes_max.saturating_sub(REQUEST_OVERHEAD) / REQUEST_BYTES;
    let reply = session.reply_bytes_max.saturating_sub(REPLY_OVERHEAD) / REPLY_BYTES;
    operations.min(request).min(reply).max(1)
}

/// A file to ask for.
struct Asked {
    node: Arc<Node>,
    /// Whether it is a directory with a known listing.
    listed: bool,
}

impl Nfs {
    /// Returns the files to ask for when a program opens a directory: the files below it whose attributes are
    /// not current, and the directory itself. It finds them in the listings that are known. There are as many
    /// as one request can ask for, and none if the directory and the files in it are current.
    fn known_tree(&self, caller: &Cred, dir: &Arc<Node>, session: &Session) -> Vec<Asked> {
        let auth = self.client.identity().auth(caller);
        let is_current = |Asked { node, listed }: &Asked| {
            let may =
                !listed || node.access_of(&auth, None).is_some() && self.listings.is_confirmed(node.ino);
            may && (node.is_fresh() || self.covered_by(node).is_some())
        };
        // PUTFH, ACCESS and GETATTR for each.
        let most = (files_max(session) * 2 / 3).max(1);
        let first = Asked { node: dir.clone(), listed: true };
        let mut asked = Vec::new();
        let mut below = VecDeque::from([(first, 0)]);
        for _ in 0..VISITED_MAX {
            let Some((file, depth)) = below.pop_front() else { break };
            // Nothing that is opened now needs what is deeper.
            if asked.len() == most || depth > 1 && asked.is_empty() {
                break;
            }
            let parts = file.listed.then(|| self.listings.whole(file.node.ino, file.node.change())).flatten();
            for item in parts.iter().flatten().flat_map(|part| &part.items) {
                let handle = item.attributes.file.as_ref().map(|(handle, _)| handle);
                if let Some(node) = handle.and_then(|handle| self.nodes.find(handle)) {
                    let listed = self.listings.has_whole(node.ino, node.change());
                    below.push_back((Asked { node, listed }, depth + 1));
                }
            }
            if !is_current(&file) {
                asked.push(file);
            }
        }
        asked
    }

    /// Asks in one request whether a directory and those below it are as their known listings say, what the
    /// caller may do with them, and for the attributes of the files in them.
    pub(crate) fn ask_for_tree(&self, caller: &Cred, dir: &Arc<Node>) -> Result<()> {
        let session = self.client.session()?;
        let tree = self.known_tree(caller, dir, &session);
        if tree.is_empty() {
            return Ok(());
        }
        let each = |Asked { node, listed }: &Asked| {
            let access = listed.then_some(Op::Access(all_rights()));
            let put = Op::PutFh(node.handle.clone());
            [Some(put), access, Some(Op::GetAttr(attributes::of_file()))].into_iter().flatten()
        };
        let ops: Vec<Op> = tree.iter().flat_map(each).collect();
        // A file may be gone: then those after it are not asked for here.
        let outcome = self.client.call(caller, &ops)?;
        let (mut results, sent) = outcome.up_to(0, self.client.name())?;
        let auth = self.client.identity().auth(caller);
        for Asked { node, listed } in tree {
            results.skip();
            let ok = if listed { take!(results, Access).ok() } else { None };
            let Some(file) = results.attributes(&self.place(&node))? else { break };
            self.learn(&node, &file, sent);
            if listed {
                self.listings.confirm_whole(node.ino, file.change, self.attribute_timeout);
            }
            if let Some(ok) = ok {
                self.granted(&node, auth.clone(), &ok, (file.change, sent));
            }
        }
        Ok(())
    }

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
