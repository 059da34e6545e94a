//! `man` and `completions`: manual pages and completions of shells.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Arg, Command, ValueHint};

use crate::commands::man_page::{self, after_help};
use crate::output::failure::{StdoutError, usage};
use crate::output::format::Shown;
use crate::output::print;

/// Help of `completions`.
pub const COMPLETIONS_HELP: &str = "\
Examples:
  ivers completions bash > ~/.local/share/bash-completion/completions/ivers
  ivers completions fish > ~/.config/fish/completions/ivers.fish
  ivers completions zsh > ~/.zfunc/_ivers";

/// Help of `man`.
pub const MAN_HELP: &str = "\
A page is shown by man(1) on a terminal, where that is installed, and as plain text otherwise.

Examples:
  ivers man mount
  ivers man ~/.local/share/man/man1";

/// What the generator of completions does not know: paths in images, which are not paths of the host, and
/// lists of options. A colon begins a new word for bash.
const BASH_WORDS: &str = r#"
_ivers_words() {
    local line="${COMP_LINE:0:COMP_POINT}" name
    local word="${line##*[[:space:]]}"
    if [[ $word == *:/* && ! -e $word ]]; then
        local image="${word%%:/*}" path="/${word#*:/}"
        local dir="${path%/*}/"
        COMPREPLY=()
        compopt +o default +o bashdefault -o nospace
        [[ -d $image ]] && return
        while IFS= read -r name; do
            [[ $dir$name == "$path"* ]] && COMPREPLY+=("$dir$name")
        done < <("$1" ls -1 "$image:$dir" 2>/dev/null)
    elif [[ ( $3 == -o || $3 == -O || $3 == --features ) && $2 == *,* ]]; then
        _ivers "$1" "${2##*,}" "$3"
        COMPREPLY=("${COMPREPLY[@]/#/${2%,*},}")
    else
        _ivers "$@"
    fi
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _ivers_words -o nosort -o bashdefault -o default ivers
fi
"#;

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

/// Tells shells where an argument takes no file, so that they offer none. Only completions use it.
fn with_hints(command: Command) -> Command {
    command.mut_subcommands(|sub| {
        with_hints(sub).mut_args(|arg| {
            let value = arg.get_value_names().and_then(<[_]>::first).map_or("", |name| name.as_str());
            let takes_file = match arg.is_positional() {
                _ if !arg.get_action().takes_values() => return arg,
                true => !matches!(value, "SIZE" | "NEW" | "MODE" | "OWNER" | "NAME" | "VALUE"),
                false => matches!(value, "FILE" | "DIR" | "STATE" | "DIR|TAR|-" | "NAME=IMAGE[,OPTIONS]"),
            };
            if takes_file { arg } else { arg.value_hint(ValueHint::Other) }
        })
    })
}

/// Runs `ivers completions` for the command line `whole`.
pub fn completions(whole: &Command, shell: clap_complete::Shell) -> Result<()> {
    // The generator panics if it cannot write. So it writes to memory.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut with_hints(public(whole)), "ivers", &mut text);
    if shell == clap_complete::Shell::Bash {
        text.extend_from_slice(BASH_WORDS.as_bytes());
    }
    std::io::stdout().write_all(&text).map_err(|error| StdoutError(error).into())
}

/// Runs `ivers man` for the command line `whole`.
pub fn man(whole: &Command, target: &Path) -> Result<()> {
    let name = target.to_string_lossy();
    if target.is_dir() || name.contains('/') {
        return write_pages(whole, target);
    }
    let shown = |sub: &&Command| !sub.is_hide_set() && sub.get_name_and_visible_aliases().contains(&&*name);
    let known = name == "ivers" || whole.get_subcommands().any(|sub| shown(&sub));
    if !known {
        let how = format!("for the pages of all commands give a directory that exists, or ./{name}");
        return Err(usage(format!("{name}: no command; {how}")));
    }
    let mut whole = public(whole);
    whole.build();
    let page = whole.get_subcommands().find(shown).unwrap_or(&whole);
    if std::io::stdout().is_terminal() && show(&pages(&whole), page.get_name()) {
        return Ok(());
    }
    print::line(page.clone().render_long_help().to_string().trim_end())
}

/// Shows a page with man(1). Returns false if that is impossible.
fn show(pages: &Command, name: &str) -> bool {
    let Some(page) = pages.get_subcommands().chain([pages]).find(|page| page.get_name() == name) else {
        return false;
    };
    let show = || -> std::io::Result<bool> {
        let (_, text) = man_page::render(page, &after_help(pages))?;
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(&text)?;
        Ok(std::process::Command::new("man").arg("-l").arg(file.path()).status()?.success())
    };
    show().unwrap_or(false)
}

/// Returns the command line as the pages show it.
fn pages(whole: &Command) -> Command {
    let mut command = public(whole).disable_help_subcommand(true);
    // Sets full names and global options.
    command.build();
    command.mut_subcommands(|sub| {
        let synopsis = synopsis(&sub);
        sub.override_usage(synopsis)
    })
}

fn write_pages(whole: &Command, dir: &Path) -> Result<()> {
    let context = || dir.shown();
    std::fs::create_dir_all(dir).with_context(context)?;
    let command = pages(whole);
    let help_of_all = after_help(&command);
    for page in command.get_subcommands().chain([&command]).filter(|page| !page.is_hide_set()) {
        let (name, text) = man_page::render(page, &help_of_all).with_context(context)?;
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| path.shown())?;
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
