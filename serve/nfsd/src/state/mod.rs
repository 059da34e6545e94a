//! The state of the clients and what they hold, as plain data. The caller passes in the time and a source of
//! random numbers. This module sends, opens and waits for nothing. `docs/nfsd.md` lists the requirements.
//!
//! # Usage
//!
//! One mutex protects one [`StateManager`]. Each method is a short critical section: it decides, changes
//! tables, and returns. Before the caller releases the mutex, it takes the
//! [`effects`](StateManager::take_effects). After that, it performs them:
//!
//! | effect | what to do | then |
//! |---|---|---|
//! | [`Effect::Persist`] | make it durable, in this order | [`effect_done`] or [`effect_failed`] |
//! | [`Effect::Bump`] | force a bump of the file's change attribute before the reply | [`effect_done`] |
//! | [`Effect::Wake`] | repeat the requests that wait for this ticket | |
//! | [`Effect::Pin`], [`Effect::Unpin`] | keep the file while it is open or delegated; release it | |
//! | [`Effect::Callback`] | [`StateManager::begin_callback`], send, wait | [`StateManager::end_callback`] |
//!
//! After the reply to a CB_GETATTR, call [`StateManager::getattr_reply`] too. A method that cannot continue
//! returns a [`Stop`].
//!
//! | operation | calls |
//! |---|---|
//! | EXCHANGE_ID, CREATE_SESSION, DESTROY_*, RECLAIM_COMPLETE | the method of that name |
//! | BIND_CONN_TO_SESSION, TEST_STATEID, FREE_STATEID | the method of that name |
//! | SEQUENCE | [`sequence`] before, [`finish`] after all operations of the request |
//! | READ, WRITE, SETATTR, REMOVE, ... | [`permit`], the VFS, [`end_permit`] |
//! | GETATTR, VERIFY, READDIR of change, size and times | [`begin_getattr`], the VFS, [`end_permit`] |
//! | OPEN | [`open_plan`], [`open_claim`], the VFS, [`open_commit`] or [`open_abort`] |
//! | LOCK, LOCKT, LOCKU, CLOSE, OPEN_DOWNGRADE, DELEGRETURN | the method of that name |
//! | asynchronous COPY | [`copy_begin`] |
//! | each slice of it | [`copy_slice`], the VFS, [`end_permit`] twice, [`copy_progress`] |
//! | operations with a seqid (4.0) | [`begin_owner_request`] before, [`end_owner_request`] after |
//!
//! The decision of `permit` holds until `end_permit`. Call `open_claim` as soon as the file is known and
//! before another client can reach it.
//!
//! Call [`StateManager::tick`] periodically, at the latest at the time that it returned.
//!
//! [`effect_done`]: StateManager::effect_done
//! [`effect_failed`]: StateManager::effect_failed
//! [`sequence`]: StateManager::sequence
//! [`finish`]: StateManager::finish
//! [`permit`]: StateManager::permit
//! [`end_permit`]: StateManager::end_permit
//! [`begin_getattr`]: StateManager::begin_getattr
//! [`open_plan`]: StateManager::open_plan
//! [`open_claim`]: StateManager::open_claim
//! [`open_commit`]: StateManager::open_commit
//! [`open_abort`]: StateManager::open_abort
//! [`copy_begin`]: StateManager::copy_begin
//! [`copy_slice`]: StateManager::copy_slice
//! [`copy_progress`]: StateManager::copy_progress
//! [`begin_owner_request`]: StateManager::begin_owner_request
//! [`end_owner_request`]: StateManager::end_owner_request
//!
//! # Layers
//!
//! `tables` contains the entries of the tables, and `manager` the tables: [`StateManager`]. Each file above
//! them adds the operations of one kind. Files name only lower files; the methods of the manager call each
//! other.
//!
//! # Invariants
//!
//! "invariants" is `check_invariants`, which tests call; "driver" is the randomized test in `tests/driver`.
//!
//! | | statement | established by | checked by |
//! |---|---|---|---|
//! | S1 | two opens of one file do not deny each other's access | `open_claim` | both |
//! | S2 | two overlapping locks of different owners are both for reading | `lock` | both |
//! | S3 | a write delegation excludes opens, permits, delegations of others | `grant`, `permit_as` | both |
//! | S4 | a read delegation excludes opens for writing by others | `grant`, `open_claim` | both |
//! | S5 | a request of a slot or an owner is executed once | `sequence`, `begin_owner_request` | driver |
//! | S6 | in the grace period nothing new is granted | `check_grace_over`, `check_may_acquire` | driver |
//! | S7 | reclaimable state goes to others only after durable removal | `end_grace_if_due` | driver |
//! | S8 | a client with a permit, plan, busy slot or owner request is not evicted | `evict` | invariants |
//! | S9 | counters equal what they count, and respect the limits | everywhere | invariants |
//! | S10 | RECLAIM_COMPLETE succeeds only when the client's record is durable | `ensure_recorded` | driver |

mod callback;
mod client;
mod client_record;
mod copy;
mod delegation;
mod effects;
mod fair_share;
mod fault_injection;
mod file;
mod grace;
mod ids;
mod in_flight;
mod invariants;
mod lease;
mod limits;
mod lock;
mod manager;
mod open;
mod owner;
mod range;
mod reply_memory;
mod session;
mod slot;
mod stable_clients;
mod stateids;
mod stats;
mod tables;
mod tickets;
mod v40;

#[cfg(test)]
mod tests;

pub use callback::{CallbackPath, NoCallbackPath};
pub use client_record::{ClientRecord, RecordChange};
pub use copy::CopyRequest;
pub use delegation::{DelegationGrant, GetattrOutcome, HolderAttrs, WhyNoDelegation};
pub use effects::{Callback, Effect};
pub use ids::{
    CachedReply, Caller, ClientHost, ConnId, Digest, FileId, Millis, Principal, Rng, Step, Stop, Ticket, Time,
};
pub use limits::{Config, Limits};
pub use lock::{LockRequest, Locker};
pub use manager::StateManager;
pub use open::{OpenPlan, OpenRequest, Opened};
pub use owner::{OwnerRequest, SeqidOwner};
pub use slot::{RequestHeader, SequenceOutcome};
pub use stats::StateCounts;
pub use tables::events::{EventCounts, LogEvent};
pub use tables::grace::PreviousBoot;
pub use tables::in_flight::{Access, Permit};
pub use tables::open::Claim;
pub use tables::session::CallbackCred;
pub use tables::slot::SessionRequest;
