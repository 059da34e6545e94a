//! One line of the shell: its words, and what they mean.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use super::super::edit::{self, chmod, chown, ln, mkdir, mv, rm, touch};
use super::super::{cat, cp, ls, stat, tree};
use crate::arguments::{image_path_bytes, join};
use crate::output::failure::usage;

const HELP: &str = "\
Paths are in the image, those of the host excepted: the destination of get, the sources of put. Words are \
quoted as in sh(1); a pattern such as *.conf is expanded, also in quotes. The text after # is a comment. \
`rm --help` explains rm.";

/// The commands of the shell.
#[derive(Debug, Parser)]
#[command(multicall = true, infer_long_args = true, after_help = HELP, disable_version_flag = true)]
struct Line {
    #[command(subcommand)]
    command: LineCommand,
}

/// What a line does.
#[derive(Debug, Subcommand)]
pub enum LineCommand {
    /// List a directory
    #[command(disable_help_flag = true)]
    Ls(ls::Args),
    /// Print files
    Cat(cat::Args),
    /// Show the change attribute of files, and the usual attributes
    Stat(stat::Args),
    /// Show a directory as a tree
    Tree(tree::Args),
    /// Change the directory; without one, to the root
    Cd {
        /// The directory
        #[arg(default_value = "/")]
        dir: PathBuf,
    },
    /// Print the directory
    Pwd,
    /// Remove files
    #[command(after_help = rm::HELP)]
    Rm(edit::Args<rm::Rm>),
    /// Create directories
    Mkdir(edit::Args<mkdir::Mkdir>),
    /// Rename files, or move them into a directory
    Mv(edit::Args<mv::Mv>),
    /// Create hard or symbolic links
    Ln(edit::Args<ln::Ln>),
    /// Change permissions
    Chmod(edit::Args<chmod::Chmod>),
    /// Change owners
    Chown(edit::Args<chown::Chown>),
    /// Set times, or create empty files
    Touch(edit::Args<touch::Touch>),
    /// Print, set and remove extended attributes
    Attr(edit::AttrArgs),
    /// List, create, snapshot and delete subvolumes
    Subvolume(edit::SubvolumeArgs),
    /// Copy files within the image: FILE... TO
    Cp(CopyArgs),
    /// Copy files of the image to the host: FILE... [HOST]
    Get(CopyArgs),
    /// Copy files of the host into the image: HOST... [TO]
    Put(CopyArgs),
    /// Make all earlier lines durable
    Sync,
    /// Close the image and end the shell
    #[command(visible_alias = "exit")]
    Quit,
}

/// Options of `cp`, `get` and `put`.
#[derive(Debug, clap::Args)]
pub struct CopyArgs {
    /// Copy directories with their contents
    #[arg(short, long)]
    recursive: bool,
    /// Preserve modes, owners, times, ACLs and extended attributes where allowed
    #[arg(short, long)]
    preserve: bool,
    /// The same as --recursive --preserve
    #[arg(short, long)]
    archive: bool,
    /// The files, then the destination
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// The command line of `ivers cp`, which a copy in the shell is turned into.
#[derive(Debug, Parser)]
struct CpLine {
    #[command(flatten)]
    args: cp::Args,
}

/// Splits a line as a shell does. Empty for an empty line or a comment.
pub fn split(line: &[u8]) -> Result<Vec<OsString>> {
    let words = shlex::bytes::split(line).ok_or_else(|| usage("a quote is not closed"))?;
    Ok(words.into_iter().map(OsString::from_vec).collect())
}

/// Parses the words of a line. An error has been formatted by clap, or is its help.
pub fn parse(words: &[OsString]) -> Result<LineCommand, clap::Error> {
    let mut command = Line::command();
    let names: Vec<_> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, adapt);
    }
    let matches = command.try_get_matches_from(words)?;
    Ok(Line::from_arg_matches(&matches)?.command)
}

