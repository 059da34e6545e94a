//! What stands behind `-o`.

use anyhow::Result;
use ivers_fuse::FuseOptions;
use ivers_vfs::{AtimeMode, ChangeMode, InodeFlags, MountOptions};

use crate::drivers::Owners;
use crate::failure::usage;
use crate::image::How;
use crate::measure::mounted::Wish;
use crate::show;

/// What `-o` said, sorted by whom it concerns.
pub struct Options {
    /// How to open the image.
    pub how: How,
    /// For the VFS.
    pub vfs: MountOptions,
    /// For the front end.
    pub fuse: FuseOptions,
    /// What is measured.
    pub measure: Wish,
    /// Mount though the directory is not empty.
    pub nonempty: bool,
    /// `rw` was said: read-only will not do.
    pub writable: bool,
}

/// Split at commas; `\,` is a comma in a value.
pub fn split(words: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    for word in words {
        let mut one = String::new();
        let mut chars = word.chars();
        while let Some(c) = chars.next() {
            match c {
                ',' => all.push(std::mem::take(&mut one)),
                '\\' => one.extend(chars.next()),
                c => one.push(c),
            }
        }
        all.push(one);
    }
    all.retain(|option| !option.is_empty());
    all
}

/// The word that [`split`] makes into this option again.
pub fn escape(option: &str) -> String {
    option.replace('\\', "\\\\").replace(',', "\\,")
}

/// Sort the words behind `-o`.
pub fn parse(words: &[String]) -> Result<Options> {
    let mut how = How { read_only: false, ..How::default() };
    let mut vfs = MountOptions::default();
    let mut fuse = FuseOptions::default();
    let (mut nonempty, mut writable, mut wants_write_back) = (false, false, false);
    let mut measure = Wish::default();
    for option in split(words) {
        let bad = |why: &str| usage(format!("mount option {option}: {why}"));
        let (name, value) = option.split_once('=').map_or((option.as_str(), None), |(n, v)| (n, Some(v)));
        writable |= option == "rw";
        wants_write_back |= option == "writeback_cache";
        match (name, value) {
            ("iversion", Some("lazy")) | ("i_version", None) => vfs.mode = ChangeMode::Lazy,
            ("iversion", Some("eager")) => vfs.mode = ChangeMode::Eager,
            ("iversion", Some("off")) | ("noiversion", None) => vfs.mode = ChangeMode::Off,
            ("iversion", _) => return Err(bad("must be lazy, eager or off")),
            ("lazytime", None) => vfs.lazytime = true,
            ("nolazytime", None) => vfs.lazytime = false,
            ("lazyversion", None) => vfs.lazyversion = true,
            ("nolazyversion", None) => vfs.lazyversion = false,
            ("relatime", None) => vfs.atime = AtimeMode::Relative,
            ("noatime", None) => vfs.atime = AtimeMode::Never,
            ("strictatime" | "atime", None) => vfs.atime = AtimeMode::Strict,
            ("cache", value) => {
                how.cache_bytes = value
                    .and_then(show::parse_size)
                    .filter(|&bytes| bytes >= 4 << 20)
                    .ok_or_else(|| bad("must be a size of at least 4M, as 64M or 1G"))?;
            }
            ("offset", value) => {
                how.offset_bytes = value.and_then(show::parse_size).ok_or_else(|| {
                    bad("must be where the filesystem begins in the image, in bytes or as 1M")
                })?;
            }
            ("partition", Some(name)) => how.partition = Some(name.to_owned()),
            ("sync", None) => {
                vfs.at_once |= InodeFlags::SYNC;
                fuse.sync = true;
            }
            ("async", None) => {
                vfs.at_once -= InodeFlags::SYNC;
                fuse.sync = false;
            }
            ("dirsync", None) => vfs.at_once |= InodeFlags::DIRSYNC,
            ("commit", value) => {
                how.commit_s = value
                    .and_then(|v| v.parse().ok())
                    .filter(|s| (1..=900).contains(s))
                    .ok_or_else(|| bad("must be a number of seconds from 1 to 900"))?;
            }
            ("sandbox", None) => how.sandbox = true,
            ("nosandbox", None) => how.sandbox = false,
            ("nonempty", None) => nonempty = true,
            ("remount", None) => return Err(bad("the kernel does that alone: mount -i -o remount,ro DIR")),
            ("measure", Some(path)) if !path.is_empty() => measure.policy = Some(path.into()),
            ("measure_list", Some(path)) if !path.is_empty() => measure.list = Some(path.into()),
            ("appraise_key", Some(path)) if !path.is_empty() => measure.keys.push(path.into()),
            ("measure" | "measure_list" | "appraise_key", _) => return Err(bad("needs the name of a file")),
            ("appraise", None) => measure.appraise = true,
            ("trust-foreign", None) => how.trust_foreign = true,
            ("norecovery" | "noload", None) => how.no_replay = true,
            // What mount(8), systemd and fstab say for themselves.
            (
                "defaults" | "auto" | "noauto" | "user" | "users" | "nouser" | "owner" | "group" | "nofail"
                | "_netdev" | "loop",
                None,
            )
            | ("comment", Some(_)) => {}
            (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}
            (name, value) if Owners::has(name) => {
                how.owners_said = true;
                how.owners
                    .set(name, value)
                    .ok_or_else(|| bad("uid and gid take numbers, masks octal ones, utc_offset minutes"))?;
            }
            _ => {
                if !fuse.set(&option).map_err(|e| usage(e.to_string()))? {
                    return Err(bad("unknown; see ivers mount --help"));
                }
            }
        }
    }
    how.appraises = measure.appraise;
    if measure.appraise {
        if wants_write_back && fuse.writeback_cache {
            return Err(usage(
                "mount option writeback_cache: not with appraise, which would judge what the kernel has not handed over yet",
            ));
        }
        fuse.writeback_cache = false;
    }
    how.read_only = fuse.read_only;
    writable &= !how.read_only;
    if measure.policy.is_none() && !measure.appraise && !measure.is_none() {
        return Err(usage(
            "mount options measure_list and appraise_key: only with measure=POLICY or appraise",
        ));
    }
    if vfs.lazyversion && vfs.mode != ChangeMode::Lazy {
        return Err(usage("mount option lazyversion: only with iversion=lazy"));
    }
    if !measure.keys.is_empty() && !measure.appraise {
        return Err(usage("mount option appraise_key: only with appraise"));
    }
    if how.no_replay && !how.read_only {
        return Err(usage("mount option norecovery: only with ro, or the journal would be lost"));
    }
    Ok(Options { how, vfs, fuse, measure, nonempty, writable })
}

