//! Mistakes that tests plant, to see that they are found. In what is shipped there are none.

/// What can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests plant them"))]
pub(super) enum Mistake {
    None,
    /// A repeated request looks new.
    ForgetSlots,
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
