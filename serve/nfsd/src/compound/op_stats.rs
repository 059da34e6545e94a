//! Counts of operations and errors.

use std::sync::atomic::{AtomicU64, Ordering};

use ivers_nfs4::ops::number;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::xdr::Xdr;

/// The number of counters for operations. Unknown operations share counter 0.
const OPERATIONS: usize = 128;
/// The number of counters for errors below this value, and again for errors from [`NFS_STATUS_BASE`] on.
const STATUSES: usize = 128;
/// The first status that only NFS defines.
const NFS_STATUS_BASE: usize = 10_000;

/// The counts of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpCount {
    /// The name in the RFCs.
    pub name: &'static str,
    /// The number of calls.
    pub calls: u64,
    /// The number of calls that failed.
    pub errors: u64,
}

/// Counts since the start. Each count is exact, but they are not read at one moment.
#[derive(Debug)]
pub struct OpStats {
    calls: [AtomicU64; OPERATIONS],
    errors: [AtomicU64; OPERATIONS],
    statuses: [[AtomicU64; STATUSES]; 2],
}

impl Default for OpStats {
    fn default() -> Self {
        Self { calls: zeros(), errors: zeros(), statuses: [zeros(), zeros()] }
    }
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

/// The counter of an operation. Unknown operations share counter 0.
fn slot(number: u32) -> usize {
    let at = number as usize;
    if at < OPERATIONS && number::name(number).is_some() { at } else { 0 }
}

impl OpStats {
    /// Records the result of one operation.
    pub fn record(&self, number: u32, status: NfsStat) {
        self.calls[slot(number)].fetch_add(1, Ordering::Relaxed);
        if status == NfsStat::Ok {
            return;
        }
        self.errors[slot(number)].fetch_add(1, Ordering::Relaxed);
        let status = status.number() as usize;
        let (half, at) =
            if status < STATUSES { (0, status) } else { (1, status.saturating_sub(NFS_STATUS_BASE)) };
        if let Some(count) = self.statuses[half].get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Operations that were called at least once.
    pub fn operations(&self) -> Vec<OpCount> {
        let each = self.calls.iter().zip(&self.errors).enumerate();
        each.filter_map(|(at, (calls, errors))| {
            let number = if at == 0 { number::ILLEGAL } else { at as u32 };
            let (calls, errors) = (calls.load(Ordering::Relaxed), errors.load(Ordering::Relaxed));
            (calls > 0).then(|| OpCount { name: number::name(number).unwrap_or("ILLEGAL"), calls, errors })
        })
        .collect()
    }

    /// Errors that were returned at least once.
    pub fn errors(&self) -> Vec<(NfsStat, u64)> {
        let halves = self.statuses.iter().zip([0, NFS_STATUS_BASE]);
        let each = halves.flat_map(|(half, base)| half.iter().zip(base..));
        each.filter_map(|(count, number)| {
            let count = count.load(Ordering::Relaxed);
            let status = NfsStat::from_bytes(&(number as u32).to_be_bytes()).ok()?;
            (count > 0).then_some((status, count))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_listed_by_name() {
        let stats = OpStats::default();
        stats.record(number::READ, NfsStat::Ok);
        stats.record(number::READ, NfsStat::Stale);
        stats.record(number::REMOVEXATTR, NfsStat::Noxattr);
        stats.record(number::ILLEGAL, NfsStat::OpIllegal);
        stats.record(u32::MAX, NfsStat::OpIllegal);
        let operation = |name, calls, errors| OpCount { name, calls, errors };
        assert_eq!(
            stats.operations(),
            [operation("ILLEGAL", 2, 2), operation("READ", 2, 1), operation("REMOVEXATTR", 1, 1)]
        );
        assert_eq!(stats.errors(), [(NfsStat::Stale, 1), (NfsStat::OpIllegal, 2), (NfsStat::Noxattr, 1)]);
    }
}
