//! fio's jobs, run by fio where it is installed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::super::find_program;
use crate::failure::{FAILED, failure};

/// A job of the seeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    /// The seeds' job: eight jobs write one file from start to end in 4 KiB blocks, again and again until time is up.
    EightJobs,
    /// vm-scalability's case-msync-mt: threads write their parts of a shared mapping of one sparse file, then msync it.
    Msync,
}

const JOBS: u64 = 8;
const BLOCK: u64 = 4096;
/// The seeds had ten minutes and 10 GiB.
const OPS_PER_MS: u64 = 500;

/// What fio measured.
pub(super) struct Ran {
    pub(super) seconds: f64,
    pub(super) ops: u64,
    pub(super) latency_ns: [f64; 4],
}

/// Why fio's rows cannot be had.
pub(super) fn missing() -> Option<String> {
    find_program("fio").is_none().then(|| super::install::missing("fio"))
}

pub(super) fn threads() -> u64 {
    std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64)
}

/// The words that make the job: `ops` scales the file, and how long eight jobs go on.
pub(super) fn words(job: Job, ops: u64) -> Vec<String> {
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

/// Run it on a file that is not there yet.
pub(super) fn run(job: Job, dir: &Path, file: &Path, ops: u64) -> Result<Ran> {
    let mut command = Command::new(find_program("fio").context("fio is installed")?);
    // What fio writes beside its file goes where nobody measures.
    command.args(words(job, ops)).arg(format!("--filename={}", file.display()));
    let output = command.current_dir(dir.parent().unwrap_or(dir)).output().context("cannot run fio")?;
    let said = String::from_utf8_lossy(&output.stdout);
    // Warnings come before the JSON, on the same stream.
    let answer: Value = said
        .find('{')
        .and_then(|at| serde_json::from_str(&said[at..]).ok())
        .filter(|_| output.status.success())
        .ok_or_else(|| failure(FAILED, format!("fio: {}", String::from_utf8_lossy(&output.stderr).trim())))?;
    let write = &answer["jobs"][0]["write"];
    let number = |value: &Value| value.as_f64().context("fio's answer has other names than expected");
    let percentiles = &write["clat_ns"]["percentile"];
    let longest = number(&write["clat_ns"]["max"])?;
    // Percentiles are ends of fio's steps: the last ones may lie above what was longest.
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
