//! Limits for the bytes that are held: requests that wait or execute, and replies that the client has not
//! read.
//!
//! There is a limit for each connection, for each client (an address, because connections are cheap) and for
//! the total. Above a limit no bytes are granted, except to a holder that has less than half of its fair
//! share.
//! So if one connection floods the server, other connections of the same address are served, and if one
//! address does, all other addresses are. The total stays below one and a half times the limit.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Cost of a call beside its bytes: queue entry, handle, allocations.
const OVERHEAD_BYTES: usize = 512;

/// The client that limits apply to: an IPv4 address, or the /64 network of an IPv6 address, because a holder
/// of one IPv6 address usually has the whole network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientKey(IpAddr);

impl ClientKey {
    /// Returns the address that represents the client.
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

/// Limits for bytes and connections.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes per connection.
    pub connection_bytes: usize,
    /// Bytes per client.
    pub client_bytes: usize,
    /// Bytes in total.
    pub total_bytes: usize,
    /// Connections per client.
    pub client_connections: usize,
    /// Connections in total.
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

/// The bytes and connections of all clients.
#[derive(Debug)]
pub struct Budget {
    bounds: Bounds,
    table: Mutex<Table>,
}

/// The reason why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooMany {
    /// The client has reached its limit.
    PerClient,
    /// The total limit is reached.
    Total,
}

impl std::fmt::Display for TooMany {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TooMany::PerClient => "limit of the client",
            TooMany::Total => "limit of the server",
        })
    }
}

impl Budget {
    /// Creates an empty budget.
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, table: Mutex::default() })
    }

    /// Adds a connection of a client.
    pub fn open(self: &Arc<Self>, client: ClientKey) -> Result<Arc<Account>, TooMany> {
        let mut table = self.table.lock();
        if table
            .clients
            .get(&client)
            .is_some_and(|client| client.connections >= self.bounds.client_connections)
        {
            return Err(TooMany::PerClient);
        }
        if table.connections >= self.bounds.total_connections {
            return Err(TooMany::Total);
        }
        table.connections += 1;
        table.clients.entry(client).or_default().connections += 1;
        Ok(Arc::new(Account {
            budget: self.clone(),
            client,
            own: Mutex::new(Own { bytes: 0, is_open: true }),
        }))
    }

    /// Returns the number of bytes held.
    pub fn bytes(&self) -> usize {
        self.table.lock().bytes
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.table.lock().connections
    }
}

/// The account of one connection.
#[derive(Debug)]
pub struct Account {
    budget: Arc<Budget>,
    client: ClientKey,
    /// Lock order: before the table.
    own: Mutex<Own>,
}

#[derive(Debug)]
struct Own {
    bytes: usize,
    /// The connection counts against the limits of connections.
    is_open: bool,
}

impl Account {
    /// Returns the client.
    pub fn client(&self) -> ClientKey {
        self.client
    }

    /// Charges the bytes of a request, if the limits permit.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let mut charge = self.empty_charge();
        charge.grow(OVERHEAD_BYTES + bytes).then_some(charge)
    }

    /// Returns an empty charge.
    pub fn empty_charge(self: &Arc<Self>) -> Charge {
        Charge { account: self.clone(), bytes: 0 }
    }

    fn try_add(&self, more: usize, always: bool) -> bool {
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
        // The client may have no connection left.
        table.forget(self.client);
        fits || always
    }

    fn release(&self, less: usize) {
        let mut own = self.own.lock();
        let mut table = self.budget.table.lock();
        own.bytes -= less;
        table.bytes -= less;
        if let Some(client) = table.clients.get_mut(&self.client) {
            client.bytes -= less;
        }
        table.forget(self.client);
    }

    /// Tells that the connection is closed. Its calls may still be in progress.
    pub fn close(&self) {
        let mut own = self.own.lock();
        if std::mem::take(&mut own.is_open) {
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
        self.close();
    }
}

/// Bytes held until this is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl Charge {
    /// Adds bytes if the limits permit. Returns whether it did.
    #[must_use]
    pub fn grow(&mut self, more: usize) -> bool {
        let fits = self.account.try_add(more, false);
        if fits {
            self.bytes += more;
        }
        fits
    }

    /// Adds bytes regardless of the limits, for replies that exist and must be sent.
    pub fn grow_anyway(&mut self, more: usize) {
        self.account.try_add(more, true);
        self.bytes += more;
    }

    /// Releases bytes.
    pub fn shrink(&mut self, less: usize) {
        let less = less.min(self.bytes);
        self.account.release(less);
        self.bytes -= less;
    }

    /// Returns the number of bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.release(self.bytes);
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
    fn a_client_is_an_ipv4_address_or_an_ipv6_network() {
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
        assert_ne!(key("192.0.2.2"), key("192.0.2.1"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff"));
        assert_ne!(key("2001:db8:0:1::1"), key("2001:db8::1"));
        assert_ne!(key("::1"), key("::2"));
    }

    #[test]
    fn limits_hold_and_dropped_charges_are_released() {
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
    fn a_flood_leaves_bytes_for_other_clients() {
        let budget = budget();
        let flood: Vec<_> = (0..2).map(|_| budget.open(key("192.0.2.1")).unwrap()).collect();
        let mut held = Vec::new();
        for account in flood.iter().cycle().take(1000) {
            held.extend(account.charge(1000));
        }
        assert!(flood.iter().all(|account| account.charge(1000).is_none()));
        // Another connection of the same address, and another address.
        let modest = budget.open(key("192.0.2.1")).unwrap();
        let other = budget.open(key("192.0.2.2")).unwrap();
        assert!(modest.charge(5_000).is_some());
        assert!(other.charge(40_000).is_some());
        assert!(budget.bytes() <= 225_000);
    }

    #[test]
    fn connections_are_limited() {
        let budget = budget();
        let three: Vec<_> = (0..3).map(|_| budget.open(key("192.0.2.1")).unwrap()).collect();
        assert_eq!(budget.open(key("192.0.2.1")).unwrap_err(), TooMany::PerClient);
        let other = budget.open(key("192.0.2.2")).unwrap();
        assert_eq!(budget.open(key("192.0.2.3")).unwrap_err(), TooMany::Total);
        three[0].close();
        drop(three);
        assert_eq!(budget.connections(), 1);
        assert!(budget.open(key("192.0.2.1")).is_ok());
        drop(other);
    }
}
