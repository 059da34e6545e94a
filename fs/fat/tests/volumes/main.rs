//! Volumes without a machine of their own: names, other tools, damage.

mod check;
mod eviction;
mod faults;
mod label;
mod mtools;
mod names;
