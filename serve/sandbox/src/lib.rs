//! Drops every right that a process does not need to parse hostile bytes.
//!
//! [`enter`] is for a process that has all its descriptors already and starts threads only later. Afterwards
//! it can read, write and wait on its descriptors, map memory, and start threads. It can open no file, make
//! no socket, run no program, and touch no other process: an attacker who controls it through a damaged image
//! controls that image and nothing else.
//!
//! | subject | restricted by |
//! |---|---|
//! | files, TCP ports, signals to others | Landlock without rights, also below open directories |
//! | system calls | two seccomp filters: see [`Guard`] and the two lists in `calls` |
//! | capabilities | all dropped (for a process of root), except for [`Needs::give_way`] |
//!
//! A server needs more ([`enter_with`], [`Needs`]): it accepts connections and keeps a log in a directory.
//! The calls that open and rename files are allowed then, and Landlock alone restricts where. It still cannot
//! connect to others. Clients may ask it to, so an attempt is refused without killing it.
//!
//! A kernel without Landlock or seccomp gives partial protection; [`Sandbox`] reports which.
//!
//! # Unknown calls are refused, some calls kill
//!
//! A call on neither list fails with `ENOSYS`. A C library expects that from an older kernel and falls back
//! to an older call, so a future libc still works.
//!
//! Some calls are never made by this code, and an attacker would make them first (`execve`, `ptrace`,
//! `socket`, `mount`, ...). They kill the process: it must not write to the image again, and its end is
//! noticed. Opening files is refused without killing: the C library and the panic machinery try it and
//! continue without.

#![forbid(unsafe_code)]

mod calls;
mod files;

use rustix::thread::{CapabilitySet, CapabilitySets};
use std::fmt;
use std::path::Path;

/// The result of one restriction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// In force.
    On,
    /// Partly in force: this kernel does not know all of it.
    Partly,
    /// Not in force, with the reason.
    Off(String),
}

/// The restrictions of a process that called [`enter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Landlock.
    pub files: Guard,
    /// seccomp.
    pub calls: Guard,
}

impl Sandbox {
    /// Returns whether every restriction that this version knows is in force.
    pub fn is_whole(&self) -> bool {
        self.files == Guard::On && self.calls == Guard::On
    }
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |guard: &Guard, name: &str| match guard {
            Guard::On => name.to_owned(),
            Guard::Partly => format!("{name} (as far as this kernel has it)"),
            Guard::Off(why) => format!("no {name} ({why})"),
        };
        write!(f, "{}, {}", one(&self.files, "landlock"), one(&self.calls, "seccomp"))
    }
}

/// What a process needs beyond its descriptors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs<'a> {
    /// Accepts connections on sockets that listen already, and waits for many descriptors.
    pub accept: bool,
    /// Moves the calling thread to `SCHED_IDLE` and back, for which it keeps `CAP_SYS_NICE` if it has it.
    /// Every other call that uses this right is refused. Without seccomp the right is not kept.
    pub give_way: bool,
    /// Creates, reads, writes, replaces and removes files in this directory.
    pub files_in: Option<&'a Path>,
}

/// Drops all rights that are not needed, for the calling thread and for all threads that it starts later,
/// forever.
pub fn enter() -> Sandbox {
    enter_with(&Needs::default())
}

/// As [`enter`], except for `needs`.
pub fn enter_with(needs: &Needs<'_>) -> Sandbox {
    let files = files::restrict(needs.files_in);
    // Before the filter, which refuses capset. Changes nothing for a process without capabilities.
    let none = CapabilitySet::empty();
    let keep = |kept| {
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
        rustix::thread::set_capabilities(None, sets)
    };
    let held = rustix::thread::capabilities(None).map_or(none, |sets| sets.permitted);
    let kept = if needs.give_way { held & CapabilitySet::SYS_NICE } else { none };
    let mut dropped = keep(kept);
    let calls = calls::restrict(needs);
    if calls != Guard::On && !kept.is_empty() {
        // Without seccomp nothing would limit the use of the right.
        dropped = keep(none);
    }
    let calls = match (calls, dropped) {
        (Guard::On, Err(_)) => Guard::Partly,
        (calls, _) => calls,
    };
    Sandbox { files, calls }
}
