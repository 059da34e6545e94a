//! Peers that give up their number, and what is on record of the others.

use super::super::super::who;
use super::super::peer::Phase;
use super::World;

impl World {
    /// A peer who holds nothing unmounts; he comes back as the same boot of himself.
    pub(super) fn unmount(&mut self) {
        let at = self.pick(self.peers.len());
        let peer = &mut self.peers[at];
        let (Some(session), Some(id)) = (peer.session, peer.id) else { return };
        let holds = !(peer.opens.is_empty() && peer.locks.is_empty() && peer.delegations.is_empty());
        if peer.phase != Phase::Complete || holds || peer.sent.iter().any(Option::is_some) {
            return;
        }
        if self.state.destroy_session(peer.conn, &who(1), None, &session).is_err() {
            return;
        }
        peer.lose();
        if self.state.destroy_clientid(&who(1), None, id).is_ok() {
            peer.id = None;
            // He holds nothing, so that nobody waits for his being struck out.
            self.known.remove(&id);
            self.done.note(if self.state.in_grace() { "unmount in grace" } else { "unmount" });
        }
    }

    /// What a client is told to be done with is there after a crash.
    pub(super) fn check_records(&self) {
        for client in self.state.clients.values().filter(|it| it.complete && it.condemned.is_none()) {
            let record = client.as_record();
            let stored = self.stable.get(&(record.sessions, record.owner.clone()));
            assert!(stored.is_some_and(|it| it.is_of(&record)), "S10: {record:?} is not on record");
        }
    }
}
