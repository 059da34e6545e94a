//! Mount options.

use ivers_busy_poll::BusyPoller;
use ivers_vfs::Vfs;
use std::time::Duration;
use thiserror::Error;

/// An invalid value of a known option.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("mount option {option}: {why}")]
pub struct OptionError {
    /// The option as given.
    pub option: String,
    /// Why it is invalid.
    pub why: String,
}

/// Options of a FUSE mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FuseOptions {
    /// Users other than the mounting one may use it. For ordinary users `/etc/fuse.conf` must allow it.
    pub allow_other: bool,
    /// The kernel checks modes and ACLs; otherwise the VFS does.
    pub default_permissions: bool,
    /// The kernel caches writes (write-back cache).
    pub writeback_cache: bool,
    /// Serving threads; 0: one for each processor, at least 2 and at most 8.
    pub threads: usize,
    /// How long a serving thread polls for the next request before it sleeps, in microseconds, at most 1000;
    /// 0: not at all. `None`: 100 if there are several processors.
    pub busy_poll: Option<u16>,
    /// Whether a serving thread may follow its caller to a processor. It never does if the mounting process
    /// cannot move a thread out of `SCHED_IDLE`.
    pub caller_affinity: bool,
    /// A query waits until the kernel shows what its answer counts. Attributes are not cached while the
    /// kernel may change them itself.
    pub strict_queries: bool,
    /// The mounting user acts as root inside the image. Turns `default_permissions` off.
    pub fakeroot: bool,
    /// The source that `mount` shows.
    pub fsname: String,
    /// The subtype that `mount` shows after `fuse.`.
    pub subtype: String,
    /// No changes are allowed.
    pub read_only: bool,
    /// Honour set-user-id bits (root only).
    pub suid: bool,
    /// Device nodes work (root only).
    pub dev: bool,
    /// Programs may be executed.
    pub exec: bool,
    /// The kernel hands over written data and makes it durable before write(2) returns.
    /// [`MountOptions::sync_flags`](ivers_vfs::MountOptions::sync_flags) does this for other changes.
    pub sync: bool,
}

impl Default for FuseOptions {
    fn default() -> Self {
        Self {
            allow_other: false,
            default_permissions: true,
            writeback_cache: true,
            threads: 0,
            busy_poll: None,
            caller_affinity: true,
            strict_queries: true,
            fakeroot: false,
            fsname: "ivers".into(),
            subtype: "ivers".into(),
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            sync: false,
        }
    }
}

impl FuseOptions {
    /// Turns off what this filesystem does not allow.
    pub(crate) fn adapt_to(&mut self, vfs: &Vfs) {
        self.read_only |= vfs.is_read_only();
        if vfs.fs().server().is_some() {
            self.leave_to_server();
        }
    }

    /// For a mount of a server: the server decides, by its own rules, and must see what programs write. Call
    /// it before [`attach`](crate::attach), if another process serves the mount.
    pub fn leave_to_server(&mut self) {
        self.default_permissions = false;
        self.writeback_cache = false;
    }

    /// Parses one option of `-o`. False: the option is not known here.
    pub fn set(&mut self, option: &str) -> Result<bool, OptionError> {
        let fail = |why: &str| OptionError { option: option.into(), why: why.into() };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            // The kernel requires a source of less than a page, and reports only EINVAL otherwise.
            ("fsname", Some(value)) if value.is_empty() || value.len() >= 4096 => {
                return Err(fail("must have from 1 to 4095 bytes"));
            }
            ("subtype", Some(value)) if value.is_empty() || value.len() > 200 => {
                return Err(fail("must have from 1 to 200 bytes"));
            }
            ("fsname" | "subtype", Some(value)) if value.chars().any(char::is_control) => {
                return Err(fail("must have no control characters"));
            }
            ("fsname", Some(value)) => self.fsname = value.into(),
            ("subtype", Some(value)) => self.subtype = value.into(),
            ("threads", Some(value)) => {
                self.threads = match value.parse() {
                    Ok(threads @ 1..=64) => threads,
                    _ => return Err(fail("must be a number from 1 to 64")),
                }
            }
            ("busy_poll", Some(value)) => {
                self.busy_poll = match value.parse() {
                    Ok(micros @ 0..=1000) => Some(micros),
                    _ => return Err(fail("must be a number of microseconds from 0 to 1000")),
                }
            }
            ("fsname" | "subtype" | "threads" | "busy_poll", None) => return Err(fail("needs a value")),
            (_, Some(_)) => return Ok(false),
            ("allow_other", None) => self.allow_other = true,
            ("default_permissions", None) => self.default_permissions = true,
            ("no_default_permissions", None) => self.default_permissions = false,
            ("writeback_cache", None) => self.writeback_cache = true,
            ("no_writeback_cache", None) => self.writeback_cache = false,
            ("caller_affinity", None) => self.caller_affinity = true,
            ("no_caller_affinity", None) => self.caller_affinity = false,
            ("strict_queries", None) => self.strict_queries = true,
            ("no_strict_queries", None) => self.strict_queries = false,
            ("fakeroot", None) => self.fakeroot = true,
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("suid", None) => self.suid = true,
            ("nosuid", None) => self.suid = false,
            ("dev", None) => self.dev = true,
            ("nodev", None) => self.dev = false,
            ("exec", None) => self.exec = true,
            ("noexec", None) => self.exec = false,
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(crate) fn kernel_checks(&self) -> bool {
        self.default_permissions && !self.fakeroot
    }

    pub(crate) fn thread_count(&self) -> usize {
        match self.threads {
            0 => processors().clamp(2, 8),
            n => n,
        }
    }

    pub(crate) fn longest_busy_poll(&self) -> Duration {
        self.busy_poll.map_or_else(BusyPoller::default_duration, |us| Duration::from_micros(us.into()))
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_parse_or_are_left_to_others() {
        let mut options = FuseOptions::default();
        for ours in [
            "allow_other",
            "ro",
            "fsname=a,b",
            "threads=3",
            "busy_poll=0",
            "no_caller_affinity",
            "no_strict_queries",
            "no_writeback_cache",
            "noexec",
        ] {
            assert_eq!(options.set(ours), Ok(true), "{ours}");
        }
        assert!(
            !options.caller_affinity
                && !options.strict_queries
                && options.allow_other
                && options.read_only
                && !options.writeback_cache
                && !options.exec
        );
        assert_eq!((options.fsname.as_str(), options.threads, options.busy_poll), ("a,b", 3, Some(0)));
        for others in ["iversion=lazy", "cache=1G", "lazytime", "ro=1"] {
            assert_eq!(options.set(others), Ok(false), "{others}");
        }
        for bad in [
            "threads=0",
            "threads=many",
            "busy_poll=-1",
            "busy_poll=1001",
            "busy_poll",
            "fsname",
            "fsname=",
            "subtype=",
            "subtype=a\nb",
            &format!("fsname={}", "x".repeat(4096)),
        ] {
            assert!(options.set(bad).is_err(), "{bad}");
        }
    }
}
