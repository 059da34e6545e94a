//! `man` and `completions`: manual pages and completions of shells.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Arg, Command, ValueHint};

use crate::commands::man_page::{self, after_help};
use crate::output::failure::StdoutError;

/// Help of `completions`.
pub const COMPLETIONS_HELP: &str = "\
Examples:
  ivers completions bash > ~/.local/share/bash-completion/completions/ivers
  ivers completions fish > ~/.config/fish/completions/ivers.fish
  ivers completions zsh > ~/.zfunc/_ivers";

/// Help of `man`.
pub const MAN_HELP: &str = "\
Examples:
  ivers man ~/.local/share/man/man1";

/// Returns the command line without hidden subcommands, which completions would offer.
fn public(whole: &Command) -> Command {
    let shown = whole.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned();
    let bare = Command::new("ivers").version(env!("CARGO_PKG_VERSION")).args(whole.get_arguments().cloned());
    let about = whole.get_long_about().cloned().unwrap_or_default();
    bare.subcommands(shown)
        .about(whole.get_about().cloned().unwrap_or_default())
        .long_about(about)
        .after_long_help(whole.get_after_long_help().cloned().unwrap_or_default())
        .subcommand_required(true)
}

/// Tells shells where an option takes no file, so that they offer none. Only completions use it.
fn with_hints(command: Command) -> Command {
    command.mut_subcommands(|sub| {
        sub.mut_args(|arg| {
            let value = arg.get_value_names().and_then(<[_]>::first).map(ToString::to_string);
            match value.as_deref() {
                Some(
                    "SIZE" | "BYTES" | "PERCENT" | "LABEL" | "UUID" | "SECONDS" | "N" | "DOMAIN"
                    | "ADDRESS:PORT" | "UID:GID",
                ) => arg.value_hint(ValueHint::Other),
                _ => arg,
            }
        })
    })
}

/// Runs `ivers completions` for the command line `whole`.
pub fn completions(whole: &Command, shell: clap_complete::Shell) -> Result<()> {
    // The generator panics if it cannot write. So it writes to memory.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut with_hints(public(whole)), "ivers", &mut text);
    std::io::stdout().write_all(&text).map_err(|error| StdoutError(error).into())
}

/// Runs `ivers man` for the command line `whole`.
pub fn man(whole: &Command, dir: &Path) -> Result<()> {
    let context = || dir.display().to_string();
    std::fs::create_dir_all(dir).with_context(context)?;
    let mut command = public(whole).disable_help_subcommand(true);
    // Sets full names and global options.
    command.build();
    let command = command.mut_subcommands(|sub| {
        let synopsis = synopsis(&sub);
        sub.override_usage(synopsis)
    });
    let help_of_all = after_help(&command);
    for page in command.get_subcommands().chain([&command]).filter(|page| !page.is_hide_set()) {
        let (name, text) = man_page::render(page, &help_of_all).with_context(context)?;
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Returns the usage line with the values of options, which the generator of the pages omits.
fn synopsis(command: &Command) -> String {
    let word = |arg: &Arg| {
        let long = arg.to_string();
        let both = arg.get_short().filter(|_| arg.get_long().is_some());
        let shown = both.map_or_else(|| long.clone(), |short| format!("-{short}|{long}"));
        // Positional arguments contain their brackets.
        if arg.is_positional() || arg.is_required_set() { shown } else { format!("[{shown}]") }
    };
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    let options = shown().filter(|arg| !arg.is_positional());
    let words = options.chain(shown().filter(|arg| arg.is_positional())).map(word);
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ")
}
