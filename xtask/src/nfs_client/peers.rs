//! Speed beside other clients in userspace, on one server of ours: mounts beside mounts, and programs that
//! use a client as a library beside each other. All do the same work. They take turns within each round.

use super::servers::{Kind, Server};
use super::speed::{FuseNfs, Options, TREE, archive, quartiles, untar, walk};
use crate::suites::{Mount, Setup};
use anyhow::{Context, Result, bail, ensure};
use ivers_oracle::said;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

const MIB: usize = 1 << 20;
const DATA_MIB: usize = 64;
/// The longest that a peer may take for an operation of a row, in seconds.
const PATIENCE: &str = "120";

/// The program that works with libnfs.
const LIBNFS: &str = include_str!("libnfs.c");

const HEAD: &str = "\
## Beside other clients

WHEN

One server, `ivers serve` with ext4, over the loopback device. ROUNDS rounds, each with a new image; the
clients take turns. A cell has operations a second (median); the last column has ratios of single rounds,
median [quartiles]. Above 1, ivers is faster. A dash: the program fails or takes longer than two minutes, or
was not there.

- *write*: at random places of a file of 64 MiB, which is synced at the end. *durable*: each write is durable
  when it returns (O_DSYNC; a direct write of ivers's client; DATA_SYNC4 of libnfs).
- *GETATTR* asks the server each time. *write 1 MiB* fills a new file and syncs it.
- *untar* unpacks 8,930 names, and *walk* asks for the attributes of each. In one process, `ivers tar -x`
  unpacks an archive, and the program with libnfs copies the tree that is in it.
- ivers uses NFSv4.2, the others 4.0. After *untar* everything is sent: ivers's mount is unmounted, and
  libnfs commits each file when it closes it.
- fuse-nfs was last changed in 2022. Here it has the order of arguments that libnfs 6 requires, and sends
  modes without the type of the file, which a server of NFSv4 must refuse.
- libnfs asks for up to 1 MiB of a listing at a time, ivers for 128 KiB.
";

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Write { depth: usize, durable: bool },
    GetAttr,
    Create,
    WriteLarge,
    ReadLarge,
    Untar,
    Walk,
    WalkAgain,
}

/// A row: its name, and how many operations it has. 0: one for each name of the tree.
type Row = (&'static str, Work, u64);

const ROWS: [Row; 11] = [
    ("write 4 KiB, depth 1", Work::Write { depth: 1, durable: false }, 8000),
    ("write 4 KiB, depth 16", Work::Write { depth: 16, durable: false }, 16000),
    ("write 4 KiB, depth 1, durable", Work::Write { depth: 1, durable: true }, 1500),
    ("write 4 KiB, depth 16, durable", Work::Write { depth: 16, durable: true }, 4000),
    ("GETATTR", Work::GetAttr, 6000),
    ("create and unlink", Work::Create, 600),
    ("write 1 MiB", Work::WriteLarge, 128),
    ("read 1 MiB", Work::ReadLarge, 256),
    ("untar, names", Work::Untar, 0),
    ("walk, names", Work::Walk, 0),
    ("walk again at once, names", Work::WalkAgain, 0),
];

/// Who does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Client {
    Mount,
    FuseNfs,
    InProcess,
    Libnfs,
}

const CLIENTS: [Client; 4] = [Client::Mount, Client::FuseNfs, Client::InProcess, Client::Libnfs];

/// Tables of the page: a title, ours and theirs.
const TABLES: [(&str, Client, Client, &str); 2] = [
    ("Mounts", Client::Mount, Client::FuseNfs, "fuse-nfs"),
    ("Libraries, in one process", Client::InProcess, Client::Libnfs, "libnfs"),
];

/// The programs and files of a run.
struct Peers<'a> {
    setup: &'a Setup,
    options: &'a Options,
    /// Our program that works in one process, and that of libnfs.
    ours: PathBuf,
    libnfs: Option<PathBuf>,
    tree: PathBuf,
    source: PathBuf,
    names: u64,
}

