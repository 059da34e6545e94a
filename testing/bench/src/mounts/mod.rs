//! Rows through FUSE: `ivers mount`, a null passthrough, fuse2fs and the kernel's ext4 on equal images, and
//! `ivers mount` and the kernel on equal images of XFS and of btrfs.
//!
//! | module | contents |
//! |---|---|
//! | [`peer`] | the contenders, and how each is mounted |
//! | [`install`] | the programs of the peers |
//! | [`work`] | workloads on a mount |
//! | [`fio`] | workloads by fio |
//! | [`build`] | a build |
//! | [mod@table] | the table as text |
//! | [`scale`] | rows with many files, which run only by name: also of `ivers serve` and of commands |

mod build;
mod fio;
mod install;
mod peer;
pub(crate) mod scale;
mod table;
mod work;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value, json};

use self::peer::{CONTENDERS, Measured, Peer};
use self::work::{Job, Trees};
use super::contenders::order;
use super::interrupt;
use super::row_filter::RowFilter;
use super::rows::Reference;
use super::statistics::{median, places, rate, spread};
use crate::args::Args;
use crate::image::{Format, Image};

pub(crate) use self::table::table;

const IVERS: &str = "ivers";
const IMAGE_BYTES: u64 = 2 << 30;
const ROUNDS: u32 = 3;

/// A row.
struct Workload {
    name: &'static str,
    job: Job,
    /// Divisor of `--ops`; 0: one operation for each file of the tree.
    divisor: u64,
    /// Figures of the patch series. If present, the modes eager and off are measured too.
    reference: Option<Reference>,
}

const fn workload(name: &'static str, job: Job, divisor: u64) -> Workload {
    Workload { name, job, divisor, reference: None }
}

const fn with_reference(
    name: &'static str,
    job: Job,
    divisor: u64,
    new_over_old: Option<f64>,
    new_over_none: Option<f64>,
    source: &'static str,
) -> Workload {
    Workload { name, job, divisor, reference: Some(Reference { new_over_old, new_over_none, source }) }
}

/// Divisor of `--ops` for builds.
const OPS_A_UNIT: u64 = 5000;
const BUILDS: &str = "kernel builds: no figure, a small gain";

/// In the order of a round: some workloads use the files of the one before.
const WORKLOADS: [Workload; 13] = [
    workload("fuse_write_1_byte", Job::Write(1), 10),
    workload("fuse_write_1_byte_stat", Job::Queried { change: false }, 10),
    workload("fuse_write_1_byte_asked", Job::Queried { change: true }, 10),
    workload("fuse_write_4k", Job::Write(4096), 100),
    workload("fuse_read_cold", Job::ReadCold, 250),
    workload("fuse_create", Job::Create, 50),
    workload("fuse_unlink", Job::Unlink, 50),
    workload("fuse_untar", Job::Untar, 0),
    workload("fuse_walk_stat", Job::WalkStat, 0),
    with_reference("fuse_build", Job::Build, OPS_A_UNIT, None, None, BUILDS),
    with_reference("fuse_build_again", Job::BuildAgain, OPS_A_UNIT, None, None, BUILDS),
    with_reference(
        "fuse_fio_4k_8_jobs",
        Job::Fio(fio::Job::EightJobs),
        1,
        Some(1.29),
        Some(0.94),
        "fio, sequential 4 KiB writes, 8 jobs, on ext4",
    ),
    with_reference(
        "fuse_msync",
        Job::Fio(fio::Job::Msync),
        1,
        Some(1.435),
        None,
        "vm-scalability case-msync-mt",
    ),
];

impl Workload {
    fn ops(&self, args: &Args, trees: &Trees) -> u64 {
        match self.divisor {
            0 => trees.user_tree.entries,
            divisor => (args.ops / divisor).max(1),
        }
    }

    /// Returns the operations of one contender, which can be limited by its open files.
    fn ops_of(&self, peer: &Peer, ops: u64, descriptors: u64) -> u64 {
        match (self.job, peer.kind) {
            // The passthrough keeps a descriptor for each file; a tenth is left for other use.
            (Job::Create | Job::Unlink, peer::Kind::Null(_)) => ops.min(descriptors - descriptors / 10),
            _ => ops,
        }
    }

