//! Asking the kernel to forget inodes when too many are remembered.
//!
//! Each inode that the kernel remembers takes some bytes here ([`Vfs::remembered_bytes`]). They count in the
//! memory budget, and nothing that ivers does alone can free them. From half of the budget on, a thread asks
//! the kernel to drop unused ones (`FUSE_NOTIFY_PRUNE`, Linux 6.18): those that have left our memory first,
//! as they were not used lately. An older kernel refuses the question once and is not asked again. Then the
//! entries stay until that kernel needs its memory itself.
//!
//! Not earlier, because a pruned inode costs a lookup when a program comes back to it, which is more than ten
//! times what the kernel's own caches cost.

use crate::connection::Connection;
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// `FUSE_NOTIFY_PRUNE` of `<linux/fuse.h>`.
const NOTIFY_PRUNE: i32 = 9;
/// Inodes in one message.
const BATCH: usize = 1024;
/// `struct fuse_out_header` and `struct fuse_notify_prune_out`, without the node numbers.
const HEADER_BYTES: usize = 16 + 16;

/// The state of pruning.
#[derive(Default)]
pub(crate) struct Pruning {
    is_running: AtomicBool,
    /// The kernel does not have this message.
    is_refused: AtomicBool,
    /// Where the next search for inodes begins.
    hand: AtomicUsize,
    /// Bytes of remembered inodes from which on it is worth asking again.
    again_from: AtomicU64,
}

fn message(ids: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + 8 * ids.len());
    bytes.extend_from_slice(&((HEADER_BYTES + 8 * ids.len()) as u32).to_ne_bytes());
    bytes.extend_from_slice(&NOTIFY_PRUNE.to_ne_bytes());
    bytes.extend_from_slice(&0_u64.to_ne_bytes());
    bytes.extend_from_slice(&(ids.len() as u32).to_ne_bytes());
    // Padding and a spare field.
    bytes.extend_from_slice(&[0; 12]);
    ids.iter().for_each(|id| bytes.extend_from_slice(&id.to_ne_bytes()));
    bytes
}

impl Connection {
    /// Starts to prune if too much is remembered. Never blocks.
    pub(crate) fn prune_if_needed(self: &Arc<Self>) {
        let most = self.vfs.memory_limit() / 2;
        if self.vfs.remembered_bytes() <= most.max(self.pruning.again_from.load(Ordering::Relaxed))
            || self.pruning.is_refused.load(Ordering::Relaxed)
            || self.pruning.is_running.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let connection = self.clone();
        self.flusher.later(move || {
            connection.prune(most - most / 8);
            connection.pruning.is_running.store(false, Ordering::Release);
        });
    }

    /// Asks for as many inodes as take too many bytes, as far as that many are out of memory. The kernel
    /// forgets them a little later.
    fn prune(&self, target_bytes: u64) {
        let Some(device) = self.device.get() else { return };
        let (remembered, bytes) = (self.vfs.remembered_inodes(), self.vfs.remembered_bytes());
        let excess = bytes.saturating_sub(target_bytes) as f64 / bytes.max(1) as f64;
        let too_many = (remembered as f64 * excess) as usize;
        // What the kernel uses stays. Ask again when there are clearly more.
        self.pruning.again_from.store(bytes + bytes / 32, Ordering::Relaxed);
        let (mut asked, mut tried) = (0, 0);
        while asked < too_many && tried < remembered {
            let hand = self.pruning.hand.fetch_add(1, Ordering::Relaxed);
            let inos = self.vfs.remembered_out_of_memory(hand, BATCH);
            tried += BATCH;
            asked += inos.len();
            let ids: Vec<u64> = inos.iter().map(|ino| self.nodes.id(ino.0)).collect();
            if ids.is_empty() {
                continue;
            }
            match rustix::io::write(device.as_fd(), &message(&ids)) {
                Ok(_) => {}
                Err(Errno::INVAL) => {
                    log::debug!("this kernel cannot be asked to forget inodes");
                    self.pruning.is_refused.store(true, Ordering::Relaxed);
                    return;
                }
                Err(error) => {
                    log::debug!("cannot ask the kernel to forget inodes: {error}");
                    return;
                }
            }
        }
    }
}
