//! The command line: the one source of help, completions and manual pages.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::Result;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    cat, changed, check, cp, du, edit, info, label, ls, manpages, measure, mkfs, mount, resize, scrub, serve,
    shell, stat, stats, tar, tree, unmount,
};
use crate::output::failure::{USAGE, usage};
use crate::output::progress;

const HELP: &str = "\
Exit codes of all commands but check and scrub, which have those of fsck(8):
  0  success
  1  the operation failed (I/O error, no space, permission);
     of cp: an operand was not copied, all others were
  2  the command line is wrong
  3  a file, image, partition or attribute does not exist
  4  refused: the image requires an unsupported feature or contains no
     supported filesystem; the directory is not on a mount of ivers
  5  the image is damaged: ivers check shows where; the checker of its
     format may repair it (e2fsck, fsck.fat, xfs_repair)
  6  the image or the mount is in use

If the environment has SOURCE_DATE_EPOCH (seconds since 1970), the commands
that change files of an image store this time where they would store the
current time. mkfs and tar -c use it too: see their help.

Getting started:
  ivers mkfs disk.img --size 1G --root-owner
  ivers cp -a some/tree disk.img:/
  ivers ls -l disk.img:/
  ivers mount disk.img mnt
  ivers stat mnt/tree
  ivers unmount mnt";

/// Open ext2 to ext4, FAT, XFS, btrfs and Amiga images, mount them in userspace, and know what changed.
///
/// Every inode has a change attribute: a 64-bit number that is larger after any change of the inode since the
/// last query. `ivers stat` shows it, `ivers changed` compares it.
///
/// Files of an image that is not mounted are written IMAGE:/path. IMAGE@2 is partition 2 of IMAGE.
/// IMAGE,IMAGE are the devices of one btrfs.
#[derive(Debug, Parser)]
#[command(name = "ivers", version, after_long_help = HELP, infer_long_args = true)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Command,
    /// Print JSON: one document, or one object per line
    #[arg(long, global = true)]
    json: bool,
    /// Print no progress bars, and no message about success
    #[arg(short, long, global = true)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount an image on a directory; returns when the mount serves requests
    Mount(mount::Args),
    /// Serve images over NFSv4 (4.0, 4.1, 4.2) until a signal ends it
    Serve(serve::Args),
    /// Unmount; returns when the image is closed and its process has ended
    #[command(visible_alias = "umount")]
    Unmount(unmount::Args),
    /// Show the change attribute of files, its promises, and the usual attributes
    Stat(stat::Args),
    /// Show which files changed since a saved state, without reading their contents
    Changed(changed::Args),
    /// Check an image: report what is wrong in it, and repair nothing
    Check(check::Args),
    /// Read all copies in a btrfs image, and mend bad ones
    Scrub(scrub::Args),
    /// Keep a measurement list of files, as the IMA of the kernel does; reads only changed files
    Measure(measure::Args),
    /// List a directory of an image
    #[command(disable_help_flag = true)]
    Ls(ls::Args),
    /// Write files of an image to standard output
    Cat(cat::Args),
    /// Copy files out of an image, into it, or between images
    Cp(cp::Args),
    /// Write an archive of files of an image, or create the files of an archive in an image
    Tar(tar::Args),
    /// Remove files of an image
    #[command(after_long_help = edit::rm::HELP)]
    Rm(edit::Args<edit::rm::Rm>),
    /// Create directories in an image
    #[command(after_long_help = edit::mkdir::HELP)]
    Mkdir(edit::Args<edit::mkdir::Mkdir>),
    /// Rename files of an image, or move them into a directory
    #[command(after_long_help = edit::mv::HELP)]
    Mv(edit::Args<edit::mv::Mv>),
    /// Create hard or symbolic links in an image
    #[command(after_long_help = edit::ln::HELP)]
    Ln(edit::Args<edit::ln::Ln>),
    /// Change permissions of files of an image
    #[command(after_long_help = edit::chmod::HELP)]
    Chmod(edit::Args<edit::chmod::Chmod>),
    /// Change owners of files of an image
    #[command(after_long_help = edit::chown::HELP)]
    Chown(edit::Args<edit::chown::Chown>),
    /// Set times of files of an image, or create empty files
    #[command(after_long_help = edit::touch::HELP)]
    Touch(edit::Args<edit::touch::Touch>),
    /// Print, set and remove extended attributes of files of an image
    #[command(after_long_help = edit::attr::HELP)]
    Attr(edit::AttrArgs),
    /// List, create, snapshot and delete subvolumes of a btrfs image, or on a mount
    #[command(after_long_help = edit::subvolume::HELP)]
    Subvolume(edit::SubvolumeArgs),
    /// Run many commands on an image that is opened once, typed or from a script
    Shell(shell::Args),
    /// Show a directory of an image as a tree
    Tree(tree::Args),
    /// Show the space that a directory of an image takes, with everything below it
    #[command(disable_help_flag = true)]
    Du(du::Args),
    /// Show format, size, features and promises of an image or a mount
    Info(info::Args),
    /// Show counters of a mount or a server: changes, queries, bumps, inode updates by cause, journal,
    /// operations, clients
    Stats(stats::Args),
    /// Make an ext2, ext3, ext4, FAT, XFS, btrfs or Amiga filesystem in a file or on a device
    Mkfs(mkfs::Args),
    /// Show or set the label of a filesystem
    Label(label::Args),
    /// Make an ext2, ext3 or ext4 filesystem larger or smaller
    Resize(resize::Args),
    /// Write the completions of a shell to standard output
    #[command(after_long_help = manpages::COMPLETIONS_HELP)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Show the manual page of a command, or write all pages to a directory
    #[command(after_long_help = manpages::MAN_HELP)]
    Man {
        /// A command, such as mount, or a directory; one with a slash in its name is created if it does not
        /// exist
        #[arg(value_name = "COMMAND|DIR")]
        target: PathBuf,
    },
    /// The process of a server that is not in the sandbox.
    #[command(hide = true, name = serve::helper::SUBCOMMAND)]
    ServeHelper,
}

