//! What the operations of one COMPOUND share (RFC 7530 section 15.2, RFC 8881 section 16.2).
//!
//! | module | contains |
//! |---|---|
//! | `origin` | address, credentials and connection of a request |
//! | `filesystem` | an exported filesystem and its write verifier |
//! | `current_fh` | the current filehandle |
//! | `clients` | the questions about clients' state |
//! | `reply_cache` | replies of NFSv4.0 requests that must not run twice |
//! | `idmap` | names of users and groups |
//! | `op_stats`, `denial_log` | counts of operations, denied accesses |
//! | `status` | errors of the VFS as NFS statuses |
//! | `service` | what all requests share |
//! | `context` | the state of one COMPOUND |

mod clients;
mod context;
mod current_fh;
mod denial_log;
mod filesystem;
mod idmap;
mod op_stats;
mod origin;
pub(crate) mod reply_cache;
mod service;
pub mod status;

pub use clients::{Clients, CopyJob, EndPermit, PermitGuard, ReportedAttrs, WakeReason};
pub use context::Context;
pub use current_fh::{CurrentFh, Object};
pub use denial_log::DenialLog;
pub use filesystem::{Exports, Filesystem};
pub use idmap::{ClientIdMap, IdMap, IdMapper, NameTables, NumericIds};
pub use op_stats::{OpCount, OpStats};
pub use origin::Origin;
pub use service::{RequestLimits, Service};
