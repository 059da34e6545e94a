//! A running emulated machine that executes commands of the host.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use tempfile::TempDir;

use super::{Initramfs, Kernel, machine, wait};

/// The modules of the network card, in load order.
const NETWORK: [&str; 8] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
];

/// The time limit of a boot. It only ends a machine that hangs: it is emulated, and the host can be busy.
const BOOT: Duration = Duration::from_secs(600);
/// The time limit of a command. It only ends a guest that hangs: on a busy host, copying and comparing
/// 100 MiB takes minutes.
const ANSWER: Duration = Duration::from_secs(900);

/// Returns the network of a machine that a port of the host's loopback leads to.
fn forwarded(port: u16, guest_port: u16) -> String {
    format!("user,id=n0,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:{guest_port}")
}

/// A kernel and a root for guests. The guest's first process reads commands from the host. The host is
/// 10.0.2.2, and its loopback ports are reachable there.
pub struct Boot {
    kernel: Kernel,
    archive: PathBuf,
    _root: Initramfs,
}

impl Boot {
    /// Adds these modules after those of the network card, in this order, and those that they need. What is
    /// built into the kernel is omitted.
    pub fn new(kernel: Kernel, root: Initramfs, modules: &[&str]) -> Result<Self> {
        let wanted = [&NETWORK[..], modules].concat();
        for (number, name) in kernel.with_needed(&wanted)?.iter().enumerate() {
            root.file(&format!("modules/{number:02}-{name}.ko"), &kernel.module(name)?)?;
        }
        root.script("init", include_str!("guest.init"))?;
        let archive = root.pack()?;
        Ok(Self { kernel, archive, _root: root })
    }

    /// Boots a machine of this name.
    pub fn boot(&self, name: &str) -> Result<Guest> {
        self.boot_with(name, "")
    }

    /// Boots a machine of this name with additional kernel arguments.
    pub fn boot_with(&self, name: &str, more: &str) -> Result<Guest> {
        self.boot_on(name, more, "user,id=n0", &[])
    }

    /// Boots a machine of this name. Connections to this port of the host's loopback are forwarded to it.
    pub fn boot_reached(&self, name: &str, port: u16) -> Result<Guest> {
        self.boot_on(name, "", &forwarded(port, port), &[])
    }

    /// Boots a machine with 512 MiB of memory and this image as `/dev/vda`. It requires the module
    /// `virtio_blk`. Connections to `port` of the host's loopback are forwarded to `guest_port` of the guest.
    pub fn boot_with_disk(&self, name: &str, image: &Path, port: u16, guest_port: u16) -> Result<Guest> {
        let image = image.to_str().context("the image's name is not UTF-8")?;
        let drive = format!("file={image},if=virtio,format=raw,cache=unsafe");
        let disk = ["-m", "512", "-drive", &drive];
        self.boot_on(name, "", &forwarded(port, guest_port), &disk)
    }

    fn boot_on(&self, name: &str, more: &str, network: &str, disk: &[&str]) -> Result<Guest> {
        let dir = tempfile::Builder::new().prefix("ivers-guest-").tempdir()?;
        let console = dir.path().join("console");
        // The kernel puts a name before its own arguments into the environment of the first process.
        let append = format!("loglevel=6 machine={name} {more}");
        let mut child = machine(&self.kernel, &self.archive, &console, &append)?
            .args(["-smp", "1", "-chardev", "stdio,id=agent,signal=off", "-serial", "chardev:agent"])
            .args(["-netdev", network, "-device", "virtio-net-pci,netdev=n0,romfile="])
            .args(disk)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("qemu-system-x86_64")?;
        let input = child.stdin.take().context("a machine without input")?;
        let output = child.stdout.take().context("a machine without output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        let mut guest = Guest { name: name.to_owned(), child, input: Some(input), lines, console, _dir: dir };
        let (code, _) = guest.answer(BOOT)?;
        let complaints = guest.complaints();
        ensure!(code == 0 && complaints.is_empty(), "{name} is not as it must be: {complaints:#?}");
        Ok(guest)
    }
}

/// A running machine. Dropping it powers it off at once.
pub struct Guest {
    name: String,
    child: Child,
    /// `None` after the machine was told to shut down.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    console: PathBuf,
    _dir: TempDir,
}

impl Guest {
    /// Runs a shell command and returns its exit code and output.
    pub fn ask(&mut self, line: &str, patience: Duration) -> Result<(i32, String)> {
        self.begin(line)?;
        self.answer(patience)
    }

    /// Starts a shell command; [`Guest::answer`] returns its result.
    pub fn begin(&mut self, line: &str) -> Result<()> {
        let line = line.trim().replace('\n', " ");
        let input = self.input.as_mut().context("the machine was told to shut down")?;
        input.write_all(format!("{line}\n").as_bytes())?;
        input.flush().map_err(|error| anyhow!("{}: {error}\n{}", self.name, self.console()))
    }

    /// Returns the result of the command that was started.
    pub fn answer(&mut self, patience: Duration) -> Result<(i32, String)> {
        let begin = Instant::now();
        let mut said: Vec<String> = Vec::new();
        loop {
            match self.lines.recv_timeout(patience.saturating_sub(begin.elapsed())) {
                Ok(line) => match line.strip_prefix("=== ").map(|code| code.trim().parse()) {
                    Some(Ok(code)) => return Ok((code, said.join("\n").trim_end().to_owned())),
                    _ => said.push(line),
                },
                Err(why) => {
                    let why = match why {
                        RecvTimeoutError::Timeout => "has not answered",
                        RecvTimeoutError::Disconnected => "is off",
                    };
                    let (name, console) = (&self.name, self.console());
                    bail!(
                        "{name} {why} after {} s\n{}\n{console}",
                        begin.elapsed().as_secs(),
                        said.join("\n")
                    );
                }
            }
        }
    }

    /// Runs a command. Anything but success is an error with its output.
    pub fn run(&mut self, line: &str) -> Result<String> {
        self.run_within(line, ANSWER)
    }

    /// Runs a command as [`Guest::run`] does, with another time limit.
    pub fn run_within(&mut self, line: &str, patience: Duration) -> Result<String> {
        let (code, said) = self.ask(line, patience)?;
        ensure!(code == 0, "{}: {line}: {code}\n{said}\n{}", self.name, self.last_words());
        Ok(said)
    }

    /// Returns the kernel's console output.
    pub fn console(&self) -> String {
        std::fs::read(&self.console)
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .unwrap_or_default()
    }

    fn last_words(&self) -> String {
        let console = self.console();
        let lines: Vec<_> = console.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Returns the kernel's warnings and errors.
    pub fn complaints(&self) -> Vec<String> {
        let signs =
            ["BUG:", "WARNING:", "Oops", "Call Trace", "hung_task", "blocked for more than", "guest: "];
        let console = self.console();
        let lines = console.lines().filter(|line| signs.iter().any(|sign| line.contains(sign)));
        lines.map(|line| line.trim_end().to_owned()).collect()
    }

    /// Shuts the machine down and waits for it.
    pub fn off(mut self) -> Result<()> {
        self.begin("poweroff -f")?;
        self.input = None;
        wait(&mut self.child, Duration::from_secs(60)).context(self.name.clone())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
