//! Log lines about clients and delegations.

use ivers_nfs4::types::ClientId;

use crate::compound::Origin;
use crate::state::LogEvent;

/// Logs a new client, once for each session.
pub(super) fn log_new_client(client: ClientId, name: &[u8], origin: &Origin, minor: u32) {
    let (client, name, address) = (format!("{client:x}"), name.escape_ascii(), origin.address);
    log::info!(client:%, address:%, name:%, minor, tls = origin.tls.is_some(); "new client");
}

/// Logs what has happened to clients and delegations.
pub(super) fn log_notes(notes: Vec<LogEvent>) {
    for note in notes {
        match note {
            LogEvent::Evicted(client) => {
                log::info!(client:% = format!("{client:x}"); "client removed with its state");
            }
            LogEvent::Recalled(client, file) => {
                log::info!(client:% = format!("{client:x}"), inode = file.inode; "delegation recalled");
            }
            LogEvent::Revoked(client, file) => {
                let client = format!("{client:x}");
                log::warn!(client:%, inode = file.inode; "delegation revoked: not returned in time");
            }
            LogEvent::GraceOver => log::info!("grace period ends"),
        }
    }
}