/// The measured rates: of a row and a client, one a round.
type Rates = BTreeMap<(&'static str, Client), Vec<Option<f64>>>;

/// Does a part of the work of a row with `depth` threads.
fn write_small(dir: &Path, count: u64, depth: usize, durable: bool) -> Result<()> {
    let flags = if durable { OFlags::DSYNC } else { OFlags::empty() };
    let file = File::options().write(true).custom_flags(flags.bits() as i32).open(dir.join("data"))?;
    let (next, bytes) = (AtomicU64::new(0), [7; 4096]);
    let one = || -> Result<()> {
        loop {
            let nth = next.fetch_add(1, Relaxed);
            if nth >= count {
                return Ok(());
            }
            let random = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            file.write_all_at(&bytes, random % ((DATA_MIB * MIB) as u64 / 4096) * 4096)?;
        }
    };
    std::thread::scope(|threads| {
        let all: Vec<_> = (0..depth).map(|_| threads.spawn(one)).collect();
        all.into_iter().try_for_each(|thread| thread.join().expect("a writer panics"))
    })?;
    Ok(file.sync_all()?)
}

fn write_large(dir: &Path, count: u64) -> Result<()> {
    let (file, bytes) = (File::create(dir.join("large"))?, vec![7; MIB]);
    (0..count).try_for_each(|nth| file.write_all_at(&bytes, nth * MIB as u64))?;
    Ok(file.sync_all()?)
}

fn read_large(dir: &Path, count: u64) -> Result<()> {
    // The kernel's pages would answer from the second MiB on.
    let file =
        File::options().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(dir.join("data"))?;
    let mut room = vec![0; MIB + 4096];
    let at = room.as_ptr().align_offset(4096);
    let bytes = &mut room[at..at + MIB];
    (0..count).try_for_each(|nth| file.read_exact_at(bytes, nth % DATA_MIB as u64 * MIB as u64))?;
    Ok(())
}

fn create(dir: &Path, count: u64) -> Result<()> {
    for nth in 0..count {
        let name = dir.join(format!("created-{nth}"));
        drop(File::create_new(&name)?);
        fs::remove_file(&name)?;
    }
    Ok(())
}

/// Runs a program that prints how many seconds its work took.
fn seconds(program: &Path, words: &[String]) -> Result<f64> {
    let output = Command::new("timeout").arg(PATIENCE).arg(program).args(words).output()?;
    ensure!(output.status.success(), "{} {words:?}: {}", program.display(), said(&output));
    String::from_utf8_lossy(&output.stdout).trim().parse().context("no time")
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed().as_secs_f64())
}

