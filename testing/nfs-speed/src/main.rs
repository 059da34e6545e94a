//! Our NFSv4 server beside nfs-ganesha, and beside itself as it would be with an eager counter: one client ([`ivers_nfs_peer`]), the
//! same requests, equal images, rounds that take turns. Needs root (ganesha exports a filesystem that the kernel has mounted).
//!
//! Ganesha has its VFS backend on the kernel's ext4, once as it comes and once mounted with `dirsync`; ours has its own ext4 on the image, once as it comes and once exported as `async`: names are durable when
//! they are answered with the second of theirs and the first of ours, and not with the others. Each round of a row goes by all servers that it compares; the others wait meanwhile. What it says are rows as `ivers bench` has
//! them (docs/json.md), for a page of its `--report`.

#![forbid(unsafe_code)]

mod rows;
mod servers;
mod work;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use rows::{ROWS, Row, is_meant};
use serde_json::{Map, Value, json};
use servers::{COUNTED, Server};
use work::{Course, Work, most};

#[derive(Parser)]
#[command(about = "Measures NFSv4 servers, in turns, by one client")]
struct Args {
    /// The program `ivers`
    #[arg(long)]
    ivers: PathBuf,
    /// Rounds of each row
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds that a server works in a round of a row, about
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Only these rows, or those whose names begin so
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Not beside nfs-ganesha
    #[arg(long)]
    alone: bool,
    /// Another program `ivers`, to be beside: that of before a change, say
    #[arg(long)]
    before: Option<PathBuf>,
}

struct Racer {
    server: Server,
    course: Course,
}

/// One round of one server.
struct Lap {
    seconds: f64,
    /// Of the server's processor time.
    cpu_seconds: f64,
    /// By the names of [`COUNTED`]; of our servers.
    counts: Option<[u64; 3]>,
}

impl Racer {
    fn lap(&mut self, work: Work, depth: usize, ops: u64) -> Result<Lap> {
        let (before, counts_before) = (self.server.processor_time()?, self.server.counts()?);
        let seconds = self.course.run(work, depth, ops);
        let (after, counts) = (self.server.processor_time()?, self.server.counts()?);
        let counts = counts_before
            .zip(counts)
            .map(|(before, after)| std::array::from_fn(|at| after[at].saturating_sub(before[at])));
        Ok(Lap { seconds, cpu_seconds: after - before, counts })
    }
}

/// One server in a row.
struct Raced<'a> {
    racer: &'a mut Racer,
    ops: u64,
    laps: Vec<Lap>,
}

impl Raced<'_> {
    /// Nanoseconds a request, of each round.
    fn ns(&self) -> Vec<f64> {
        self.laps.iter().map(|lap| lap.seconds * 1e9 / self.ops as f64).collect()
    }

    fn cpu_ns(&self) -> Value {
        let ns: Vec<f64> = self.laps.iter().map(|lap| lap.cpu_seconds * 1e9 / self.ops as f64).collect();
        json!(quantile(&ns, 0.5).round())
    }

    /// All rounds together.
    fn counted(&self, at: usize) -> u64 {
        self.laps.iter().filter_map(|lap| Some(lap.counts?[at])).sum()
    }
}

fn quantile(values: &[f64], at: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * at).round() as usize]
}

fn places(value: f64, digits: i32) -> Value {
    let scale = 10f64.powi(digits);
    json!((value * scale).round() / scale)
}

/// How often the one is as fast as the other: the median of the rounds' own ratios, and their quartiles. A device that is slow for a few
/// rounds moves the medians of times, and not this.
fn ratio(theirs: &[f64], ours: &[f64]) -> (Value, Value) {
    let ratios: Vec<f64> = theirs.iter().zip(ours).map(|(theirs, ours)| theirs / ours).collect();
    let quartiles = [0.25, 0.75].map(|at| places(quantile(&ratios, at), 3));
    (places(quantile(&ratios, 0.5), 3), json!(quartiles))
}

