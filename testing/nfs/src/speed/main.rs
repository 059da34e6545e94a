//! Compares the speed of NFSv4 servers: ours, ours with an eager counter, and nfs-ganesha.
//!
//! All servers get the same requests from the same client ([`ivers_nfs_test::client`]), on equal images, in
//! interleaved rounds. In each round of a row, the servers that the row compares run one after another; the
//! others are idle. The program requires root, because ganesha exports a filesystem that the kernel has
//! mounted.
//!
//! | server | filesystem | a new name is durable before the reply |
//! |---|---|---|
//! | `ivers`, `eager` | our ext4 driver on the image | yes |
//! | `ivers_async` | the same, exported with `async` | no |
//! | `ganesha` | VFS backend on the kernel's ext4 | no |
//! | `ganesha_dirsync` | the same, mounted with `dirsync` | yes |
//!
//! The output has the rows that `cargo xtask bench` reads (docs/json.md).

#![forbid(unsafe_code)]

mod rows;
mod servers;
mod work;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use rows::{ROWS, Row, selects};
use serde_json::{Map, Value, json};
use servers::{COUNTERS, Server};
use work::{Session, Work, max_ops};

#[derive(Parser)]
#[command(about = "Measures NFSv4 servers with one client, in interleaved rounds")]
struct Args {
    /// The `ivers` program
    #[arg(long)]
    ivers: PathBuf,
    /// Rounds per row
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Approximate duration of a round for one server, in seconds
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Measure only the rows with these names or name prefixes
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Do not measure nfs-ganesha
    #[arg(long)]
    alone: bool,
    /// A second `ivers` program to compare, for example one built before a change
    #[arg(long)]
    before: Option<PathBuf>,
}

/// A server and the client's session with it.
struct Contender {
    server: Server,
    session: Session,
}

/// The result of one round of one server.
struct Round {
    seconds: f64,
    /// Processor time of the server.
    cpu_seconds: f64,
    /// The values of [`COUNTERS`]; `None` for ganesha.
    counts: Option<[u64; 3]>,
}

impl Contender {
    fn run_round(&mut self, work: Work, depth: usize, ops: u64) -> Result<Round> {
        let (before, counts_before) = (self.server.processor_time()?, self.server.counts()?);
        let seconds = self.session.run(work, depth, ops);
        let (after, counts) = (self.server.processor_time()?, self.server.counts()?);
        let counts = counts_before
            .zip(counts)
            .map(|(before, after)| std::array::from_fn(|at| after[at].saturating_sub(before[at])));
        Ok(Round { seconds, cpu_seconds: after - before, counts })
    }
}

/// The rounds of one server in one row.
struct Measured<'a> {
    contender: &'a mut Contender,
    /// Requests per round.
    ops: u64,
    rounds: Vec<Round>,
}

impl Measured<'_> {
    /// Returns nanoseconds per request, for each round.
    fn ns(&self) -> Vec<f64> {
        self.rounds.iter().map(|round| round.seconds * 1e9 / self.ops as f64).collect()
    }

    fn cpu_ns(&self) -> Value {
        let ns: Vec<f64> =
            self.rounds.iter().map(|round| round.cpu_seconds * 1e9 / self.ops as f64).collect();
        json!(quantile(&ns, 0.5).round())
    }

    /// Returns the sum of a counter over all rounds.
    fn total_count(&self, at: usize) -> u64 {
        self.rounds.iter().filter_map(|round| Some(round.counts?[at])).sum()
    }
}

fn quantile(values: &[f64], at: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * at).round() as usize]
}

/// Rounds to this number of decimal digits.
fn rounded(value: f64, digits: i32) -> Value {
    let scale = 10f64.powi(digits);
    json!((value * scale).round() / scale)
}

/// Returns how many times as fast `ours` is as `theirs`: the median and the quartiles of the ratio in each
/// round.
///
/// A device that is slow for a few rounds changes the median of the times, but not the median of the ratios.
fn ratio(theirs: &[f64], ours: &[f64]) -> (Value, Value) {
    let ratios: Vec<f64> = theirs.iter().zip(ours).map(|(theirs, ours)| theirs / ours).collect();
    let quartiles = [0.25, 0.75].map(|at| rounded(quantile(&ratios, at), 3));
    (rounded(quantile(&ratios, 0.5), 3), json!(quartiles))
}

