//! Locks between a mount of ours and a mount of Linux, in an emulated machine.

use super::work::{PYTHON, Place, end};
use anyhow::{Context, Result, ensure};
use ivers_oracle::machine::{Boot, Guest, Initramfs, Kernel};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The modules of Linux's client, besides a network card's.
const MODULES: [&str; 8] = ["sunrpc", "grace", "lockd", "netfs", "fscache", "dns_resolver", "nfs", "nfsv4"];
/// How often each of the two raises the number in the file.
const ROUNDS: u32 = 30;
const PATIENCE: Duration = Duration::from_secs(600);

/// The program that locks there.
const LOCKER: &str = include_str!("locker.c");

/// Boots a machine and mounts the directory of the part at `/mnt`.
fn mounted(place: &Place<'_>, dir: &str) -> Result<Guest> {
    let scratch = &place.setup.scratch;
    let (source, program) = (scratch.join("locker.c"), scratch.join("locker"));
    fs::write(&source, LOCKER)?;
    // The machine has no libraries.
    let words = ["-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o"].map(Path::new);
    ivers_oracle::run("gcc", words.into_iter().chain([&*program, &source]))?;
    let root = Initramfs::new()?;
    root.file("bin/locker", &program)?;
    let kernel = Kernel::newest(&crate::target_dir().join("kernel"))?;
    let mut guest = Boot::new(kernel, root, &MODULES)?.boot("client")?;
    let server = place.url.strip_prefix("nfs://127.0.0.1:").context("the server is not here")?;
    let (port, export) = server.split_once('/').unwrap_or((server, ""));
    let options =
        format!("vers={},proto=tcp,port={port},sec=sys,addr=10.0.2.2,clientaddr=10.0.2.15", place.vers);
    let path = format!("/{export}/{dir}").replace("//", "/");
    guest.run_within(&format!("mount -i -t nfs4 -o {options} 10.0.2.2:{path} /mnt"), PATIENCE)?;
    Ok(guest)
}

/// Returns whether Linux gets a lock: `r` or `w`.
fn gets(guest: &mut Guest, kind: &str) -> Result<bool> {
    let (code, said) = guest.ask(&format!("locker try /mnt/counted {kind}"), PATIENCE)?;
    ensure!(code < 2, "Linux: {said}");
    Ok(code == 0)
}

/// Each of the two refuses what the other one has locked. Then both count in one file.
pub(super) fn locks(place: &Place<'_>, dir: &str) -> Result<String> {
    let mount = place.mount(dir, "one", "")?;
    let path = mount.dir.join("counted");
    fs::write(&path, "0\n")?;
    let mut guest = mounted(place, dir)?;
    let file = File::options().read(true).write(true).open(&path)?;
    ensure!(gets(&mut guest, "w")?, "Linux gets no lock, and nobody has one");
    flock(&file, FlockOperation::LockShared)?;
    ensure!(!gets(&mut guest, "w")?, "Linux gets a lock for writing beside a shared one of ours");
    ensure!(gets(&mut guest, "r")?, "Linux gets no shared lock");
    flock(&file, FlockOperation::Unlock)?;
    ensure!(gets(&mut guest, "w")?, "Linux gets no lock after we have released ours");
    let hold = "locker hold /mnt/counted > /tmp/held & echo $! > /tmp/holder; \
                until grep -q held /tmp/held; do sleep 1; done";
    guest.run_within(hold, PATIENCE)?;
    let refused = flock(&file, FlockOperation::NonBlockingLockShared);
    ensure!(refused.is_err(), "we get a lock that Linux has");
    guest.run_within("kill $(cat /tmp/holder)", PATIENCE)?;
    flock(&file, FlockOperation::LockExclusive)?;
    flock(&file, FlockOperation::Unlock)?;
    drop(file);

    guest.begin(&format!("locker count /mnt/counted {ROUNDS}"))?;
    let mut program = Command::new("python3");
    let ours = program.args(["-c", PYTHON, "with_other"]).arg(&mount.dir).arg(ROUNDS.to_string()).output()?;
    let (code, said) = guest.answer(PATIENCE)?;
    ensure!(ours.status.success(), "{}", ivers_oracle::said(&ours));
    ensure!(code == 0, "Linux: {said}");
    let counted: u32 = fs::read_to_string(&path)?.trim().parse().context("not a number")?;
    ensure!(counted == 2 * ROUNDS, "{counted} counted");
    guest.run("umount /mnt")?;
    guest.off()?;
    end(mount)?;
    Ok(format!("each is refused a lock that the other has; both count to {counted} under locks"))
}
