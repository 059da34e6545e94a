//! What all clients share, and how: nobody at one address can keep the others from it.
//!
//! Names cost nothing: a machine can make up thousands of clients, and each of them hold what one client may. So room is shared among the addresses at which clients
//! are at home. Up to the bound whoever comes first gets it; beyond, those at whose address less than half of a fair share is held, until there is half as much again. What
//! is held by all stays below one and a half times the bound.

use std::collections::BTreeMap;

use ivers_nfs4::types::ClientId;

use super::client::Client;
use super::{ClientHost, StateManager};

/// How much is held where, of something that there is so much of.
pub(super) struct FairShare {
    bound: u64,
    total: u64,
    /// Those who hold something, and those who were asked about.
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

    /// Whether less than half of a fair share is held there.
    pub fn holds_little(&self, host: ClientHost) -> bool {
        self.hosts.get(&host).is_none_or(|held| *held < self.half_share())
    }

    /// How much more may be held there.
    pub fn available(&self, host: ClientHost) -> u64 {
        let held = self.hosts.get(&host).copied().unwrap_or_default();
        let beyond = (self.bound + self.bound / 2).saturating_sub(self.total);
        self.half_share().saturating_sub(held).min(beyond).max(self.bound.saturating_sub(self.total))
    }
}

impl StateManager {
    /// Whether a client may have so many more of what all share up to a bound. The tables of all clients are looked at only where the bound is near.
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
    fn who_holds_little_gets_some_beyond_the_bound() {
        let at = |n: u8| ClientHost(std::net::IpAddr::from([192, 0, 2, n]));
        let shares = |held: &[(u8, u64)], asking| {
            FairShare::new(100, at(asking), held.iter().map(|&(n, held)| (at(n), held)))
        };
        // Up to the bound nobody is asked where he is from.
        assert_eq!(shares(&[(1, 90)], 1).available(at(1)), 10);
        assert_eq!(shares(&[(1, 90)], 2).available(at(2)), 25);
        let full = shares(&[(1, 60), (1, 40)], 2);
        assert_eq!((full.available(at(1)), full.available(at(2))), (0, 25));
        assert!(full.holds_little(at(2)) && !full.holds_little(at(1)));
        assert_eq!(shares(&[(1, 100), (2, 24)], 2).available(at(2)), 1);
        assert_eq!(shares(&[(1, 100), (2, 25)], 2).available(at(2)), 0);
        // Nor do many addresses have more than half as much again.
        let many: Vec<(u8, u64)> = (1..=10).map(|n| (n, 14 + u64::from(n % 2))).collect();
        assert_eq!(shares(&many, 11).available(at(11)), 4);
        assert_eq!(shares(&[(1, 150)], 2).available(at(2)), 0);
        assert_eq!(shares(&[(1, 148)], 2).available(at(2)), 2);
    }
}