impl Peers<'_> {
    /// Does the work of a row on a mount. Returns the seconds that it took.
    fn on_mount(&self, dir: &Path, (_, work, count): Row) -> Result<f64> {
        match work {
            Work::Write { depth, durable } => timed(|| write_small(dir, count, depth, durable)),
            Work::WriteLarge => timed(|| write_large(dir, count)),
            Work::ReadLarge => timed(|| read_large(dir, count)),
            Work::Create => timed(|| create(dir, count)),
            Work::Untar => timed(|| untar(&self.tree, &dir.join("unpacked"), Some(PATIENCE))),
            Work::Walk | Work::WalkAgain => timed(|| {
                let names = walk(&dir.join("tree"))?;
                ensure!(names as u64 == self.names, "{names} names");
                Ok(())
            }),
            Work::GetAttr => {
                let file = File::open(dir.join("data"))?;
                timed(|| Ok((0..count).try_for_each(|_| file.metadata().map(drop))?))
            }
        }
    }

    /// The same of a program that uses a client as a library.
    fn in_process(&self, client: Client, server: &Server, (_, work, count): Row) -> Result<f64> {
        let count = if count == 0 { self.names } else { count };
        let (word, more) = match work {
            Work::Write { depth, durable: false } => ("write", depth.to_string()),
            Work::Write { depth, durable: true } => ("durable", depth.to_string()),
            Work::GetAttr => ("getattr", String::new()),
            Work::Create => ("create", String::new()),
            Work::WriteLarge => ("write-large", String::new()),
            Work::ReadLarge => ("read-large", String::new()),
            Work::Walk => ("walk", "/tree".to_owned()),
            Work::Untar => ("unpack", self.source.to_string_lossy().into_owned()),
            Work::WalkAgain => bail!("nothing is kept"),
        };
        if client == Client::Libnfs {
            let url = format!("nfs://127.0.0.1/data?version=4&nfsport={}", server.port());
            let program = self.libnfs.as_ref().context("no --libnfs")?;
            return seconds(program, &[url, count.to_string(), word.into(), more, "/copied".into()]);
        }
        if work == Work::Untar {
            let place = format!("{}/command", server.url);
            let ivers = self.setup.ivers.to_string_lossy();
            ivers_oracle::run(&ivers, ["mkdir", &place])?;
            let words = ["tar", "-x", "-f", &*self.tree.to_string_lossy(), &place].map(str::to_owned);
            return timed(|| ivers_oracle::run(&ivers, &words).map(drop));
        }
        let address = format!("127.0.0.1:{}", server.port());
        seconds(&self.ours, &[address, "/data".into(), count.to_string(), word.into(), more])
    }

    /// Calls `work` with a mount of a client. `asks`: it keeps no attributes. Returns what `work` returned;
    /// the seconds of `work` include the unmount if `unmounts`.
    fn mounted(
        &self,
        client: Client,
        server: &Server,
        asks: bool,
        unmounts: bool,
        work: &mut dyn FnMut(&Path) -> Result<f64>,
    ) -> Result<f64> {
        let dir = self.setup.scratch.join(format!("{client:?}"));
        if client == Client::FuseNfs {
            let program = self.options.fuse_nfs.as_ref().context("no --fuse-nfs")?;
            let keeps: &[&str] = if asks { &["-T", "0", "-E", "0"] } else { &[] };
            let _mount = FuseNfs::new(program, server.port(), dir.clone(), keeps)?;
            return work(&dir);
        }
        let options = if asks { "allow_other,actimeo=0" } else { "allow_other" };
        let mount = Mount::with(&self.setup.ivers, &[], Path::new(&server.url), dir.clone(), options);
        let mount = mount.context("the mount fails")?;
        let seconds = work(&dir)?;
        let begin = Instant::now();
        ensure!(mount.unmount(), "the unmount fails");
        Ok(if unmounts { seconds + begin.elapsed().as_secs_f64() } else { seconds })
    }

    fn round(&self, round: usize, rates: &mut Rates) -> Result<()> {
        let server = Kind::Ivers.start(&self.setup.ivers, &crate::target_dir())?;
        let ivers = self.setup.ivers.to_string_lossy();
        let [data, tree] = ["data", "tree"].map(|name| format!("{}/{name}", server.url));
        let local = self.setup.scratch.join("data");
        fs::write(&local, vec![1; DATA_MIB * MIB])?;
        ivers_oracle::run(&ivers, ["cp", &*local.to_string_lossy(), &data])?;
        ivers_oracle::run(&ivers, ["mkdir", &tree])?;
        ivers_oracle::run(&ivers, ["tar", "-x", "-f", &*self.tree.to_string_lossy(), &tree])?;
        for turn in 0..CLIENTS.len() {
            let client = CLIENTS[(round + turn) % CLIENTS.len()];
            for row in ROWS {
                let seconds = match (client, row.1) {
                    (Client::InProcess | Client::Libnfs, _) => self.in_process(client, &server, row),
                    (_, Work::WalkAgain) => {
                        let both = &mut |dir: &Path| -> Result<f64> {
                            self.on_mount(dir, row)?;
                            self.on_mount(dir, row)
                        };
                        self.mounted(client, &server, false, false, both)
                    }
                    (_, work) => {
                        let (asks, unmounts) = (work == Work::GetAttr, work == Work::Untar);
                        let mut once = |dir: &Path| self.on_mount(dir, row);
                        self.mounted(client, &server, asks, unmounts, &mut once)
                    }
                };
                let count = if row.2 == 0 { self.names } else { row.2 };
                let rate = seconds.map(|seconds| count as f64 / seconds);
                match &rate {
                    Ok(rate) => println!("{}: {client:?}: {rate:.0} a second", row.0),
                    Err(error) => println!("{}: {client:?}: {error:#}", row.0),
                }
                // What ours cannot do is a failure of the run.
                let is_ours = matches!(client, Client::Mount | Client::InProcess);
                if is_ours && !(client == Client::InProcess && row.1 == Work::WalkAgain) && rate.is_err() {
                    rate?;
                    continue;
                }
                rates.entry((row.0, client)).or_default().push(rate.ok());
            }
        }
        server.stop(Kind::Ivers)
    }
}

