//! Gives up every right that a process which parses hostile bytes does not need.
//!
//! [`enter`] is for a process that has all its descriptors already and starts threads only later. From then on it can read, write and wait on what
//! it holds, map memory, and start threads. It can open no file, make no socket, run no program, and touch no other process: whoever takes it
//! over through a damaged image holds that image and nothing else.
//!
//! | | how |
//! |---|---|
//! | files, TCP ports, signals to others | Landlock, with nothing allowed: also where a descriptor of a directory was left open by accident |
//! | system calls | two seccomp filters: see [`Guard`] and the two lists in `calls` |
//! | capabilities | all dropped (for a process of root), but for [`Needs::give_way`] |
//!
//! A server needs a little more ([`enter_with`], [`Needs`]): it takes connections, and keeps a log in a directory of its own. The calls by which files are
//! opened and renamed are let through then, and Landlock alone says where. It still connects to nobody; since strangers may ask it to, trying is refused, not deadly.
//!
//! A kernel without Landlock or seccomp lends what it has; [`Sandbox`] says what that was.
//!
//! # Why an unknown call is refused and some calls kill
//!
//! A call that is on neither list fails with `ENOSYS`. That is what a C library expects of a kernel that is older than itself, and it
//! goes on with an older call: a libc of next year does not cost anybody a mount. Calls that no code here makes, and that somebody
//! who has taken the process over would make first (`execve`, `ptrace`, `socket`, `mount`, ...), kill the process: it
//! must not write to the image once more, and its end is noticed. Opening files is refused, not deadly: the C library and
//! the panic machinery try it and live without.

#![forbid(unsafe_code)]

mod calls;
mod files;

use rustix::thread::{CapabilitySet, CapabilitySets};
use std::fmt;
use std::path::Path;

/// What became of one guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// In force.
    On,
    /// In force as far as this kernel knows it.
    Partly,
    /// Not in force, and why.
    Off(String),
}

/// What holds a process that called [`enter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Landlock.
    pub files: Guard,
    /// seccomp.
    pub calls: Guard,
}

impl Sandbox {
    /// Whether nothing is missing that this version of the crate knows.
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

/// What a process needs beyond what it holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs<'a> {
    /// Take connections of sockets that listen already, and wait for many at once.
    pub accept: bool,
    /// Move the calling thread to `SCHED_IDLE` and back, for which `CAP_SYS_NICE` is kept if it is there. Every other call that takes
    /// this right is refused; without seccomp the right is not kept.
    pub give_way: bool,
    /// Make, read, write, replace and remove files in this directory.
    pub files_in: Option<&'a Path>,
}

/// Give up what is not needed any more. It holds for the calling thread and those it starts afterwards, for ever.
pub fn enter() -> Sandbox {
    enter_with(&Needs::default())
}

/// The same, but for these.
pub fn enter_with(needs: &Needs<'_>) -> Sandbox {
    let files = files::restrict(needs.files_in);
    // Before the filter, which does not let capset through. Without capabilities to begin with this changes nothing.
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
        // Nothing would say what the right may be used for.
        dropped = keep(none);
    }
    let calls = match (calls, dropped) {
        (Guard::On, Err(_)) => Guard::Partly,
        (calls, _) => calls,
    };
    Sandbox { files, calls }
}
