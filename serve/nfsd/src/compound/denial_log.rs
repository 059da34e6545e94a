//! A count of denied accesses to exports, and a log line for each kind.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::exports::policy::Refusal;

/// The number of logged denials that are remembered. When it is reached, the memory is cleared.
const LOGGED_MAX: usize = 1024;

/// Denied accesses to exports.
#[derive(Debug, Default)]
pub struct DenialLog {
    count: AtomicU64,
    logged: Mutex<HashSet<(String, IpAddr, Refusal)>>,
}

impl DenialLog {
    /// Records a denial. Logs it once for each export, address and reason, so that a client cannot fill the
    /// log.
    pub fn record(&self, export: &str, address: IpAddr, why: Refusal) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut logged = self.logged.lock();
        if logged.len() == LOGGED_MAX {
            logged.clear();
        }
        if logged.insert((export.to_owned(), address, why)) {
            let why = match why {
                Refusal::Address => "its clients list excludes the address",
                Refusal::Security => {
                    "the security flavor, TLS or the certificate does not match its sec, tls and names"
                }
            };
            log::warn!(
                address:%, export;
                "access to an export denied: {why}; change its options to allow it"
            );
        }
    }

    /// The number of denials since the start.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_logged_denials_is_bounded() {
        let denials = DenialLog::default();
        for last in 0..3 * LOGGED_MAX as u32 {
            denials.record("/a", IpAddr::from(last.to_be_bytes()), Refusal::Address);
            denials.record("/a", IpAddr::from([192, 0, 2, 1]), Refusal::Security);
        }
        assert_eq!(denials.count(), 6 * LOGGED_MAX as u64);
        assert!(denials.logged.lock().len() <= LOGGED_MAX);
    }
}
