//! What the command says and what the documents say about it.

#[path = "../common/mod.rs"]
mod common;
mod json;
mod manpages;
mod messages;
mod readme;
mod recipes;
mod refusals;
mod stderr;
