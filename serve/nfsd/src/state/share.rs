//! What all clients share, and how: nobody at one address can keep the others from it.
//!
//! Names cost nothing: a machine can make up thousands of clients, and each of them hold what one client may. So room is shared among the addresses at which clients
//! are at home. Up to the bound whoever comes first gets it; beyond, those at whose address less than half of a fair share is held, until there is half as much again. What
//! is held by all stays below one and a half times the bound.

use std::collections::BTreeMap;

use ivers_nfs4::types::ClientId;

use super::client::Client;
use super::{Home, State};

/// How much is held where, of something that there is so much of.
pub(super) struct Shares {
    bound: u64,
    total: u64,
    /// Those who hold something, and those who were asked about.
    homes: BTreeMap<Home, u64>,
}

impl Shares {
    pub fn new(bound: u64, asking: Home, held: impl Iterator<Item = (Home, u64)>) -> Self {
        let mut shares = Self { bound, total: 0, homes: BTreeMap::from([(asking, 0)]) };
        for (home, held) in held.filter(|(_, held)| *held > 0) {
            shares.total += held;
            *shares.homes.entry(home).or_default() += held;
        }
        shares
    }

    fn half_of_a_fair_share(&self) -> u64 {
        self.bound / self.homes.len() as u64 / 2
    }

    /// Whether less than half of a fair share is held there.
    pub fn few(&self, home: Home) -> bool {
        self.homes.get(&home).is_none_or(|held| *held < self.half_of_a_fair_share())
    }

    /// How much more may be held there.
    pub fn room(&self, home: Home) -> u64 {
        let held = self.homes.get(&home).copied().unwrap_or_default();
        let beyond = (self.bound + self.bound / 2).saturating_sub(self.total);
        self.half_of_a_fair_share()
            .saturating_sub(held)
            .min(beyond)
            .max(self.bound.saturating_sub(self.total))
    }
}

impl State {
    /// Whether a client may have so many more of what all share up to a bound. The tables of all clients are looked at only where the bound is near.
    pub(super) fn shares(
        &self,
        id: ClientId,
        more: usize,
        (total, bound): (usize, usize),
        held: impl Fn(&Client) -> usize,
    ) -> bool {
        if total + more <= bound {
            return true;
        }
        let Some(home) = self.clients.get(&id).map(|client| client.home) else { return false };
        let held = self.clients.values().map(|client| (client.home, held(client) as u64));
        Shares::new(bound as u64, home, held).room(home) >= more as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_little_gets_some_beyond_the_bound() {
        let at = |n: u8| Home(std::net::IpAddr::from([192, 0, 2, n]));
        let shares = |held: &[(u8, u64)], asking| {
            Shares::new(100, at(asking), held.iter().map(|&(n, held)| (at(n), held)))
        };
        // Up to the bound nobody is asked where he is from.
        assert_eq!(shares(&[(1, 90)], 1).room(at(1)), 10);
        assert_eq!(shares(&[(1, 90)], 2).room(at(2)), 25);
        let full = shares(&[(1, 60), (1, 40)], 2);
        assert_eq!((full.room(at(1)), full.room(at(2))), (0, 25));
        assert!(full.few(at(2)) && !full.few(at(1)));
        assert_eq!(shares(&[(1, 100), (2, 24)], 2).room(at(2)), 1);
        assert_eq!(shares(&[(1, 100), (2, 25)], 2).room(at(2)), 0);
        // Nor do many addresses have more than half as much again.
        let many: Vec<(u8, u64)> = (1..=10).map(|n| (n, 14 + u64::from(n % 2))).collect();
        assert_eq!(shares(&many, 11).room(at(11)), 4);
        assert_eq!(shares(&[(1, 150)], 2).room(at(2)), 0);
        assert_eq!(shares(&[(1, 148)], 2).room(at(2)), 2);
    }
}
