//! Jobs that fio runs, where it is installed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use crate::find_program;

/// A job that the patch series measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// Eight jobs write one file sequentially in 4 KiB blocks, repeatedly until the time is up.
    EightJobs,
    /// vm-scalability's case-msync-mt: threads write parts of a shared mapping of one sparse file, then msync
    /// it.
    Msync,
}

const JOBS: u64 = 8;
const BLOCK: u64 = 4096;
/// Scales the job of the patch series, which took ten minutes on 10 GiB.
const OPS_PER_MS: u64 = 500;

/// fio's results.
pub(crate) struct Ran {
    pub(crate) seconds: f64,
    pub(crate) ops: u64,
    pub(crate) latency_ns: [f64; 4],
}

/// Returns the reason why fio's rows cannot run.
pub(crate) fn missing() -> Option<String> {
    find_program("fio").is_none().then(|| super::install::missing("fio"))
}

pub(crate) fn threads() -> u64 {
    std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64)
}

/// Returns fio's arguments; `ops` scales the file, and the duration of the eight jobs.
pub(crate) fn words(job: Job, ops: u64) -> Vec<String> {
    let fixed: &[&str] = match job {
        Job::EightJobs => {
            &["--ioengine=libaio", "--iodepth=16", "--direct=0", "--numjobs=8", "--time_based=1", "--thread"]
        }
        Job::Msync => &["--ioengine=mmap", "--fallocate=none", "--end_fsync=1", "--thread"],
    };
    let mut words: Vec<String> =
        ["--name=bench", "--rw=write", "--bs=4k", "--group_reporting", "--output-format=json"]
            .iter()
            .chain(fixed)
            .map(|word| (*word).to_owned())
            .collect();
    match job {
        Job::EightJobs => {
            words.push(format!("--size={}", (ops / 16).max(JOBS) * BLOCK));
            words.push(format!("--runtime={}ms", (ops / OPS_PER_MS).clamp(200, 600_000)));
        }
        Job::Msync => {
            let each = (ops / 16 / threads()).max(1) * BLOCK;
            words.extend([
                format!("--numjobs={}", threads()),
                format!("--size={each}"),
                format!("--offset_increment={each}"),
            ]);
        }
    }
    words
}

/// Runs fio on a new file.
pub(crate) fn run(job: Job, dir: &Path, file: &Path, ops: u64) -> Result<Ran> {
    let mut command = Command::new(find_program("fio").context("fio is not installed")?);
    // fio writes its other files into the current directory: outside of the measured mount.
    command.args(words(job, ops)).arg(format!("--filename={}", file.display()));
    let output = command.current_dir(dir.parent().unwrap_or(dir)).output().context("cannot run fio")?;
    let said = String::from_utf8_lossy(&output.stdout);
    // fio prints warnings before the JSON on the same stream.
    let answer: Value = said
        .find('{')
        .and_then(|at| serde_json::from_str(&said[at..]).ok())
        .filter(|_| output.status.success())
        .ok_or_else(|| anyhow!("fio: {}", String::from_utf8_lossy(&output.stderr).trim()))?;
    let write = &answer["jobs"][0]["write"];
    let number = |value: &Value| value.as_f64().context("fio's output lacks an expected number");
    let percentiles = &write["clat_ns"]["percentile"];
    let longest = number(&write["clat_ns"]["max"])?;
    // fio reports the upper ends of its buckets, which can exceed the maximum.
    let at = |percentile: &str| Ok::<_, anyhow::Error>(number(&percentiles[percentile])?.min(longest));
    Ok(Ran {
        seconds: number(&write["runtime"])? / 1000.0,
        ops: number(&write["total_ios"])? as u64,
        latency_ns: [at("50.000000")?, at("99.000000")?, at("99.900000")?, longest],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_scale_with_the_operations() {
        let has = |job, ops, word: &str| words(job, ops).iter().any(|has| has == word);
        assert!(has(Job::EightJobs, 1_000_000, "--runtime=2000ms"));
        assert!(has(Job::EightJobs, 1_000_000, "--size=256000000"));
        assert!(has(Job::EightJobs, 1, "--runtime=200ms"));
        let each = 1_000_000 / 16 / threads() * BLOCK;
        assert!(has(Job::Msync, 1_000_000, &format!("--size={each}")));
        assert!(has(Job::Msync, 1_000_000, &format!("--offset_increment={each}")));
    }
}
