//! How readily the kernel runs a thread: its scheduling class (sched(7)).

use libc::{SCHED_IDLE, SCHED_OTHER, pid_t, sched_param};
use std::io::{Error, Result};

/// The two classes between which a thread is moved here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `SCHED_OTHER`: its fair share, by its nice value.
    Normal,
    /// `SCHED_IDLE`: only when nobody else wants the processor, which counts as idle meanwhile for whoever is woken.
    Idle,
}

/// The class of a thread, by its number. `None`: it is in another one, a real-time class say.
pub fn class(thread: u32) -> Result<Option<Class>> {
    get(number(thread)?)
}

/// The same of the thread that calls.
pub fn own_class() -> Result<Option<Class>> {
    get(0)
}

fn get(thread: pid_t) -> Result<Option<Class>> {
    // SAFETY: the call takes a number, and no pointer.
    match unsafe { libc::sched_getscheduler(thread) } {
        SCHED_OTHER => Ok(Some(Class::Normal)),
        SCHED_IDLE => Ok(Some(Class::Idle)),
        -1 => Err(Error::last_os_error()),
        _ => Ok(None),
    }
}

/// Move a thread to a class. It keeps its nice value. Everybody may give way; to come back takes `CAP_SYS_NICE`, or an
/// `RLIMIT_NICE` that allows the nice value.
pub fn set_class(thread: u32, class: Class) -> Result<()> {
    set(number(thread)?, class)
}

/// The same for the thread that calls.
pub fn set_own_class(class: Class) -> Result<()> {
    set(0, class)
}

fn set(thread: pid_t, class: Class) -> Result<()> {
    let policy = match class {
        Class::Normal => SCHED_OTHER,
        Class::Idle => SCHED_IDLE,
    };
    let none = sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads one `sched_param` through the pointer during the call, and `none` lives longer.
    match unsafe { libc::sched_setscheduler(thread, policy, &raw const none) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Whether threads of this process come back from [`Class::Idle`]. Found out by a thread that ends then: in a user namespace, say, a
/// capability that is there may not help.
pub fn may_come_back() -> bool {
    let goes_and_comes = || {
        matches!(own_class(), Ok(Some(Class::Normal)))
            && set_own_class(Class::Idle).is_ok()
            && set_own_class(Class::Normal).is_ok()
    };
    let thread = std::thread::Builder::new().name("ivers-way-back".into()).spawn(goes_and_comes);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Zero would be the calling thread.
fn number(thread: u32) -> Result<pid_t> {
    pid_t::try_from(thread)
        .ok()
        .filter(|&thread| thread > 0)
        .ok_or_else(|| Error::from_raw_os_error(libc::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread that ends with the test: not everybody may come back.
    fn elsewhere<T: Send>(run: impl FnOnce(u32) -> T + Send) -> T {
        // SAFETY: no arguments, and it cannot fail.
        let run = move || run(unsafe { libc::gettid() }.unsigned_abs());
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn a_thread_gives_way_and_comes_back_if_it_may() {
        elsewhere(|me| {
            assert_eq!(class(me).unwrap(), Some(Class::Normal));
            set_class(me, Class::Idle).unwrap();
            assert_eq!(class(me).unwrap(), Some(Class::Idle));
            match set_class(me, Class::Normal) {
                Ok(()) => {
                    assert_eq!(own_class().unwrap(), Some(Class::Normal));
                    assert!(may_come_back());
                }
                Err(error) => {
                    assert!(!may_come_back());
                    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
                    assert_eq!(class(me).unwrap(), Some(Class::Idle));
                }
            }
        });
    }

    #[test]
    fn nobody_is_an_error() {
        for nobody in [0, u32::MAX, i32::MAX.unsigned_abs()] {
            assert_eq!(class(nobody).unwrap_err().raw_os_error(), Some(libc::ESRCH), "{nobody}");
            assert_eq!(
                set_class(nobody, Class::Idle).unwrap_err().raw_os_error(),
                Some(libc::ESRCH),
                "{nobody}"
            );
        }
    }
}