impl CommandLine {
    /// Parses the arguments of the process.
    pub fn parse_words(words: Vec<OsString>) -> Result<Self, clap::Error> {
        Self::try_parse_from(with_size_as_operand(with_mount_implied(words)))
            .map_err(name_missing_destination)
    }

    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let (json, quiet) = (self.json, self.quiet);
        if quiet || json {
            progress::silence();
        }
        match self.command {
            Command::Mount(args) => mount::run(args, json),
            Command::Serve(args) => serve::run(&args, json),
            Command::Unmount(args) => unmount::run(&args, json),
            Command::Stat(args) => stat::run(&args, json),
            Command::Changed(args) => changed::run(&args, json, quiet),
            Command::Check(args) => check::run(&args, json, quiet),
            Command::Scrub(args) => scrub::run(&args, json, quiet),
            Command::Measure(args) => measure::run(&args, json),
            Command::Ls(args) => ls::run(&args, json),
            Command::Cat(args) => cat::run(&args, json),
            Command::Cp(args) => cp::run(&args, json),
            Command::Tar(args) => tar::run(&args, json),
            Command::Rm(args) => edit::run(&args, json),
            Command::Mkdir(args) => edit::run(&args, json),
            Command::Mv(args) => edit::run(&args, json),
            Command::Ln(args) => edit::run(&args, json),
            Command::Chmod(args) => edit::run(&args, json),
            Command::Chown(args) => edit::run(&args, json),
            Command::Touch(args) => edit::run(&args, json),
            Command::Attr(args) => edit::run_attr(&args, json),
            Command::Subvolume(args) => edit::run_subvolume(&args, json),
            Command::Shell(args) => shell::run(&args, json),
            Command::Tree(args) => tree::run(&args, json),
            Command::Du(args) => du::run(&args, json),
            Command::Info(args) => info::run(&args, json),
            Command::Stats(args) => stats::run(&args, json),
            Command::Mkfs(args) => mkfs::run(&args, json, quiet),
            Command::Resize(args) => resize::run(&args, json, quiet),
            Command::Label(args) => label::run(&args, json),
            Command::Completions { .. } | Command::Man { .. } if json => {
                Err(usage("--json: completions and manual pages have no JSON form"))
            }
            Command::Completions { shell } => manpages::completions(&Self::command(), shell),
            Command::Man { target } => manpages::man(&Self::command(), &target),
            Command::ServeHelper => serve::helper::run(),
        }
    }
}

