//! Memory per cached inode.
//!
//! Each mode is measured in a separate process: freed memory of earlier work would hide what is allocated.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use ivers_vfs::{CreateSpec, Cred, Ino, InodeRef, MountOptions, Vfs};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::contenders::{MODES, Measured, Sample};
use super::image::{Format, make_ext4};
use super::volume::InProcess;
use super::{interrupt, processes, rows};
use indicatif::ProgressBar;

const IMAGE_BYTES: u64 = 8 << 30;
const CACHE_BYTES: u64 = 4 << 30;

/// The task of the measuring process. It loads every second inode first, so that the blocks of all inodes are
/// in memory; loading the others then allocates only inodes.
#[derive(Serialize, Deserialize)]
struct Job {
    image: PathBuf,
    /// Index into [`MODES`].
    mode: usize,
    inodes: Vec<u64>,
}

/// The results, per inode.
#[derive(Serialize, Deserialize)]
struct Load {
    resident_bytes: f64,
    accounted_bytes: f64,
    ns: f64,
}

/// Returns the fields of the row.
pub(crate) fn measure(inodes: u64, bar: &ProgressBar, name: &str) -> Result<Map<String, Value>> {
    let scratch = tempfile::Builder::new().prefix("ivers-bench-").tempdir()?;
    let image = scratch.path().join("image");
    make_ext4(&image, IMAGE_BYTES)?;
    let made = fill(&image, 2 * inodes)?;
    let (mut ours, mut resident): ([Sample; 3], _) = (Default::default(), [0.0; 3]);
    let mut accounted = json!({});
    for (mode, (label, _)) in MODES.into_iter().enumerate() {
        let load = elsewhere(&Job { image: image.clone(), mode, inodes: made.clone() })?;
        ours[mode].ns_per_op.push(load.ns);
        resident[mode] = load.resident_bytes;
        accounted[label] = json!(load.accounted_bytes);
        bar.inc(1);
        bar.set_message(format!("ext4 {name}"));
        interrupt::check()?;
    }
    let measured = Measured { rounds: 1, ops: inodes, ours, kernel: None, missing: Map::new() };
    let mut figures = rows::figures(&measured);
    rows::less_is_better(&mut figures, resident);
    figures.insert("accounted".into(), accounted);
    Ok(figures)
}

/// Creates this number of files in directories of a thousand: a very large directory would change the result.
fn fill(image: &Path, files: u64) -> Result<Vec<u64>> {
    let vfs = InProcess::open(Format::Ext4, image, MountOptions::default())?.vfs;
    let (cred, root) = (Cred::root(), vfs.root()?);
    let make = |dir: &InodeRef, name: String, spec| vfs.create(&cred, dir, name.as_bytes(), &spec, false);
    let mut made = Vec::new();
    for thousand in 0..files.div_ceil(1000) {
        let (dir, _) = make(&root, format!("d{thousand}"), CreateSpec::directory(0o755))?;
        for nth in thousand * 1000..files.min((thousand + 1) * 1000) {
            let (file, _) = make(&dir, format!("f{nth}"), CreateSpec::file(0o644))?;
            made.push(file.ino.0);
        }
    }
    drop(root);
    vfs.unmount()?;
    made.sort_unstable();
    Ok(made)
}

/// Runs the job in a new process of this program.
fn elsewhere(job: &Job) -> Result<Load> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--load-inodes").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot run this program again")?;
    let said = serde_json::to_vec(job)?;
    child.stdin.take().context("standard input of the process is not a pipe")?.write_all(&said)?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("the process that loads inodes failed: {}", output.status);
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs the measuring process: reads the job from standard input and writes the result to standard output.
pub(crate) fn load_inodes() -> Result<()> {
    let job: Job = serde_json::from_reader(std::io::stdin().lock())?;
    let (_, mode) = *MODES.get(job.mode).context("the job names an unknown mode")?;
    let every_second = |from| job.inodes.iter().skip(from).step_by(2).copied().collect::<Vec<_>>();
    let (first, second) = (every_second(0), every_second(1));
    let options = MountOptions { mode, read_only: true, cache_bytes: CACHE_BYTES, ..MountOptions::default() };
    let vfs = InProcess::open(Format::Ext4, &job.image, options)?.vfs;
    let load = |inodes: &[u64]| inodes.iter().try_for_each(|&ino| vfs.get(Ino(ino)).map(drop));
    load(&first)?;
    let (resident, accounted, cached) = (resident_bytes()?, used(&vfs)?, vfs.cached_inodes());
    let begin = Instant::now();
    load(&second)?;
    let elapsed = begin.elapsed();
    ensure!(vfs.cached_inodes() - cached == second.len(), "not all inodes are in the cache");
    let each = |whole: u64| whole as f64 / second.len() as f64;
    let load = Load {
        resident_bytes: each(resident_bytes()?.saturating_sub(resident)),
        accounted_bytes: each(used(&vfs)?.saturating_sub(accounted)),
        ns: each(elapsed.as_nanos() as u64),
    };
    crate::print(serde_json::to_string(&load)?)
}

/// Returns the bytes that the mount's memory budget counts.
fn used(vfs: &Vfs) -> Result<u64> {
    Ok(vfs.options().budget.as_ref().context("the mount has no memory budget")?.used())
}

/// Returns the resident memory of this process.
fn resident_bytes() -> Result<u64> {
    status_bytes("/proc/self/status", "VmRSS:")
}

/// Returns the largest peak of resident memory among a process and its descendants. The process that mounts
/// an image only watches another one, which serves.
pub(crate) fn largest_peak_bytes(process: u32) -> Result<u64> {
    let peak = |process: u32| status_bytes(&format!("/proc/{process}/status"), "VmHWM:");
    // One that has ended meanwhile has no memory to report.
    let peaks = processes::tree(process)?.into_iter().filter_map(|process| peak(process).ok());
    peaks.max().with_context(|| format!("process {process} has ended"))
}

/// Returns a size from the status file of a process.
fn status_bytes(file: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(file)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .with_context(|| format!("{file} has no {name}"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_memory_of_a_child_counts() {
        // tail holds what it will print, then waits for a reader.
        let mut shell = Command::new("sh")
            .args(["-c", "head -c 60000000 /dev/zero | tail -c 50000000; true"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = shell.stdout.take().unwrap();
        output.read_exact(&mut [0]).unwrap();
        let own = status_bytes(&format!("/proc/{}/status", shell.id()), "VmHWM:").unwrap();
        let largest = largest_peak_bytes(shell.id()).unwrap();
        drop(output);
        shell.wait().unwrap();
        assert!(own < 40_000_000 && largest > 50_000_000, "{own}, {largest}");
    }
}
