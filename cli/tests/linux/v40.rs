//! A client of NFSv4.0, with callbacks over a connection that the server opens.

use std::net::TcpListener;

use anyhow::{Result, ensure};
use ivers_nfs4::ops::number;

use crate::guest::machines;
use crate::server::Server;
use crate::several_clients::eventually;
use crate::{ends_with_the_tree, image};

const EXPECTED: [(u32, &str); 3] =
    [(number::LOOKUP, "ENOENT"), (number::OPEN, "ENOENT"), (number::OPEN, "DELAY")];

fn run() -> Result<()> {
    let Some(machines) = machines() else { return Ok(()) };
    let image = image();
    let server = Server::start(image.path())?;
    // A port that the system chose, and free again.
    let called_at = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut client = machines.called_client("a", server.port(), called_at)?;
    // To the server, the client's host is the one that runs its machine.
    client.mount("4.0", "/mnt0", ",clientaddr=127.0.0.1")?;
    client.mount("4.2", "/mnt2", "")?;
    client.guest.run("echo first > /mnt0/file && cat /mnt0/file")?;
    // The server grants delegations only after the client has answered a callback.
    eventually(&mut client, "cat /mnt0/file && grep -q ' nfs4_set_delegation: ' /sys/kernel/tracing/trace")?;
    ensure!(client.events("nfs4_cb_recall")? == 0, "recalled without a conflict");
    client.guest.run("echo second > /mnt2/file")?;
    ensure!(client.events("nfs4_cb_recall")? > 0, "the other one did not wait for it");
    let seen = client.guest.run("cat /mnt0/file")?;
    ensure!(seen == "second", "{seen:?}");
    let stats = server.stats()?;
    ensure!(stats["total"]["recalls"].as_u64() > Some(0), "{stats}");
    ensure!(stats["total"]["revocations"] == 0, "a holder did not respond in time: {stats}");
    client.unmount("/mnt0")?;
    ends_with_the_tree(client, "/mnt2", server, image.path(), &EXPECTED)
}

#[test]
fn a_v40_client_receives_callbacks() {
    run().unwrap();
}
