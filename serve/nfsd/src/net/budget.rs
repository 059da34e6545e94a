//! Who holds how many bytes: requests that wait or are worked on, and replies that nobody has read yet.
//!
//! There is a bound for each connection, for each client (an address: connections are cheap) and for all. Over a bound nobody gets more, but for those who
//! hold less than half of their fair share of it: a flood from one connection leaves the others on the same address served, and one from one address all others.
//! So what is held stays below one and a half times the bound.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// What a call costs beside its bytes: its place in the queue, its handle, its allocations.
const OVERHEAD_BYTES: usize = 512;

/// Whom bounds are for: an address of IPv4, the /64 of one of IPv6 (whoever has one of those has all of them).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientKey(IpAddr);

impl ClientKey {
    /// The address that stands for all of them.
    pub(crate) fn address(self) -> IpAddr {
        self.0
    }
}

impl From<IpAddr> for ClientKey {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(v6) if !v6.is_loopback() => {
                let mut octets = v6.octets();
                octets[8..].fill(0);
                IpAddr::V6(Ipv6Addr::from(octets))
            }
            other => other,
        })
    }
}

/// The bounds.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes a connection.
    pub connection_bytes: usize,
    /// Bytes a client.
    pub client_bytes: usize,
    /// Bytes in all.
    pub total_bytes: usize,
    /// Connections a client.
    pub client_connections: usize,
    /// Connections in all.
    pub total_connections: usize,
}

#[derive(Debug, Default)]
struct Client {
    bytes: usize,
    connections: usize,
}

#[derive(Debug, Default)]
struct Table {
    bytes: usize,
    connections: usize,
    clients: HashMap<ClientKey, Client>,
}

impl Table {
    fn forget(&mut self, client: ClientKey) {
        let unused = |client: &Client| client.connections == 0 && client.bytes == 0;
        if self.clients.get(&client).is_some_and(unused) {
            self.clients.remove(&client);
        }
    }
}

/// The book of all that is held.
#[derive(Debug)]
pub struct Budget {
    bounds: Bounds,
    table: Mutex<Table>,
}

/// Why a connection is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooMany {
    /// This client has as many as it may.
    OfThisClient,
    /// There are as many as there may be.
    InAll,
}

impl Budget {
    /// An empty book.
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, table: Mutex::default() })
    }

    /// Another connection of a client.
    pub fn open(self: &Arc<Self>, client: ClientKey) -> Result<Arc<Account>, TooMany> {
        let mut table = self.table.lock();
        if table
            .clients
            .get(&client)
            .is_some_and(|client| client.connections >= self.bounds.client_connections)
        {
            return Err(TooMany::OfThisClient);
        }
        if table.connections >= self.bounds.total_connections {
            return Err(TooMany::InAll);
        }
        table.connections += 1;
        table.clients.entry(client).or_default().connections += 1;
        Ok(Arc::new(Account {
            budget: self.clone(),
            client,
            own: Mutex::new(Own { bytes: 0, seated: true }),
        }))
    }

    /// Bytes that are held now.
    pub fn bytes(&self) -> usize {
        self.table.lock().bytes
    }

    /// Connections that there are now.
    pub fn connections(&self) -> usize {
        self.table.lock().connections
    }
}

/// What one connection holds.
#[derive(Debug)]
pub struct Account {
    budget: Arc<Budget>,
    client: ClientKey,
    /// Locked before the table, always.
    own: Mutex<Own>,
}

#[derive(Debug)]
struct Own {
    bytes: usize,
    /// Counted as a connection.
    seated: bool,
}

impl Account {
    /// Whose it is.
    pub fn client(&self) -> ClientKey {
        self.client
    }

