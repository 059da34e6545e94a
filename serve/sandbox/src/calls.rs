//! seccomp: the system calls that stay allowed.

use crate::{Guard, Needs};
use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;

/// Calls that are needed, and harmless with any arguments.
///
/// `stat` by name is not one of them: Landlock does not hide existence. Neither is `clone3`, whose flags a
/// filter cannot see: the C library falls back to `clone`.
const ALLOWED: &[c_long] = &[
    // Open descriptors: the image, the FUSE device, sockets, the log.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fstat,
    libc::SYS_close,
    libc::SYS_flock,
    libc::SYS_dup,
    libc::SYS_ppoll,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_brk,
    libc::SYS_madvise,
    // Threads of this process.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time, identity, randomness.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_getrandom,
];

/// Older names of such calls, which only some architectures have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[libc::SYS_poll, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[c_long] = &[];

/// For a process that accepts connections and waits for many descriptors.
const ACCEPTING: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
];
#[cfg(target_arch = "x86_64")]
const ACCEPTING_HERE: &[c_long] = &[libc::SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const ACCEPTING_HERE: &[c_long] = &[];

/// For a process that keeps files in a directory, which Landlock enforces.
const KEEPING: &[c_long] = &[libc::SYS_openat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_unlinkat];
#[cfg(target_arch = "x86_64")]
const KEEPING_HERE: &[c_long] = &[libc::SYS_rename, libc::SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const KEEPING_HERE: &[c_long] = &[];

/// Socket options that may be set, each with its level. `SO_ATTACH_FILTER` and the like are missing: they
/// give the kernel programs.
const SOCKET_OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
];

/// Refused without killing a process that accepts connections: clients may ask such a server to connect to
/// them, and it must survive.
const ASKED_FOR: &[c_long] = &[libc::SYS_socket, libc::SYS_connect];

/// Calls that kill the process; see the crate documentation.
const DEADLY: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_setuid,
    libc::SYS_setresuid,
    libc::SYS_capset,
];

/// Allowed ioctls. `FUSE_DEV_IOC_CLONE` and other requests of /dev/fuse are missing: the device was set up
/// outside.
const IOCTLS: &[libc::Ioctl] = &[libc::TCGETS, libc::TIOCGWINSZ, libc::FIONBIO];

const FCNTLS: &[i32] = &[libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC];

fn argument(index: u8, len: Len, op: Op, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(index, len, op, value)
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions)
}

/// Calls that are harmless only with some arguments.
fn allowed_in_part() -> Result<Vec<(c_long, Vec<SeccompRule>)>, BackendError> {
    let one_of = |index, values: &[u64]| -> Result<Vec<_>, BackendError> {
        values.iter().map(|&value| rule(vec![argument(index, Len::Dword, Op::Eq, value)?])).collect()
    };
    let without = |index, bits| -> Result<Vec<_>, BackendError> {
        Ok(vec![rule(vec![argument(index, Len::Dword, Op::MaskedEq(bits), 0)?])?])
    };
    let executable = libc::PROT_EXEC as u64;
    let thread = (libc::CLONE_THREAD | libc::CLONE_VM) as u64;
    let myself = u64::from(std::process::id());
    let fcntls: Vec<u64> = FCNTLS.iter().map(|&command| command as u64).collect();
    #[allow(clippy::unnecessary_cast, reason = "musl and glibc give these numbers different types")]
    let ioctls: Vec<u64> = IOCTLS.iter().map(|&request| request as u64).collect();
    Ok(vec![
        // No writable memory is executable.
        (libc::SYS_mmap, without(2, executable)?),
        (libc::SYS_mprotect, without(2, executable)?),
        // Threads only, no processes.
        (libc::SYS_clone, vec![rule(vec![argument(0, Len::Dword, Op::MaskedEq(thread), thread)?])?]),
        // abort(3).
        (libc::SYS_tgkill, one_of(0, &[myself])?),
        // Reads limits and sets none: the C library does so to find the size of a stack.
        (
            libc::SYS_prlimit64,
            vec![rule(vec![argument(0, Len::Dword, Op::Eq, 0)?, argument(2, Len::Qword, Op::Eq, 0)?])?],
        ),
        // Sets the name of a thread.
        (libc::SYS_prctl, one_of(0, &[libc::PR_SET_NAME as u64])?),
        (libc::SYS_fcntl, one_of(1, &fcntls)?),
        (libc::SYS_ioctl, one_of(1, &ioctls)?),
    ])
}

