//! Who was refused: counted, and each said once.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::exports::policy::Refusal;

/// So many are remembered; then it begins anew.
const SAID_MAX: usize = 1024;

/// Those who wanted to use an export that is not for them, or not in this way.
#[derive(Debug, Default)]
pub struct Refusals {
    count: AtomicU64,
    said: Mutex<HashSet<(String, IpAddr, Refusal)>>,
}

impl Refusals {
    /// Somebody was. A client that goes on asking must not fill the log.
    pub fn note(&self, export: &str, address: IpAddr, why: Refusal) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut said = self.said.lock();
        if said.len() == SAID_MAX {
            said.clear();
        }
        if said.insert((export.to_owned(), address, why)) {
            let why = match why {
                Refusal::Address => "it is not for that address (clients)",
                Refusal::Security => "not with that flavour, or not without TLS (sec, tls, names)",
            };
            log::warn!(address:%, export; "an export is refused: {why}");
        }
    }

    /// How often.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded() {
        let refusals = Refusals::default();
        for last in 0..3 * SAID_MAX as u32 {
            refusals.note("/a", IpAddr::from(last.to_be_bytes()), Refusal::Address);
            refusals.note("/a", IpAddr::from([192, 0, 2, 1]), Refusal::Security);
        }
        assert_eq!(refusals.count(), 6 * SAID_MAX as u64);
        assert!(refusals.said.lock().len() <= SAID_MAX);
    }
}
