//! What everything here is made of: times, random numbers, numbers of things.

use std::ops::Add;

/// A moment: milliseconds since the server started, by a clock that never goes back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A length of time, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Span {
    /// So many seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }
}

impl Add<Span> for Time {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Time {
    /// How long ago another moment was; nothing if it is yet to come.
    pub fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// Where random numbers come from.
pub trait Dice: Send {
    /// The next one.
    fn roll(&mut self) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_do_not_run_over() {
        assert_eq!(Time(u64::MAX) + Span::seconds(1), Time(u64::MAX));
        assert_eq!(Time(5).since(Time(7)), Span(0));
        assert_eq!((Time(5) + Span(2)).since(Time(5)), Span(2));
    }
}
