//! The options of `-o`: of a mount, of a command that reads images, of an export.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use ivers_fuse::FuseOptions;
use ivers_vfs::{AtimeMode, ChangeMode, InodeFlags, MountOptions};

use super::open_options::{BtrfsOptions, ImageOptions, Owners, ServerOptions};
use crate::arguments::{Completed, escape_option, name_and_value, parse_size, split_options};
use crate::output::failure::usage;

/// The mount options that shells complete. One that takes a value ends in `=`.
pub const COMPLETED_OPTIONS: &[&str] = &[
    "ro",
    "rw",
    "iversion=lazy",
    "iversion=eager",
    "iversion=off",
    "lazytime",
    "lazyversion",
    "nolazyversion",
    "relatime",
    "noatime",
    "strictatime",
    "cache=",
    "offset=",
    "partition=",
    "uid=",
    "gid=",
    "umask=",
    "fmask=",
    "dmask=",
    "utc_offset=",
    "subvol=",
    "subvolid=",
    "degraded",
    "compress=",
    "vers=",
    "sec=",
    "xprtsec=",
    "tls_authorities=",
    "tls_certificate=",
    "tls_key=",
    "rsize=",
    "wsize=",
    "nconnect=",
    "cache-dir=",
    "cache-size=",
    "actimeo=",
    "noac",
    "nodelegations",
    "nowritedelegations",
    "soft",
    "hard",
    "timeo=",
    "retrans=",
    "domain=",
    "commit=",
    "trust-foreign",
    "norecovery",
    "nonempty",
    "measure=",
    "measure_list=",
    "appraise",
    "appraise_key=",
    "nosandbox",
    "fakeroot",
    "allow_other",
    "sync",
    "async",
    "dirsync",
    "busy_poll=",
    "threads=",
    "no_caller_affinity",
    "no_strict_queries",
    "default_permissions",
    "no_default_permissions",
    "writeback_cache",
    "no_writeback_cache",
    "suid",
    "dev",
    "nosuid",
    "nodev",
    "noexec",
    "fsname=",
    "subtype=",
];

/// Those of a command that reads images.
const READ_OPTIONS_COMPLETED: &[&str] = &[
    "offset=",
    "partition=",
    "cache=",
    "nosandbox",
    "norecovery",
    "trust-foreign",
    "uid=",
    "gid=",
    "umask=",
    "fmask=",
    "dmask=",
    "utc_offset=",
    "subvol=",
    "subvolid=",
    "degraded",
    "compress=",
];

/// The options of a command that reads images without mounting them.
#[derive(Debug, Clone, Default, Args)]
pub struct ImageArgs {
    /// How to open images, e.g. partition=N
    ///
    /// A comma-separated list of: partition=N, the partition of the image, also by name or PARTUUID (the same
    /// as IMAGE@N); offset=SIZE, the start of the filesystem in the image, in bytes or as 1M; nosandbox,
    /// parse the image without a sandbox; cache=SIZE; norecovery; trust-foreign; and others, see `ivers
    /// mount --help`.
    #[arg(
        short = 'o',
        value_name = "OPTIONS",
        value_parser = Completed(READ_OPTIONS_COMPLETED),
        hide_possible_values = true
    )]
    options: Vec<String>,
}

impl ImageArgs {
    /// Returns whether there are options.
    pub fn is_given(&self) -> bool {
        !self.options.is_empty()
    }

    /// Returns the options, for opening an image read-only.
    pub fn options(&self) -> Result<ImageOptions> {
        parse_for_reading(&self.options)
    }
}

/// The options of a mount that measures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeasureOptions {
    /// `measure=FILE`
    pub policy: Option<PathBuf>,
    /// `measure_list=FILE`
    pub list: Option<PathBuf>,
    /// `appraise`
    pub appraise: bool,
    /// `appraise_key=FILE`; may be repeated
    pub keys: Vec<PathBuf>,
}

