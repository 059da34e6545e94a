//! Our NFSv4 server beside nfs-ganesha, and beside itself as it would be with an eager counter: one client ([`ivers_nfs_peer`]), the
//! same requests, equal images, rounds that take turns. Needs root (ganesha exports a filesystem that the kernel has mounted).
//!
//! Ganesha has its VFS backend on the kernel's ext4, once as it comes and once mounted with `dirsync`; ours has its own ext4 on the image. Each round of a row goes by all servers; the
//! others wait meanwhile. Ratios are by rounds: medians with quartiles.

#![forbid(unsafe_code)]

mod servers;
mod work;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;
use serde_json::{Map, Value, json};
use servers::Server;
use work::{Course, Work, most};

#[derive(Parser)]
#[command(about = "Measures NFSv4 servers, in turns, by one client")]
struct Args {
    /// The program `ivers`
    #[arg(long)]
    ivers: PathBuf,
    /// Rounds of each row
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds that a server works in a round of a row, about
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// This row alone
    #[arg(long)]
    only: Option<String>,
    /// Not beside nfs-ganesha
    #[arg(long)]
    alone: bool,
}

struct Racer {
    server: Server,
    course: Course,
}

/// One round of one server.
struct Lap {
    per_second: f64,
    /// Of the server's processor time.
    us_per_op: f64,
}

impl Racer {
    fn lap(&mut self, work: Work, depth: usize, ops: u64) -> Result<Lap> {
        let before = self.server.processor_time()?;
        let seconds = self.course.run(work, depth, ops);
        let spent = self.server.processor_time()? - before;
        Ok(Lap { per_second: ops as f64 / seconds, us_per_op: spent * 1e6 / ops as f64 })
    }
}

fn quantile(values: &[f64], at: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * at).round() as usize]
}

fn measure(racers: &mut [Racer], args: &Args, name: &str, work: Work, depth: usize) -> Result<Value> {
    let mut laps: Vec<Vec<Lap>> = racers.iter().map(|_| Vec::new()).collect();
    // So many that the slowest has enough to do, and nobody works for ever.
    let mut ops = 0;
    for racer in racers.iter_mut() {
        let first = racer.lap(work, depth, most(work).min(200))?;
        ops = ops.max((first.per_second * args.seconds) as u64).clamp(50, most(work));
    }
    for round in 0..args.rounds {
        // Who comes first has the colder caches, or the warmer ones: all in turn.
        for nth in 0..racers.len() {
            let which = (nth + round) % racers.len();
            laps[which].push(racers[which].lap(work, depth, ops)?);
        }
    }
    let mut row = Map::new();
    row.insert("row".into(), name.into());
    row.insert("depth".into(), depth.into());
    row.insert("requests_a_round".into(), ops.into());
    for (racer, laps) in racers.iter().zip(&laps) {
        let of = |get: fn(&Lap) -> f64| quantile(&laps.iter().map(get).collect::<Vec<_>>(), 0.5);
        let figures = json!({
            "per_second": of(|lap| lap.per_second).round(),
            "processor_us_per_op": (of(|lap| lap.us_per_op) * 10.0).round() / 10.0,
        });
        row.insert(racer.server.name.into(), figures);
    }
    for (racer, theirs) in racers.iter().zip(&laps).skip(1) {
        let ratios: Vec<f64> =
            laps[0].iter().zip(theirs).map(|(ours, theirs)| ours.per_second / theirs.per_second).collect();
        let shown = [0.5, 0.25, 0.75].map(|at| (quantile(&ratios, at) * 100.0).round() / 100.0);
        row.insert(format!("ratio_to_{}", racer.server.name), json!(shown));
    }
    Ok(row.into())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut servers =
        vec![Server::ivers(&args.ivers, "ivers", "lazy")?, Server::ivers(&args.ivers, "eager", "eager")?];
    if !args.alone {
        servers.push(Server::ganesha("ganesha", "loop")?);
        // Where names are durable when they are answered, as they are with ours.
        servers.push(Server::ganesha("ganesha_dirsync", "loop,dirsync")?);
    }
    let mut racers: Vec<Racer> = servers
        .into_iter()
        .map(|server| Racer { course: Course::begin(server.address, server.export), server })
        .collect();
    let mut rows = Vec::new();
    for (name, work, depth) in Work::ROWS {
        if args.only.as_deref().is_none_or(|only| only == name) {
            let row = measure(&mut racers, &args, name, work, depth)?;
            eprintln!("{row}");
            rows.push(row);
        }
    }
    if rows.is_empty() {
        bail!("no such row; there are {}", Work::ROWS.map(|row| row.0).join(", "));
    }
    for racer in racers {
        drop(racer.course);
        racer.server.stop()?;
    }
    println!("{:#}", json!({ "rounds": args.rounds, "rows": rows }));
    Ok(())
}
