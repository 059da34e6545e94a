//! The back channel of a client: the threads that execute callbacks, and whether the server still keeps the
//! client's state.

use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ivers_nfs4::ops::v41::seq4_status;
use ivers_vfs::Result;
use ivers_vfs::sync::thread::Builder;

use crate::callbacks::{self, BackChannel, Callee};
use crate::client::Client;
use crate::connection::{Broken, Connection};
use crate::counters::Counters;
use crate::establish;
use crate::session::Session;

/// Flags of SEQUENCE that report revoked state.
const REVOKED: u32 = seq4_status::RECALLABLE_STATE_REVOKED
    | seq4_status::ADMIN_STATE_REVOKED
    | seq4_status::EXPIRED_SOME_STATE_REVOKED
    | seq4_status::EXPIRED_ALL_STATE_REVOKED;
/// Flags of SEQUENCE that report that the server cannot send callbacks.
const PATH_DOWN: u32 = seq4_status::CB_PATH_DOWN | seq4_status::CB_PATH_DOWN_SESSION;

impl Client {
    /// Sets the [`Callee`] that acts on callbacks. Call it before the first open.
    pub fn set_callee(&self, callee: Weak<dyn Callee>) {
        let _ = self.back.callee.set(callee);
    }

    fn callee(&self) -> Option<Arc<dyn Callee>> {
        self.back.callee.get().and_then(Weak::upgrade)
    }

    /// Sets the lease time of the server.
    pub fn set_lease(&self, lease: Duration) {
        self.back.lease_ms.store(lease.as_millis() as u64, Relaxed);
    }

    /// Returns whether the server certainly keeps the state of this client (D3): the lease cannot have
    /// expired, and all reports of revoked state were handled.
    pub fn vouches(&self) -> bool {
        let (renewed, lease) = (self.back.renewed_ms.load(Acquire), self.back.lease_ms.load(Relaxed));
        self.revocations() == self.back.searched.load(Acquire)
            && (self.started.elapsed().as_millis() as u64) < renewed + lease
    }

    /// Returns the number of changes with an unknown outcome: the server may or may not have executed them.
    pub fn unknown_changes(&self) -> u64 {
        self.back.unknown_changes.load(Relaxed)
    }

    /// Returns how many replies reported revoked state. The server reports it until the state is freed.
    pub fn revocations(&self) -> u64 {
        self.back.revocations.load(Acquire)
    }

    /// Notes a completed search for revoked state, with the value of [`Client::revocations`] from before it.
    pub fn state_was_searched(&self, revocations: u64) {
        self.back.searched.store(revocations, Release);
    }

    /// Starts the thread that executes callbacks on a connection, unless it is running.
    pub(crate) fn serve_callbacks(&self, connection: &Arc<Connection>, session: &Session) {
        if session.back.is_none() || !connection.begin_serving() {
            return;
        }
        let (client, served) = (self.me.clone(), Arc::downgrade(connection));
        let thread = Builder::new().name("ivers-nfs-callbacks".into());
        if let Err(error) = thread.spawn(move || serve_callbacks(&client, &served)) {
            log::warn!("{}: cannot start the thread for callbacks: {error}", self.name());
        }
    }

    /// Executes a callback and sends the reply.
    fn called(&self, connection: &Connection, call: &[u8]) -> std::result::Result<(), Broken> {
        Counters::count(&self.counters().callbacks);
        let session = self.link.lock().session.clone();
        let channel = session.as_ref().and_then(|session| {
            let slots = session.back.as_ref()?;
            Some(BackChannel { session: session.id, minor: self.minor_version(), slots })
        });
        let callee = self.callee();
        match callbacks::answer(call, channel.as_ref(), callee.as_deref()) {
            Ok(mut record) => connection.send(&mut record),
            Err(why) => Err(connection.fail(why)),
        }
    }

    /// Binds the first connection again, so that the server can send callbacks on it.
    pub fn bind_again(&self, time: Duration) -> Result<()> {
        let limit = self.limit_of(Some(time));
        let (connection, session) = self.linked(&limit)?;
        establish::bind(&self.exchange, &connection, &session, true, limit.0).map(drop)
    }

    /// Notes that a request was answered, and when it was sent.
    pub(crate) fn renewed(&self, sent_at: Duration) {
        self.back.renewed_ms.fetch_max(sent_at.as_millis() as u64, AcqRel);
    }

    /// Handles the status flags of a reply.
    pub(crate) fn heed(&self, flags: u32) {
        if flags & REVOKED != 0 {
            self.back.revocations.fetch_add(1, AcqRel);
            self.callee().inspect(|callee| callee.state_revoked());
        }
        if flags & PATH_DOWN != 0 {
            self.callee().inspect(|callee| callee.path_down());
        }
    }
}

/// Runs the thread that executes callbacks on a connection.
fn serve_callbacks(client: &Weak<Client>, connection: &Weak<Connection>) {
    loop {
        let Some(connection) = connection.upgrade() else { return };
        let calls = connection.calls();
        let Some(client) = client.upgrade() else { return };
        let Ok(calls) = calls else {
            if !client.is_stopped() {
                client.callee().inspect(|callee| callee.connection_lost());
            }
            return;
        };
        if calls.iter().any(|call| client.called(&connection, call).is_err()) {
            return;
        }
    }
}
