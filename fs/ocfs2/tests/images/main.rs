//! OCFS2 images that mkfs.ocfs2 made and Linux filled: read, checked, damaged.

mod check;
#[path = "../common/mod.rs"]
mod common;
mod damaged;
mod explore;
mod kernel;
mod leftovers;
mod open;
mod read;
mod scale;
mod write;
