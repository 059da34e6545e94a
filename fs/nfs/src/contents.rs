//! The persistent cache of contents: what is stored, and when it is served. `docs/nfs.md` has the rules (P1
//! to P9).

use std::sync::atomic::Ordering::Relaxed;

use ivers_content_cache::{BLOCK_BYTES, FileKey, Found};
use ivers_nfs4::attr::{self, Fattr};
use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{CommitArgs, ReadArgs, share};
use ivers_nfs4::types::{Bitmap, Verifier};
use ivers_vfs::{Cred, Error, Result};

use crate::attributes;
use crate::driver::Nfs;
use crate::kept::{Contents, Run};
use crate::nodes::Node;
use crate::reply::take;

/// How many files are tried to get the verifier: this user may be unable to commit some of them.
const ATTEMPTS_MAX: u32 = 16;

/// What READ returned.
struct Arrived {
    bytes: usize,
    /// Whether the file ends after these bytes.
    ends: bool,
    /// The change attribute, if it was the same before and after each READ.
    change: Option<u64>,
}

fn change_of(fattr: &Fattr, place: &str) -> Result<Option<u64>> {
    Ok(attributes::decode(fattr, place)?.change)
}

impl Nfs {
    /// Returns the key of a file, and the number of sessions for which it is valid. `None` if the file is not
    /// cached.
    fn key(&self, contents: &Contents, node: &Node) -> Option<(FileKey, u64)> {
        let (fsid, fileid) = node.place()?;
        // The server's promises on the change attribute were checked for this filesystem only (P2).
        if Some(fsid) != self.facts.fsid() {
            return None;
        }
        let (verifier, sessions) = self.run(contents, node)?;
        let parts: [&[u8]; 6] = [
            self.client.name().as_bytes(),
            &fsid.major.to_le_bytes(),
            &fsid.minor.to_le_bytes(),
            &fileid.to_le_bytes(),
            &node.handle.0,
            &verifier,
        ];
        Some((FileKey::new(&parts), sessions))
    }

    /// Returns the write verifier of the server, and the number of sessions for which it is valid.
    fn run(&self, contents: &Contents, node: &Node) -> Option<(Verifier, u64)> {
        let sessions = self.client.sessions();
        let known = *contents.run.lock();
        if known.sessions == sessions && (known.verifier.is_some() || known.attempts >= ATTEMPTS_MAX) {
            return known.verifier.map(|verifier| (verifier, sessions));
        }
        let ops = [Op::Commit(CommitArgs { offset: 0, count: 0 })];
        let answered = self.on_file(&Cred::system(), node, &ops);
        let verifier = answered.and_then(|(mut results, _)| take!(results, Commit));
        if let Err(error) = &verifier {
            log::info!("{}: the contents are not cached: {error}", self.place(node));
        }
        if self.client.sessions() != sessions {
            return None;
        }
        let mut run = contents.run.lock();
        if run.sessions != sessions {
            *run = Run { sessions, ..Run::default() };
        }
        run.attempts += 1;
        run.verifier = run.verifier.or(verifier.ok());
        run.verifier.map(|verifier| (verifier, sessions))
    }

    /// Returns the known change attribute of a file if it is current. Asks the server after the attribute
    /// timeout.
    fn current_change(&self, caller: &Cred, node: &Node) -> Result<Option<u64>> {
        if node.is_fresh() || self.covered_by(node).is_some() {
            return Ok(Some(node.change()));
        }
        // The VFS waits for bytes here, so the reply must not be passed to it.
        let ops = [Op::GetAttr(Bitmap::of([attr::CHANGE]))];
        let (mut results, sent) = self.on_file(caller, node, &ops)?;
        let change = change_of(&take!(results, GetAttr)?, &self.place(node))?;
        Ok(change.filter(|change| node.confirm(*change, sent, self.attribute_timeout)))
    }

