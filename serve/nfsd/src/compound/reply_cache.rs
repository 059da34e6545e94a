//! Reply cache for NFSv4.0 requests that must not run twice.
//!
//! Opens and locks have sequence numbers of their owners, and NFSv4.1 has sessions. CREATE, LINK, REMOVE and
//! RENAME of NFSv4.0 have neither: a client that got no reply repeats the call over another connection, and
//! would get an error because the first call succeeded. Therefore the reply of such a request is cached. A
//! request with the same transaction number and content from the same host and user gets that reply.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ivers_nfs4::ops::number;
use parking_lot::Mutex;

use super::origin::Origin;
use crate::rpc::Credential;
use crate::state::Digest;

/// Clients repeat a call sooner. Much later, the same transaction number may belong to another request.
const RETENTION: Duration = Duration::from_secs(120);
/// The number of entries in total, and for each host.
const ENTRIES_MAX: usize = 8192;
const HOST_ENTRIES_MAX: usize = 1024;
/// The largest reply that is cached. The results of these operations are small.
const REPLY_BYTES_MAX: usize = 4096;

/// Identifies a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestKey {
    address: IpAddr,
    uid: Option<u32>,
    xid: u32,
    digest: Digest,
}

impl RequestKey {
    /// The key of a request.
    pub fn new(origin: &Origin, digest: Digest) -> Self {
        let uid = match &origin.credential {
            Credential::None => None,
            Credential::Sys(sys) => Some(sys.uid),
        };
        Self { address: origin.address, uid, xid: origin.xid, digest }
    }
}

/// What the cache knows about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheState {
    /// Not seen before.
    New,
    /// Running.
    InProgress,
    /// Complete. Contains the results that were sent.
    Done(Arc<[u8]>),
}

/// Whether an operation of NFSv4.0 must not run twice and has no sequence number of its own.
pub fn is_non_idempotent(operation: u32) -> bool {
    matches!(operation, number::CREATE | number::LINK | number::REMOVE | number::RENAME)
}

struct Entry {
    number: u64,
    since: Instant,
    reply: Option<Arc<[u8]>>,
}

#[derive(Default)]
struct Table {
    last: u64,
    entries: HashMap<RequestKey, Entry>,
    by_age: BTreeMap<u64, RequestKey>,
    by_host: HashMap<IpAddr, BTreeSet<u64>>,
}

impl Table {
    fn remove(&mut self, key: &RequestKey) {
        let Some(entry) = self.entries.remove(key) else { return };
        self.by_age.remove(&entry.number);
        if let Some(numbers) = self.by_host.get_mut(&key.address) {
            numbers.remove(&entry.number);
            if numbers.is_empty() {
                self.by_host.remove(&key.address);
            }
        }
    }

    fn remove_number(&mut self, number: Option<u64>) {
        if let Some(key) = number.and_then(|number| self.by_age.get(&number)).cloned() {
            self.remove(&key);
        }
    }
}

/// The cached replies.
#[derive(Default)]
pub struct ReplyCache(Mutex<Table>);

impl ReplyCache {
    /// Looks up a request.
    pub fn find(&self, key: &RequestKey) -> CacheState {
        let table = self.0.lock();
        match table.entries.get(key).filter(|entry| entry.since.elapsed() < RETENTION) {
            None => CacheState::New,
            Some(Entry { reply: None, .. }) => CacheState::InProgress,
            Some(Entry { reply: Some(reply), .. }) => CacheState::Done(reply.clone()),
        }
    }

    /// Registers a request that is about to run a non-idempotent operation. Call [`Self::end`] afterwards.
    pub fn begin(&self, key: &RequestKey) {
        let mut table = self.0.lock();
        table.remove(key);
        let oldest = table.by_host.get(&key.address).filter(|of| of.len() >= HOST_ENTRIES_MAX);
        let oldest = oldest.and_then(|of| of.first().copied());
        table.remove_number(oldest);
        if table.entries.len() >= ENTRIES_MAX {
            let oldest = table.by_age.keys().next().copied();
            table.remove_number(oldest);
        }
        table.last += 1;
        let number = table.last;
        table.entries.insert(key.clone(), Entry { number, since: Instant::now(), reply: None });
        table.by_age.insert(number, key.clone());
        table.by_host.entry(key.address).or_default().insert(number);
    }

    /// Stores the reply. `None` forgets the request.
    pub fn end(&self, key: &RequestKey, reply: Option<&[u8]>) {
        let mut table = self.0.lock();
        match (reply.filter(|reply| reply.len() <= REPLY_BYTES_MAX), table.entries.get_mut(key)) {
            (Some(reply), Some(entry)) => entry.reply = Some(reply.into()),
            (None, Some(_)) => table.remove(key),
            (_, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(host: u8, xid: u32) -> RequestKey {
        RequestKey { address: [192, 0, 2, host].into(), uid: Some(0), xid, digest: Digest(1) }
    }

    #[test]
    fn a_reply_is_cached_for_its_request_only() {
        let replies = ReplyCache::default();
        assert_eq!(replies.find(&key(1, 1)), CacheState::New);
        replies.begin(&key(1, 1));
        assert_eq!(replies.find(&key(1, 1)), CacheState::InProgress);
        replies.end(&key(1, 1), Some(b"done"));
        assert_eq!(replies.find(&key(1, 1)), CacheState::Done(b"done"[..].into()));
        for other in [
            key(2, 1),
            key(1, 2),
            RequestKey { uid: None, ..key(1, 1) },
            RequestKey { digest: Digest(2), ..key(1, 1) },
        ] {
            assert_eq!(replies.find(&other), CacheState::New);
        }
        replies.begin(&key(1, 3));
        replies.end(&key(1, 3), None);
        assert_eq!(replies.find(&key(1, 3)), CacheState::New);
        replies.begin(&key(1, 4));
        replies.end(&key(1, 4), Some(&[0; REPLY_BYTES_MAX + 1]));
        assert_eq!(replies.find(&key(1, 4)), CacheState::New);
    }

    #[test]
    fn one_host_cannot_evict_replies_of_others() {
        let replies = ReplyCache::default();
        let keep = |key: &RequestKey| {
            replies.begin(key);
            replies.end(key, Some(b"done"));
        };
        keep(&key(1, 0));
        for xid in 0..HOST_ENTRIES_MAX as u32 + 5 {
            keep(&key(2, xid));
        }
        assert_ne!(replies.find(&key(1, 0)), CacheState::New);
        assert_eq!(replies.find(&key(2, 4)), CacheState::New);
        assert_ne!(replies.find(&key(2, 5)), CacheState::New);
        for host in 3..20 {
            (0..600).for_each(|xid| keep(&key(host, xid)));
        }
        let table = replies.0.lock();
        assert_eq!((table.entries.len(), table.by_age.len()), (ENTRIES_MAX, ENTRIES_MAX));
        assert_eq!(table.by_host.values().map(BTreeSet::len).sum::<usize>(), ENTRIES_MAX);
    }
}