/// Corrects an error that names FROM as missing where the only operand is taken for TO.
fn name_missing_destination(mut error: clap::Error) -> clap::Error {
    let missing = error.get(ContextKind::InvalidArg);
    if missing == Some(&ContextValue::Strings(vec!["<FROM>...".to_owned()])) {
        error.insert(ContextKind::InvalidArg, ContextValue::Strings(vec!["<TO>".to_owned()]));
    }
    error
}

/// Returns whether the command line has `--json`, also if the rest of it is wrong.
pub fn asks_for_json(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// Returns the exit code for an error in this command line.
pub fn usage_code(words: &[OsString]) -> u8 {
    let command = words.iter().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    if command.is_some_and(|word| word == "check" || word == "scrub") { check::USAGE } else { USAGE }
}

/// Adds the subcommand to `ivers IMAGE DIR -o OPTIONS`, as which mount(8) calls the program of type
/// `fuse.ivers`.
fn with_mount_implied(mut words: Vec<OsString>) -> Vec<OsString> {
    let first = words.get(1).map_or(&b"-"[..], |word| word.as_bytes());
    let may_be_mount = !first.starts_with(b"-")
        && words.len() >= 3
        && (first.contains(&b'/') || words.iter().any(|word| word == "-o"));
    // The list of all commands takes a millisecond to make.
    let is_command = || CommandLine::command().find_subcommand(OsStr::from_bytes(first)).is_some();
    if may_be_mount && first != b"help" && !is_command() {
        words.splice(1..1, ["mount".into(), "--rw-optional".into()]);
    }
    words
}

/// Moves `-SIZE` of `ivers resize IMAGE -SIZE` behind `--`: it is no option.
fn with_size_as_operand(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_size = |word: &OsString| matches!(word.as_encoded_bytes(), [b'-', b'0'..=b'9', ..]);
    let is_resize = words.iter().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let is_resize = is_resize.is_some_and(|word| word == "resize");
    if is_resize
        && !words.iter().any(|word| word == "--")
        && let Some(at) = words.iter().position(is_size)
    {
        let size = words.remove(at);
        words.extend(["--".into(), size]);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of an example up to a redirection or pipe of the shell.
    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().take_while(|word| !["|", ">", "<"].contains(word)).collect()
    }

    fn help_texts() -> Vec<String> {
        let mut command = CommandLine::command();
        let mut texts = vec![command.render_long_help().to_string()];
        let subcommands = command.get_subcommands_mut();
        for sub in subcommands.filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            let help = sub.render_long_help().to_string();
            assert!(help.contains("\n  ivers "), "{}: no example", sub.get_name());
            texts.push(help);
        }
        texts
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        let mut seen = 0;
        let texts = help_texts();
        for line in texts.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with("  ivers ")) {
            CommandLine::try_parse_from(words(line)).unwrap_or_else(|error| panic!("{line}: {error}"));
            seen += 1;
        }
        assert!(seen > 20);
    }

    #[test]
    fn lists_in_help_are_narrow() {
        let command = CommandLine::command();
        let texts = std::iter::once(&command).chain(command.get_subcommands());
        let texts = texts.filter_map(|command| Some(command.get_after_long_help()?.to_string()));
        for text in texts {
            for line in text.lines().filter(|line| line.starts_with("  ") && !line.starts_with("  ivers ")) {
                assert!(line.len() < 80, "{line}");
            }
        }
    }
}
