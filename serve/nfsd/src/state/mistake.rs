//! Mistakes that tests plant, to see that they are found. In what is shipped there are none.

/// What can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests plant them"))]
pub(super) enum Mistake {
    None,
    /// A repeated request looks new.
    ForgetSlots,
    /// Share modes stop nobody.
    ForgetDenials,
    /// Locks stop nobody.
    ForgetLocks,
    /// Delegations stop nobody.
    ForgetDelegations,
    /// A delegation is given while somebody is about to change the file.
    ForgetPermits,
    /// A delegation that was shown as written ends without a bump.
    ForgetLastBump,
    /// Everything is given out in grace.
    ForgetGrace,
    /// A client goes before he is struck out.
    ForgetRecords,
    /// Who was on record at the start is taken to be there still.
    BelieveThePast,
}

#[cfg(test)]
thread_local! {
    pub(super) static PLANTED: std::cell::Cell<Mistake> = const { std::cell::Cell::new(Mistake::None) };
}

/// Whether this one is planted.
#[cfg(test)]
pub(super) fn is(mistake: Mistake) -> bool {
    PLANTED.get() == mistake
}

/// None is.
#[cfg(not(test))]
pub(super) const fn is(_: Mistake) -> bool {
    false
}
