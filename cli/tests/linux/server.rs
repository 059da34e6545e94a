//! The server: a process, so that it can be killed.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Short, so that the end of grace can be waited for.
const LEASE_SECONDS: u32 = 15;

/// The example of the server's crate: built here, since tests of one crate do not build another's.
fn program() -> Result<PathBuf> {
    static BUILT: Mutex<bool> = Mutex::new(false);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("a target directory")?;
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if !*built {
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "-p", "ivers-nfsd", "--example", "serve", "--target-dir"])
            .arg(target);
        ensure!(build.status()?.success(), "the server's example cannot be built");
        *built = true;
    }
    Ok(target.join("debug/examples/serve"))
}

/// The server of one image.
pub struct Server {
    image: PathBuf,
    state: tempfile::TempDir,
    pub port: u16,
    process: Option<Child>,
}

impl Server {
    pub fn start(image: &Path) -> Result<Self> {
        // Free now, and nobody else's for as long as this takes.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let state = tempfile::tempdir()?;
        let mut server = Self { image: image.to_owned(), state, port, process: None };
        server.start_again()?;
        Ok(server)
    }

    pub fn start_again(&mut self) -> Result<()> {
        let export = format!("{},name=/data,no_root_squash", self.image.display());
        let process = Command::new(program()?)
            .args([&export, self.state.path().to_str().context("a path in UTF-8")?])
            .args([format!("127.0.0.1:{}", self.port), LEASE_SECONDS.to_string()])
            .stdin(Stdio::piped())
            .spawn()
            .context("the server")?;
        self.process = Some(process);
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            ensure!(Instant::now() < deadline, "the server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// As `kill -9` does.
    pub fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("no server runs")?;
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    /// In good order.
    pub fn stop(mut self) -> Result<()> {
        let mut process = self.process.take().context("no server runs")?;
        drop(process.stdin.take());
        let status = process.wait()?;
        ensure!(status.success(), "the server: {status}");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
