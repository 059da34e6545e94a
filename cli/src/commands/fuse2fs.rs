//! The command line of fuse2fs of e2fsprogs, for tools that call it. A link named `fuse2fs` to this program
//! is enough.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use super::mount;
use crate::arguments::{escape_option, name_and_value, split_options};
use crate::output::failure;
use crate::output::format::Shown;

/// The program name that selects this command line.
const NAME: &str = "fuse2fs";

/// Mount an ext2, ext3 or ext4 image: ivers, with the command line of fuse2fs.
#[derive(Debug, Parser)]
#[command(name = NAME, version = concat!("(ivers ", env!("CARGO_PKG_VERSION"), ")"))]
#[command(after_help = AFTER, disable_version_flag = true)]
struct CommandLine {
    /// The image file or block device
    device: PathBuf,
    /// The directory to mount on
    mountpoint: PathBuf,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short)]
    foreground: bool,
    /// Stay in the foreground, messages on standard error
    #[arg(short)]
    debug: bool,
    /// Serve with one thread
    #[arg(short)]
    single: bool,
    /// The same as --help
    #[arg(long, action = clap::ArgAction::Help)]
    helpfull: Option<bool>,
    /// Print the version
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

const AFTER: &str = "\
Mount options (-o):
  ro, rw             read-only, writable (the default)
  fakeroot           the user acts as root inside the image
  offset=BYTES       start of the filesystem in the image
  partition=N        partition of the image: a number, a name or a PARTUUID
  norecovery         do not replay the journal (implies ro)
  allow_other, default_permissions, nonempty, fsname=, subtype=
  no_default_opts    do not add fsname=DEVICE and subtype=ext4
  cache_size=SIZE    bound of all caches
  debug              as -d
and all options that ivers mount --help lists.

Options of libfuse that tune speed or caches (kernel_cache, attr_timeout=,
big_writes, ...), and options that are always on (acl, user_xattr, bsddf,
use_ino, errors=remount-ro), are accepted and ignored. Unsupported options that
change what programs see (minixdf, uid=, umask=, allow_root, auto_unmount,
errors=panic, ...) are refused.";

/// Returns whether the program was called by the name `fuse2fs`.
pub fn is_name(program: Option<&OsString>) -> bool {
    program.is_some_and(|word| Path::new(word).file_name() == Some(OsStr::new(NAME)))
}

/// Runs the command.
pub fn main(words: &[OsString]) -> ExitCode {
    let words = match CommandLine::try_parse_from(words) {
        Ok(words) => words,
        Err(error) => return failure::print_usage(NAME, &error, failure::USAGE),
    };
    match translate(&words).and_then(|mount| mount::run(mount, false)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(NAME, &error),
    }
}

/// Options of fuse2fs and libfuse that ivers does not support.
const UNSUPPORTED: [&str; 7] = ["minixdf", "uid", "gid", "umask", "allow_root", "auto_unmount", "errors"];

/// Returns whether an option has no effect: it is a hint to libfuse, or ivers always behaves so.
fn is_ignored(name: &str, has_value: bool) -> bool {
    let plain = [
        "use_ino",
        "readdir_ino",
        "hard_remove",
        "kernel_cache",
        "auto_cache",
        "noauto_cache",
        "async_read",
        "atomic_o_trunc",
        "big_writes",
        "large_read",
        "nopath",
        "noforget",
        "intr",
        "no_remote_lock",
        "no_remote_flock",
        "no_remote_posix_lock",
        "bsddf",
        "acl",
        "user_xattr",
        "fuse2fs_debug",
    ];
    let with_value = [
        "entry_timeout",
        "negative_timeout",
        "attr_timeout",
        "ac_attr_timeout",
        "remember",
        "max_read",
        "max_write",
        "max_readahead",
        "max_background",
        "congestion_threshold",
    ];
    if has_value {
        return with_value.contains(&name);
    }
    let splice = name.strip_prefix("no_").unwrap_or(name);
    plain.contains(&name) || ["splice_read", "splice_write", "splice_move"].contains(&splice)
}

