//! One module per race; each test runs under many schedules. The crate's documentation explains how to replay
//! one.
#![cfg(shuttle)]

mod closing_against_deletion;
mod eviction_against_write_back;
mod expected_against_names;
mod forget_against_unlink;
mod holes_against_write_back;
mod query_against_write;
mod rename_against_lookup;
mod sync_against_writers;
mod unlink_against_open;
mod xfs;
