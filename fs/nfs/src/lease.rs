//! The thread that renews the lease: a server forgets a client that is silent for too long.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ivers_vfs::sync::thread::{Builder, JoinHandle};
use ivers_vfs::sync::{Condvar, RankedMutex, rank};
use ivers_vfs::{Cred, Error, Result};

use crate::client::Client;

#[derive(Default)]
struct Stop {
    stopped: RankedMutex<rank::Leaf, bool>,
    wake: Condvar,
}

/// The thread. Dropping it ends it; a request that it waits for ends with [`Client::stop`].
pub struct Lease {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Lease {
    /// Renews a lease of this many seconds. Values that no server has are not taken at their word.
    pub fn keep(client: &Arc<Client>, lease_seconds: u32) -> Result<Self> {
        let period = Duration::from_secs(lease_seconds.clamp(3, 180).into()) / 3;
        let stop = Arc::new(Stop::default());
        let (theirs, client) = (stop.clone(), Arc::downgrade(client));
        let thread = Builder::new().name("ivers-nfs-lease".into());
        let thread = thread.spawn(move || renew(&theirs, &client, period)).map_err(Error::io)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

fn renew(stop: &Stop, client: &Weak<Client>, period: Duration) {
    loop {
        {
            let mut stopped = stop.stopped.lock();
            if !*stopped {
                stopped.wait_for(&stop.wake, period);
            }
            if *stopped {
                return;
            }
        }
        let Some(client) = client.upgrade() else { return };
        if client.is_stopped() {
            return;
        }
        // Any request renews the lease; a SEQUENCE alone does nothing else.
        if client.idle().max(client.since_renewal()) >= period
            && let Err(error) = client.call_urgently(&Cred::system(), &[], None)
        {
            log::warn!("{}: cannot renew the lease: {error}", client.name());
        }
    }
}

impl Lease {
    /// Renews no more. Does not wait for a request that is running.
    pub fn end(&self) {
        *self.stop.stopped.lock() = true;
        self.stop.wake.notify_all();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