/// Returns the arguments of `ivers mount` with the same meaning.
fn translate(words: &CommandLine) -> Result<mount::Args> {
    let mut foreground = words.foreground || words.debug;
    let mut defaults = true;
    let mut no_recovery = false;
    let mut given = Vec::new();
    for option in split_options(&words.options) {
        let (name, value) = name_and_value(&option);
        match (name, value) {
            ("no_default_opts", None) => defaults = false,
            ("debug", None) => foreground = true,
            ("norecovery", None) => no_recovery = true,
            ("errors", Some("remount-ro")) => {}
            ("cache_size", Some(size)) => given.push(format!("cache={size}")),
            (name, value) if is_ignored(name, value.is_some()) => {}
            (name, _) if UNSUPPORTED.contains(&name) => {
                return Err(failure::usage(format!("option {option}: not supported; see {NAME} --help")));
            }
            _ => given.push(option),
        }
    }
    let mut all = Vec::new();
    if defaults {
        all.extend([format!("fsname={}", words.device.shown()), "subtype=ext4".into()]);
    }
    if words.single {
        all.push("threads=1".into());
    }
    // Later options have precedence.
    all.extend(given);
    if no_recovery {
        all.extend(["ro".into(), "norecovery".into()]);
    }
    Ok(mount::Args {
        image: words.device.clone(),
        dir: words.mountpoint.clone(),
        read_only: false,
        options: all.iter().map(|option| escape_option(option)).collect(),
        fs_type: "ext4".into(),
        foreground,
        log: None,
        // fuse2fs falls back to read-only even with rw.
        rw_optional: true,
        supervisor: false,
        worker: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::mount_options::{Options, parse};
    use ivers_vfs::AtimeMode;

    fn call(text: &str) -> Result<(mount::Args, Options)> {
        let mount = translate(&CommandLine::try_parse_from(text.split(' '))?)?;
        let options = parse(&mount.options)?;
        Ok((mount, options))
    }

    #[test]
    fn the_command_line_becomes_a_mount() {
        let (mount, options) =
            call("fuse2fs -o rw,fakeroot,offset=4096 a,b.img dir -s -o kernel_cache,noatime,attr_timeout=0")
                .unwrap();
        assert_eq!((mount.image, mount.dir), ("a,b.img".into(), "dir".into()));
        assert!(!mount.foreground && options.fuse.fakeroot && !options.image.read_only);
        assert_eq!((options.image.offset_bytes, options.fuse.threads), (4096, 1));
        assert_eq!((options.fuse.fsname.as_str(), options.fuse.subtype.as_str()), ("a,b.img", "ext4"));
        assert_eq!(options.vfs.atime, AtimeMode::Never);

        let (mount, options) = call("fuse2fs i d -f -o norecovery,rw,no_default_opts,nonempty").unwrap();
        assert!(mount.foreground && options.image.read_only && options.image.no_replay && options.nonempty);
        assert_eq!(options.fuse.subtype, "ivers");
        assert!(call("fuse2fs i d -o debug").unwrap().0.foreground);
    }

    #[test]
    fn unsupported_options_are_refused() {
        for option in ["minixdf", "uid=0", "umask=022", "allow_root", "errors=panic", "attr_timeout", "bogus"]
        {
            let error = call(&format!("fuse2fs i d -o {option}")).map(drop).unwrap_err();
            assert_eq!(failure::code(&error), failure::USAGE);
            assert!(failure::line(&error).contains(option), "{option}: {error}");
        }
        assert!(call("fuse2fs i").is_err());
    }

    #[test]
    fn only_the_name_selects_this_command_line() {
        for (word, is) in
            [("fuse2fs", true), ("/usr/bin/fuse2fs", true), ("ivers", false), ("fuse2fs.old", false)]
        {
            assert_eq!(is_name(Some(&word.into())), is, "{word}");
        }
        assert!(!is_name(None));
    }
}
