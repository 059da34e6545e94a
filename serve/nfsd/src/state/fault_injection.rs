//! Faults that tests inject to check that they detect them. Other builds contain none.

/// A fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests inject them"))]
pub(super) enum Fault {
    None,
    /// A retry looks like a new request.
    ReexecuteRequests,
    /// Share modes are ignored.
    IgnoreDeny,
    /// Locks are ignored.
    IgnoreLocks,
    /// Delegations are ignored.
    IgnoreDelegations,
    /// A delegation is granted while a change of the file is in progress.
    IgnoreInFlight,
    /// A delegation with reported changes ends without a bump.
    SkipFinalBump,
    /// New state is granted in the grace period.
    IgnoreGrace,
    /// A client is evicted before its record is removed.
    EvictBeforeRemoval,
    /// Clients on record at the start are trusted to be on record still.
    TrustStartupRecords,
}

#[cfg(test)]
thread_local! {
    pub(super) static INJECTED: std::cell::Cell<Fault> = const { std::cell::Cell::new(Fault::None) };
}

/// Returns whether a fault is injected.
#[cfg(test)]
pub(super) fn is_injected(fault: Fault) -> bool {
    INJECTED.get() == fault
}

/// Without tests, no fault is injected.
#[cfg(not(test))]
pub(super) const fn is_injected(_: Fault) -> bool {
    false
}
