//! What is made of the command line: completions and manual pages.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Arg, Command, CommandFactory};

use crate::args::Cli;
use crate::failure::Output;
use crate::help;

/// The command line without what only the program itself calls, which completions would offer.
fn public() -> Command {
    let whole = Cli::command();
    let shown = whole.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned();
    let bare = Command::new("ivers").version(env!("CARGO_PKG_VERSION")).args(whole.get_arguments().cloned());
    let about = whole.get_long_about().cloned().unwrap_or_default();
    bare.subcommands(shown)
        .about(whole.get_about().cloned().unwrap_or_default())
        .long_about(about)
        .after_long_help(help::IVERS)
        .subcommand_required(true)
}

/// `ivers completions`.
pub fn completions(shell: clap_complete::Shell) -> Result<()> {
    // The generator panics where it cannot write: a closed pipe is met here.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut public(), "ivers", &mut text);
    std::io::stdout().write_all(&text).map_err(|error| Output(error).into())
}

/// `ivers man`.
pub fn man(dir: &Path) -> Result<()> {
    let place = || dir.display().to_string();
    std::fs::create_dir_all(dir).with_context(place)?;
    let mut command = public().disable_help_subcommand(true);
    // Gives the commands their full names and the options that all have.
    command.build();
    let command = command.mut_subcommands(|sub| {
        let synopsis = synopsis(&sub);
        sub.override_usage(synopsis)
    });
    clap_mangen::generate_to(command, dir).with_context(place)
}

/// All options with their values: the generator of the pages leaves values out.
fn synopsis(command: &Command) -> String {
    let word = |arg: &Arg| {
        let long = arg.to_string();
        let both = arg.get_short().filter(|_| arg.get_long().is_some());
        let shown = both.map_or_else(|| long.clone(), |short| format!("-{short}|{long}"));
        // Positional ones have brackets of their own.
        if arg.is_positional() || arg.is_required_set() { shown } else { format!("[{shown}]") }
    };
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    let options = shown().filter(|arg| !arg.is_positional());
    let words = options.chain(shown().filter(|arg| arg.is_positional())).map(word);
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ")
}