fn table(rates: &Rates, (title, ours, theirs, name): (&str, Client, Client, &str)) -> Result<String> {
    let mut text =
        format!("### {title}\n\n| row | ivers | {name} | ivers over {name} |\n|---|---|---|---|\n");
    for (row, ..) in ROWS {
        let of = |client| rates.get(&(row, client)).map_or(&[][..], Vec::as_slice);
        let median = |client| {
            let known: Vec<f64> = of(client).iter().flatten().copied().collect();
            if known.is_empty() { "-".to_owned() } else { format!("{:.0}", quartiles(&known)[1]) }
        };
        let pairs = of(ours).iter().zip(of(theirs));
        let ratios: Vec<f64> = pairs.filter_map(|(ours, theirs)| Some((*ours)? / (*theirs)?)).collect();
        let ratio = if ratios.is_empty() {
            "-".to_owned()
        } else {
            let [low, middle, high] = quartiles(&ratios);
            format!("{middle:.2} [{low:.2}, {high:.2}]")
        };
        if of(ours).iter().any(Option::is_some) {
            writeln!(text, "| {row} | {} | {} | {ratio} |", median(ours), median(theirs))?;
        }
    }
    Ok(text)
}

/// Measures, and returns the section of the page.
pub(super) fn section(setup: &Setup, options: &Options) -> Result<String> {
    let (tree, names) = archive(setup, TREE)?;
    let cargo = ["build", "--release", "-p", "ivers-nfs", "--example", "work"];
    ensure!(crate::run("ivers in one process", "cargo", &cargo, &[]), "the program does not build");
    let mut peers = Peers {
        setup,
        options,
        ours: crate::target_dir().join("release/examples/work"),
        libnfs: None,
        source: setup.scratch.join(format!("source-{TREE}")),
        tree,
        names: names as u64,
    };
    if let Some(prefix) = &options.libnfs {
        let (source, program) = (setup.scratch.join("libnfs.c"), setup.scratch.join("libnfs"));
        fs::write(&source, LIBNFS)?;
        let lib = prefix.join("lib");
        let words = [
            "-O2".into(),
            "-Wall".into(),
            format!("-I{}", prefix.join("include").display()),
            source.to_string_lossy().into_owned(),
            "-o".into(),
            program.to_string_lossy().into_owned(),
            format!("-L{}", lib.display()),
            "-lnfs".into(),
            format!("-Wl,-rpath,{}", lib.display()),
        ];
        ivers_oracle::run("gcc", &words)?;
        peers.libnfs = Some(program);
    }
    let mut rates = Rates::new();
    (0..options.rounds).try_for_each(|round| peers.round(round, &mut rates))?;
    let mut text = HEAD
        .replace("WHEN", &format!("Commit {}, release build.", super::tested()?))
        .replace("ROUNDS", &options.rounds.to_string());
    for one in TABLES {
        text.push('\n');
        text.push_str(&table(&rates, one)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_fails_in_a_round_counts_in_the_others() {
        let mut rates = Rates::new();
        rates.insert(("GETATTR", Client::InProcess), vec![Some(10.0), Some(30.0), Some(20.0)]);
        rates.insert(("GETATTR", Client::Libnfs), vec![Some(5.0), None, Some(5.0)]);
        rates.insert(("create and unlink", Client::InProcess), vec![Some(7.0)]);
        let text = table(&rates, TABLES[1]).unwrap();
        assert!(text.contains("| GETATTR | 20 | 5 | 2.00 [2.00, 2.00] |"), "{text}");
        assert!(text.contains("| create and unlink | 7 | - | - |"), "{text}");
        assert!(!text.contains("| untar"), "{text}");
    }
}
