//! The virtual machines with the client.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ivers_oracle::machine::{self, Boot, Guest, Initramfs, Kernel};

/// The kernel modules of the client, besides a network card's.
const MODULES: [&str; 8] = ["sunrpc", "grace", "lockd", "netfs", "fscache", "dns_resolver", "nfs", "nfsv4"];

/// Trace events of the client.
const EVENTS: [&str; 7] = [
    "nfs4_xdr_status",
    "nfs4_set_delegation",
    "nfs4_cb_getattr",
    "nfs4_cb_recall",
    "nfs4_cb_offload",
    "nfs4_delegreturn",
    "nfs4_state_mgr_failed",
];

/// Machines run one at a time: they are slow enough.
static TURN: Mutex<()> = Mutex::new(());

/// The files that machines boot from, while this test has its turn.
pub struct Machines {
    boot: Boot,
    _turn: MutexGuard<'static, ()>,
}

/// Returns `None` if a requirement is missing; under CI none may be.
pub fn machines() -> Option<Machines> {
    let programs: Vec<&str> = machine::PROGRAMS.iter().map(|(program, _)| *program).collect();
    let others = ["gcc", "apt-get", "apt-cache", "dpkg", "mkfs.ext4", "e2fsck", "tar"];
    if !ivers_oracle::have_programs(&[&programs[..], &others].concat()) {
        return None;
    }
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Some(Machines { boot: boot().expect("there is something to boot"), _turn: turn })
}

fn boot() -> Result<Boot> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("a target directory")?;
    let kernel = Kernel::newest(&target.join("kernel"))?;
    let root = Initramfs::new()?;
    let dir = tempfile::tempdir()?;
    let program = dir.path().join("try");
    compile(&program)?;
    root.file("bin/try", &program)?;
    let tree = dir.path().join("tree.tar");
    pack_tree(&tree)?;
    root.file("tree.tar", &tree)?;
    if let Some(fsx) = std::env::var_os("IVERS_FSX") {
        root.file("bin/fsx", Path::new(&fsx))?;
    }
    Boot::new(kernel, root, &MODULES)
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/linux")
}

/// Compiles statically: the machine has no libraries.
fn compile(program: &Path) -> Result<()> {
    let mut args: Vec<OsString> =
        ["-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o"].map(OsString::from).to_vec();
    args.push(program.into());
    for entry in std::fs::read_dir(here().join("guest"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            args.push(path.into());
        }
    }
    ivers_oracle::run("gcc", args).map(drop)
}

/// Packs a tree of a few hundred source files.
fn pack_tree(archive: &Path) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("a workspace")?;
    let words = ["-c", "--owner=7", "--group=8", "-C"].map(OsString::from);
    let names = ["core", "serve", "docs"].map(OsString::from);
    let mut args = words.to_vec();
    args.extend([root.into(), "-f".into(), archive.into()]);
    args.extend(names);
    ivers_oracle::run("tar", args).map(drop)
}

impl Machines {
    /// Boots a client of the server at this port.
    pub fn client(&self, name: &str, port: u16) -> Result<Client> {
        Self::set_up(self.boot.boot(name)?, port)
    }

    /// Starts a client as [`Self::client`] does, with a callback port on the host for NFSv4.0.
    pub fn called_client(&self, name: &str, port: u16, called_at: u16) -> Result<Client> {
        let mut client = Self::set_up(self.boot.boot_reached(name, called_at)?, port)?;
        client.guest.run(&format!("echo {called_at} > /sys/module/nfs/parameters/callback_tcpport"))?;
        Ok(client)
    }

    fn set_up(mut guest: Guest, port: u16) -> Result<Client> {
        for event in EVENTS {
            guest.run(&format!("echo 1 > /sys/kernel/tracing/events/nfs4/{event}/enable"))?;
        }
        guest.run("echo 8192 > /sys/kernel/tracing/buffer_size_kb")?;
        Ok(Client { guest, port })
    }
}

/// A machine with the client.
pub struct Client {
    pub guest: Guest,
    port: u16,
}

impl Client {
    /// Mounts the export.
    pub fn mount(&mut self, version: &str, at: &str, options: &str) -> Result<()> {
        self.mount_of("data", version, at, options)
    }

    /// Mounts one of several exports.
    pub fn mount_of(&mut self, export: &str, version: &str, at: &str, options: &str) -> Result<()> {
        let port = self.port;
        self.guest.run(&format!(
            "mkdir -p {at} && mount -i -t nfs4 -o \
             vers={version},proto=tcp,port={port},sec=sys,addr=10.0.2.2,clientaddr=10.0.2.15{options} \
             10.0.2.2:/{export} {at}"
        ))?;
        let there = self.guest.run(&format!("grep ' {at} ' /proc/mounts"))?;
        ensure!(there.contains(&format!("vers={version},")), "{there}");
        Ok(())
    }

    pub fn unmount(&mut self, at: &str) -> Result<()> {
        self.guest.run(&format!("umount {at}")).map(drop)
    }

    /// Runs the program for one kind of work.
    pub fn attempt(&mut self, what: &str, dir: &str, more: &str) -> Result<()> {
        let begin = std::time::Instant::now();
        self.guest.run_within(&format!("try {what} {dir} {more}"), Duration::from_secs(300))?;
        println!("{what} {more} in {dir}: {:.1} s", begin.elapsed().as_secs_f32());
        Ok(())
    }

    /// Returns how often an event was recorded.
    pub fn events(&mut self, event: &str) -> Result<usize> {
        let (_, said) = self
            .guest
            .ask(&format!("grep -c ' {event}: ' /sys/kernel/tracing/trace"), Duration::from_secs(60))?;
        said.trim().parse().with_context(|| said.clone())
    }

    /// Asserts that the server returned no errors but these: the operation, and the client's name of the
    /// error.
    pub fn was_told(&mut self, expected: &[(u32, &str)]) -> Result<()> {
        let errors = self.errors()?;
        println!("the server has answered {errors:?}");
        let other = errors.keys().find(|(operation, error)| !expected.contains(&(*operation, &**error)));
        if let Some((operation, error)) = other {
            let line = format!(
                "grep -B 8 -A 4 '({error}) operation={operation}' /sys/kernel/tracing/trace | head -n 60"
            );
            let (_, around) = self.guest.ask(&line, Duration::from_secs(60))?;
            bail!("the server has answered {operation} with {error}:\n{around}");
        }
        Ok(())
    }

    fn errors(&mut self) -> Result<BTreeMap<(u32, String), usize>> {
        let said = self.guest.run(
            "sed -n 's/.*nfs4_xdr_status: .*error=[-0-9]* (\\([A-Za-z0-9_]*\\)) \
             operation=\\([0-9]*\\).*/\\2 \\1/p' /sys/kernel/tracing/trace | sort | uniq -c",
        )?;
        let mut errors = BTreeMap::new();
        for line in said.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [count, operation, error] = words[..] else { continue };
            errors.insert((operation.parse()?, error.to_owned()), count.parse()?);
        }
        Ok(errors)
    }

    /// Asserts that the kernel logged no complaint and nothing else is mounted, and ends the machine.
    pub fn end(mut self) -> Result<()> {
        let failed = self.events("nfs4_state_mgr_failed")?;
        ensure!(failed == 0, "the client's state manager failed {failed} times");
        let complaints = self.guest.complaints();
        ensure!(complaints.is_empty(), "{complaints:#?}");
        self.guest.off()
    }
}
