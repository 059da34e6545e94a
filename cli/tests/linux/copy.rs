//! The server is killed during an asynchronous copy: the client gets an error or the right contents.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ivers_nfs4::ops::number;

use crate::guest::{Client, machines};
use crate::server::Server;
use crate::several_clients::eventually;
use crate::{ends_with_the_tree, image, rounds};

/// Long enough to be interrupted.
const MIBS: usize = 96;
/// The number of tries: a copy may end before the kill.
const TRIES: usize = 5;

/// Besides the usual errors of a restarted server: it does not know the copy.
const EXPECTED: [(u32, &str); 12] = [
    (number::LOOKUP, "ENOENT"),
    (number::OPEN, "ENOENT"),
    (number::OPEN, "GRACE"),
    (number::OPEN, "DELAY"),
    (number::COPY, "BAD_STATEID"),
    (number::COPY, "GRACE"),
    (number::OFFLOAD_CANCEL, "BAD_STATEID"),
    (number::COMMIT, "BAD_STATEID"),
    (number::DELEGRETURN, "BAD_STATEID"),
    (number::DESTROY_SESSION, "BADSESSION"),
    (number::SEQUENCE, "BADSESSION"),
    (number::CREATE_SESSION, "STALE_CLIENTID"),
];

/// Returns whether the copy is still running.
fn goes_on(server: &Server, client: &mut Client, said: &str) -> Result<bool> {
    let begin = Instant::now();
    while server.stats()?["now"]["copies"] != 1 {
        let (over, _) = client.guest.ask(&format!("test -s {said}"), Duration::from_secs(60))?;
        if over == 0 {
            return Ok(false);
        }
        ensure!(begin.elapsed() < Duration::from_secs(120), "no copy has begun");
    }
    Ok(true)
}

fn one_round(server: &mut Server, client: &mut Client, name: &str) -> Result<()> {
    for attempt in 0..TRIES {
        let (target, said) = (format!("{name}-{attempt}"), format!("/tmp/said-{name}-{attempt}"));
        client.guest.run(&format!(
            "rm -f {said}; try copy-over /mnt source {target} {said} > /tmp/err 2>&1 & true"
        ))?;
        let met = goes_on(server, client, &said)?;
        if met {
            server.kill()?;
            client.guest.run(&format!("! test -s {said}"))?;
            server.start_again();
        }
        eventually(client, &format!("test -s {said} || test -s /tmp/err"))?;
        let (_, complaint) = client.guest.ask("cat /tmp/err", Duration::from_secs(60))?;
        ensure!(complaint.trim().is_empty(), "{complaint}");
        println!("{target}: {}", client.guest.run(&format!("cat {said}"))?);
        if met {
            return Ok(());
        }
    }
    bail!("each copy was over before it could be met")
}

fn run() -> Result<()> {
    let Some(machines) = machines() else { return Ok(()) };
    let image = image();
    let mut server = Server::start(image.path())?;
    let mut client = machines.client("a", server.port())?;
    client.mount("4.2", "/mnt", "")?;
    client.attempt("make-source", "/mnt", &format!("source {MIBS}"))?;
    // The image has space for four.
    for round in 0..rounds().unwrap_or(1).min(4) {
        one_round(&mut server, &mut client, &format!("round-{round}"))?;
        client.guest.run("rm /mnt/round-*")?;
    }
    client.guest.run("cp /mnt/source /mnt/last && cmp /mnt/source /mnt/last")?;
    ends_with_the_tree(client, "/mnt", server, image.path(), &EXPECTED)
}

#[test]
fn copies_are_right_when_the_server_is_killed() {
    run().unwrap();
}
