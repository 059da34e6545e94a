//! Our NFSv4 server beside nfs-ganesha, and beside itself as it would be with an eager counter: one client ([`ivers_nfs_peer`]), the
//! same requests, equal images, rounds that take turns. Needs root (ganesha exports a filesystem that the kernel has mounted).
//!
//! Ganesha has its VFS backend on the kernel's ext4, once as it comes and once mounted with `dirsync`; ours has its own ext4 on the image, once as it comes and once exported as `async`: names are durable when
//! they are answered with the second of theirs and the first of ours, and not with the others. Each round of a row goes by all servers that it compares; the others wait meanwhile. Ratios are by rounds:
//! medians with quartiles.

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
    per_second: f64,
    /// Of the server's processor time.
    us_per_op: f64,
    /// Inodes and blocks of the journal an operation; of our servers.
    logged: Option<[f64; 2]>,
}

impl Racer {
    fn lap(&mut self, work: Work, depth: usize, ops: u64) -> Result<Lap> {
        let (before, logged_before) = (self.server.processor_time()?, self.server.logged()?);
        let seconds = self.course.run(work, depth, ops);
        let (after, logged) = (self.server.processor_time()?, self.server.logged()?);
        let an_op = |before: f64, after: f64| (after - before) / ops as f64;
        let logged = logged_before
            .zip(logged)
            .map(|(before, after)| [an_op(before[0], after[0]), an_op(before[1], after[1])]);
        Ok(Lap { per_second: ops as f64 / seconds, us_per_op: an_op(before, after) * 1e6, logged })
    }
}

fn quantile(values: &[f64], at: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * at).round() as usize]
}

/// Who is compared in a row, and with whom.
const COMPARED: [(&str, &str); 3] = [("ivers", "eager"), ("ivers", "before"), ("ivers", "ganesha")];
/// Where names are made and removed: like for like.
const COMPARED_BY_NAMES: [(&str, &str); 4] =
    [("ivers", "before"), ("ivers", "ganesha_dirsync"), ("ivers_async", "ganesha"), ("ivers", "ganesha")];

fn measure(racers: &mut [Racer], args: &Args, name: &str, work: Work, depth: usize) -> Result<Value> {
    let compared: &[(&str, &str)] = if work == Work::CreateUnlink { &COMPARED_BY_NAMES } else { &COMPARED };
    let takes_part = |racer: &&mut Racer| {
        compared.iter().any(|(ours, theirs)| [*ours, *theirs].contains(&racer.server.name))
    };
    let mut racers: Vec<&mut Racer> = racers.iter_mut().filter(takes_part).collect();
    let mut laps: Vec<Vec<Lap>> = racers.iter().map(|_| Vec::new()).collect();
    // What each does in the time: where one is a hundred times as fast as another, the same for both would be too little or for ever.
    let mut ops = Vec::new();
    for racer in &mut racers {
        let first = racer.lap(work, depth, most(work).min(200))?;
        ops.push(((first.per_second * args.seconds) as u64).clamp(50, most(work)));
    }
    for round in 0..args.rounds {
        // Who comes first has the colder caches, or the warmer ones: all in turn.
        for nth in 0..racers.len() {
            let which = (nth + round) % racers.len();
            laps[which].push(racers[which].lap(work, depth, ops[which])?);
        }
    }
    let mut row = Map::new();
    row.insert("row".into(), name.into());
    row.insert("depth".into(), depth.into());
    for ((racer, laps), ops) in racers.iter().zip(&laps).zip(&ops) {
        let of = |get: fn(&Lap) -> f64| quantile(&laps.iter().map(get).collect::<Vec<_>>(), 0.5);
        let mut figures = json!({
            "requests_a_round": ops,
            "per_second": of(|lap| lap.per_second).round(),
            "processor_us_per_op": (of(|lap| lap.us_per_op) * 10.0).round() / 10.0,
        });
        for (at, name) in ["inode_updates_per_op", "journal_blocks_per_op"].into_iter().enumerate() {
            let logged: Vec<f64> = laps.iter().filter_map(|lap| Some(lap.logged?[at])).collect();
            if !logged.is_empty() {
                figures[name] = json!((quantile(&logged, 0.5) * 1000.0).round() / 1000.0);
            }
        }
        row.insert(racer.server.name.into(), figures);
    }
    let laps_of = |name: &str| {
        let at = racers.iter().position(|racer| racer.server.name == name)?;
        Some(&laps[at])
    };
    for (ours, theirs) in compared {
        let (Some(of_ours), Some(of_theirs)) = (laps_of(ours), laps_of(theirs)) else { continue };
        let ratios: Vec<f64> =
            of_ours.iter().zip(of_theirs).map(|(ours, theirs)| ours.per_second / theirs.per_second).collect();
        let shown = [0.5, 0.25, 0.75].map(|at| (quantile(&ratios, at) * 100.0).round() / 100.0);
        row.insert(format!("{ours}_to_{theirs}"), json!(shown));
    }
    Ok(row.into())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut servers = vec![
        Server::ivers(&args.ivers, "ivers", "iversion=lazy")?,
        Server::ivers(&args.ivers, "eager", "iversion=eager")?,
        Server::ivers(&args.ivers, "ivers_async", "async")?,
    ];
    if let Some(before) = &args.before {
        servers.push(Server::ivers(before, "before", "iversion=lazy")?);
    }
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