    /// Returns whether a contender takes part.
    fn is_for(&self, peer: &Peer) -> bool {
        self.reference.is_some() || !peer.kind.is_other_mode()
    }

    /// Returns the reason why the workload cannot run here.
    fn missing(&self) -> Option<String> {
        match self.job {
            Job::Fio(_) => fio::missing(),
            Job::Build | Job::BuildAgain => build::missing(),
            Job::ReadCold => work::cold_reads_missing(),
            _ => None,
        }
    }
}

fn row(number: usize, rounds: u32, peers: &[Peer], missing: &Map<String, Value>) -> Value {
    let workload = &WORKLOADS[number];
    let mut row = json!({ "name": workload.name, "fs": "ext4", "unit": "ops/s", "rounds": rounds });
    if let Some(why) = workload.missing() {
        row["missing"] = why.into();
        return row;
    }
    let measured = |name: &str| {
        let peer = peers.iter().find(|peer| peer.name == name)?;
        let measured = &peer.measured[number];
        (!measured.ns_per_op.is_empty() && measured.failed.is_none()).then_some(measured)
    };
    let Some(ours) = measured(IVERS) else { return row };
    let ns = |measured: &Measured| median(&measured.ns_per_op);
    row["ops"] = ours.ops.into();
    for (label, name) in [("old", "ivers_eager"), ("new", IVERS), ("none", "ivers_off")] {
        let Some(measured) = measured(name) else { continue };
        row[label] = json!(rate(ns(measured)));
        row["ns_per_op"][label] = json!(places(ns(measured), 1));
        row["inode_updates"][label] = measured.counts.inode_updates.into();
        row["journal_blocks"][label] = measured.counts.journal_blocks.into();
        row["queries"][label] = measured.counts.queries.into();
        if label != "new" {
            let key = format!("new_over_{label}");
            row[&key] = json!(places(ns(measured) / ns(ours).max(1e-3), 3));
            row["spread"][&key] = spread(&measured.ns_per_op, &ours.ns_per_op);
        }
    }
    for name in ["peers", "new_over_peer"] {
        row[name] = json!({});
    }
    for peer in peers.iter().filter(|peer| workload.is_for(peer)) {
        let Some(measured) = measured(peer.name) else { continue };
        let name = peer.name;
        row["seconds"][name] = json!(places(median(&measured.seconds), 4));
        row["options"][name] = peer.kind.options().into();
        if measured.ops != ours.ops && !matches!(workload.job, Job::Fio(_)) {
            row["peer_ops"][name] = measured.ops.into();
        }
        if measured.queries_by_process > 0 {
            row["asked"][name] = measured.queries_by_process.into();
        }
        if name != IVERS && !peer.kind.is_other_mode() {
            row["peers"][name] = json!({ "value": rate(ns(measured)), "ns_per_op": places(ns(measured), 1) });
            row["new_over_peer"][name] = json!(places(ns(measured) / ns(ours).max(1e-3), 3));
            row["spread"]["new_over_peer"][name] = spread(&measured.ns_per_op, &ours.ns_per_op);
        }
        if !measured.latency_ns[0].is_empty() {
            let [p50, p99, p999, longest] = &measured.latency_ns;
            let longest = longest.iter().copied().fold(0.0, f64::max);
            let latency =
                json!({ "p50": median(p50), "p99": median(p99), "p999": median(p999), "max": longest });
            match name {
                IVERS => row["latency_ns"]["new"] = latency,
                "ivers_eager" => row["latency_ns"]["old"] = latency,
                "ivers_off" => row["latency_ns"]["none"] = latency,
                peer => row["peers"][peer]["latency_ns"] = latency,
            }
        }
    }
    if let Some(reference) = workload.reference {
        row["patch_series"] = reference.to_json();
    }
    let failed = peers
        .iter()
        .filter_map(|peer| Some((peer.name.to_owned(), peer.measured[number].failed.clone()?.into())));
    let missing: Map<_, Value> = missing.clone().into_iter().chain(failed).collect();
    if !missing.is_empty() {
        row["peers_missing"] = missing.into();
    }
    row
}

