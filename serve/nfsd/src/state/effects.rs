//! What the server has to do for the state.

use ivers_nfs4::callback::OffloadInfo;
use ivers_nfs4::types::{ClientId, StateId};

use super::client_record::RecordChange;
use super::ids::{FileId, Ticket};

/// An action for the server to perform, in this order. It performs the effects of a request before it
/// replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write to stable storage after all earlier changes, then call
    /// [`effect_done`](super::StateManager::effect_done).
    Persist {
        /// The ticket to report.
        ticket: Ticket,
        /// The change.
        change: RecordChange,
    },
    /// Force a bump of a file's change attribute, then call
    /// [`effect_done`](super::StateManager::effect_done). A file that no longer exists needs no bump.
    Bump {
        /// The ticket to report.
        ticket: Ticket,
        /// The file.
        file: FileId,
    },
    /// The ticket of a [`Stop::Wait`](super::Stop::Wait) is done without an action of the server: repeat the
    /// calls that wait for it.
    Wake {
        /// The ticket.
        ticket: Ticket,
    },
    /// The first open of a file without a delegation. The file must stay until [`Effect::Unpin`], even if its
    /// last name is removed.
    Pin {
        /// The file.
        file: FileId,
    },
    /// The last open or delegation of a file has ended.
    Unpin {
        /// The file.
        file: FileId,
    },
    /// Send a callback to a client.
    Callback {
        /// The client.
        client: ClientId,
        /// The callback.
        call: Callback,
    },
}

/// A callback operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Callback {
    /// CB_RECALL.
    Recall {
        /// The delegation.
        stateid: StateId,
        /// Its file.
        file: FileId,
        /// Whether the conflicting operation truncates the file.
        truncate: bool,
    },
    /// CB_GETATTR of change attribute and size. The reply goes to
    /// [`getattr_reply`](super::StateManager::getattr_reply).
    GetAttr {
        /// The ticket for the reply.
        ticket: Ticket,
        /// The file.
        file: FileId,
        /// The delegation.
        stateid: StateId,
    },
    /// CB_NOTIFY_LOCK: a lock may be free.
    NotifyLock {
        /// The file.
        file: FileId,
        /// The lock-owner that waits for the lock.
        owner: Vec<u8>,
    },
    /// CB_OFFLOAD: a copy has ended. When the client has acknowledged it, call
    /// [`copy_acknowledged`](super::StateManager::copy_acknowledged).
    Offload {
        /// The copy.
        stateid: StateId,
        /// The file that it copied to.
        file: FileId,
        /// The result.
        info: OffloadInfo,
    },
}