fn measure(racers: &mut [Racer], args: &Args, row: &Row) -> Result<Map<String, Value>> {
    let mut all: Vec<Raced> = Vec::new();
    let (racing, mut resting): (Vec<&mut Racer>, Vec<_>) =
        racers.iter_mut().partition(|racer| row.takes(racer.server.name));
    for racer in racing {
        // What each does in the time: where one is a hundred times as fast as another, the same for both would be too little or for ever.
        let first = racer.lap(row.work, row.depth, most(row.work).min(200))?;
        let a_second = most(row.work).min(200) as f64 / first.seconds;
        let ops = ((a_second * args.seconds) as u64).clamp(50, most(row.work));
        all.push(Raced { racer, ops, laps: Vec::new() });
    }
    let place = |all: &[Raced], name: &str| all.iter().position(|raced| raced.racer.server.name == name);
    let ours = place(&all, row.ours).context("ours takes part")?;
    let eager = row.eager.and_then(|name| place(&all, name));
    // Counts of the two stand side by side.
    if let Some(eager) = eager {
        all[eager].ops = all[ours].ops;
    }
    for round in 0..args.rounds {
        resting.iter_mut().for_each(|racer| racer.course.stay());
        // Who comes first has the colder caches, or the warmer ones: all in turn.
        for nth in 0..all.len() {
            let which = (nth + round) % all.len();
            let raced = &mut all[which];
            raced.laps.push(raced.racer.lap(row.work, row.depth, raced.ops)?);
        }
    }
    let ns = all[ours].ns();
    let rate = |ns: &[f64]| places(1e9 / quantile(ns, 0.5), 0);
    let mut figures = json!({
        "name": row.name, "fs": "ext4", "unit": "ops/s", "depth": row.depth, "rounds": args.rounds,
        "ops": all[ours].ops * args.rounds as u64, "peers": {}, "new_over_peer": {},
    });
    for (mode, raced) in [("new", Some(ours)), ("old", eager)] {
        let Some(raced) = raced.map(|at| &all[at]) else { continue };
        figures[mode] = rate(&raced.ns());
        figures["ns_per_op"][mode] = places(quantile(&raced.ns(), 0.5), 1);
        figures["server_cpu_ns_per_op"][mode] = raced.cpu_ns();
        for (at, name) in COUNTED.into_iter().enumerate() {
            figures[name][mode] = raced.counted(at).into();
        }
    }
    if let Some(eager) = eager {
        (figures["new_over_old"], figures["spread"]["new_over_old"]) = ratio(&all[eager].ns(), &ns);
    }
    for raced in all.iter().filter(|raced| row.peers.contains(&raced.racer.server.name)) {
        let (name, theirs) = (raced.racer.server.name, raced.ns());
        figures["peers"][name] = json!({
            "value": rate(&theirs), "ns_per_op": places(quantile(&theirs, 0.5), 1), "server_cpu_ns_per_op": raced.cpu_ns(),
        });
        figures["peer_ops"][name] = (raced.ops * args.rounds as u64).into();
        let (over, spread) = ratio(&theirs, &ns);
        figures["new_over_peer"][name] = over;
        figures["spread"]["new_over_peer"][name] = spread;
    }
    if let Some(seeds) = &row.seeds {
        figures["seeds"] = seeds.to_json();
    }
    match figures {
        Value::Object(figures) => Ok(figures),
        _ => unreachable!("an object was written above"),
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    for word in &args.only {
        if !ROWS.iter().any(|row| is_meant(word, row.name)) {
            bail!("--only {word}: no such row; there are {}", ROWS.map(|row| row.name).join(", "));
        }
    }
    let chosen: Vec<Row> = ROWS
        .into_iter()
        .filter(|row| args.only.is_empty() || args.only.iter().any(|word| is_meant(word, row.name)))
        .collect();
    let is_wanted = |name: &str| chosen.iter().any(|row| row.takes(name));
    let mut servers = Vec::new();
    for (name, options) in [("ivers", "iversion=lazy"), ("eager", "iversion=eager"), ("ivers_async", "async")]
    {
        if is_wanted(name) {
            servers.push(Server::ivers(&args.ivers, name, options)?);
        }
    }
    if let Some(before) = args.before.iter().find(|_| is_wanted("before")) {
        servers.push(Server::ivers(before, "before", "iversion=lazy")?);
    }
    let mut missing = Map::new();
    // On `dirsync` names are durable when they are answered, as they are with ours.
    for (name, options) in [("ganesha", "loop"), ("ganesha_dirsync", "loop,dirsync")] {
        if args.alone || !is_wanted(name) {
            continue;
        }
        match Server::ganesha(name, options) {
            Ok(server) => servers.push(server),
            Err(why) => _ = missing.insert(name.into(), format!("{why:#}").into()),
        }
    }
    let mut racers: Vec<Racer> = servers
        .into_iter()
        .map(|server| Racer { course: Course::begin(server.address, server.export), server })
        .collect();
    let mut rows = Vec::new();
    for row in &chosen {
        let mut figures = measure(&mut racers, &args, row)?;
        let missed: Map<_, _> =
            missing.clone().into_iter().filter(|(name, _)| row.peers.contains(&name.as_str())).collect();
        if !missed.is_empty() {
            figures.insert("peers_missing".into(), missed.into());
        }
        eprintln!("{}", Value::Object(figures.clone()));
        rows.push(figures);
    }
    for racer in racers {
        drop(racer.course);
        racer.server.stop()?;
    }
    let command = format!("cargo xtask nfs-speed --rounds {} --seconds {}", args.rounds, args.seconds);
    println!("{:#}", json!({ "rows": rows, "commands": [command] }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_rounds() {
        assert_eq!(ratio(&[2.0, 30.0, 4.0], &[1.0, 3.0, 4.0]), (json!(2.0), json!([2.0, 10.0])));
    }
}