/// Adapts a command of `ivers` to the shell: the image is open already, and `ls` needs no operand.
fn adapt(command: clap::Command) -> clap::Command {
    let name = command.get_name().to_owned();
    let subcommands: Vec<_> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = subcommands.into_iter().fold(command, |command, name| command.mut_subcommand(name, adapt));
    command.mut_args(|arg| match (name.as_str(), arg.get_id().as_str()) {
        // The `-o` of the image.
        (_, "options") => arg.hide(true).value_parser(no_image_options),
        ("ls", "paths") => arg.required(false).help("The files and directories; the current one without any"),
        ("tree", "path") => arg.required(false).default_value(".").help("The directory"),
        ("mv" | "ln", "operands") => arg.value_name("FILE").help("The files, then the destination"),
        ("cat" | "stat", "files") | (_, "operands") => arg.value_name("FILE").help("The files"),
        _ => arg,
    })
}

fn no_image_options(_: &str) -> Result<String, String> {
    Err("the image is open already; give -o to ivers shell".to_owned())
}

/// Returns the absolute path of a word in the directory `cwd`.
pub fn absolute(cwd: &[u8], word: &Path) -> Vec<u8> {
    let word = word.as_os_str().as_bytes();
    if word.is_empty() || word == b"." {
        return cwd.to_vec();
    }
    if word.starts_with(b"/") { word.to_vec() } else { join(cwd, word) }
}

/// Removes `.`, `..` and double slashes from an absolute path, as the `cd` of a shell does.
pub fn without_dots(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.into_iter().fold(b"/".to_vec(), |path, name| join(&path, name))
}

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Within the image.
    Within,
    /// From the image to the host.
    Get,
    /// From the host into the image.
    Put,
}

/// Returns the arguments of `ivers cp` for a copy in the shell.
pub fn copy(args: CopyArgs, direction: Direction, image: &Path, cwd: &[u8]) -> Result<cp::Args> {
    let CopyArgs { recursive, preserve, archive, mut files } = args;
    let to = match (files.len(), direction) {
        (1, Direction::Within) => return Err(usage("the destination is missing: name at least two files")),
        (1, Direction::Get) => PathBuf::from("."),
        // The current directory of the image.
        (1, Direction::Put) => PathBuf::new(),
        _ => files.pop().unwrap_or_default(),
    };
    let inside = |word: &Path| OsString::from_vec(image_path_bytes(image, &absolute(cwd, word)));
    let mut words = vec![OsString::from("cp")];
    for (flag, given) in [("--recursive", recursive), ("--preserve", preserve), ("--archive", archive)] {
        words.extend(given.then(|| flag.into()));
    }
    words.push("--".into());
    let from_host = direction == Direction::Put;
    words.extend(files.iter().map(|file| if from_host { file.clone().into() } else { inside(file) }));
    words.push(if direction == Direction::Get { to.into() } else { inside(&to) });
    Ok(CpLine::try_parse_from(words)?.args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_and_parsed() {
        let words = |line: &str| split(line.as_bytes()).unwrap();
        assert_eq!(words("rm 'a b' \"c\"\\ d # x"), ["rm", "a b", "c d"]);
        assert!(words("  # nothing").is_empty() && split(b"rm 'a").is_err());
        for line in [
            "ls",
            "ls -la /etc x",
            "cat a",
            "stat -L a",
            "tree",
            "cd",
            "rm -rf a b",
            "mkdir -pm 700 a",
            "mv a b c",
            "ln -s a b",
            "chmod -R go-w a",
            "chmod -x a",
            "chown 1:2 a",
            "touch -d @0 a",
            "attr set user.x -v a",
            "get a",
            "put -a a b",
            "sync",
            "exit",
        ] {
            parse(&words(line)).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in ["nonsense", "rm", "ls -o offset=1", "chmod 9 a", "cd a b"] {
            assert!(parse(&words(line)).is_err(), "{line}");
        }
    }

    #[test]
    fn the_definition_is_valid() {
        Line::command().debug_assert();
    }

    #[test]
    fn paths_become_absolute() {
        assert_eq!(absolute(b"/etc", Path::new("x")), b"/etc/x");
        assert_eq!(absolute(b"/", Path::new("/x/..")), b"/x/..");
        assert_eq!(absolute(b"/etc", Path::new(".")), b"/etc");
        assert_eq!(without_dots(b"/etc/./x//../../y/"), b"/y");
        assert_eq!(without_dots(b"/../.."), b"/");
    }
}
