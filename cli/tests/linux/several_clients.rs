//! Two machines: each sees what the other does.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ivers_nfs4::ops::number;

use crate::guest::{Client, machines};
use crate::server::Server;
use crate::{DIGEST, holds, image, rounds};

/// Errors for files that are locked, delegated, removed or missing.
const EXPECTED: [(u32, &str); 10] = [
    (number::LOCK, "DENIED"),
    (number::LOOKUP, "ENOENT"),
    (number::OPEN, "ENOENT"),
    (number::OPEN, "DELAY"),
    (number::REMOVE, "DELAY"),
    (number::RENAME, "DELAY"),
    (number::GETATTR, "DELAY"),
    (number::PUTFH, "STALE"),
    (number::FREE_STATEID, "OLD_STATEID"),
    (number::FREE_STATEID, "BAD_STATEID"),
];
const PATIENCE: Duration = Duration::from_secs(150);

/// Repeats a command until it succeeds.
pub fn eventually(client: &mut Client, line: &str) -> Result<()> {
    let begin = Instant::now();
    loop {
        let (code, said) = client.guest.ask(line, PATIENCE)?;
        if code == 0 {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            let trace = client.guest.run("tail -n 40 /sys/kernel/tracing/trace")?;
            bail!("never so: {line}\n{said}\n{trace}");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Checks that a client that opens a file sees the contents at its last close by another.
fn close_to_open(a: &mut Client, b: &mut Client) -> Result<()> {
    for round in 0..rounds().unwrap_or(1) * 10 {
        // Same length, within one second: only the change attribute differs.
        let text = format!("round {:04}", round);
        a.guest.run(&format!("echo '{text}' > /mnt/shared"))?;
        let seen = b.guest.run("cat /mnt/shared")?;
        ensure!(seen == text, "b sees {seen:?} for {text:?}");
        b.guest.run(&format!("mkdir -p /mnt/d && echo 'b {round:04}' > /mnt/shared"))?;
        let seen = a.guest.run("cat /mnt/shared")?;
        ensure!(seen == format!("b {round:04}"), "a sees {seen:?}");
        a.guest.run(&format!("echo x > /mnt/d/name-{round}"))?;
        eventually(b, &format!("ls /mnt/d | grep -qx name-{round}"))?;
        b.guest.run(&format!("mv /mnt/d/name-{round} /mnt/d/moved-{round}"))?;
        eventually(a, &format!("ls /mnt/d | grep -qx moved-{round}"))?;
        a.guest.run(&format!("rm /mnt/d/moved-{round}"))?;
        eventually(b, &format!("! ls /mnt/d | grep -qx moved-{round}"))?;
    }
    Ok(())
}

fn locks(a: &mut Client, b: &mut Client) -> Result<()> {
    a.guest.run("try hold-lock /mnt locked > /tmp/a 2>&1 & echo $! > /tmp/pid")?;
    eventually(a, "grep -q held /tmp/a")?;
    b.guest.run("try hold-lock /mnt locked > /tmp/b 2>&1 & echo $! > /tmp/pid")?;
    std::thread::sleep(Duration::from_secs(1));
    b.guest.run("! grep -q held /tmp/b")?;
    a.guest.run("kill $(cat /tmp/pid)")?;
    eventually(b, "grep -q held /tmp/b")?;
    b.guest.run("kill $(cat /tmp/pid)")?;

    let times = 100 * rounds().unwrap_or(1);
    let line = format!("try count /mnt counter {times}");
    a.guest.begin(&line)?;
    b.guest.run_within(&line, Duration::from_secs(600))?;
    let (code, said) = a.guest.answer(Duration::from_secs(600))?;
    ensure!(code == 0, "{said}");
    let sum = b.guest.run("cat /mnt/counter")?;
    ensure!(sum == (2 * times).to_string(), "{sum} for {}", 2 * times);
    Ok(())
}

/// Checks that, if one client has a write delegation and has written, the other gets the current attributes,
/// and then the data.
fn delegations(a: &mut Client, b: &mut Client) -> Result<()> {
    let (asked, recalled) = (a.events("nfs4_cb_getattr")?, a.events("nfs4_cb_recall")?);
    a.guest.run("try hold-dirty /mnt dirty > /tmp/a 2>&1 & echo $! > /tmp/pid")?;
    eventually(a, "grep -q held /tmp/a")?;
    let size = b.guest.run("stat -c %s /mnt/dirty")?;
    ensure!(size == "4096", "b sees the size {size}");
    ensure!(a.events("nfs4_cb_getattr")? > asked, "the holder was not asked");
    ensure!(a.events("nfs4_cb_recall")? == recalled, "recalled without a conflict");
    // After close the data may still be dirty; only after the recall may the other client write.
    a.guest.run("kill $(cat /tmp/pid)")?;
    let sum = a.guest.run("md5sum < /mnt/dirty")?;
    eventually(b, &format!("test \"$(md5sum < /mnt/dirty)\" = '{sum}'"))?;
    ensure!(a.events("nfs4_cb_recall")? > recalled, "the delegation was not recalled");
    let given = [a.events("nfs4_set_delegation")?, b.events("nfs4_set_delegation")?];
    let returned = [a.events("nfs4_delegreturn")?, b.events("nfs4_delegreturn")?];
    println!("delegations given {given:?}, returned {returned:?}");
    Ok(())
}

/// Checks that one client can remove or replace files that the other has open.
fn removed(a: &mut Client, b: &mut Client) -> Result<()> {
    a.guest.run("echo first > /mnt/replaced")?;
    b.guest.run("cat /mnt/replaced")?;
    a.guest.run("echo second > /mnt/other && mv /mnt/other /mnt/replaced")?;
    let seen = b.guest.run("cat /mnt/replaced")?;
    ensure!(seen == "second", "b sees {seen:?}");
    a.guest.run("rm /mnt/replaced")?;
    eventually(b, "! cat /mnt/replaced")
}

fn run(version: &str) -> Result<()> {
    let Some(machines) = machines() else { return Ok(()) };
    let image = image();
    let server = Server::start(image.path())?;
    let mut a = machines.client("a", server.port())?;
    let mut b = machines.client("b", server.port())?;
    for client in [&mut a, &mut b] {
        client.mount(version, "/mnt", ",actimeo=1")?;
    }
    close_to_open(&mut a, &mut b)?;
    locks(&mut a, &mut b)?;
    if version != "4.0" {
        delegations(&mut a, &mut b)?;
    }
    removed(&mut a, &mut b)?;
    for client in [&mut a, &mut b] {
        client.unmount("/mnt")?;
        client.was_told(&EXPECTED)?;
    }
    let stats = server.stats()?;
    let total = |what: &str| stats["total"][what].as_u64().unwrap_or(u64::MAX);
    println!("recalls {}, callbacks {}", total("recalls"), total("callbacks"));
    ensure!(
        total("revocations") == 0 && total("callbacks_late") == 0,
        "a holder did not respond in time: {stats}"
    );
    ensure!(version == "4.0" || total("recalls") > 0, "nothing was recalled: {stats}");
    a.mount(version, "/mnt", "")?;
    let seen = a.guest.run(&format!("cd /mnt && {DIGEST}"))?;
    a.unmount("/mnt")?;
    a.end()?;
    b.end()?;
    server.stop()?;
    holds(image.path(), &seen)
}

#[test]
fn two_clients_see_each_others_changes() {
    let versions: &[&str] = if rounds().is_some() { &["4.2", "4.1", "4.0"] } else { &["4.2"] };
    for version in versions {
        run(version).unwrap();
    }
}
