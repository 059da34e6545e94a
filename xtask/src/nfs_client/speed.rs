//! `cargo xtask nfs-client-speed`: mounts of ours beside other clients in userspace, on one server of ours.
//! The contenders take turns within each round. Writes `docs/results/nfs-client-speed.md`.

use super::delay::Proxy;
use super::servers::Kind;
use crate::suites::{Mount, Setup, trees, with_setup};
use anyhow::{Context, Result, ensure};
use clap::Args;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const PAGE: &str = "docs/results/nfs-client-speed.md";
/// Directories and files of the tree: 8,930 names.
const TREE: u32 = 8820;
/// Files of the tree behind the slow network.
const FEWER: u32 = 600;
const DELAY: Duration = Duration::from_millis(10);
/// Files of a row without data.
const FILES: usize = 400;
const DATA_LEN: usize = 64 << 20;
/// How often attributes are asked for.
const ASKED: usize = 4000;

const HEAD: &str = "\
# Speed of the NFS client

For people who compare NFS clients in userspace, and for maintainers. `cargo xtask nfs-client-speed` writes
this page. [limits.md](../limits.md#files-of-a-server) has what the client does not do.
";

const SPEED: &str = "\
## Beside other clients

WHEN

One server, `ivers serve` with ext4, over the loopback device. ROUNDS rounds; the clients take turns. The
table has operations a second (median), and ratios of single rounds: median [quartiles]. Above 1, ivers is
faster. *fuse-nfs* and *libnfs* (fio's engine `nfs`) use NFSv4.0, ivers NFSv4.2. Reads and writes on mounts
are direct. fuse-nfs cannot unpack an archive: it opens a file that it creates for reading, so that its writes
fail.

| row | ivers | fuse-nfs | over fuse-nfs | libnfs | over libnfs |
|---|---|---|---|---|---|
";

const REQUESTS: &str = "\
## Requests

WHEN

Counted by a proxy that delays each direction by 10 ms. The client is ivers unless another one is named.
*Waited for*: without the requests that the mount sends while no program waits for them, as the mount counts
them. Requests that an unmount sends are counted, too. For a command, it is the time that the command took,
divided by that of a round trip: no more can have followed each other. A dash: not counted.

| work | names | requests | a name | waited for | a name |
|---|---|---|---|---|---|
";

/// The programs of others, and how long to measure.
#[derive(Args, Debug, Clone)]
pub(crate) struct Options {
    /// fio with the engine "nfs" of libnfs, for the part "speed"
    #[arg(long, value_name = "PROGRAM")]
    fio: Option<PathBuf>,
    /// fuse-nfs, also of libnfs, for the part "speed", and for a row of "requests"
    #[arg(long, value_name = "PROGRAM")]
    fuse_nfs: Option<PathBuf>,
    /// How often each row is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of a row of fio
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Only this part; the other one stays in the page
    #[arg(long, value_parser = ["speed", "requests"])]
    only: Option<String>,
}

/// The rows of fio: name, pattern, block size, depth.
const ROWS: [(&str, &str, &str, u32); 4] = [
    ("write 4 KiB, depth 1", "randwrite", "4k", 1),
    ("write 4 KiB, depth 16", "randwrite", "4k", 16),
    ("write 1 MiB", "write", "1m", 1),
    ("read 1 MiB", "read", "1m", 1),
];

/// A mount of fuse-nfs.
struct FuseNfs(PathBuf);

impl FuseNfs {
    fn new(program: &Path, port: u16, dir: PathBuf, more: &[&str]) -> Result<Self> {
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

/// Runs fio and returns its operations a second.
fn fio(options: &Options, target: &[String], row: (&str, &str, &str, u32)) -> Result<f64> {
    let (_, pattern, size, _) = row;
    let output = Command::new(options.fio.as_ref().context("no --fio")?)
        .args(["--name=row", "--output-format=json", "--size=64m", "--time_based", "--group_reporting"])
        .args([format!("--rw={pattern}"), format!("--bs={size}"), format!("--runtime={}", options.seconds)])
        .args(target)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = said.find('{').and_then(|at| serde_json::from_str::<serde_json::Value>(&said[at..]).ok());
    let json = json.with_context(|| ivers_oracle::said(&output))?;
    let job = &json["jobs"][0];
    ensure!(job["error"].as_i64() == Some(0), "fio: {}", ivers_oracle::said(&output));
    let side = if pattern.contains("read") { "read" } else { "write" };
    let rate = job[side]["iops"].as_f64().filter(|rate| *rate > 0.0);
    rate.with_context(|| format!("fio has done nothing: {}", ivers_oracle::said(&output)))
}

/// Returns the options of fio for a mount: every operation goes to the server.
fn on_mount(dir: &Path, depth: u32) -> Vec<String> {
    let file = format!("--filename={}/data", dir.display());
    vec!["--ioengine=psync".into(), "--direct=1".into(), format!("--numjobs={depth}"), file]
}

fn over_libnfs(port: u16, depth: u32) -> Vec<String> {
    vec![
        "--ioengine=nfs".into(),
        format!("--nfs_url=nfs://127.0.0.1/data?version=4&nfsport={port}"),
        format!("--iodepth={depth}"),
        "--filename=data".into(),
    ]
}

/// Operations a second of `work`, which does `count` of them.
fn rate(count: usize, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

fn create_and_unlink(dir: &Path) -> Result<()> {
    for nth in 0..FILES {
        let name = dir.join(format!("created-{nth}"));
        drop(File::create_new(&name)?);
        fs::remove_file(&name)?;
    }
    Ok(())
}

/// Asks for the attributes of all files of a tree. Returns the number of names.
fn walk(dir: &Path) -> Result<usize> {
    let mut names = 1;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        names += if entry.metadata()?.is_dir() { walk(&entry.path())? } else { 1 };
    }
    Ok(names)
}

fn untar(archive: &Path, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let status = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(dir).status()?;
    ensure!(status.success(), "tar fails");
    Ok(())
}

/// Makes a tree and its archive. Returns the archive and the number of names.
fn archive(setup: &Setup, files: u32) -> Result<(PathBuf, usize)> {
    let (source, archive) =
        (setup.scratch.join(format!("source-{files}")), setup.scratch.join(format!("{files}.tar")));
    trees::fill(&source, files)?;
    let names = walk(&source)?;
    let status = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&source).arg(".").status()?;
    ensure!(status.success(), "tar fails");
    Ok((archive, names))
}

/// The measured rates of a row, by contender.
type Rates = BTreeMap<&'static str, Vec<f64>>;

const CONTENDERS: [&str; 3] = ["ivers", "fuse-nfs", "libnfs"];

fn measure(setup: &Setup, options: &Options) -> Result<Vec<(String, Rates)>> {
    let server = Kind::Ivers.start(&setup.ivers, &crate::target_dir())?;
    let port = server.port();
    let fuse_nfs = options.fuse_nfs.as_ref().context("no --fuse-nfs")?;
    let (tree, names) = archive(setup, TREE)?;
    let mut rows: Vec<(String, Rates)> = Vec::new();
    let mut note = |row: &str, who: &'static str, rate: f64| {
        println!("{row}: {who}: {rate:.0} a second");
        let at = rows.iter().position(|(name, _)| name == row).unwrap_or_else(|| {
            rows.push((row.to_owned(), Rates::new()));
            rows.len() - 1
        });
        rows[at].1.entry(who).or_default().push(rate);
    };
    let url = PathBuf::from(&server.url);
    let ours = setup.scratch.join("ivers");
    let mount = || Mount::with(&setup.ivers, &[], &url, ours.clone(), "allow_other");
    // fuse-nfs cannot write to a file that it creates: it opens such a file for reading only.
    let mounted = mount().context("the mount fails")?;
    fs::write(ours.join("data"), vec![1; DATA_LEN])?;
    untar(&tree, &ours.join("tree-first"))?;
    ensure!(mounted.unmount(), "the unmount fails");
    for round in 0..options.rounds {
        // The contenders take turns: each is first in some rounds.
        for turn in 0..CONTENDERS.len() {
            let who = CONTENDERS[(round + turn) % CONTENDERS.len()];
            let dir = setup.scratch.join(who);
            let mounts = |caches: bool| -> Result<(Option<Mount<'_>>, Option<FuseNfs>)> {
                let (ours, theirs) =
                    if caches { ("", &[][..]) } else { (",actimeo=0", &["-T", "0", "-E", "0"][..]) };
                let options_of_ours = format!("allow_other{ours}");
                Ok(match who {
                    "ivers" => {
                        let mount = Mount::with(&setup.ivers, &[], &url, dir.clone(), &options_of_ours);
                        (Some(mount.context("the mount fails")?), None)
                    }
                    "fuse-nfs" => (None, Some(FuseNfs::new(fuse_nfs, port, dir.clone(), theirs)?)),
                    _ => (None, None),
                })
            };
            let end = |mounted: (Option<Mount<'_>>, Option<FuseNfs>)| -> Result<()> {
                ensure!(mounted.0.is_none_or(Mount::unmount), "the unmount fails");
                Ok(())
            };
            let mounted = mounts(true)?;
            for row in ROWS {
                let target = if who == "libnfs" { over_libnfs(port, row.3) } else { on_mount(&dir, row.3) };
                note(row.0, who, fio(options, &target, row)?);
            }
            if who == "libnfs" {
                continue;
            }
            note("create and unlink", who, rate(FILES, || create_and_unlink(&dir))?);
            if who == "ivers" {
                let root = dir.join(format!("tree-{round}"));
                note("untar, names", who, rate(names, || untar(&tree, &root))?);
            }
            end(mounted)?;
            let root = dir.join("tree-first");
            let mounted = mounts(true)?;
            note("walk after a mount, names", who, rate(names, || walk(&root).map(drop))?);
            note("walk again at once, names", who, rate(names, || walk(&root).map(drop))?);
            end(mounted)?;
            let mounted = mounts(false)?;
            let file = File::open(dir.join("data"))?;
            let ask = || -> Result<()> { Ok((0..ASKED).try_for_each(|_| file.metadata().map(|_| ()))?) };
            note("GETATTR", who, rate(ASKED, ask)?);
            drop(file);
            end(mounted)?;
        }
    }
    server.stop(Kind::Ivers)?;
    Ok(rows)
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
        untar(&tree, &dir.join("mounted"))?;
        rustix::fs::syncfs(File::open(&dir)?)?;
        // The kernel does not hand every sync over: an idle mount sends what is left within a second.
        sleep(Duration::from_millis(3000));
        Ok(())
    })?;
    let before = proxy.requests();
    ensure!(mounted.unmount(), "the unmount fails");
    note("untar on a mount", names, requests + proxy.requests() - before, background);
    let mounted = mount("")?;
    untar(&small_tree, &dir.join("small"))?;
    ensure!(mounted.unmount(), "the unmount fails");
    let ivers = |words: &[&str]| -> Result<()> {
        let status = Command::new(&setup.ivers).args(words).status()?;
        ensure!(status.success(), "ivers {words:?}: {status}");
        Ok(())
    };
    let (place, tree_text) = (format!("{url}/command"), tree.to_string_lossy().into_owned());
    ivers(&["mkdir", &place])?;
    let begin = Instant::now();
    let unpacked = counted(&|| ivers(&["tar", "-x", "-f", &tree_text, &place]))?;
    let one_after_another = (begin.elapsed().as_micros() / (2 * DELAY).as_micros()) as u64;
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
fn quartiles(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    [1, 2, 3].map(|nth| sorted[(sorted.len() - 1) * nth / 4])
}

fn speed_section(rows: &[(String, Rates)], options: &Options) -> Result<String> {
    let mut text = SPEED
        .replace("WHEN", &format!("Commit {}, release build.", super::tested()?))
        .replace("ROUNDS", &options.rounds.to_string());
    for (row, rates) in rows {
        let median =
            |who: &str| rates.get(who).map_or("-".to_owned(), |of| format!("{:.0}", quartiles(of)[1]));
        let over = |who: &str| match (rates.get("ivers"), rates.get(who)) {
            (Some(ours), Some(theirs)) => {
                let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
                let [low, middle, high] = quartiles(&ratios);
                format!("{middle:.2} [{low:.2}, {high:.2}]")
            }
            _ => "-".to_owned(),
        };
        let (ours, fuse, lib) = (median("ivers"), median("fuse-nfs"), median("libnfs"));
        let (over_fuse, over_lib) = (over("fuse-nfs"), over("libnfs"));
        writeln!(text, "| {row} | {ours} | {fuse} | {over_fuse} | {lib} | {over_lib} |")?;
    }
    Ok(text)
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
        true => speed_section(&measure(setup, options)?, options)?,
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
