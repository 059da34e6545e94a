//! The files that configure the server, and its reaction when files that it keeps are removed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::served::Server;
use crate::common::{IVERS, signal, wait_until};
use ivers_nfs_test::client::{Client, data};
use ivers_nfs4::ops::Op;
use ivers_nfs4::status::NfsStat;
use rustix::process::Signal;

const EXPORT: &str = "[[export]]\nname = \"/data\"\nimage = \"none\"\ntype = \"mem\"\n";

fn command(dir: &Path, config: &str) -> Command {
    let mut command = Command::new(IVERS);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--log-format", "json", "--config", config]);
    command.current_dir(dir);
    command
}

fn root(client: &mut Client) -> NfsStat {
    client.call([data(), vec![Op::GetFh(())]].concat()).0
}

#[test]
fn a_fifo_is_refused_but_an_inherited_pipe_is_read() {
    let dir = tempfile::tempdir().unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("pipe"), 0o600.into()).unwrap();
    let begin = Instant::now();
    let refused = command(dir.path(), "pipe").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("pipe: not a regular file"), "{said}");
    assert!(begin.elapsed() < Duration::from_secs(20));

    let mut given = tempfile::tempfile().unwrap();
    write!(given, "state = \"kept\"\n{EXPORT}").unwrap();
    std::io::Seek::rewind(&mut given).unwrap();
    let mut writer = Command::new("cat").stdin(given).stdout(Stdio::piped()).spawn().unwrap();
    let server = Server::of(command(dir.path(), "/dev/stdin").stdin(writer.stdout.take().unwrap()));
    assert!(writer.wait().unwrap().success());
    // Relative to the directory where the server was started.
    assert!(dir.path().join("kept/state").exists());
    let mut client = Client::new(server.address(), "a");
    assert_eq!(root(&mut client), NfsStat::Ok);
    signal(server.pid(), Signal::HUP);
    wait_until("the reload failed", || server.log().contains("nothing is changed"));
    assert!(server.log().contains("passed as a descriptor at the start"), "{}", server.log());
    assert_eq!(root(&mut client), NfsStat::Ok);
    // Numbers in the log are JSON numbers.
    let came = server.log().lines().find(|line| line.contains("new client")).map(str::to_owned).unwrap();
    let came: serde_json::Value = serde_json::from_str(&came).unwrap();
    assert_eq!((&came["minor"], &came["tls"]), (&1.into(), &false.into()), "{came}");
    assert!(came["address"].is_string(), "{came}");
    drop(client);
    assert!(server.stop().success());
}

#[test]
fn a_removed_state_directory_is_noticed() {
    for sandbox in ["true", "false"] {
        let dir = tempfile::tempdir().unwrap();
        let (kept, aside) = (dir.path().join("kept"), dir.path().join("aside"));
        let text = format!("state = \"kept\"\nsandbox = {sandbox}\n{EXPORT}");
        fs::write(dir.path().join("serve.toml"), text).unwrap();
        let server = Server::of(&mut command(dir.path(), "serve.toml"));
        let mut client = Client::new(server.address(), "a");
        fs::rename(&kept, &aside).unwrap();
        wait_until("the removal is noticed", || server.log().contains("removed, or moved away"));
        assert!(server.log().contains("\"error\""), "{}", server.log());
        // A recorded client goes on; a new one, which would have to be recorded, gets NFS4ERR_DELAY.
        assert_eq!(root(&mut client), NfsStat::Ok);
        let begin = Instant::now();
        let mut late = Client::connect(server.address(), "late");
        late.create_session();
        let (status, _) = late.call(vec![Op::ReclaimComplete(false)]);
        assert_eq!(status, NfsStat::Delay);
        assert!(begin.elapsed() < Duration::from_secs(6), "it did not wait in vain");

        fs::rename(&aside, &kept).unwrap();
        wait_until("it is found", || server.log().contains("is accessible again"));
        assert_eq!(late.call_with_retry(&[Op::ReclaimComplete(false)]).0, NfsStat::Ok);
        // If only one of its files is removed, the server writes it again.
        fs::remove_file(kept.join("state")).unwrap();
        wait_until("the file is written again", || kept.join("state").exists());
        drop((client, late));
        assert!(server.stop().success());
        let server = Server::of(&mut command(dir.path(), "serve.toml"));
        assert!(!server.log().contains("was not shut down properly"), "{}", server.log());
        assert!(server.stop().success());
    }
}