    /// Hold bytes of a request, if there is room.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let mut charge = self.nothing();
        charge.grow(OVERHEAD_BYTES + bytes).then_some(charge)
    }

    /// A charge of nothing, to be grown.
    pub fn nothing(self: &Arc<Self>) -> Charge {
        Charge { account: self.clone(), bytes: 0 }
    }

    fn add(&self, more: usize, always: bool) -> bool {
        let Bounds { connection_bytes, client_bytes, total_bytes, .. } = self.budget.bounds;
        let mut own = self.own.lock();
        let mut table = self.budget.table.lock();
        let Table { bytes: all, clients, .. } = &mut *table;
        let count = clients.len();
        let client = clients.entry(self.client).or_default();
        let below = |held: usize, bound: usize, mine: usize, of: usize| {
            held + more <= bound || mine + more <= bound / (2 * of.max(1))
        };
        let fits = own.bytes + more <= connection_bytes
            && below(client.bytes, client_bytes, own.bytes, client.connections)
            && below(*all, total_bytes, client.bytes, count);
        if fits || always {
            own.bytes += more;
            client.bytes += more;
            *all += more;
        }
        // A connection that has ended may have been all that there was of the client.
        table.forget(self.client);
        fits || always
    }

    fn take(&self, less: usize) {
        let mut own = self.own.lock();
        let mut table = self.budget.table.lock();
        own.bytes -= less;
        table.bytes -= less;
        if let Some(client) = table.clients.get_mut(&self.client) {
            client.bytes -= less;
        }
        table.forget(self.client);
    }

    /// The connection has ended, though some of what it asked for may still be worked on.
    pub fn leave(&self) {
        let mut own = self.own.lock();
        if std::mem::take(&mut own.seated) {
            let mut table = self.budget.table.lock();
            table.connections -= 1;
            if let Some(client) = table.clients.get_mut(&self.client) {
                client.connections -= 1;
            }
            table.forget(self.client);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Bytes that are held until this is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl Charge {
    /// Hold more, if there is room.
    #[must_use]
    pub fn grow(&mut self, more: usize) -> bool {
        let fits = self.account.add(more, false);
        if fits {
            self.bytes += more;
        }
        fits
    }

    /// Hold more whether there is room or not: a reply that was made is sent.
    pub fn grow_anyway(&mut self, more: usize) {
        self.account.add(more, true);
        self.bytes += more;
    }

    /// Hold less.
    pub fn shrink(&mut self, less: usize) {
        let less = less.min(self.bytes);
        self.account.take(less);
        self.bytes -= less;
    }

    /// What is held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.take(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(address: &str) -> ClientKey {
        ClientKey::from(address.parse::<IpAddr>().unwrap())
    }

    fn budget() -> Arc<Budget> {
        Budget::new(Bounds {
            connection_bytes: 100_000,
            client_bytes: 150_000,
            total_bytes: 200_000,
            client_connections: 3,
            total_connections: 4,
        })
    }

    #[test]
    fn an_address_is_a_client_and_so_is_a_network_of_ipv6() {
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
        assert_ne!(key("192.0.2.2"), key("192.0.2.1"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff"));
        assert_ne!(key("2001:db8:0:1::1"), key("2001:db8::1"));
        assert_ne!(key("::1"), key("::2"));
    }

    #[test]
    fn bounds_hold_and_what_is_dropped_is_free_again() {
        let budget = budget();
        let account = budget.open(key("192.0.2.1")).unwrap();
        let first = account.charge(99_000).unwrap();
        assert!(account.charge(1_000).is_none());
        drop(first);
        assert_eq!(budget.bytes(), 0);
        let mut charge = account.charge(1_000).unwrap();
        assert!(charge.grow(90_000));
        assert!(!charge.grow(90_000));
        charge.grow_anyway(90_000);
        assert_eq!(budget.bytes(), charge.bytes());
        charge.shrink(usize::MAX);
        drop(charge);
        drop(account);
        assert_eq!((budget.bytes(), budget.connections()), (0, 0));
        assert!(budget.table.lock().clients.is_empty());
    }

    #[test]
    fn who_floods_leaves_room_for_the_others() {
        let budget = budget();
        let flood: Vec<_> = (0..2).map(|_| budget.open(key("192.0.2.1")).unwrap()).collect();
        let mut held = Vec::new();
        for account in flood.iter().cycle().take(1000) {
            held.extend(account.charge(1000));
        }
        assert!(flood.iter().all(|account| account.charge(1000).is_none()));
        // The same address, but its own connection; and another address.
        let modest = budget.open(key("192.0.2.1")).unwrap();
        let other = budget.open(key("192.0.2.2")).unwrap();
        assert!(modest.charge(5_000).is_some());
        assert!(other.charge(40_000).is_some());
        assert!(budget.bytes() <= 225_000);
    }

    #[test]
    fn connections_are_counted() {
        let budget = budget();
        let three: Vec<_> = (0..3).map(|_| budget.open(key("192.0.2.1")).unwrap()).collect();
        assert_eq!(budget.open(key("192.0.2.1")).unwrap_err(), TooMany::OfThisClient);
        let other = budget.open(key("192.0.2.2")).unwrap();
        assert_eq!(budget.open(key("192.0.2.3")).unwrap_err(), TooMany::InAll);
        three[0].leave();
        drop(three);
        assert_eq!(budget.connections(), 1);
        assert!(budget.open(key("192.0.2.1")).is_ok());
        drop(other);
    }
}
