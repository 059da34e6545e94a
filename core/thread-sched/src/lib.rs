//! The scheduling class of a thread (sched(7)). This crate holds the only unsafe code of the workspace.
//!
//! It makes the system calls itself: musl's functions only return `ENOSYS`, because POSIX defines them for a
//! process and Linux for a thread.

use libc::{SCHED_IDLE, SCHED_OTHER, SYS_sched_getscheduler, SYS_sched_setscheduler, c_int, pid_t};
use std::io::{Error, Result};

/// A scheduling class that this crate can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `SCHED_OTHER`: the thread gets a fair share, weighted by its nice value.
    Normal,
    /// `SCHED_IDLE`: the thread runs only on an otherwise idle processor. The scheduler treats that processor
    /// as idle when it places a woken thread.
    Idle,
}

/// Returns the class of the thread with this thread ID. `None` means another class, for example a real-time
/// one.
pub fn class(thread: u32) -> Result<Option<Class>> {
    get(thread_id(thread)?)
}

/// Returns the class of the calling thread.
pub fn own_class() -> Result<Option<Class>> {
    get(0)
}

fn get(thread: pid_t) -> Result<Option<Class>> {
    // SAFETY: the call takes an integer and no pointer.
    let policy = unsafe { libc::syscall(SYS_sched_getscheduler, thread) };
    if policy < 0 {
        return Err(Error::last_os_error());
    }
    Ok(match c_int::try_from(policy) {
        Ok(SCHED_OTHER) => Some(Class::Normal),
        Ok(SCHED_IDLE) => Some(Class::Idle),
        _ => None,
    })
}

/// Moves a thread to a class. The thread keeps its nice value.
///
/// Any thread may move to [`Class::Idle`]. Leaving it requires `CAP_SYS_NICE`, or an `RLIMIT_NICE` that
/// allows the nice value.
pub fn set_class(thread: u32, class: Class) -> Result<()> {
    set(thread_id(thread)?, class)
}

/// Moves the calling thread to a class, as [`set_class`] does.
pub fn set_own_class(class: Class) -> Result<()> {
    set(0, class)
}

fn set(thread: pid_t, class: Class) -> Result<()> {
    let policy = match class {
        Class::Normal => SCHED_OTHER,
        Class::Idle => SCHED_IDLE,
    };
    let priority: c_int = 0;
    // SAFETY: the kernel reads one `struct sched_param` through the pointer during the call. That is one
    // `int`, and `priority` outlives the call.
    match unsafe { libc::syscall(SYS_sched_setscheduler, thread, policy, &raw const priority) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Tests whether threads of this process can leave [`Class::Idle`].
///
/// A temporary thread tries it. Checking capabilities is not enough: in a user namespace a capability may
/// have no effect.
pub fn can_leave_idle() -> bool {
    let enters_and_leaves = || {
        matches!(own_class(), Ok(Some(Class::Normal)))
            && set_own_class(Class::Idle).is_ok()
            && set_own_class(Class::Normal).is_ok()
    };
    let thread = std::thread::Builder::new().name("ivers-idle-test".into()).spawn(enters_and_leaves);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Converts a thread ID. Zero is an error, because the kernel takes it for the calling thread.
fn thread_id(thread: u32) -> Result<pid_t> {
    pid_t::try_from(thread)
        .ok()
        .filter(|&thread| thread > 0)
        .ok_or_else(|| Error::from_raw_os_error(libc::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a temporary thread, because a thread may be unable to leave the idle class.
    fn in_new_thread<T: Send>(run: impl FnOnce(u32) -> T + Send) -> T {
        // SAFETY: the call has no arguments and cannot fail.
        let run = move || run(unsafe { libc::gettid() }.unsigned_abs());
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn a_thread_enters_idle_and_leaves_it_if_permitted() {
        in_new_thread(|me| {
            assert_eq!(class(me).unwrap(), Some(Class::Normal));
            set_class(me, Class::Idle).unwrap();
            assert_eq!(class(me).unwrap(), Some(Class::Idle));
            match set_class(me, Class::Normal) {
                Ok(()) => {
                    assert_eq!(own_class().unwrap(), Some(Class::Normal));
                    assert!(can_leave_idle());
                }
                Err(error) => {
                    assert!(!can_leave_idle());
                    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
                    assert_eq!(class(me).unwrap(), Some(Class::Idle));
                }
            }
        });
    }

    #[test]
    fn an_unknown_thread_is_an_error() {
        for unknown in [0, u32::MAX, i32::MAX.unsigned_abs()] {
            assert_eq!(class(unknown).unwrap_err().raw_os_error(), Some(libc::ESRCH), "{unknown}");
            assert_eq!(
                set_class(unknown, Class::Idle).unwrap_err().raw_os_error(),
                Some(libc::ESRCH),
                "{unknown}"
            );
        }
    }
}