/// Those that mean something where an image is only looked into, beside those of [`Owners`].
const LOOKING: &[&str] =
    &["offset", "partition", "cache", "sandbox", "nosandbox", "norecovery", "noload", "trust-foreign"];

/// The words behind `-o` of a command that opens images without mounting them.
pub fn parse_looking(words: &[String]) -> Result<How> {
    for option in split(words) {
        let name = option.split_once('=').map_or(option.as_str(), |(name, _)| name);
        if !LOOKING.contains(&name) && !Owners::has(name) {
            let known = [LOOKING, &Owners::OPTIONS].concat().join(", ");
            return Err(usage(format!("option {option}: there are {known}")));
        }
    }
    let mut words = words.to_vec();
    words.push("ro".to_owned());
    Ok(parse(&words)?.how)
}

/// Those that mean something where an image is served to other machines, beside those of [`Owners`]: all but those of FUSE.
const SERVING: &[&str] = &[
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

/// Whether an export takes this option of a mount.
pub fn is_serving(option: &str) -> bool {
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    SERVING.contains(&name) || Owners::has(name)
}

/// The options of a mount that an export has.
pub fn parse_serving(words: &str, read_only: bool) -> Result<Options> {
    let mut words = split(&[words.to_owned()]);
    if words.iter().any(|option| option == "async") {
        // Of a mount it is the opposite of sync, of an export that of durable names.
        return Err(usage("option async: an export takes it by itself, as async = true"));
    }
    if let Some(other) = words.iter().find(|option| !is_serving(option)) {
        return Err(usage(format!("option {other}: an export takes {}", SERVING.join(", "))));
    }
    words.extend(read_only.then(|| "ro".to_owned()));
    let words: Vec<String> = words.iter().map(|word| escape(word)).collect();
    parse(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<Options> {
        parse(&[text.to_owned()])
    }

    #[test]
    fn options_find_their_way() {
        let all =
            options("offset=1048576,ro,iversion=eager,lazytime,noatime,cache=64M,commit=9,allow_other,x-systemd.automount")
                .unwrap();
        assert!(all.how.read_only && all.vfs.lazytime && all.fuse.allow_other);
        assert_eq!((all.how.cache_bytes, all.how.commit_s), (64 << 20, 9));
        assert_eq!(all.how.offset_bytes, 1 << 20);
        assert_eq!((all.vfs.mode, all.vfs.atime), (ChangeMode::Eager, AtimeMode::Never));
        assert_eq!(options("offset=1M").unwrap().how.offset_bytes, 1 << 20);
        for (text, writable) in [("rw", true), ("noatime", false), ("rw,ro", false), ("ro,rw", true)] {
            assert_eq!(options(text).unwrap().writable, writable, "{text}");
        }
        let appraising = options("appraise,threads=2").unwrap();
        assert!(appraising.how.appraises && !appraising.fuse.writeback_cache);
        assert!(options("measure=/p").unwrap().fuse.writeback_cache);
        let measure = options("measure=/p\\,q,appraise,appraise_key=/a,appraise_key=/b").unwrap().measure;
        assert_eq!(measure.policy.as_deref(), Some("/p,q".as_ref()));
        assert!(measure.appraise && measure.list.is_none() && measure.keys.len() == 2);
        assert_eq!(options("noiversion").unwrap().vfs.mode, ChangeMode::Off);
        let serving = parse_serving("noatime,offset=1M", true).unwrap();
        assert!(serving.how.read_only && serving.vfs.atime == AtimeMode::Never);
        for other in ["allow_other", "ro", "nosandbox", "nonsense", "offset=x", "async"] {
            assert!(parse_serving(other, false).is_err(), "{other}");
        }
        assert_eq!(split(&["a,fsname=b\\,c".into()]), ["a", "fsname=b,c"]);
        assert_eq!(split(&[escape("fsname=b\\,c")]), ["fsname=b\\,c"]);
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
