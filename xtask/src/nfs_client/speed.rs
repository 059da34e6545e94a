//! `cargo xtask nfs-client-speed`: speed beside other clients ([`super::peers`]), and the requests of work,
//! counted. Writes `docs/results/nfs-client-speed.md`.

use super::delay::Proxy;
use super::peers;
use super::servers::Kind;
use crate::suites::{Mount, Setup, trees, with_setup};
use anyhow::{Context, Result, ensure};
use clap::Args;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const PAGE: &str = "docs/results/nfs-client-speed.md";
/// Directories and files of the tree: 8,930 names.
pub(super) const TREE: u32 = 8820;
/// Files of the tree behind the slow network.
const FEWER: u32 = 600;
const DELAY: Duration = Duration::from_millis(10);

const HEAD: &str = "\
# Speed of the NFS client

For people who compare NFS clients in userspace, and for maintainers. `cargo xtask nfs-client-speed` writes
this page. [limits.md](../limits.md#files-of-a-server) has what the client does not do.
";

const REQUESTS: &str = "\
## Requests

WHEN

Counted by a proxy that delays each direction by 10 ms. The client is ivers unless another one is named.
*Waited for*: without the requests that the mount sends while no program waits for them, as the mount counts
them. Requests that an unmount sends are counted, too. For a command, it is the time that the command took,
divided by that of the shortest empty round trip: no more can have followed each other. A dash: not counted.

| work | names | requests | a name | waited for | a name |
|---|---|---|---|---|---|
";

/// The programs of others, and how long to measure.
#[derive(Args, Debug, Clone)]
pub(crate) struct Options {
    /// Where libnfs is installed (its folders `include` and `lib`), for the part "speed"
    #[arg(long, value_name = "DIR")]
    pub(super) libnfs: Option<PathBuf>,
    /// fuse-nfs, for the part "speed", and for a row of "requests"
    #[arg(long, value_name = "PROGRAM")]
    pub(super) fuse_nfs: Option<PathBuf>,
    /// How often each row is measured
    #[arg(long, default_value_t = 5)]
    pub(super) rounds: usize,
    /// Only this part; the other one stays in the page
    #[arg(long, value_parser = ["speed", "requests"])]
    only: Option<String>,
}

/// A mount of fuse-nfs.
pub(super) struct FuseNfs(PathBuf);

impl FuseNfs {
    pub(super) fn new(program: &Path, port: u16, dir: PathBuf, more: &[&str]) -> Result<Self> {
        fs::create_dir_all(&dir)?;
        let before = fs::metadata(&dir)?.dev();
        let url = format!("nfs://127.0.0.1/data?version=4&nfsport={port}");
        Command::new(program).arg("-n").arg(url).arg("-m").arg(&dir).args(more).spawn()?.wait()?;
        let begin = Instant::now();
        while fs::metadata(&dir)?.dev() == before {
            ensure!(begin.elapsed() < Duration::from_secs(20), "fuse-nfs does not mount");
            sleep(Duration::from_millis(20));
        }
        Ok(Self(dir))
    }
}

impl Drop for FuseNfs {
    fn drop(&mut self) {
        let _ = Command::new("fusermount").arg("-u").arg(&self.0).status();
    }
}

/// Asks for the attributes of all files of a tree. Returns the number of names.
pub(super) fn walk(dir: &Path) -> Result<usize> {
    let mut names = 1;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        names += if entry.metadata()?.is_dir() { walk(&entry.path())? } else { 1 };
    }
    Ok(names)
}

/// Unpacks an archive, within so many seconds.
pub(super) fn untar(archive: &Path, dir: &Path, limit: Option<&str>) -> Result<()> {
    fs::create_dir_all(dir)?;
    let mut command = Command::new("timeout");
    // 0: no limit.
    command.arg(limit.unwrap_or("0")).args(["tar", "-xf"]).arg(archive).arg("-C").arg(dir);
    let status = command.status()?;
    ensure!(status.success(), "tar fails");
    Ok(())
}

