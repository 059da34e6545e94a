//! Mistakes that tests plant, to see that they are found. In what is shipped there are none.

/// What can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests plant them"))]
pub(super) enum Fault {
    None,
    /// A repeated request looks new.
    ReexecuteRequests,
    /// Share modes stop nobody.
    IgnoreDeny,
    /// Locks stop nobody.
    IgnoreLocks,
    /// Delegations stop nobody.
    IgnoreDelegations,
    /// A delegation is given while somebody is about to change the file.
    IgnoreInFlight,
    /// A delegation that was shown as written ends without a bump.
    SkipFinalBump,
    /// Everything is given out in grace.
    IgnoreGrace,
    /// A client goes before he is struck out.
    EvictBeforeRemoval,
    /// Who was on record at the start is taken to be there still.
    TrustStartupRecords,
}

#[cfg(test)]
thread_local! {
    pub(super) static PLANTED: std::cell::Cell<Fault> = const { std::cell::Cell::new(Fault::None) };
}

/// Whether this one is planted.
#[cfg(test)]
pub(super) fn is_planted(mistake: Fault) -> bool {
    PLANTED.get() == mistake
}

/// None is.
#[cfg(not(test))]
pub(super) const fn is_planted(_: Fault) -> bool {
    false
}
