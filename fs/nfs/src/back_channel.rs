//! The back channel of a client: the threads that execute callbacks, and whether the server still keeps the
//! client's state.

use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ivers_nfs4::ops::v41::seq4_status;
use ivers_nfs4::types::SessionId;
use ivers_vfs::Result;
use ivers_vfs::sync::thread::Builder;

use crate::callbacks::{self, BackChannel, BackSlots, Callee};
use crate::client::Client;
use crate::clock::now_ms;
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

    /// Sets the lease time of the server. `None`: it is unknown, so nothing relies on the lease. The lease is
    /// then renewed as often as before.
    pub fn set_lease(&self, seconds: Option<u32>) {
        if let Some(seconds) = seconds {
            self.renewal.set_lease(seconds);
        }
        self.back.lease_ms.store(seconds.map_or(0, |seconds| u64::from(seconds) * 1000), Release);
    }

    /// Returns the lease time in seconds. `None` if it is unknown.
    pub fn lease_seconds(&self) -> Option<u64> {
        Some(self.back.lease_ms.load(Acquire) / 1000).filter(|seconds| *seconds > 0)
    }

    /// Returns whether the server certainly keeps the state of this client (D3): the lease cannot have
    /// expired, all reports of revoked state were handled, and recalls can arrive. Returns false after a
    /// change was given up: the server may execute it later, although a delegation protects the file.
    pub fn vouches(&self) -> bool {
        self.revocations() == self.back.searched.load(Acquire)
            && self.back.path_down_at.load(Acquire) == 0
            && !self.back.pending_change.load(Acquire)
            // Last: it is 0 while the state is lost, when the others may look as they should.
            && now_ms() < self.back.renewed_ms.load(Acquire) + self.back.lease_ms.load(Acquire)
    }

    /// Returns a request number. Replies to earlier requests may lack a change of this client.
    pub fn void_before(&self) -> u64 {
        self.back.void_before.load(Acquire)
    }

    /// Makes the known attributes of all delegated files invalid. Call it after a change of this client that
    /// had an unknown outcome, or changed an unknown file.
    pub fn void_all(&self) {
        self.back.void_before.fetch_max(self.requests() + 1, AcqRel);
    }

    /// Returns how often the server was found to have lost the state of this client.
    pub fn runs(&self) -> u64 {
        self.back.runs.load(Acquire)
    }

    /// Notes that the server has lost the state of this client. Returns how often that happened.
    pub(crate) fn state_is_lost(&self) -> u64 {
        // Nothing relies on a delegation until all are reclaimed: the old lease may have expired, and the new
        // one may be longer.
        self.back.lease_ms.store(0, Release);
        // The server will not execute requests that were sent before that.
        self.back.pending_change.store(false, Release);
        self.back.runs.fetch_add(1, AcqRel) + 1
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
        let slots = |session: &SessionId| self.back_slots(connection, session);
        let channel = BackChannel { minor: self.minor_version(), slots: &slots };
        let callee = self.callee();
        match callbacks::answer(call, &channel, callee.as_deref()) {
            Ok(record) => connection.send(record.into()),
            Err(why) => Err(connection.fail(why)),
        }
    }

    /// Returns the slots of a session for callbacks. A callback can arrive before the reply to the
    /// CREATE_SESSION that makes its session. So this waits for that reply, and for no other.
    fn back_slots(&self, connection: &Connection, session: &SessionId) -> Option<Arc<BackSlots>> {
        let mut link = self.link.lock();
        loop {
            if let Some(found) = link.with_callbacks.iter().find(|known| known.id == *session) {
                return found.back.clone();
            }
            if !link.busy || link.created || self.is_stopped() || !connection.is_usable() {
                return None;
            }
            self.wait_for_link(&mut link);
        }
    }

    /// Binds the first connection again, so that the server can send callbacks on it.
    pub fn bind_again(&self, time: Duration) -> Result<()> {
        let limit = self.limit_of(Some(time));
        let (connection, session) = self.linked(&limit)?;
        establish::bind(&self.exchange, &connection, &session, true, limit.0).map(drop)
    }

    /// Notes that a request was answered on the connection for callbacks, and when the request was sent. All
    /// recalls that the server sent before this answer have arrived. An answer on another connection does not
    /// prove that.
    pub(crate) fn renewed(&self, sent_at_ms: u64) {
        self.back.renewed_ms.fetch_max(sent_at_ms, AcqRel);
    }

    /// Returns the age of the newest request whose answer renewed the lease.
    pub(crate) fn since_renewal(&self) -> Duration {
        Duration::from_millis(now_ms().saturating_sub(self.back.renewed_ms.load(Acquire)))
    }

    /// Handles the status flags of a reply to the request `sent`.
    pub(crate) fn heed(&self, flags: u32, sent: u64) {
        if flags & REVOKED != 0 {
            self.back.revocations.fetch_add(1, AcqRel);
            self.callee().inspect(|callee| callee.state_revoked());
        }
        let down_at = self.back.path_down_at.load(Acquire);
        if flags & PATH_DOWN == 0 && down_at != 0 && sent >= down_at {
            // Another thread may have stored a newer report meanwhile.
            let _ = self.back.path_down_at.compare_exchange(down_at, 0, AcqRel, Relaxed);
        }
        if flags & PATH_DOWN != 0 {
            self.back.path_down_at.fetch_max(self.requests() + 1, AcqRel);
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
