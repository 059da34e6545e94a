//! The thread that renews the lease: a server forgets a client that is silent for too long.

use std::sync::{Arc, Weak};

use ivers_vfs::sync::thread::{Builder, JoinHandle};
use ivers_vfs::{Cred, Error, Result};

use crate::client::Client;
use crate::clock::Renewal;

/// The thread. Dropping it ends it; a request that it waits for ends with [`Client::stop`].
pub struct Lease {
    renewal: Arc<Renewal>,
    thread: Option<JoinHandle<()>>,
}

impl Lease {
    /// Renews the lease of a client. Call [`Client::set_lease`] before.
    pub fn keep(client: &Arc<Client>) -> Result<Self> {
        let renewal = client.renewal.clone();
        let (theirs, client) = (renewal.clone(), Arc::downgrade(client));
        let thread = Builder::new().name("ivers-nfs-lease".into());
        let thread = thread.spawn(move || renew(&theirs, &client)).map_err(Error::io)?;
        Ok(Self { renewal, thread: Some(thread) })
    }
}

fn renew(renewal: &Renewal, client: &Weak<Client>) {
    crate::background::enter();
    while let Some(period) = renewal.wait() {
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
        self.renewal.end();
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
