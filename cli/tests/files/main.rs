//! The commands that read and change the files of images.

mod changed;
mod changed_elsewhere;
#[path = "../common/mod.rs"]
mod common;
mod copy;
mod edit;
mod foreign_images;
mod listing;
mod raises;
mod shell;
mod streams;
mod tar;