impl MeasureOptions {
    /// Returns whether the mount measures nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The options of `-o`, by what they configure.
pub struct Options {
    /// Opening the image.
    pub image: ImageOptions,
    /// The VFS.
    pub vfs: MountOptions,
    /// FUSE.
    pub fuse: FuseOptions,
    /// Measuring.
    pub measure: MeasureOptions,
    /// Mount on a directory that is not empty.
    pub nonempty: bool,
    /// `rw` is given: refuse a read-only mount.
    pub writable: bool,
}

/// Parses the arguments of `-o` of a mount.
pub fn parse(words: &[String]) -> Result<Options> {
    let mut image = ImageOptions { read_only: false, ..ImageOptions::default() };
    let mut vfs = MountOptions::default();
    let mut fuse = FuseOptions::default();
    let (mut nonempty, mut writable, mut wants_write_back) = (false, false, false);
    let mut measure = MeasureOptions::default();
    for option in split_options(words) {
        let bad = |why: &str| usage(format!("mount option {option}: {why}"));
        let (name, value) = name_and_value(&option);
        writable |= option == "rw";
        wants_write_back |= option == "writeback_cache";
        match (name, value) {
            ("iversion", Some("lazy")) | ("i_version", None) => vfs.mode = ChangeMode::Lazy,
            ("iversion", Some("eager")) => vfs.mode = ChangeMode::Eager,
            ("iversion", Some("off")) | ("noiversion", None) => vfs.mode = ChangeMode::Off,
            ("iversion", _) => return Err(bad("must be lazy, eager or off")),
            ("lazytime", None) => vfs.lazytime = true,
            ("nolazytime", None) => vfs.lazytime = false,
            ("lazyversion", None) => vfs.lazyversion = Some(true),
            ("nolazyversion", None) => vfs.lazyversion = Some(false),
            ("relatime", None) => vfs.atime = AtimeMode::Relative,
            ("noatime", None) => vfs.atime = AtimeMode::Never,
            ("strictatime" | "atime", None) => vfs.atime = AtimeMode::Strict,
            ("cache", value) => {
                image.cache_bytes = value
                    .and_then(parse_size)
                    .filter(|&bytes| bytes >= 4 << 20)
                    .ok_or_else(|| bad("must be a size of at least 4M, as 64M or 1G"))?;
            }
            ("offset", value) => {
                image.offset_bytes = value.and_then(parse_size).ok_or_else(|| {
                    bad("must be the start of the filesystem in the image, in bytes or as 1M")
                })?;
            }
            ("partition", Some(name)) => image.partition = Some(name.to_owned()),
            ("sync", None) => {
                vfs.sync_flags |= InodeFlags::SYNC;
                fuse.sync = true;
            }
            ("async", None) => {
                vfs.sync_flags -= InodeFlags::SYNC;
                fuse.sync = false;
            }
            ("dirsync", None) => vfs.sync_flags |= InodeFlags::DIRSYNC,
            ("commit", value) => {
                image.commit_s = value
                    .and_then(|v| v.parse().ok())
                    .filter(|s| (1..=900).contains(s))
                    .ok_or_else(|| bad("must be a number of seconds from 1 to 900"))?;
            }
            ("sandbox", None) => image.sandbox = true,
            ("nosandbox", None) => image.sandbox = false,
            ("nonempty", None) => nonempty = true,
            ("remount", None) => return Err(bad("only the kernel remounts; run mount -i -o remount,ro DIR")),
            ("measure", Some(path)) if !path.is_empty() => measure.policy = Some(path.into()),
            ("measure_list", Some(path)) if !path.is_empty() => measure.list = Some(path.into()),
            ("appraise_key", Some(path)) if !path.is_empty() => measure.keys.push(path.into()),
            ("measure" | "measure_list" | "appraise_key", _) => {
                return Err(bad("requires the name of a file"));
            }
            ("appraise", None) => measure.appraise = true,
            ("trust-foreign", None) => image.trust_foreign = true,
            ("norecovery" | "noload", None) => image.no_replay = true,
            // For mount(8), systemd and fstab.
            (
                "defaults" | "auto" | "noauto" | "user" | "users" | "nouser" | "owner" | "group" | "nofail"
                | "_netdev" | "loop",
                None,
            )
            | ("comment", Some(_)) => {}
            (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}
            (name, value) if Owners::has(name) => {
                image.owners_given = true;
                image.owners.set(name, value).ok_or_else(|| {
                    bad("invalid value; uid and gid take numbers, masks octal numbers, utc_offset minutes")
                })?;
            }
            (name, value) if BtrfsOptions::has(name) => {
                image.btrfs.set(name, value).ok_or_else(|| {
                    bad("invalid value; subvol takes a path, subvolid a number, degraded none, compress \
                         zlib, lzo, zstd, zlib:1 to zlib:9, zstd:1 to zstd:15 or no")
                })?;
            }
            (name, value) if ServerOptions::has(name) => {
                image.server.set(name, value).ok_or_else(|| {
                    bad("invalid value; xprtsec takes none, tls or mtls, tls_authorities, tls_certificate \
                         and tls_key a file, cache-dir a directory, cache-size 1M or more, rsize and wsize \
                         1024 to 1048576 bytes, nconnect 1 to 16, actimeo seconds, timeo tenths of a second \
                         up to 6000, retrans up to 100, domain a name; noac, nodelegations, \
                         nowritedelegations, soft and hard take no value")
                })?;
            }
            _ => {
                if !fuse.set(&option).map_err(|e| usage(e.to_string()))? {
                    return Err(bad("unknown option; see ivers mount --help"));
                }
            }
        }
    }
    image.appraise = measure.appraise;
    if measure.appraise {
        if wants_write_back && fuse.writeback_cache {
            return Err(usage(
                "mount option writeback_cache: not allowed with appraise, \
                 which cannot check data that the kernel still holds",
            ));
        }
        fuse.writeback_cache = false;
    }
    image.read_only = fuse.read_only;
    writable &= !image.read_only;
    if measure.policy.is_none() && !measure.appraise && !measure.is_none() {
        return Err(usage("mount options measure_list and appraise_key: require measure=POLICY or appraise"));
    }
    if vfs.lazyversion == Some(true) && vfs.mode != ChangeMode::Lazy {
        return Err(usage("mount option lazyversion: requires iversion=lazy"));
    }
    if !measure.keys.is_empty() && !measure.appraise {
        return Err(usage("mount option appraise_key: requires appraise"));
    }
    if image.no_replay && !image.read_only {
        return Err(usage("mount option norecovery: requires ro, or the journal would be lost"));
    }
    Ok(Options { image, vfs, fuse, measure, nonempty, writable })
}

/// The mount options that apply to reading an image, beside those of [`Owners`], [`BtrfsOptions`] and
/// [`ServerOptions::OF_COMMANDS`].
const READ_OPTIONS: &[&str] =
    &["offset", "partition", "cache", "sandbox", "nosandbox", "norecovery", "noload", "trust-foreign"];

fn parse_for_reading(words: &[String]) -> Result<ImageOptions> {
    for option in split_options(words) {
        let (name, _) = name_and_value(&option);
        let lists = [READ_OPTIONS, &Owners::OPTIONS, &BtrfsOptions::OPTIONS, &ServerOptions::OF_COMMANDS];
        if !lists.iter().any(|list| list.contains(&name)) {
            let known = lists.concat().join(", ");
            return Err(usage(format!("option {option}: unknown; choose from {known}")));
        }
    }
    let mut words = words.to_vec();
    words.push("ro".to_owned());
    Ok(parse(&words)?.image)
}

/// The mount options that an export takes, beside those of [`Owners`] and [`BtrfsOptions`]: all but those of
/// FUSE.
const EXPORT_OPTIONS: &[&str] = &[
    "iversion",
    "i_version",
    "noiversion",
    "lazytime",
    "nolazytime",
    "lazyversion",
    "nolazyversion",
    "relatime",
    "noatime",
    "strictatime",
    "atime",
    "cache",
    "offset",
    "partition",
    "sync",
    "dirsync",
    "commit",
    "trust-foreign",
    "norecovery",
    "noload",
];

/// Returns whether an export takes this mount option.
pub fn is_export_option(option: &str) -> bool {
    let (name, _) = name_and_value(option);
    EXPORT_OPTIONS.contains(&name) || Owners::has(name) || BtrfsOptions::has(name)
}

/// Parses the mount options of an export.
pub fn parse_for_export(words: &str, read_only: bool) -> Result<Options> {
    let mut words = split_options(&[words.to_owned()]);
    if words.iter().any(|option| option == "async") {
        // As a mount option, async is the opposite of sync. As an export option, it delays the durability of
        // names.
        return Err(usage("option async: not a mount option of an export; write async = true instead"));
    }
    if let Some(other) = words.iter().find(|option| !is_export_option(option)) {
        return Err(usage(format!(
            "option {other}: not allowed for an export; choose from {}",
            EXPORT_OPTIONS.join(", ")
        )));
    }
    words.extend(read_only.then(|| "ro".to_owned()));
    let words: Vec<String> = words.iter().map(|word| escape_option(word)).collect();
    parse(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<Options> {
        parse(&[text.to_owned()])
    }

    #[test]
    fn completed_options_exist() {
        let parses = |option: &str| {
            let value = match option.trim_end_matches('=') {
                "cache" | "offset" | "cache-size" => "64M",
                "xprtsec" => "tls",
                "compress" => "zstd:3",
                "uid" | "gid" | "umask" | "fmask" | "dmask" | "utc_offset" | "commit" | "threads" => "7",
                "appraise_key" => "/k,appraise",
                "measure_list" => "/l,appraise",
                "rsize" | "wsize" => "4096",
                "norecovery" => ",ro",
                _ if option.ends_with('=') => "10",
                _ => "",
            };
            options(&format!("{option}{value}")).map(drop)
        };
        for option in COMPLETED_OPTIONS.iter().chain(READ_OPTIONS_COMPLETED) {
            assert!(parses(option).is_ok(), "{option}: {:?}", parses(option));
        }
    }

    #[test]
    fn options_are_parsed() {
        let all = options(
            "offset=1048576,ro,iversion=eager,lazytime,noatime,cache=64M,commit=9,allow_other,x-systemd.on",
        )
        .unwrap();
        assert!(all.image.read_only && all.vfs.lazytime && all.fuse.allow_other);
        assert_eq!((all.image.cache_bytes, all.image.commit_s), (64 << 20, 9));
        assert_eq!(all.image.offset_bytes, 1 << 20);
        assert_eq!((all.vfs.mode, all.vfs.atime), (ChangeMode::Eager, AtimeMode::Never));
        assert_eq!(options("offset=1M").unwrap().image.offset_bytes, 1 << 20);
        for (text, writable) in [("rw", true), ("noatime", false), ("rw,ro", false), ("ro,rw", true)] {
            assert_eq!(options(text).unwrap().writable, writable, "{text}");
        }
        let appraising = options("appraise,threads=2").unwrap();
        assert!(appraising.image.appraise && !appraising.fuse.writeback_cache);
        assert!(options("measure=/p").unwrap().fuse.writeback_cache);
        let measure = options("measure=/p\\,q,appraise,appraise_key=/a,appraise_key=/b").unwrap().measure;
        assert_eq!(measure.policy.as_deref(), Some("/p,q".as_ref()));
        assert!(measure.appraise && measure.list.is_none() && measure.keys.len() == 2);
        assert_eq!(options("noiversion").unwrap().vfs.mode, ChangeMode::Off);
        let serving = parse_for_export("noatime,offset=1M", true).unwrap();
        assert!(serving.image.read_only && serving.vfs.atime == AtimeMode::Never);
        for other in ["allow_other", "ro", "nosandbox", "nonsense", "offset=x", "async"] {
            assert!(parse_for_export(other, false).is_err(), "{other}");
        }
        for bad in [
            "iversion=maybe",
            "cache=1",
            "cache",
            "commit=0",
            "norecovery",
            "offset=-1",
            "measure",
            "measure_list=/x",
            "appraise_key=/x",
            "appraise,writeback_cache",
            "lazyversion,noiversion",
            "iversion=eager,lazyversion",
            "nonsense",
            "threads=0",
        ] {
            assert!(options(bad).is_err(), "{bad}");
        }
    }
}
