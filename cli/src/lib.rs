//! The decoder of saved states, for fuzzing. Not an interface for other crates.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod state_format;