/// Makes a tree and its archive. Returns the archive and the number of names.
pub(super) fn archive(setup: &Setup, files: u32) -> Result<(PathBuf, usize)> {
    let (source, archive) =
        (setup.scratch.join(format!("source-{files}")), setup.scratch.join(format!("{files}.tar")));
    trees::fill(&source, files)?;
    let names = walk(&source)?;
    let status = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&source).arg(".").status()?;
    ensure!(status.success(), "tar fails");
    Ok((archive, names))
}

/// What is counted.
struct Count {
    what: &'static str,
    names: usize,
    requests: u64,
    /// The requests that no program waited for.
    background: Option<u64>,
}

impl Count {
    fn line(&self) -> String {
        let Self { what, names, requests, background } = self;
        let each = |count: u64| format!("{count} | {:.2}", count as f64 / *names as f64);
        let waited = background.map_or("- | -".to_owned(), |background| each(requests - background));
        format!("| {what} | {names} | {} | {waited} |", each(*requests))
    }
}

/// Counts requests, with a network that takes 10 ms each way.
fn count(setup: &Setup, options: &Options) -> Result<Vec<Count>> {
    let server = Kind::Ivers.start(&setup.ivers, &crate::target_dir())?;
    let proxy = Proxy::start(server.port(), DELAY)?;
    let (tree, names) = archive(setup, TREE)?;
    let (small_tree, few) = archive(setup, FEWER)?;
    let url = format!("nfs://127.0.0.1:{}/data", proxy.port);
    let dir = setup.scratch.join("ivers");
    let counter = |name: &str| -> Result<u64> {
        let words = [Path::new("stats"), Path::new("--json"), &dir];
        let stats = ivers_oracle::run(&setup.ivers.to_string_lossy(), words)?;
        let stats: serde_json::Value = serde_json::from_slice(&stats.stdout)?;
        stats[name].as_u64().with_context(|| format!("no counter {name}"))
    };
    let mut counts: Vec<Count> = Vec::new();
    let mut note = |what, names, requests, background| {
        let count = Count { what, names, requests, background };
        println!("{}", count.line());
        counts.push(count);
    };
    let counted = |work: &dyn Fn() -> Result<()>| -> Result<u64> {
        let before = proxy.requests();
        work()?;
        Ok(proxy.requests() - before)
    };
    // On a mount.
    let watched = |work: &dyn Fn() -> Result<()>| -> Result<(u64, Option<u64>)> {
        let background = counter("server_background_requests")?;
        let requests = counted(work)?;
        Ok((requests, Some(counter("server_background_requests")? - background)))
    };
    let mount = |options: &str| {
        let options = format!("allow_other{options}");
        Mount::with(&setup.ivers, &[], Path::new(&url), dir.clone(), &options).context("the mount fails")
    };
    let mounted = mount("")?;
    // All that tar has left to the mount is sent before the end: by a sync of the filesystem.
    let (requests, background) = watched(&|| {
        untar(&tree, &dir.join("mounted"), None)?;
        rustix::fs::syncfs(File::open(&dir)?)?;
        // The kernel does not hand every sync over: an idle mount sends what is left within a second.
        sleep(Duration::from_millis(3000));
        Ok(())
    })?;
    let before = proxy.requests();
    ensure!(mounted.unmount(), "the unmount fails");
    note("untar on a mount", names, requests + proxy.requests() - before, background);
    let mounted = mount("")?;
    untar(&small_tree, &dir.join("small"), None)?;
    ensure!(mounted.unmount(), "the unmount fails");
    let ivers = |words: &[&str]| -> Result<()> {
        let status = Command::new(&setup.ivers).args(words).status()?;
        ensure!(status.success(), "ivers {words:?}: {status}");
        Ok(())
    };
    let (place, tree_text) = (format!("{url}/command"), tree.to_string_lossy().into_owned());
    ivers(&["mkdir", &place])?;
    let round_trip = proxy.round_trip()?;
    println!("an empty round trip takes {round_trip:?}");
    let begin = Instant::now();
    let unpacked = counted(&|| ivers(&["tar", "-x", "-f", &tree_text, &place]))?;
    let one_after_another = (begin.elapsed().as_micros() / round_trip.as_micros()) as u64;
    note("`ivers tar -x`", names, unpacked, Some(unpacked.saturating_sub(one_after_another)));
    if let Some(fuse_nfs) = &options.fuse_nfs {
        let _mounted = FuseNfs::new(fuse_nfs, proxy.port, setup.scratch.join("fuse-nfs"), &[])?;
        let root = setup.scratch.join("fuse-nfs/mounted");
        note("walk after a mount, fuse-nfs", names, counted(&|| walk(&root).map(drop))?, None);
    }
    let kept = super::private_dir()?;
    let cached = format!(",cache-dir={}", kept.path().display());
    let mounted = mount(&cached)?;
    let root = dir.join("mounted");
    for what in ["walk after a mount", "walk again at once"] {
        let (requests, background) = watched(&|| walk(&root).map(drop))?;
        note(what, names, requests, background);
    }
    sleep(Duration::from_millis(3200));
    let (requests, background) = watched(&|| walk(&root).map(drop))?;
    note("walk again after the attribute timeout", names, requests, background);
    let small = dir.join("small");
    let read = || read_all(&small).map(drop);
    for what in ["first read of all files", "second read of all files"] {
        let (requests, background) = watched(&read)?;
        note(what, few, requests, background);
    }
    ensure!(mounted.unmount(), "the unmount fails");
    let mounted = mount(&cached)?;
    let (requests, background) = watched(&read)?;
    note("read of all files after a remount, cache on disk", few, requests, background);
    note("READ among them", few, counter("server_read")?, None);
    let (requests, background) = watched(&|| walk(&root).map(drop))?;
    note("walk of the large tree on this mount", names, requests, background);
    ensure!(mounted.unmount(), "the unmount fails");
    let state = setup.scratch.join("state").to_string_lossy().into_owned();
    let place = format!("{url}/mounted");
    let saved = counted(&|| ivers(&["changed", &place, "--save", &state]))?;
    note("`ivers changed --save`", names, saved, None);
    let since = counted(&|| ivers(&["changed", &place, "--since", &state]))?;
    note("`ivers changed --since`", names, since, None);
    server.stop(Kind::Ivers)?;
    Ok(counts)
}

