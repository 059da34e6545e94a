//! Kills of our server under writers, and of mounts with a persistent cache under writers.

use super::servers::Kind;
use super::watch::process_of;
use crate::suites::{Mount, Setup};
use anyhow::{Context, Result, ensure};
use ivers_oracle::e2fs::{e2fsck, e2fsck_repair};
use rustix::process::{Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(super) const SERVER: &str = "ivers, killed";
/// A part, by name.
type Part = (&'static str, fn(&Setup) -> Result<String>);

pub(super) const PARTS: [Part; 2] =
    [("kills of the server under writers", of_the_server), ("kills of a mount with a cache", of_the_client)];

const KILLS: u32 = 50;
const CLIENT_KILLS: u32 = 20;
const WRITERS: usize = 4;
const RECORD: usize = 9000;

/// The program that writes: see there.
const PROGRAM: &str = include_str!("writers.py");

/// Returns the bytes of a record.
fn record(writer: usize, round: u32) -> Vec<u8> {
    (0..RECORD).map(|at| (at as u32 ^ round.wrapping_mul(31) ^ (writer as u32 * 77)) as u8).collect()
}

/// Checks the results of the first `done` rounds. The round after them may have happened in part.
fn is_there(dir: &Path, writer: usize, done: u32) -> Result<()> {
    for round in done.saturating_sub(9)..done {
        for name in ["record", "plain"] {
            let name = dir.join(format!("{name}{round}"));
            let found = fs::read(&name).with_context(|| name.display().to_string())?;
            ensure!(found == record(writer, round), "{}: other bytes", name.display());
        }
        let mtime = fs::metadata(dir.join(format!("plain{round}")))?.mtime();
        ensure!(mtime == i64::from(round), "plain{round}: the time {mtime}");
    }
    let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    ensure!(lines.len() >= done as usize, "{} lines of {done}", lines.len());
    ensure!(lines.len() <= done as usize + 1, "{} lines, {done} were appended", lines.len());
    for (nth, line) in lines.iter().enumerate().take(done as usize) {
        ensure!(*line == format!("{nth:08}"), "line {nth} of the log is {line:?}");
    }
    // The old names of removed and renamed files are gone.
    let names: BTreeSet<_> = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    for round in 0..done.saturating_sub(10) {
        for name in [format!("record{round}"), format!("plain{round}")] {
            ensure!(!names.contains(std::ffi::OsStr::new(&name)), "{name} was removed, and is there");
        }
    }
    Ok(())
}

fn options() -> &'static str {
    "allow_other,vers=4.2"
}

fn of_the_server(setup: &Setup) -> Result<String> {
    let ivers = &setup.ivers;
    let mut server = Kind::Ivers.start(ivers, &crate::target_dir())?;
    let url = PathBuf::from(server.url.clone());
    let log = setup.scratch.join("log-of-kills");
    let words = ["--log", log.to_str().context("a path")?];
    let mounted = |name: &str| Mount::with(ivers, &words, &url, setup.scratch.join(name), options());
    let mount = mounted("killed").context("the mount fails")?;
    let mut program = Command::new("python3");
    program.args(["-c", PROGRAM]).arg(&mount.dir).arg(WRITERS.to_string());
    let mut writers = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let said = BufReader::new(writers.stdout.take().context("no output")?);
    // The number of complete rounds of each writer: all their calls were acknowledged.
    let done = [const { AtomicU32::new(0) }; WRITERS];
    let done_of = |nth: usize| done[nth].load(SeqCst);
    std::thread::scope(|scope| -> Result<()> {
        let progress = scope.spawn(|| -> Result<()> {
            for line in said.lines() {
                let line = line?;
                let nth: usize = line.parse().ok().with_context(|| line.clone())?;
                done.get(nth).context("no such writer")?.fetch_add(1, SeqCst);
            }
            Ok(())
        });
        let mut kill_all = || -> Result<()> {
            for kill in 0..KILLS {
                let before: Vec<u32> = (0..WRITERS).map(done_of).collect();
                sleep(Duration::from_millis(50 + u64::from(kill) * 137 % 400));
                server.kill_and_restart(ivers, |image| {
                    let copy = tempfile::NamedTempFile::new_in(&setup.scratch)?;
                    ivers_oracle::run("cp", [Path::new("--sparse=always"), image, copy.path()])?;
                    e2fsck_repair(copy.path())?;
                    e2fsck(copy.path())
                })?;
                // Every writer makes progress.
                let deadline = Instant::now() + Duration::from_secs(120);
                while (0..WRITERS).any(|nth| done_of(nth) < before[nth] + 2) {
                    ensure!(!progress.is_finished(), "a writer has failed after kill {kill}");
                    ensure!(Instant::now() < deadline, "a writer waits after kill {kill}");
                    sleep(Duration::from_millis(10));
                }
            }
            Ok(())
        };
        let killed = kill_all();
        if killed.is_err() {
            writers.kill()?;
        }
        drop(writers.stdin.take());
        let stopped = progress.join().map_err(|_| anyhow::anyhow!("a panic"))?;
        // The message of a writer says more.
        stopped.and(killed)
    })?;
    ensure!(writers.wait()?.success(), "the writers fail");
    // Another client sees what was acknowledged.
    let other = mounted("checker").context("the mount fails")?;
    let mut rounds = 0;
    for nth in 0..WRITERS {
        let (dir, done) = (other.dir.join(format!("w{nth}")), done_of(nth));
        is_there(&dir, nth, done)?;
        let left = fs::read_dir(&dir)?.count();
        ensure!(left == 2 * done.min(10) as usize + 1, "{left} names");
        rounds += done;
    }
    ensure!(mount.unmount() && other.unmount(), "the unmount fails");
    server.stop(Kind::Ivers)?;
    Ok(format!(
        "{KILLS} kills. {WRITERS} writers made {rounds} rounds of 14 changes: each change was made once, and \
         no byte is missing"
    ))
}

fn of_the_client(setup: &Setup) -> Result<String> {
    let ivers = &setup.ivers;
    let server = Kind::Ivers.start(ivers, &crate::target_dir())?;
    let url = PathBuf::from(server.url.clone());
    let kept = super::private_dir()?;
    let with_cache = format!("{},cache-dir={},cache-size=16M", options(), kept.path().display());
    let mount = |name: &str, options: &str| Mount::with(ivers, &[], &url, setup.scratch.join(name), options);
    let plain = mount("plain", options()).context("the mount fails")?;
    let mut compared = 0;
    for kill in 0..CLIENT_KILLS {
        let cached = mount("cached", &with_cache).context("the mount with a cache fails")?;
        let pid = process_of(ivers, &cached.dir)?;
        std::thread::scope(|scope| -> Result<()> {
            for nth in 0..WRITERS as u8 {
                let dir = &cached.dir;
                scope.spawn(move || {
                    // Writes until the mount is killed.
                    for turn in 0.. {
                        let file = dir.join(format!("w{nth}-{}", turn % 5));
                        let bytes =
                            vec![(turn as u8) ^ (kill as u8).wrapping_mul(7) ^ nth; 60_000 + turn % 90 * 100];
                        if fs::write(&file, &bytes).and_then(|()| fs::read(&file)).is_err() {
                            return;
                        }
                    }
                });
            }
            sleep(Duration::from_millis(300 + u64::from(kill) * 61 % 500));
            kill_process(pid, Signal::KILL)?;
            Ok(())
        })?;
        drop(cached);
        // Another mount can use the cache after the last process of this one has ended.
        let deadline = Instant::now() + Duration::from_secs(60);
        let again = loop {
            if let Some(again) = mount("cached", &with_cache) {
                break again;
            }
            ensure!(Instant::now() < deadline, "the cache stays in use");
            sleep(Duration::from_millis(100));
        };
        for _ in 0..2 {
            for entry in fs::read_dir(&plain.dir)? {
                let entry = entry?;
                if entry.file_type()?.is_file() {
                    let (ours, theirs) =
                        (fs::read(again.dir.join(entry.file_name()))?, fs::read(entry.path())?);
                    ensure!(ours == theirs, "kill {kill}: {:?} has old bytes", entry.file_name());
                    compared += 1;
                }
            }
        }
        ensure!(again.unmount(), "the unmount fails");
    }
    ensure!(plain.unmount(), "the unmount fails");
    server.stop(Kind::Ivers)?;
    Ok(format!("{CLIENT_KILLS} kills. {compared} files were read afterwards: none has old bytes"))
}
