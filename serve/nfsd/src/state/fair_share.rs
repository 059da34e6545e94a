//! Fair sharing of limits: clients at one host cannot exhaust what all clients share.
//!
//! A machine can create thousands of clients, and each could hold as much as one client may. Limits are
//! therefore shared among the hosts of the clients.
//!
//! - Up to the limit, first come, first served.
//! - Above the limit, a host gets more only while it holds less than half of a fair share.
//! - In total, at most one and a half times the limit is held.

use std::collections::BTreeMap;

use ivers_nfs4::types::ClientId;

use super::ids::ClientHost;
use super::manager::StateManager;
use super::tables::client::Client;

/// The use of one limit by host.
pub(super) struct FairShare {
    bound: u64,
    total: u64,
    /// Hosts that hold something, and the host that asks.
    hosts: BTreeMap<ClientHost, u64>,
}

impl FairShare {
    pub fn new(bound: u64, asking: ClientHost, held: impl Iterator<Item = (ClientHost, u64)>) -> Self {
        let mut shares = Self { bound, total: 0, hosts: BTreeMap::from([(asking, 0)]) };
        for (host, held) in held.filter(|(_, held)| *held > 0) {
            shares.total += held;
            *shares.hosts.entry(host).or_default() += held;
        }
        shares
    }

    fn half_share(&self) -> u64 {
        self.bound / self.hosts.len() as u64 / 2
    }

    /// Returns whether a host holds less than half of a fair share.
    pub fn holds_little(&self, host: ClientHost) -> bool {
        self.hosts.get(&host).is_none_or(|held| *held < self.half_share())
    }

    /// Returns how much more a host may hold.
    pub fn available(&self, host: ClientHost) -> u64 {
        let held = self.hosts.get(&host).copied().unwrap_or_default();
        let beyond = (self.bound + self.bound / 2).saturating_sub(self.total);
        self.half_share().saturating_sub(held).min(beyond).max(self.bound.saturating_sub(self.total))
    }
}

impl StateManager {
    /// Returns whether a client may have `more` of something with a common limit. Sums up all clients only
    /// near the limit.
    pub(super) fn within_share(
        &self,
        id: ClientId,
        more: usize,
        (total, bound): (usize, usize),
        held: impl Fn(&Client) -> usize,
    ) -> bool {
        if total + more <= bound {
            return true;
        }
        let Some(host) = self.clients.get(&id).map(|client| client.host) else { return false };
        let held = self.clients.values().map(|client| (client.host, held(client) as u64));
        FairShare::new(bound as u64, host, held).available(host) >= more as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_hold_little_may_exceed_the_limit() {
        let at = |n: u8| ClientHost(std::net::IpAddr::from([192, 0, 2, n]));
        let shares = |held: &[(u8, u64)], asking| {
            FairShare::new(100, at(asking), held.iter().map(|&(n, held)| (at(n), held)))
        };
        // Below the limit, the host does not matter.
        assert_eq!(shares(&[(1, 90)], 1).available(at(1)), 10);
        assert_eq!(shares(&[(1, 90)], 2).available(at(2)), 25);
        let full = shares(&[(1, 60), (1, 40)], 2);
        assert_eq!((full.available(at(1)), full.available(at(2))), (0, 25));
        assert!(full.holds_little(at(2)) && !full.holds_little(at(1)));
        assert_eq!(shares(&[(1, 100), (2, 24)], 2).available(at(2)), 1);
        assert_eq!(shares(&[(1, 100), (2, 25)], 2).available(at(2)), 0);
        // Many hosts together hold at most one and a half times the limit.
        let many: Vec<(u8, u64)> = (1..=10).map(|n| (n, 14 + u64::from(n % 2))).collect();
        assert_eq!(shares(&many, 11).available(at(11)), 4);
        assert_eq!(shares(&[(1, 150)], 2).available(at(2)), 0);
        assert_eq!(shares(&[(1, 148)], 2).available(at(2)), 2);
    }
}