fn round(peer: &mut Peer, number: usize, round: u32, ops: u64, trees: &Trees) -> Result<()> {
    let job = WORKLOADS[number].job;
    let done = work::work(peer, job, ops, round, trees)?;
    let measured = &mut peer.measured[number];
    measured.counts.add(done.counts);
    measured.ops = done.ops;
    measured.queries_by_process += done.queries;
    measured.seconds.push(done.seconds);
    measured.ns_per_op.push(done.seconds * 1e9 / done.ops.max(1) as f64);
    for (samples, ns) in measured.latency_ns.iter_mut().zip(done.latency_ns.into_iter().flatten()) {
        samples.push(ns);
    }
    Ok(())
}

/// Returns the reason why no row can run.
pub(crate) fn missing() -> Option<&'static str> {
    let fuse = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    fuse.is_err().then_some("cannot open /dev/fuse")
}

/// Returns the names of all rows.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    WORKLOADS.iter().map(|workload| workload.name)
}

/// Returns the indexes of the selected rows and of the rows that they depend on.
fn chosen(filter: &RowFilter<'_>) -> Vec<usize> {
    let is_named = |number: usize| filter.words().is_empty() || filter.selects(WORKLOADS[number].name);
    let is_wanted = |&number: &usize| {
        is_named(number)
            || (WORKLOADS[number].job.leaves_work() && is_named(number + 1))
            || (number > 0 && WORKLOADS[number - 1].job.leaves_work() && is_named(number - 1))
    };
    (0..WORKLOADS.len()).filter(is_wanted).collect()
}

/// Measures all selected rows.
pub(crate) fn rows(args: &Args, filter: &RowFilter<'_>) -> Result<Vec<Value>> {
    if let Some(why) = missing() {
        return Err(anyhow!("bench --fuse: {why}"));
    }
    install::install(args.install_peers)?;
    let descriptors = install::raise_descriptor_limit();
    let rounds = args.fuse_rounds.or(args.rounds.filter(|_| args.fuse)).unwrap_or(ROUNDS);
    let scratch = tempfile::Builder::new().prefix("ivers-bench-").tempdir()?;
    let trees = Trees::new(&args.tree, (args.ops / OPS_A_UNIT).max(1), scratch.path())?;
    let mut missing = Map::new();
    let mut peers = Vec::new();
    for (name, kind, format) in CONTENDERS {
        let peer = peer::program(kind, args).and_then(|program| {
            let image = Image { format, bytes: IMAGE_BYTES };
            Peer::new(name, kind, program, scratch.path(), image).map_err(|why| format!("{why:#}"))
        });
        match peer {
            Ok(peer) => peers.push(peer),
            Err(why) if matches!(kind, peer::Kind::Ivers(_)) && format == Format::Ext4 => bail!(why),
            Err(why) => _ = missing.insert(name.into(), why.into()),
        }
    }
    let chosen = chosen(filter);
    let can_be_done: Vec<usize> =
        chosen.iter().copied().filter(|&number| WORKLOADS[number].missing().is_none()).collect();
    let bar = crate::progress_bar(args, u64::from(rounds) * (can_be_done.len() * peers.len()) as u64)?;
    for turn in 0..rounds {
        for &number in &can_be_done {
            let workload = &WORKLOADS[number];
            let ops = workload.ops(args, &trees);
            for at in order(turn.into(), peers.len()) {
                let peer = &mut peers[at];
                let what = format!("{} {}", workload.name, peer.name);
                bar.inc(1);
                bar.set_message(what.clone());
                interrupt::check()?;
                if !workload.is_for(peer) || peer.measured[number].failed.is_some() {
                    continue;
                }
                let ops = workload.ops_of(peer, ops, descriptors);
                match round(peer, number, turn, ops, &trees).context(what) {
                    Err(error) if !matches!(peer.kind, peer::Kind::Ivers(_)) => {
                        peer.measured[number].failed = Some(format!("{error:#}"));
                    }
                    other => other?,
                }
            }
        }
    }
    for peer in &mut peers {
        peer.unmount()?;
    }
    Ok(chosen.into_iter().map(|number| row(number, rounds, &peers, &missing)).collect())
}
