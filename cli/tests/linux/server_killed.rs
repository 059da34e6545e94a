//! The server is killed in the middle of writes and restarted.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ivers_nfs4::ops::number;
use ivers_oracle::e2fs::e2fsck_repair;
use ivers_oracle::kernel::may_loop_mount;
use ivers_oracle::{Image, LoopMount, e2fsck};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::guest::{Client, machines};
use crate::server::Server;
use crate::several_clients::eventually;
use crate::{DIGEST, holds, image, rounds};

const VERSIONS: [&str; 3] = ["4.0", "4.1", "4.2"];
/// The record size of the guest's program.
const RECORD: usize = 4000;
const RECORDS: usize = 3000;

/// A restarted server has no state and grants nothing new during the grace period. A delegation without an
/// open file is not reclaimed but returned, with its old stateid. Lock-owners as with two clients.
const EXPECTED: [(u32, &str); 13] = [
    (number::OPEN, "GRACE"),
    (number::OPEN, "DELAY"),
    (number::LOCK, "DENIED"),
    (number::WRITE, "STALE_STATEID"),
    (number::COMMIT, "STALE_STATEID"),
    (number::RENEW, "STALE_CLIENTID"),
    (number::CREATE_SESSION, "STALE_CLIENTID"),
    (number::DESTROY_SESSION, "BADSESSION"),
    (number::SEQUENCE, "BADSESSION"),
    (number::DELEGRETURN, "BAD_STATEID"),
    (number::FREE_STATEID, "BAD_STATEID"),
    (number::FREE_STATEID, "OLD_STATEID"),
    (number::LOOKUP, "ENOENT"),
];

/// Returns the byte that a writer writes.
fn byte(place: usize, kind: usize) -> u8 {
    (place ^ (place >> 8) ^ (place >> 16) ^ (kind * 37)) as u8
}

fn is_written(bytes: &[u8], records: usize, kind: usize) -> Result<()> {
    let len = records * RECORD;
    ensure!(bytes.len() >= len, "{} bytes of {len}", bytes.len());
    let wrong = bytes[..len].iter().enumerate().position(|(place, found)| *found != byte(place, kind));
    ensure!(wrong.is_none(), "of {len} bytes that were synced byte {wrong:?} is another");
    Ok(())
}

fn begin(client: &mut Client, round: usize) -> Result<()> {
    for (kind, version) in VERSIONS.iter().enumerate() {
        client.guest.run(&format!(
            "try write-records /mnt{kind} r{round}-{version} /tmp/said-{kind} {RECORDS} {kind} \
             > /tmp/err-{kind} 2>&1 & true"
        ))?;
    }
    for kind in 0..VERSIONS.len() {
        eventually(client, &format!("test -s /tmp/said-{kind}"))?;
    }
    Ok(())
}

/// Returns how many records each writer has synced.
fn synced(client: &mut Client) -> Result<Vec<usize>> {
    let mut synced = Vec::new();
    for kind in 0..VERSIONS.len() {
        let last = client.guest.run(&format!("tail -n 1 /tmp/said-{kind}"))?;
        ensure!(last != "done", "it was all written before the server was killed");
        synced.push(last.trim().parse().with_context(|| last.clone())?);
    }
    Ok(synced)
}

/// Checks what a killed server has left.
fn recovers(left: &Image, round: usize, synced: &[usize]) -> Result<()> {
    e2fsck_repair(left.path())?;
    e2fsck(left.path())?;
    if !may_loop_mount() {
        return Ok(());
    }
    let mount = LoopMount::new(left.path(), "ro")?;
    for (kind, version) in VERSIONS.iter().enumerate() {
        let bytes = std::fs::read(mount.path().join(format!("r{round}-{version}")))?;
        is_written(&bytes, synced[kind], kind).with_context(|| format!("round {round}, {version}"))?;
    }
    mount.unmount()
}

fn one_round(
    server: &mut Server,
    image: &Image,
    a: &mut Client,
    b: &mut Client,
    round: usize,
    rng: &mut StdRng,
) -> Result<()> {
    a.guest.run("try hold-lock /mnt2 locked > /tmp/a 2>&1 & echo $! > /tmp/pid")?;
    eventually(a, "grep -q held /tmp/a")?;
    begin(a, round)?;
    std::thread::sleep(Duration::from_millis(rng.random_range(200..3000)));
    server.kill()?;
    let synced = synced(a)?;
    recovers(&image.copy()?, round, &synced)?;
    server.start_again();
    b.guest.run("try hold-lock /mnt locked > /tmp/b 2>&1 & echo $! > /tmp/pid")?;
    for kind in 0..VERSIONS.len() {
        eventually(a, &format!("grep -q done /tmp/said-{kind}"))?;
        a.guest.run(&format!("! grep . /tmp/err-{kind}"))?;
    }
    b.guest.run("! grep -q held /tmp/b").context("a lock was not held over the restart")?;
    a.guest.run("kill $(cat /tmp/pid)")?;
    eventually(b, "grep -q held /tmp/b")?;
    b.guest.run("kill $(cat /tmp/pid)")?;
    println!("round {round}: killed after {synced:?} records");
    Ok(())
}

fn all(image: &Path) -> Result<()> {
    if !may_loop_mount() {
        return Ok(());
    }
    let mount = LoopMount::new(image, "ro,noload")?;
    for round in 0..rounds().unwrap_or(1) {
        for (kind, version) in VERSIONS.iter().enumerate() {
            let bytes = std::fs::read(mount.path().join(format!("r{round}-{version}")))?;
            ensure!(bytes.len() == RECORDS * RECORD, "{} bytes", bytes.len());
            is_written(&bytes, RECORDS, kind)?;
        }
    }
    mount.unmount()
}

fn run() -> Result<()> {
    let Some(machines) = machines() else { return Ok(()) };
    let seed =
        std::env::var("IVERS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("IVERS_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let image = image();
    let mut server = Server::start(image.path())?;
    let mut a = machines.client("a", server.port())?;
    let mut b = machines.client("b", server.port())?;
    for (kind, version) in VERSIONS.iter().enumerate() {
        a.mount(version, &format!("/mnt{kind}"), "")?;
    }
    b.mount("4.2", "/mnt", "")?;
    for round in 0..rounds().unwrap_or(1) {
        one_round(&mut server, &image, &mut a, &mut b, round, &mut rng)
            .with_context(|| format!("round {round}"))?;
    }
    for kind in 0..VERSIONS.len() {
        a.unmount(&format!("/mnt{kind}"))?;
    }
    let seen = b.guest.run(&format!("cd /mnt && {DIGEST}"))?;
    b.unmount("/mnt")?;
    a.was_told(&EXPECTED)?;
    b.was_told(&EXPECTED)?;
    a.end()?;
    b.end()?;
    server.stop()?;
    all(image.path())?;
    holds(image.path(), &seen)
}

#[test]
fn clients_recover_after_the_server_is_killed() {
    run().unwrap();
}
