//! What the command prints: text, JSON, progress, errors with exit codes, log messages, and files that it
//! saves.

pub mod colours;
pub mod failure;
pub mod findings;
pub mod format;
pub mod log;
pub mod print;
pub mod progress;
pub mod save;
