//! One module a race; each test runs under many schedules. How to replay one: the documentation of the crate.
#![cfg(shuttle)]

mod closing_against_deletion;
mod eviction_against_write_back;
mod holes_against_write_back;
mod meant_against_names;
mod query_against_write;
mod rename_against_lookup;
mod sync_against_writers;
mod unlink_against_open;
