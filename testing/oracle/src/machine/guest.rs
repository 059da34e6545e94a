//! A machine that does what the host says.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use tempfile::TempDir;

use super::{Initramfs, Kernel, machine, wait};

/// The network card, for whoever has nothing to add: in the order in which they must be loaded.
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

/// Emulated, and on a machine that does other things beside.
const BOOT: Duration = Duration::from_secs(120);

/// What guests boot from. Its first process takes lines from the host; the host is 10.0.2.2, and all its loopback's ports are there.
pub struct Boot {
    kernel: Kernel,
    archive: PathBuf,
    _root: Initramfs,
}

impl Boot {
    /// With these modules behind those of the network card, in this order.
    pub fn new(kernel: Kernel, root: Initramfs, modules: &[&str]) -> Result<Self> {
        for (number, name) in NETWORK.iter().chain(modules).enumerate() {
            root.file(&format!("modules/{number:02}-{name}.ko"), &kernel.module(name)?)?;
        }
        root.script("init", include_str!("guest.init"))?;
        let archive = root.pack()?;
        Ok(Self { kernel, archive, _root: root })
    }

    /// A machine of this name.
    pub fn boot(&self, name: &str) -> Result<Guest> {
        self.boot_with(name, "")
    }

    /// The same, with more words for its kernel.
    pub fn boot_with(&self, name: &str, more: &str) -> Result<Guest> {
        self.boot_on(name, more, "user,id=n0")
    }

    /// The same; who connects to this port of the host's loopback reaches that of the machine.
    pub fn boot_reached(&self, name: &str, port: u16) -> Result<Guest> {
        self.boot_on(name, "", &format!("user,id=n0,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:{port}"))
    }

    fn boot_on(&self, name: &str, more: &str, network: &str) -> Result<Guest> {
        let dir = tempfile::Builder::new().prefix("ivers-guest-").tempdir()?;
        let console = dir.path().join("console");
        // A name before the kernel's own words is put in the environment of its first process.
        let append = format!("loglevel=6 machine={name} {more}");
        let mut child = machine(&self.kernel, &self.archive, &console, &append)?
            .args(["-smp", "1", "-chardev", "stdio,id=agent,signal=off", "-serial", "chardev:agent"])
            .args(["-netdev", network, "-device", "virtio-net-pci,netdev=n0,romfile="])
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

/// A machine that runs. Dropped, it is switched off as if the power had failed.
pub struct Guest {
    name: String,
    child: Child,
    /// Nothing once it was told to end.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    console: PathBuf,
    _dir: TempDir,
}

impl Guest {
    /// Do this in a shell, and say what came of it: the code, and all that was said.
    pub fn ask(&mut self, line: &str, patience: Duration) -> Result<(i32, String)> {
        self.begin(line)?;
        self.answer(patience)
    }

    /// Begin it; what comes of it is for [`Guest::answer`].
    pub fn begin(&mut self, line: &str) -> Result<()> {
        let line = line.trim().replace('\n', " ");
        let input = self.input.as_mut().context("a machine that was told to end")?;
        input.write_all(format!("{line}\n").as_bytes())?;
        input.flush().map_err(|error| anyhow!("{}: {error}\n{}", self.name, self.console()))
    }

    /// What came of what was begun.
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

    /// Do this; anything but a success is an error that shows what was said.
    pub fn run(&mut self, line: &str) -> Result<String> {
        self.run_within(line, Duration::from_secs(120))
    }

    /// The same, for what takes longer.
    pub fn run_within(&mut self, line: &str, patience: Duration) -> Result<String> {
        let (code, said) = self.ask(line, patience)?;
        ensure!(code == 0, "{}: {line}: {code}\n{said}\n{}", self.name, self.last_words());
        Ok(said)
    }

    /// What its kernel has said.
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

    /// What its kernel has complained about.
    pub fn complaints(&self) -> Vec<String> {
        let signs =
            ["BUG:", "WARNING:", "Oops", "Call Trace", "hung_task", "blocked for more than", "guest: "];
        let console = self.console();
        let lines = console.lines().filter(|line| signs.iter().any(|sign| line.contains(sign)));
        lines.map(|line| line.trim_end().to_owned()).collect()
    }

    /// Tell it to end, and see that it does.
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
