//! Kills of our server under writers, and of mounts with a persistent cache under writers.

use super::servers::Kind;
use crate::suites::{Mount, Setup};
use anyhow::{Context, Result, ensure};
use ivers_oracle::e2fs::{e2fsck, e2fsck_repair};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;

pub(super) const SERVER: &str = "ivers, killed";
/// A part, by name.
type Part = (&'static str, fn(&Setup) -> Result<String>);

pub(super) const PARTS: [Part; 2] =
    [("kills of the server under writers", of_the_server), ("kills of a mount with a cache", of_the_client)];

const KILLS: u32 = 50;
const CLIENT_KILLS: u32 = 20;
const WRITERS: usize = 4;
const RECORD: usize = 9000;

/// A writer, and its progress.
#[derive(Default)]
struct Writer {
    /// The number of complete rounds: all their calls were acknowledged.
    done: AtomicU32,
}

/// Returns the bytes of a record.
fn record(writer: usize, round: u32) -> Vec<u8> {
    (0..RECORD).map(|at| (at as u32 ^ round.wrapping_mul(31) ^ (writer as u32 * 77)) as u8).collect()
}

/// One round: every call must succeed, and have its effect exactly once.
fn round(dir: &Path, writer: usize, round: u32) -> Result<()> {
    let (new, name) = (dir.join("new"), dir.join(format!("record{round}")));
    let mut file = File::create_new(&new).context("create")?;
    file.write_all(&record(writer, round)).context("write")?;
    file.sync_all().context("fsync")?;
    drop(file);
    fs::rename(&new, &name).context("rename")?;
    let mut log = File::options().append(true).create(true).open(dir.join("log")).context("open the log")?;
    log.write_all(format!("{round:08}\n").as_bytes()).context("append")?;
    log.sync_all().context("fsync of the log")?;
    drop(log);
    // Names that are created and removed.
    let (sub, link) = (dir.join("sub"), dir.join("link"));
    fs::create_dir(&sub).context("mkdir")?;
    fs::hard_link(&name, &link).context("link")?;
    fs::rename(&link, sub.join("link")).context("rename of the link")?;
    fs::remove_file(sub.join("link")).context("unlink")?;
    fs::remove_dir(&sub).context("rmdir")?;
    if round >= 10 {
        fs::remove_file(dir.join(format!("record{}", round - 10))).context("unlink of a record")?;
    }
    Ok(())
}

/// Checks the results of the first `done` rounds. The round after them may have happened in part.
fn is_there(dir: &Path, writer: usize, done: u32) -> Result<()> {
    for round in done.saturating_sub(9)..done {
        let name = dir.join(format!("record{round}"));
        let found = fs::read(&name).with_context(|| name.display().to_string())?;
        ensure!(found == record(writer, round), "{}: other bytes", name.display());
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
        let name = format!("record{round}");
        ensure!(!names.contains(std::ffi::OsStr::new(&name)), "{name} was removed, and is there");
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
    let at = |name: &str| setup.scratch.join(name);
    let log = at("log-of-kills");
    let words = ["--log", log.to_str().context("a path")?];
    let mount = Mount::with(ivers, &words, &url, at("killed"), options()).context("the mount fails")?;
    let writers: Vec<Writer> = (0..WRITERS).map(|_| Writer::default()).collect();
    let dirs: Vec<PathBuf> = (0..WRITERS).map(|nth| mount.dir.join(format!("w{nth}"))).collect();
    dirs.iter().try_for_each(fs::create_dir)?;
    let over = AtomicBool::new(false);
    let kills = std::thread::scope(|scope| -> Result<u32> {
        let threads: Vec<_> = writers
            .iter()
            .enumerate()
            .map(|(nth, writer)| {
                let (dir, over) = (&dirs[nth], &over);
                scope.spawn(move || -> Result<()> {
                    while !over.load(SeqCst) {
                        let number = writer.done.load(SeqCst);
                        round(dir, nth, number).with_context(|| format!("writer {nth}, round {number}"))?;
                        writer.done.store(number + 1, SeqCst);
                    }
                    Ok(())
                })
            })
            .collect();
        let mut kill_all = || -> Result<u32> {
            for kill in 0..KILLS {
                let before: Vec<u32> = writers.iter().map(|writer| writer.done.load(SeqCst)).collect();
                sleep(Duration::from_millis(50 + u64::from(kill) * 137 % 400));
                server.kill_and_restart(ivers, |image| {
                    let copy = tempfile::NamedTempFile::new_in(&setup.scratch)?;
                    ivers_oracle::run("cp", [Path::new("--sparse=always"), image, copy.path()])?;
                    e2fsck_repair(copy.path())?;
                    e2fsck(copy.path())
                })?;
                // Every writer makes progress.
                for (nth, writer) in writers.iter().enumerate() {
                    let deadline = std::time::Instant::now() + Duration::from_secs(120);
                    while writer.done.load(SeqCst) < before[nth] + 2 && !threads[nth].is_finished() {
                        ensure!(std::time::Instant::now() < deadline, "writer {nth} waits after kill {kill}");
                        sleep(Duration::from_millis(10));
                    }
                }
            }
            Ok(KILLS)
        };
        let killed = kill_all();
        over.store(true, SeqCst);
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
        }
        killed
    })?;
    // Another client sees what was acknowledged.
    let other = Mount::with(ivers, &words, &url, at("checker"), options()).context("the mount fails")?;
    let mut rounds = 0;
    for (nth, writer) in writers.iter().enumerate() {
        let done = writer.done.load(SeqCst);
        is_there(&other.dir.join(format!("w{nth}")), nth, done)?;
        let left: Vec<_> = fs::read_dir(other.dir.join(format!("w{nth}")))?.flatten().collect();
        ensure!(left.len() == done.min(10) as usize + 1, "{} names", left.len());
        rounds += done;
    }
    ensure!(mount.unmount() && other.unmount(), "the unmount fails");
    server.stop(Kind::Ivers)?;
    Ok(format!(
        "{kills} kills, {WRITERS} writers, {rounds} rounds of 11 changes: each done once, all bytes there"
    ))
}

/// The process of a mount.
fn pid_of(ivers: &Path, dir: &Path) -> Result<Pid> {
    let output = Command::new(ivers).args(["info", "--json"]).arg(dir).output()?;
    let about: serde_json::Value = serde_json::from_slice(&output.stdout).context("ivers info")?;
    let pid = about["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
    pid.with_context(|| format!("no process in {about}"))
}

fn of_the_client(setup: &Setup) -> Result<String> {
    let ivers = &setup.ivers;
    let server = Kind::Ivers.start(ivers, &crate::target_dir())?;
    let url = PathBuf::from(server.url.clone());
    let kept = tempfile::tempdir()?;
    let with_cache = format!("{},cache-dir={},cache-size=16M", options(), kept.path().display());
    let mount = |name: &str, options: &str| Mount::with(ivers, &[], &url, setup.scratch.join(name), options);
    let plain = mount("plain", options()).context("the mount fails")?;
    let mut compared = 0;
    for kill in 0..CLIENT_KILLS {
        let cached = mount("cached", &with_cache).context("the mount with a cache fails")?;
        let pid = pid_of(ivers, &cached.dir)?;
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
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let again = loop {
            if let Some(again) = mount("cached", &with_cache) {
                break again;
            }
            ensure!(std::time::Instant::now() < deadline, "the cache stays in use");
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
    Ok(format!("{CLIENT_KILLS} kills, {compared} files compared: no old bytes"))
}
