//! A second crash: what was recovered is worked on, and stops once more.
//!
//! The values of before the first crash are still out there, and so are those of the session between the two.

use crate::history::{Handed, Worker, directory, mount_options, read_node, read_tree};
use crate::recover::{mounted, stopped_somewhere, unmounted};
use crate::target::Target;
use crate::verify;
use ivers_block::{Device, FaultDevice};
use ivers_vfs::{Cred, Error, FileType, NameError, SetAttr, Vfs, WriteFlags};
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::Arc;

/// Times that each file is changed and asked about between the crashes.
const ROUNDS: usize = 2;

/// Work on `device`, a filesystem at rest, and stop. `at` is where the first crash was. The inner error is a broken promise.
pub(crate) fn stops_a_second_time(
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
            // Whatever the second record comes to, these were handed out before it.
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
        // There is nothing to be seen on a full one.
        Err(Error::Name(NameError::NoSpace)) => return Ok(Ok(())),
        Err(error) => return Ok(Err(format!("no work is possible before it: {error}"))),
        Ok(()) => {}
    }
    let (stop, image) = stopped_somewhere(&faulty, rng)?;
    Ok(judged(target, &all, Arc::new(image), stop))
}

/// Change the files of a worker, and keep what is said of them.
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

fn judged(target: &dyn Target, all: &[Worker], image: Arc<dyn Device>, stop: usize) -> Result<(), String> {
    let vfs = mounted(target, image, false)?;
    for worker in all {
        let found =
            read_tree(&vfs, worker.index).map_err(|error| format!("the tree cannot be read: {error}"))?;
        verify::values(&vfs, worker, &found, stop, false, target.promises())?;
    }
    unmounted(&vfs)
}
