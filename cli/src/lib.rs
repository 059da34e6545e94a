//! What of the command must be reachable from outside it: the decoder of saved states, for fuzzing. Not an interface.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod state_format;
