//! What happens when the action for a ticket is done, or has failed.

use super::ids::Ticket;
use super::manager::StateManager;
use super::tables::pending::Pending;

impl StateManager {
    /// Reports that the action for a ticket is done. Returns false if nothing waits for it.
    pub fn effect_done(&mut self, ticket: Ticket) -> bool {
        self.stable_clients.settle(ticket, true);
        match self.pending.remove(&ticket) {
            Some(Pending::RevocationMark(client)) => self.revocation_mark_written(client, ticket, true),
            Some(Pending::Evicting(client)) => self.remove_client(client),
            Some(Pending::GraceEnd) => self.end_grace(),
            Some(Pending::Bump(file)) => {
                if let Some(state) = self.files.get_mut(&file) {
                    state.pending_bumps.remove(&ticket);
                }
                self.forget_file_if_idle(file);
            }
            Some(Pending::RecordPut | Pending::Getattr(_) | Pending::Nothing) => {}
            None => return false,
        }
        true
    }

    /// Reports that the action for a ticket failed. A caller that waits for it repeats its call, which tries
    /// again.
    pub fn effect_failed(&mut self, ticket: Ticket) -> bool {
        self.stable_clients.settle(ticket, false);
        match self.pending.remove(&ticket) {
            Some(Pending::RevocationMark(client)) => self.revocation_mark_written(client, ticket, false),
            Some(Pending::Evicting(client)) => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.evicting = None;
                }
            }
            Some(Pending::GraceEnd) => self.retry_grace_end(ticket),
            Some(Pending::Bump(file)) => {
                if let Some(state) = self.files.get_mut(&file) {
                    state.pending_bumps.remove(&ticket);
                }
                self.request_bump(file);
            }
            Some(Pending::RecordPut | Pending::Getattr(_) | Pending::Nothing) => {}
            None => return false,
        }
        true
    }
}
