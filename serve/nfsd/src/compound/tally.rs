//! Operations, and how they ended, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use ivers_nfs4::ops::number;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::xdr::Xdr;

/// Operations have numbers below; the rest are those that nobody knows.
const OPERATIONS: usize = 128;
/// Errors have numbers below, or as far above [`OWN_BASE`].
const STATUSES: usize = 128;
/// Where the errors begin that only NFS has.
const OWN_BASE: usize = 10_000;

/// How often an operation was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Its name in the RFCs.
    pub name: &'static str,
    /// How often.
    pub calls: u64,
    /// How often with another end than NFS4_OK.
    pub errors: u64,
}

/// What was done since the start. Each number is exact; together they are read without a lock.
#[derive(Debug)]
pub struct Tally {
    calls: [AtomicU64; OPERATIONS],
    errors: [AtomicU64; OPERATIONS],
    statuses: [[AtomicU64; STATUSES]; 2],
}

impl Default for Tally {
    fn default() -> Self {
        Self { calls: zeros(), errors: zeros(), statuses: [zeros(), zeros()] }
    }
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

/// Where an operation is counted: all that nobody knows together, in the place of 0.
fn place(number: u32) -> usize {
    let at = number as usize;
    if at < OPERATIONS && number::name(number).is_some() { at } else { 0 }
}

impl Tally {
    /// One operation has ended.
    pub fn count(&self, number: u32, status: NfsStat) {
        self.calls[place(number)].fetch_add(1, Ordering::Relaxed);
        if status == NfsStat::Ok {
            return;
        }
        self.errors[place(number)].fetch_add(1, Ordering::Relaxed);
        let status = status.number() as usize;
        let (half, at) = if status < STATUSES { (0, status) } else { (1, status.saturating_sub(OWN_BASE)) };
        if let Some(count) = self.statuses[half].get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Those that were asked for at least once.
    pub fn operations(&self) -> Vec<Operation> {
        let each = self.calls.iter().zip(&self.errors).enumerate();
        each.filter_map(|(at, (calls, errors))| {
            let number = if at == 0 { number::ILLEGAL } else { at as u32 };
            let (calls, errors) = (calls.load(Ordering::Relaxed), errors.load(Ordering::Relaxed));
            (calls > 0).then(|| Operation { name: number::name(number).unwrap_or("ILLEGAL"), calls, errors })
        })
        .collect()
    }

    /// Errors that were given at least once.
    pub fn errors(&self) -> Vec<(NfsStat, u64)> {
        let halves = self.statuses.iter().zip([0, OWN_BASE]);
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
    fn what_happened_is_told_by_name() {
        let tally = Tally::default();
        tally.count(number::READ, NfsStat::Ok);
        tally.count(number::READ, NfsStat::Stale);
        tally.count(number::REMOVEXATTR, NfsStat::Noxattr);
        tally.count(number::ILLEGAL, NfsStat::OpIllegal);
        tally.count(u32::MAX, NfsStat::OpIllegal);
        let operation = |name, calls, errors| Operation { name, calls, errors };
        assert_eq!(
            tally.operations(),
            [operation("ILLEGAL", 2, 2), operation("READ", 2, 1), operation("REMOVEXATTR", 1, 1)]
        );
        assert_eq!(tally.errors(), [(NfsStat::Stale, 1), (NfsStat::OpIllegal, 2), (NfsStat::Noxattr, 1)]);
    }
}
