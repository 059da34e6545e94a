//! The server of one image, which can be killed and restarted on the same port.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::common::{IVERS, ivers, said, served};

/// Short, so that tests can wait for the end of the grace period. The Linux client renews every five seconds
/// at most.
const LEASE: &str = "15";

pub struct Server {
    image: PathBuf,
    state: tempfile::TempDir,
    address: SocketAddr,
    running: Option<served::Server>,
}

impl Server {
    pub fn start(image: &Path) -> Result<Self> {
        let (state, address) = (tempfile::tempdir()?, (Ipv4Addr::LOCALHOST, 0).into());
        let mut server = Self { image: image.to_owned(), state, address, running: None };
        server.start_again();
        Ok(server)
    }

    pub fn start_again(&mut self) {
        let running = served::Server::of(
            Command::new(IVERS)
                .args(["serve", "--json", "--lease", LEASE, "--listen", &self.address.to_string(), "--state"])
                .arg(self.state.path())
                .arg(format!("{},name=/data,no_root_squash", self.image.display())),
        );
        // Keeps the port that the system chose.
        self.address = running.address();
        self.running = Some(running);
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the statistics of the server.
    pub fn stats(&self) -> Result<Value> {
        let output = ivers(["stats".as_ref(), "--json".as_ref(), self.state.path().as_os_str()]);
        serde_json::from_slice(&output.stdout).with_context(|| said(&output))
    }

    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) -> Result<()> {
        self.running.take().context("no server runs")?.kill();
        Ok(())
    }

    /// Ends it cleanly.
    pub fn stop(mut self) -> Result<()> {
        let running = self.running.take().context("no server runs")?;
        let complaints = running.log();
        println!("{complaints}");
        let status = running.stop();
        ensure!(status.success(), "the server: {status}\n{complaints}");
        Ok(())
    }
}
