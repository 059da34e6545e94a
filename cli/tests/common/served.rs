//! Servers started by the command.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use ivers_oracle::Image;
use rustix::process::Signal;
use serde_json::Value;

use super::{IVERS, ivers, said, signal};

/// A server that ends with the test.
pub struct Server {
    pub child: Child,
    /// The output that the server printed when it was ready.
    pub told: Value,
    log: tempfile::NamedTempFile,
}

/// Returns the command, with a state directory and a port that the system chooses.
pub fn command(state: &Path) -> Command {
    let mut command = Command::new(IVERS);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--state"]).arg(state);
    command
}

impl Server {
    /// Starts with a state directory, on a port that the system chooses.
    pub fn start<S: AsRef<OsStr>>(state: &Path, words: impl IntoIterator<Item = S>) -> Self {
        Self::of(command(state).args(words))
    }

    /// Starts a command; the server is ready when this returns.
    pub fn of(command: &mut Command) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut child =
            command.stdout(Stdio::piped()).stderr(log.as_file().try_clone().unwrap()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let log_text = std::fs::read_to_string(log.path()).unwrap();
        let told = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it does not serve: {log_text}"));
        Self { child, told, log }
    }

    pub fn address(&self) -> SocketAddr {
        self.told["addresses"][0].as_str().unwrap().parse().unwrap()
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }

    /// Ends the server cleanly.
    pub fn stop(mut self) -> ExitStatus {
        signal(self.pid(), Signal::TERM);
        self.child.wait().unwrap()
    }

    /// Ends the server as a crash does.
    pub fn kill(mut self) {
        signal(self.pid(), Signal::KILL);
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns an image with a file that every user may read.
pub fn image_with_file() -> Image {
    let image = Image::new("ext4", 64 << 20, &[]).unwrap();
    let file = image.dir().join("hello");
    std::fs::File::create(&file).unwrap().write_all(b"hello over the wire\n").unwrap();
    let inside = format!("{}:/", image.path().display());
    let output = ivers(["cp".as_ref(), file.as_os_str(), inside.as_ref()]);
    assert!(output.status.success(), "{}", said(&output));
    image
}

/// Returns the arguments for an export of an image.
pub fn export(image: &Image, options: &str) -> String {
    format!("{},{options}", image.path().display())
}
