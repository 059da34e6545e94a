//! Processes that serve: their descendants, and the processor time of all.

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

/// Returns a process and its descendants.
pub(crate) fn tree(process: u32) -> Result<Vec<u32>> {
    let mut all = vec![process];
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let children = std::fs::read_to_string(thread?.path().join("children"))?;
        for child in children.split_whitespace() {
            // A child may have ended meanwhile.
            all.extend(tree(child.parse()?).unwrap_or_default());
        }
    }
    Ok(all)
}

/// Returns the processor time of this process in nanoseconds, and of a process that serves it with its
/// descendants. Threads that have ended count in this process only. On a busy machine it says more than
/// elapsed time. `None` for a kernel without `CONFIG_SCHED_INFO`.
pub(crate) fn processor_ns(server: Option<u32>) -> Result<Option<u64>> {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    let mut ns = own.tv_sec as u64 * 1_000_000_000 + own.tv_nsec as u64;
    for process in server.map(tree).transpose()?.unwrap_or_default() {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads {
            let Ok(times) = std::fs::read_to_string(thread?.path().join("schedstat")) else {
                return Ok(None);
            };
            let run: Option<u64> = times.split(' ').next().and_then(|ns| ns.parse().ok());
            let Some(run) = run else { return Ok(None) };
            ns += run;
        }
    }
    Ok(Some(ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_processor_time_of_a_grandchild_counts() {
        // The limit ends the loop if this test does not.
        let busy = "sh -c 'ulimit -t 60; while :; do :; done'; true";
        let mut shell = Command::new("sh").args(["-c", busy]).spawn().unwrap();
        let begun = std::time::Instant::now();
        // This process's own time grows between the two.
        let served = || {
            let all = processor_ns(Some(shell.id())).unwrap().unwrap();
            all.saturating_sub(processor_ns(None).unwrap().unwrap())
        };
        while served() < 50_000_000 && begun.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let (all, ns) = (tree(shell.id()).unwrap(), served());
        for &process in all.iter().rev() {
            let process = rustix::process::Pid::from_raw(process.cast_signed()).unwrap();
            _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
        shell.wait().unwrap();
        assert!(all.len() == 2 && ns >= 50_000_000, "{all:?}, {ns}");
    }
}
