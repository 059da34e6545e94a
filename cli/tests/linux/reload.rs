//! The server reloads its configuration while a client works: exports and certificates change.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ivers_nfs4::ops::number;
use ivers_oracle::Image;
use rustix::process::Signal;

use crate::common::{IVERS, served, signal};
use crate::guest::machines;
use crate::several_clients::eventually;
use crate::{DIGEST, holds, image};

const EXPECTED: [(u32, &str); 5] = [
    (number::LOOKUP, "ENOENT"),
    (number::OPEN, "ENOENT"),
    (number::GETATTR, "STALE"),
    (number::PUTFH, "STALE"),
    (number::ACCESS, "STALE"),
];

/// Makes a certificate for this machine, and its key.
fn certificate(dir: &Path) -> Result<()> {
    let (key, certificate) = (dir.join("key.pem"), dir.join("certificate.pem"));
    let words =
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost";
    let words = words.split(' ').map(Into::into);
    let files = ["-keyout".into(), key.into_os_string(), "-out".into(), certificate.into_os_string()];
    ivers_oracle::run("openssl", words.chain(files).collect::<Vec<std::ffi::OsString>>()).map(drop)
}

struct Config<'a> {
    dir: &'a Path,
    images: [&'a Image; 2],
}

impl Config<'_> {
    /// Writes the configuration, with or without the second export.
    fn write(&self, both: bool) -> Result<()> {
        let mut text =
            "lease_s = 15\n[tls]\ncertificate = \"certificate.pem\"\nkey = \"key.pem\"\n".to_owned();
        for (image, name) in self.images.iter().zip(["data", "more"]).take(if both { 2 } else { 1 }) {
            text +=
                &format!("[[export]]\nname = \"/{name}\"\nimage = {:?}\nroot_squash = false\n", image.path());
        }
        Ok(fs::write(self.dir.join("serve.toml"), text)?)
    }

    fn reload(&self, server: &served::Server) -> Result<()> {
        let done = |server: &served::Server| server.log().matches("reloaded").count();
        let (before, begin) = (done(server), Instant::now());
        signal(server.pid(), Signal::HUP);
        while done(server) == before {
            ensure!(begin.elapsed() < Duration::from_secs(30), "{}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn run() -> Result<()> {
    let Some(machines) = machines() else { return Ok(()) };
    if !ivers_oracle::have_programs(&["openssl"]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let images = [image(), image()];
    let config = Config { dir: dir.path(), images: [&images[0], &images[1]] };
    certificate(dir.path())?;
    config.write(true)?;
    let mut command = Command::new(IVERS);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--state"]).arg(dir.path().join("state"));
    let server = served::Server::of(command.arg("--config").arg(dir.path().join("serve.toml")));
    let mut client = machines.client("a", server.address().port())?;
    client.mount("4.2", "/mnt", "")?;
    client.mount_of("more", "4.1", "/more", "")?;
    client.guest.run("echo kept > /more/file")?;
    client.guest.run("try write-records /mnt records /tmp/said 2000 1 > /tmp/err 2>&1 & true")?;
    eventually(&mut client, "test -s /tmp/said")?;

    certificate(dir.path())?;
    config.write(false)?;
    config.reload(&server)?;
    // Files of a removed export are stale; all others are valid.
    eventually(&mut client, "! cat /more/file > /dev/null 2>&1")?;
    client.guest.run("! grep . /tmp/err && echo still > /mnt/still")?;
    config.write(true)?;
    config.reload(&server)?;
    eventually(&mut client, "grep -q kept /more/file")?;
    client.guest.run("echo again > /more/file && grep -q again /more/file")?;
    for _ in 0..5 {
        config.reload(&server)?;
    }
    eventually(&mut client, "grep -q done /tmp/said")?;
    client.guest.run("! grep . /tmp/err")?;
    let seen = ["/mnt", "/more"].map(|at| client.guest.run(&format!("cd {at} && {DIGEST}")));
    client.unmount("/more")?;
    client.unmount("/mnt")?;
    client.was_told(&EXPECTED)?;
    client.end()?;
    ensure!(server.stop().success(), "the server failed at its end");
    for (image, seen) in images.iter().zip(seen) {
        holds(image.path(), &seen?)?;
    }
    Ok(())
}

#[test]
fn exports_change_while_a_client_is_active() {
    run().unwrap();
}
