//! `ivers`: opens ext4, FAT, XFS and Amiga images, mounts them in userspace, and knows exactly what changed.
//!
//! From low to high; each module uses only modules above it in this table, and so do the parts of [`image`]
//! and [`commands`], whose order their `mod.rs` gives (a test in `xtask` checks it):
//!
//! | module | contents |
//! |---|---|
//! | [`output`] | text, JSON, progress, errors with exit codes, log, saved files |
//! | [`pattern`] | patterns for file names |
//! | [`arguments`] | operands such as IMAGE:/path, lists of options, sizes |
//! | [`process`] | starting this program again |
//! | [`file_info`] | information on one file of a mount or an image |
//! | [`children`] | the files of a directory of a mount, in few requests |
//! | [`archive`] | tar archives |
//! | [`image`] | images that are opened in a sandboxed process |
//! | [`commands`] | one module per command, with its arguments |
//! | [`command_line`] | the command line |

#![forbid(unsafe_code)]
// These macros panic if nothing can be written. A closed pipe must not end a command: see `output`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod archive;
mod arguments;
mod children;
mod command_line;
mod commands;
mod file_info;
mod image;
mod output;
mod pattern;
mod process;

use std::ffi::OsString;
use std::process::ExitCode;

use command_line::CommandLine;
use commands::{fuse2fs, image_process};
use output::failure;

/// The allocator of the C library grows the heaps of threads in small steps, each a system call, which slows
/// down a page cache.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The memory bound counts bytes. A huge page takes two MiB for the first byte that is used. Child
    // processes inherit this. Where the kernel refuses, more memory is used.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let words: Vec<OsString> = std::env::args_os().collect();
    if fuse2fs::is_name(words.first()) {
        return fuse2fs::main(&words);
    }
    // Each small edit starts such a process: it does not wait for the parser of command lines.
    if words.len() == 2 && words[1] == image::process::SUBCOMMAND {
        return match image_process::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failure::report("ivers", &error),
        };
    }
    if command_line::asks_for_json(&words) {
        failure::print_json(&words);
    }
    let usage_code = command_line::usage_code(&words);
    let command_line = match CommandLine::parse_words(words) {
        Ok(command_line) => command_line,
        Err(error) => return failure::print_usage("ivers", &error, usage_code),
    };
    match command_line.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report("ivers", &error),
    }
}
