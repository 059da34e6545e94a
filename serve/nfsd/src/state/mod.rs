//! Who the clients are and what they hold: plain data. Time is passed in, random numbers come from a source that is passed in, and
//! nothing is sent, opened or waited for.

mod base;

pub use base::{Dice, Span, Time};
