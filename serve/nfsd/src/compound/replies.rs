//! NFSv4.0: what changes names is not done twice.
//!
//! Opens and locks have their owners' numbers, and since NFSv4.1 there are sessions. Behind CREATE, LINK, REMOVE and RENAME of NFSv4.0 there is nothing of that kind:
//! a client who got no reply sends the same call again, over another connection, and would be told that what he has just made is there already. So the
//! reply of such a request is kept for a while, and is that of the same request under the same number from the same host and user.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ivers_nfs4::ops::number;
use parking_lot::Mutex;

use super::context::Origin;
use crate::rpc::Credential;
use crate::state::Digest;

/// Clients ask again within less; much later a number may come again for something else.
const KEPT: Duration = Duration::from_secs(120);
/// Replies in all, and of one host.
const ALL_MAX: usize = 8192;
const HOST_MAX: usize = 1024;
/// Larger ones are not kept: these operations have small results.
const REPLY_BYTES_MAX: usize = 4096;

/// Tells a request from others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    address: IpAddr,
    uid: Option<u32>,
    xid: u32,
    digest: Digest,
}

impl Key {
    /// That of a request.
    pub fn new(origin: &Origin, digest: Digest) -> Self {
        let uid = match &origin.credential {
            Credential::None => None,
            Credential::Sys(sys) => Some(sys.uid),
        };
        Self { address: origin.address, uid, xid: origin.xid, digest }
    }
}

/// What is known of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    New,
    /// It is being done.
    UnderWay,
    /// It was done: this COMPOUND was the reply.
    Done(Arc<[u8]>),
}

/// Whether an operation of NFSv4.0 must not be done twice, and has nothing of its own that would see to that.
pub fn is_once(operation: u32) -> bool {
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
    entries: HashMap<Key, Entry>,
    in_order: BTreeMap<u64, Key>,
    of_host: HashMap<IpAddr, BTreeSet<u64>>,
}

impl Table {
    fn remove(&mut self, key: &Key) {
        let Some(entry) = self.entries.remove(key) else { return };
        self.in_order.remove(&entry.number);
        if let Some(numbers) = self.of_host.get_mut(&key.address) {
            numbers.remove(&entry.number);
            if numbers.is_empty() {
                self.of_host.remove(&key.address);
            }
        }
    }

    fn remove_number(&mut self, number: Option<u64>) {
        if let Some(key) = number.and_then(|number| self.in_order.get(&number)).cloned() {
            self.remove(&key);
        }
    }
}

/// The replies that are kept.
#[derive(Default)]
pub struct Replies(Mutex<Table>);

impl Replies {
    /// What is known of a request.
    pub fn find(&self, key: &Key) -> Known {
        let table = self.0.lock();
        match table.entries.get(key).filter(|entry| entry.since.elapsed() < KEPT) {
            None => Known::New,
            Some(Entry { reply: None, .. }) => Known::UnderWay,
            Some(Entry { reply: Some(reply), .. }) => Known::Done(reply.clone()),
        }
    }

    /// It is about to do something that must not be done twice. It has to be [ended](Self::end).
    pub fn begin(&self, key: &Key) {
        let mut table = self.0.lock();
        table.remove(key);
        let oldest = table.of_host.get(&key.address).filter(|of| of.len() >= HOST_MAX);
        let oldest = oldest.and_then(|of| of.first().copied());
        table.remove_number(oldest);
        if table.entries.len() >= ALL_MAX {
            let oldest = table.in_order.keys().next().copied();
            table.remove_number(oldest);
        }
        table.last += 1;
        let number = table.last;
        table.entries.insert(key.clone(), Entry { number, since: Instant::now(), reply: None });
        table.in_order.insert(number, key.clone());
        table.of_host.entry(key.address).or_default().insert(number);
    }

    /// It is over; without a reply it is as if it had never been.
    pub fn end(&self, key: &Key, reply: Option<&[u8]>) {
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

    fn key(host: u8, xid: u32) -> Key {
        Key { address: [192, 0, 2, host].into(), uid: Some(0), xid, digest: Digest(1) }
    }

    #[test]
    fn a_reply_is_kept_for_its_request_alone() {
        let replies = Replies::default();
        assert_eq!(replies.find(&key(1, 1)), Known::New);
        replies.begin(&key(1, 1));
        assert_eq!(replies.find(&key(1, 1)), Known::UnderWay);
        replies.end(&key(1, 1), Some(b"done"));
        assert_eq!(replies.find(&key(1, 1)), Known::Done(b"done"[..].into()));
        for other in
            [key(2, 1), key(1, 2), Key { uid: None, ..key(1, 1) }, Key { digest: Digest(2), ..key(1, 1) }]
        {
            assert_eq!(replies.find(&other), Known::New);
        }
        replies.begin(&key(1, 3));
        replies.end(&key(1, 3), None);
        assert_eq!(replies.find(&key(1, 3)), Known::New);
        replies.begin(&key(1, 4));
        replies.end(&key(1, 4), Some(&[0; REPLY_BYTES_MAX + 1]));
        assert_eq!(replies.find(&key(1, 4)), Known::New);
    }

    #[test]
    fn one_host_cannot_push_the_others_out() {
        let replies = Replies::default();
        let keep = |key: &Key| {
            replies.begin(key);
            replies.end(key, Some(b"done"));
        };
        keep(&key(1, 0));
        for xid in 0..HOST_MAX as u32 + 5 {
            keep(&key(2, xid));
        }
        assert_ne!(replies.find(&key(1, 0)), Known::New);
        assert_eq!(replies.find(&key(2, 4)), Known::New);
        assert_ne!(replies.find(&key(2, 5)), Known::New);
        for host in 3..20 {
            (0..600).for_each(|xid| keep(&key(host, xid)));
        }
        let table = replies.0.lock();
        assert_eq!((table.entries.len(), table.in_order.len()), (ALL_MAX, ALL_MAX));
        assert_eq!(table.of_host.values().map(BTreeSet::len).sum::<usize>(), ALL_MAX);
    }
}
