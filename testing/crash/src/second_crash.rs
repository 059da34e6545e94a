//! A second crash: the recovered filesystem is used, and then crashes again.
//!
//! Observers still hold the values from before the first crash and those from the session between the
//! crashes.

use crate::history::{Handed, Worker, directory, mount_options, read_node, read_tree};
use crate::recover::{mount, stop_at_random, unmount};
use crate::target::Target;
use crate::verify;
use ivers_block::{Device, FaultDevice};
use ivers_vfs::{Cred, Error, FileType, NameError, SetAttr, Vfs, WriteFlags};
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::Arc;

/// Rounds in which each file is changed and queried between the crashes.
const ROUNDS: usize = 2;

/// Uses `device`, a filesystem at rest, and stops it. `at` is the position of the first crash in its record.
/// The inner error is a broken promise.
pub(crate) fn check(
    target: &dyn Target,
    histories: &[Worker],
    device: &Arc<dyn Device>,
    at: usize,
    rng: &mut StdRng,
) -> anyhow::Result<Result<(), String>> {
    let faulty = Arc::new(FaultDevice::new(device.clone()));
    let mut all: Vec<Worker> = histories
        .iter()
        .map(|history| {
            let handed = history.handed.iter().filter(|old| old.at <= at).cloned();
            // These values were handed out before any position of the second record.
            let handed = handed.map(|old| Handed { at: 0, ..old }).collect();
            Worker { index: history.index, handed, ..Worker::default() }
        })
        .collect();
    let worked = (|| -> ivers_vfs::Result<()> {
        let vfs = Vfs::mount(target.open(faulty.clone(), false)?, mount_options(None).0)?;
        for _ in 0..ROUNDS {
            all.iter_mut().try_for_each(|worker| work(&vfs, worker, &faulty, rng))?;
        }
        vfs.unmount()
    })();
    match worked {
        // A full filesystem cannot be changed, so there is nothing to check.
        Err(Error::Name(NameError::NoSpace)) => return Ok(Ok(())),
        Err(error) => return Ok(Err(format!("cannot change files before the second crash: {error}"))),
        Ok(()) => {}
    }
    let (stop, image) = stop_at_random(&faulty, rng)?;
    Ok(check_after(target, &all, Arc::new(image), stop))
}

/// Changes the files of a worker and keeps the values that queries return.
fn work(
    vfs: &Arc<Vfs>,
    worker: &mut Worker,
    device: &FaultDevice,
    rng: &mut StdRng,
) -> ivers_vfs::Result<()> {
    let cred = Cred::root();
    let files = read_tree(vfs, worker.index)?;
    for path in files.keys() {
        let inode = vfs.resolve(&cred, format!("/{}/{path}", directory(worker.index)), false)?;
        if inode.kind == FileType::Regular {
            vfs.write(&cred, &inode, rng.random_range(0..3000), &[rng.random(); 700], WriteFlags::empty())?;
        } else {
            let perm = Some(rng.random_range(0..0o1000));
            vfs.set_attr(&cred, &inode, &SetAttr { perm, ..SetAttr::default() })?;
        }
        if rng.random() {
            vfs.fsync(&inode, false)?;
        }
        if let Some(value) = vfs.change(&inode) {
            let node = read_node(vfs, &inode)?;
            worker.handed.push(Handed { at: device.len(), step: 0, id: node.id, value, node });
        }
    }
    Ok(())
}

fn check_after(
    target: &dyn Target,
    all: &[Worker],
    image: Arc<dyn Device>,
    stop: usize,
) -> Result<(), String> {
    let vfs = mount(target, image, false)?;
    for worker in all {
        let found =
            read_tree(&vfs, worker.index).map_err(|error| format!("cannot read the tree: {error}"))?;
        verify::values(&vfs, worker, &found, stop, false, target.promises())?;
    }
    unmount(&vfs)
}