fn measure(contenders: &mut [Contender], args: &Args, row: &Row) -> Result<Map<String, Value>> {
    let mut all: Vec<Measured> = Vec::new();
    let (active, mut idle): (Vec<&mut Contender>, Vec<_>) =
        contenders.iter_mut().partition(|contender| row.includes(contender.server.name));
    for contender in active {
        // Each server gets as many requests as it handles in the time: servers can differ by a factor of 100.
        let first = contender.run_round(row.work, row.depth, max_ops(row.work).min(200))?;
        let ops_per_second = max_ops(row.work).min(200) as f64 / first.seconds;
        let ops = ((ops_per_second * args.seconds) as u64).clamp(50, max_ops(row.work));
        all.push(Measured { contender, ops, rounds: Vec::new() });
    }
    let find = |all: &[Measured], name: &str| all.iter().position(|it| it.contender.server.name == name);
    let ours = find(&all, row.ours).context("our server was not measured")?;
    let eager = row.eager.and_then(|name| find(&all, name));
    // The report compares the counters of these two servers.
    if let Some(eager) = eager {
        all[eager].ops = all[ours].ops;
    }
    for round in 0..args.rounds {
        idle.iter_mut().for_each(|contender| contender.session.renew_lease());
        // The position in a round affects processor caches: the servers rotate.
        for nth in 0..all.len() {
            let which = (nth + round) % all.len();
            let it = &mut all[which];
            it.rounds.push(it.contender.run_round(row.work, row.depth, it.ops)?);
        }
    }
    let ns = all[ours].ns();
    let rate = |ns: &[f64]| rounded(1e9 / quantile(ns, 0.5), 0);
    let mut figures = json!({
        "name": row.name, "fs": "ext4", "unit": "ops/s", "depth": row.depth, "rounds": args.rounds,
        "ops": all[ours].ops * args.rounds as u64, "peers": {}, "new_over_peer": {},
    });
    for (mode, index) in [("new", Some(ours)), ("old", eager)] {
        let Some(measured) = index.map(|at| &all[at]) else { continue };
        figures[mode] = rate(&measured.ns());
        figures["ns_per_op"][mode] = rounded(quantile(&measured.ns(), 0.5), 1);
        figures["server_cpu_ns_per_op"][mode] = measured.cpu_ns();
        for (at, name) in COUNTERS.into_iter().enumerate() {
            figures[name][mode] = measured.total_count(at).into();
        }
    }
    if let Some(eager) = eager {
        (figures["new_over_old"], figures["spread"]["new_over_old"]) = ratio(&all[eager].ns(), &ns);
    }
    for measured in all.iter().filter(|it| row.peers.contains(&it.contender.server.name)) {
        let (name, theirs) = (measured.contender.server.name, measured.ns());
        figures["peers"][name] = json!({
            "value": rate(&theirs),
            "ns_per_op": rounded(quantile(&theirs, 0.5), 1),
            "server_cpu_ns_per_op": measured.cpu_ns(),
        });
        figures["peer_ops"][name] = (measured.ops * args.rounds as u64).into();
        let (over, spread) = ratio(&theirs, &ns);
        figures["new_over_peer"][name] = over;
        figures["spread"]["new_over_peer"][name] = spread;
    }
    if let Some(reference) = &row.reference {
        figures["patch_series"] = reference.to_json();
    }
    match figures {
        Value::Object(figures) => Ok(figures),
        _ => unreachable!("`json!` above creates an object"),
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    for word in &args.only {
        if !ROWS.iter().any(|row| selects(word, row.name)) {
            bail!("--only {word}: no such row; the rows are {}", ROWS.map(|row| row.name).join(", "));
        }
    }
    let chosen: Vec<Row> = ROWS
        .into_iter()
        .filter(|row| args.only.is_empty() || args.only.iter().any(|word| selects(word, row.name)))
        .collect();
    let is_selected = |name: &str| chosen.iter().any(|row| row.includes(name));
    let mut servers = Vec::new();
    for (name, options) in [("ivers", "iversion=lazy"), ("eager", "iversion=eager"), ("ivers_async", "async")]
    {
        if is_selected(name) {
            servers.push(Server::ivers(&args.ivers, name, options)?);
        }
    }
    if let Some(before) = args.before.iter().find(|_| is_selected("before")) {
        servers.push(Server::ivers(before, "before", "iversion=lazy")?);
    }
    let mut missing = Map::new();
    for (name, options) in [("ganesha", "loop"), ("ganesha_dirsync", "loop,dirsync")] {
        if args.alone || !is_selected(name) {
            continue;
        }
        match Server::ganesha(name, options) {
            Ok(server) => servers.push(server),
            Err(error) => _ = missing.insert(name.into(), format!("{error:#}").into()),
        }
    }
    let mut contenders: Vec<Contender> = servers
        .into_iter()
        .map(|server| Contender { session: Session::start(server.address, server.export), server })
        .collect();
    let mut rows = Vec::new();
    for row in &chosen {
        let mut figures = measure(&mut contenders, &args, row)?;
        let missing: Map<_, _> =
            missing.clone().into_iter().filter(|(name, _)| row.peers.contains(&name.as_str())).collect();
        if !missing.is_empty() {
            figures.insert("peers_missing".into(), missing.into());
        }
        eprintln!("{}", Value::Object(figures.clone()));
        rows.push(figures);
    }
    for Contender { server, session } in contenders {
        drop(session);
        server.stop()?;
    }
    let command = format!("cargo xtask nfs-speed --rounds {} --seconds {}", args.rounds, args.seconds);
    println!("{:#}", json!({ "rows": rows, "commands": [command] }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_ratios() {
        assert_eq!(ratio(&[2.0, 30.0, 4.0], &[1.0, 3.0, 4.0]), (json!(2.0), json!([2.0, 10.0])));
    }
}