fn filter(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(rules, others, these, std::env::consts::ARCH.try_into()?)?.try_into()
}

fn socket_options() -> Result<Vec<SeccompRule>, BackendError> {
    let one = |&(level, name): &(i32, i32)| {
        rule(vec![
            argument(1, Len::Dword, Op::Eq, level as u64)?,
            argument(2, Len::Dword, Op::Eq, name as u64)?,
        ])
    };
    SOCKET_OPTIONS.iter().map(one).collect()
}

/// The scheduling classes of the calling thread (thread 0), without real-time classes.
fn classes() -> Result<Vec<SeccompRule>, BackendError> {
    let one = |&class: &i32| {
        rule(vec![argument(0, Len::Dword, Op::Eq, 0)?, argument(1, Len::Dword, Op::Eq, class as u64)?])
    };
    [libc::SCHED_OTHER, libc::SCHED_IDLE].iter().map(one).collect()
}

/// Calls allowed with any arguments.
fn allowed_whole(needs: &Needs<'_>) -> Vec<c_long> {
    let more = [
        (true, [ALLOWED, ALLOWED_HERE]),
        (needs.accept, [ACCEPTING, ACCEPTING_HERE]),
        (needs.files_in.is_some(), [KEEPING, KEEPING_HERE]),
    ];
    more.into_iter().filter(|(wanted, _)| *wanted).flat_map(|(_, lists)| lists).flatten().copied().collect()
}

/// The filters in the order of installation: the second would not allow installing the first.
fn filters(needs: &Needs<'_>) -> Result<[BpfProgram; 2], BackendError> {
    let whole = |call: c_long| (call, Vec::new());
    let allowed = allowed_whole(needs);
    let refused = |call: &c_long| needs.accept && ASKED_FOR.contains(call);
    let deadly = DEADLY.iter().filter(|call| !allowed.contains(call) && !refused(call)).copied();
    let deadly = filter(deadly.map(whole).collect(), SeccompAction::Allow, SeccompAction::KillProcess)?;
    let mut allowed: BTreeMap<_, _> = allowed.into_iter().map(whole).collect();
    allowed.extend(allowed_in_part()?);
    if needs.give_way {
        allowed.insert(libc::SYS_sched_setscheduler, classes()?);
        // Applies to the calling thread too.
        let own = rule(vec![argument(0, Len::Dword, Op::Eq, 0)?])?;
        allowed.insert(libc::SYS_sched_getscheduler, vec![own]);
    }
    if needs.accept {
        allowed.insert(libc::SYS_setsockopt, socket_options()?);
    }
    let allowed = filter(allowed, SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow)?;
    Ok([deadly, allowed])
}

pub(crate) fn restrict(needs: &Needs<'_>) -> Guard {
    // Also returned for an architecture that the filter compiler does not support.
    let filters = match filters(needs) {
        Ok(filters) => filters,
        Err(error) => return Guard::Off(error.to_string()),
    };
    for filter in &filters {
        if let Err(error) = seccompiler::apply_filter(filter) {
            return Guard::Off(error.to_string());
        }
    }
    Guard::On
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_on_both_lists() {
        let in_part: Vec<c_long> = allowed_in_part().unwrap().into_iter().map(|(call, _)| call).collect();
        let serving = Needs { accept: true, give_way: true, files_in: Some("/".as_ref()) };
        for needs in [Needs::default(), serving] {
            let allowed = allowed_whole(&needs);
            let both: Vec<_> = allowed.iter().chain(&in_part).filter(|call| DEADLY.contains(call)).collect();
            let taken: &[&c_long] = if needs.accept { &[&libc::SYS_accept4] } else { &[] };
            assert_eq!(both, taken);
            for filter in filters(&needs).unwrap() {
                assert!(filter.len() < 4096, "the kernel takes no longer ones: {}", filter.len());
            }
        }
    }
}
