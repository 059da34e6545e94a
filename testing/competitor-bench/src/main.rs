//! Measures Rust crates that can write ext4 beside ivers, in one process and on equal images. `cargo xtask
//! bench DIR` runs it.
//!
//! | crate | licence | notes |
//! |---|---|---|
//! | rust-fs-ext4 0.8.0 | MIT | one journal transaction per call, on the device when the call returns |
//! | rsext4 0.9.2 | Apache-2.0 | has a journal and caches |
//! | ext4plus 0.1.0-rc.2 | MIT or Apache-2.0 | cannot write to a journal: its image has none |
//!
//! Images lie in memory. Each round ends with a sync, which is timed too, so that immediate and deferred
//! writes are comparable. After the last round e2fsck checks each image; the rows contain its result.
//!
//! Not included: ext4_rs 1.3.3 requires a nightly compiler (`#![feature(error_in_core)]`: E0554);
//! another_ext4 is not on crates.io; arcbox-ext4 and ext4-view do not write to existing filesystems;
//! ext4-lwext4 and lwext4_rust wrap C code (lwext4, in part under the GPL).

#![forbid(unsafe_code)]

mod contenders;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use contenders::Contender;
use serde_json::{Map, Value, json};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const IVERS: &str = "ivers";
const IMAGE_BYTES: u64 = 512 << 20;
const BLOCK: usize = 4096;
/// Blocks of the file that is overwritten.
const OVERWRITTEN_BLOCKS: u64 = 64;

const WORKLOADS: [&str; 5] =
    ["peers_overwrite_1_byte", "peers_overwrite_4k", "peers_append_4k", "peers_create", "peers_unlink"];

/// A contender and its results.
struct Course {
    name: &'static str,
    contender: Box<dyn Contender>,
    overwritten: u64,
    appended: u64,
    ns_per_op: [Vec<f64>; WORKLOADS.len()],
    failed: Option<String>,
}