/// Reads all files of a tree. Returns the number of bytes.
fn read_all(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            bytes += read_all(&entry.path())?;
        } else if kind.is_file() {
            bytes += fs::read(entry.path())?.len() as u64;
        }
    }
    Ok(bytes)
}

/// Returns the median and the quartiles.
pub(super) fn quartiles(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    [1, 2, 3].map(|nth| sorted[(sorted.len() - 1) * nth / 4])
}

fn requests_section(counts: &[Count]) -> Result<String> {
    let mut text = REQUESTS.replace("WHEN", &format!("Commit {}.", super::tested()?));
    for count in counts {
        writeln!(text, "{}", count.line())?;
    }
    Ok(text)
}

/// Measures, counts, and writes the page.
fn run(setup: &Setup, options: &Options) -> Result<()> {
    let old = fs::read_to_string(PAGE).unwrap_or_default();
    let kept = |title: &str| {
        let section = old.split("\n## ").find(|section| section.starts_with(title));
        section.map_or(String::new(), |section| format!("## {}\n", section.trim_end()))
    };
    let wants = |part: &str| options.only.as_ref().is_none_or(|only| only == part);
    let requests = match wants("requests") {
        true => requests_section(&count(setup, options)?)?,
        false => kept("Requests"),
    };
    let speed = match wants("speed") {
        true => peers::section(setup, options)?,
        false => kept("Beside"),
    };
    Ok(fs::write(
        PAGE,
        [HEAD, &speed, &requests]
            .iter()
            .filter(|part| !part.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join("\n"),
    )?)
}

pub(crate) fn nfs_client_speed(options: &Options) -> bool {
    with_setup(|setup| {
        let done = run(setup, options);
        Some(done.inspect_err(|error| eprintln!("xtask: nfs-client-speed: {error:#}")).is_ok())
    })
}
