//! `ivers`: open ext4 and FAT images, mount them in userspace, and know exactly what changed.

#![forbid(unsafe_code)]
// They panic where nothing can be written: a closed pipe must not end what the command was asked to do.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod args;
mod bench;
mod changed;
mod channel;
mod confine;
mod copy;
mod daemon;
mod dirs;
mod drivers;
mod facts;
mod failure;
mod files;
mod formats;
mod fuse2fs;
mod help;
mod holder;
mod image;
mod keeper;
mod measure;
mod mkfs;
mod mount;
mod options;
mod outcome;
mod pages;
mod progress;
mod serve;
mod show;
mod state;
mod unmount;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Cli, Task};
use clap::{CommandFactory, Parser};

/// The C library's allocator grows the heaps of threads in small steps, each a system call: a page cache feels that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mount(8) calls the program of `fuse.ivers` as `ivers IMAGE DIR -o OPTIONS`: that is a mount.
fn with_mount_implied(mut words: Vec<OsString>) -> Vec<OsString> {
    let first = words.get(1).and_then(|word| word.to_str()).unwrap_or("-");
    let command = Cli::command();
    let known = first == "help" || command.get_subcommands().any(|sub| sub.get_name() == first);
    if !first.starts_with('-')
        && !known
        && words.len() >= 3
        && (first.contains('/') || words.iter().any(|w| w == "-o"))
    {
        words.splice(1..1, ["mount".into(), "--rw-unasked".into()]);
    }
    words
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if fuse2fs::is_name(words.first()) {
        return fuse2fs::main(&words);
    }
    let cli = match Cli::try_parse_from(with_mount_implied(words)) {
        Ok(cli) => cli,
        Err(error) => return failure::explain(&error),
    };
    let json = cli.json;
    if cli.quiet || json {
        progress::silence();
    }
    let result = match cli.task {
        Task::Mount(args) => mount::mount(args, json),
        Task::Serve(args) => serve::serve(&args, json),
        Task::Unmount(args) => unmount::unmount(&args, json),
        Task::Stat(args) => files::stat(&args, json),
        Task::Changed(args) => changed::changed(&args, json),
        Task::Measure(args) => measure::measure(&args, json),
        Task::Ls(args) => files::ls(&args, json),
        Task::Cat(args) => files::cat(&args, json),
        Task::Cp(args) => copy::cp(&args, json),
        Task::Tree(args) => files::tree(&args, json),
        Task::Info(args) => files::info(&args, json),
        Task::Stats(args) => files::stats(&args, json),
        Task::Mkfs(args) => mkfs::mkfs(&args, json, cli.quiet),
        Task::Bench(args) => bench::bench(&args, json),
        Task::Completions { .. } | Task::Man { .. } if json => {
            Err(failure::usage("--json: completions and manual pages are no answers"))
        }
        Task::Completions { shell } => pages::completions(shell),
        Task::Man { dir } => pages::man(&dir),
        Task::Keeper => keeper::keep(),
        Task::Attendant => serve::attend(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report("ivers", &error),
    }
}