fn make_image(path: &Path, has_journal: bool) -> Result<()> {
    std::fs::File::create(path)?.set_len(IMAGE_BYTES)?;
    let journal = if has_journal { "has_journal" } else { "^has_journal" };
    let output = Command::new("/sbin/mkfs.ext4")
        .args(["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-O", journal])
        // Features that not all crates can write.
        .args(["-O", "^resize_inode,^orphan_file"])
        .arg(path)
        .output()
        .context("mkfs.ext4")?;
    if !output.status.success() {
        bail!("mkfs.ext4: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

impl Course {
    fn begin(name: &'static str, mut contender: Box<dyn Contender>) -> Result<Self> {
        let overwritten = contender.create("overwritten")?;
        for block in 0..OVERWRITTEN_BLOCKS {
            contender.write(overwritten, block * BLOCK as u64, &[b'o'; BLOCK])?;
        }
        let appended = contender.create("appended")?;
        contender.sync()?;
        Ok(Self { name, contender, overwritten, appended, ns_per_op: Default::default(), failed: None })
    }

    fn work(&mut self, workload: &str, round: u64, ops: u64) -> Result<()> {
        let contender = &mut self.contender;
        let name = |n: u64| format!("f{round}-{n}");
        match workload {
            "peers_overwrite_1_byte" => (0..ops).try_for_each(|n| {
                contender.write(self.overwritten, n % (OVERWRITTEN_BLOCKS * BLOCK as u64), b"x")
            }),
            "peers_overwrite_4k" => (0..ops).try_for_each(|n| {
                contender.write(self.overwritten, n % OVERWRITTEN_BLOCKS * BLOCK as u64, &[b'x'; BLOCK])
            }),
            "peers_append_4k" => (0..ops).try_for_each(|n| {
                contender.write(self.appended, (round * ops + n) * BLOCK as u64, &[b'x'; BLOCK])
            }),
            "peers_create" => (0..ops).try_for_each(|n| contender.create(&name(n)).map(drop)),
            _ => (0..ops).try_for_each(|n| contender.unlink(&name(n))),
        }?;
        contender.sync()
    }

    fn round(&mut self, number: usize, round: u64, ops: u64) -> Result<()> {
        let begin = Instant::now();
        self.work(WORKLOADS[number], round, ops)?;
        self.ns_per_op[number].push(begin.elapsed().as_nanos() as f64 / ops as f64);
        Ok(())
    }
}

/// Returns the first complaint of e2fsck, or `clean`.
fn e2fsck(image: &Path) -> Result<String> {
    let output = Command::new("/sbin/e2fsck").args(["-f", "-n"]).arg(image).output().context("e2fsck")?;
    if output.status.success() {
        return Ok("clean".to_owned());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let first = said.lines().find(|line| !line.starts_with("Pass ") && !line.trim().is_empty());
    Ok(first.unwrap_or("damaged").trim().to_owned())
}

fn quantile(samples: &[f64], nth: usize, of: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() * nth / of).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

fn places(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn row(
    number: usize,
    rounds: u64,
    ops: u64,
    courses: &[Course],
    verdicts: &Map<String, Value>,
    missing: &Map<String, Value>,
) -> Value {
    let median = |course: &Course| quantile(&course.ns_per_op[number], 1, 2);
    let rate = |ns: f64| (1e9 / ns.max(1e-3)).round();
    let mut missing = missing.clone();
    let mut row = json!({
        "name": WORKLOADS[number], "fs": "ext4", "unit": "ops/s", "ops": rounds * ops, "rounds": rounds,
        "peers": {}, "new_over_peer": {}, "e2fsck": verdicts,
    });
    let Some(ours) = courses.iter().find(|course| course.name == IVERS) else { return row };
    row["new"] = json!(rate(median(ours)));
    row["ns_per_op"] = json!({ "new": places(median(ours)) });
    for course in courses.iter().filter(|course| course.name != IVERS) {
        let (theirs, name) = (&course.ns_per_op[number], course.name);
        if let Some(why) = &course.failed
            && theirs.len() < rounds as usize
        {
            missing.insert(name.into(), why.clone().into());
            continue;
        }
        let ratios: Vec<f64> =
            theirs.iter().zip(&ours.ns_per_op[number]).map(|(theirs, ours)| theirs / ours).collect();
        row["peers"][name] = json!({ "value": rate(median(course)), "ns_per_op": places(median(course)) });
        row["new_over_peer"][name] = json!(places(median(course) / median(ours)));
        row["spread"]["new_over_peer"][name] =
            json!([places(quantile(&ratios, 1, 4)), places(quantile(&ratios, 3, 4))]);
    }
    if !missing.is_empty() {
        row["peers_missing"] = missing.into();
    }
    row
}

fn rows(rounds: u64, ops: u64) -> Result<Vec<Value>> {
    // In memory: the time of a flush depends on the disk, and one of the crates flushes several times per
    // call.
    let scratch = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let image = |name: &str| scratch.path().join(name).with_extension("image");
    let mut missing = Map::new();
    let mut courses = Vec::new();
    for (name, has_journal, open) in contenders::ALL {
        make_image(&image(name), has_journal)?;
        match open(&image(name)).and_then(|contender| Course::begin(name, contender)) {
            Ok(course) => courses.push(course),
            Err(error) if name == IVERS => return Err(error),
            Err(error) => _ = missing.insert(name.into(), format!("{error:#}").into()),
        }
    }
    for round in 0..rounds {
        for (number, workload) in WORKLOADS.iter().enumerate() {
            // Forward and backward in turn, so that no contender always follows the same one.
            let count = courses.len();
            for at in 0..count {
                let course = &mut courses[if round % 2 == 0 { at } else { count - 1 - at }];
                if course.failed.is_some() {
                    continue;
                }
                match course.round(number, round, ops) {
                    Err(error) if course.name != IVERS => {
                        course.failed = Some(format!("{workload}: {error:#}"));
                    }
                    other => other.context(*workload)?,
                }
            }
        }
    }
    let mut verdicts = Map::new();
    for course in &mut courses {
        let verdict = match course.contender.finish() {
            Ok(()) => e2fsck(&image(course.name))?,
            Err(error) => format!("does not unmount: {error:#}"),
        };
        verdicts.insert(course.name.to_owned(), verdict.into());
    }
    Ok((0..WORKLOADS.len()).map(|number| row(number, rounds, ops, &courses, &verdicts, &missing)).collect())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse());
    let (Ok(rounds), Ok(ops), true) = (number(0, 9), number(1, 1000), words.len() <= 2) else {
        eprintln!("usage: ivers-peers [ROUNDS [OPERATIONS-A-ROUND]]");
        std::process::exit(2);
    };
    let rows = rows(rounds.max(1), ops.max(1))?;
    println!("{}", json!({ "rows": rows, "commands": [format!("ivers-peers {rounds} {ops}")] }));
    Ok(())
}