    /// Reads a file from local disk, as far as the current contents are there. Reads the rest from the server
    /// and stores it. Returns false if the caller must read the file from the server.
    pub(crate) fn read_kept(&self, caller: &Cred, node: &Node, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let Some(contents) = &self.contents else { return Ok(false) };
        let Some((file, sessions)) = self.key(contents, node) else { return Ok(false) };
        self.unlost_stateid(node, share::READ)?;
        let change = self.current_change(caller, node)?;
        let found = change.map_or(Found::default(), |change| contents.cache.read(&file, change, offset, buf));
        if self.client.sessions() != sessions {
            // The server may have restarted since the verifier was asked for (P3).
            return Ok(false);
        }
        if found.ends || found.bytes == buf.len() {
            contents.unasked.fetch_add(1, Relaxed);
            buf[found.bytes..].fill(0);
            return Ok(true);
        }
        let block = BLOCK_BYTES as u64;
        let at = offset + found.bytes as u64;
        let start = at - at % block;
        let end = (offset + buf.len() as u64).next_multiple_of(block);
        let mut bytes = vec![0; (end - start) as usize];
        let arrived = self.receive(caller, node, start, &mut bytes, true)?;
        if found.bytes > 0 && (arrived.change != change || self.client.sessions() != sessions) {
            // The bytes from disk may be older than the rest.
            return Ok(false);
        }
        if let Some(change) = arrived.change
            && self.client.sessions() == sessions
        {
            contents.cache.store(&file, change, start, &bytes[..arrived.bytes], arrived.ends);
        }
        let from = (at - start) as usize;
        let rest = buf.len() - found.bytes;
        buf[found.bytes..].copy_from_slice(&bytes[from..from + rest]);
        Ok(true)
    }

    /// Reads a file from the server.
    pub(crate) fn read_sent(&self, caller: &Cred, node: &Node, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.receive(caller, node, offset, buf, false).map(drop)
    }

    /// Sends READ until the buffer is full or the file ends. Zeroes the rest of the buffer. With `observes`
    /// it also asks for the change attribute before and after each READ (P1).
    fn receive(
        &self,
        caller: &Cred,
        node: &Node,
        offset: u64,
        buf: &mut [u8],
        observes: bool,
    ) -> Result<Arrived> {
        let most = self.read_bytes_max()?;
        let place = self.place(node);
        let mut arrived = Arrived { bytes: 0, ends: false, change: None };
        let mut changes = Vec::new();
        while arrived.bytes < buf.len() && !arrived.ends {
            let done = arrived.bytes;
            let count = (buf.len() - done).min(most);
            let (at, len) = (offset + done as u64, count as u32);
            let observed = || observes.then(|| Op::GetAttr(Bitmap::of([attr::CHANGE])));
            let ops = |stateid| {
                let read = Op::Read(ReadArgs { stateid, offset: at, count: len });
                observed().into_iter().chain([read]).chain(observed()).collect()
            };
            let (mut results, _) = self.with_stateid(caller, node, share::READ, ops)?.ok(&place)?;
            results.skip();
            if observes {
                changes.push(change_of(&take!(results, GetAttr)?, &place)?);
            }
            let ok = take!(results, Read)?;
            if observes {
                changes.push(change_of(&take!(results, GetAttr)?, &place)?);
            }
            if ok.data.len() > count || (ok.data.is_empty() && !ok.eof) {
                let what = format!("the server answered a read of {count} bytes with {}", ok.data.len());
                return Err(Error::corrupt(what, place));
            }
            buf[done..done + ok.data.len()].copy_from_slice(&ok.data);
            arrived.bytes += ok.data.len();
            arrived.ends = ok.eof;
        }
        buf[arrived.bytes..].fill(0);
        let first = changes.first().copied().flatten();
        arrived.change = first.filter(|first| changes.iter().all(|change| *change == Some(*first)));
        Ok(arrived)
    }
}
