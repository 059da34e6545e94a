//! Clients of NFSv4.0 (RFC 7530 sections 9.1.1, 9.5, 16.28, 16.33, 16.34, 16.37).

use ivers_nfs4::ops::v40::{CallbackClient, ConfirmArgs, SetClientIdArgs};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::ClientId;

use super::ids::{Caller, ClientHost, Principal, Step, Time, fail};
use super::manager::StateManager;
use super::tables::owner::OwnerKind;
use super::tables::v40::V40;

impl StateManager {
    /// SETCLIENTID: the five cases of RFC 7530 section 16.33.5. `in_use_by` returns the address for
    /// NFS4ERR_CLID_INUSE.
    pub fn set_client_id(
        &mut self,
        now: Time,
        host: ClientHost,
        principal: &Principal,
        args: &SetClientIdArgs,
    ) -> Step<ConfirmArgs> {
        let key = (false, args.client.id.0.clone());
        self.check_name_unclaimed(&key, principal)?;
        let confirm = self.rng.next_u64().to_be_bytes();
        let confirmed = self.incarnations.get(&key).and_then(|name| name.confirmed);
        if let Some(client) = confirmed.and_then(|id| self.clients.get(&id)) {
            let id = client.id;
            if client.evicting.is_some() {
                return fail(NfsStat::Delay);
            }
            // [RFC7530 16.33.5]
            if client.principal != *principal {
                if client.holds_state() && !self.lease_expired(now, id) {
                    return fail(NfsStat::ClidInuse);
                }
                self.evict(id)?;
            } else if client.verifier == args.client.verifier {
                // The same boot with a new callback address. Another client that waits for the name is
                // forgotten.
                let unconfirmed = self.incarnations.get_mut(&key).and_then(|name| name.unconfirmed.take());
                if let Some(other) = unconfirmed {
                    self.clients.remove(&other);
                }
                let update = (args.callback.clone(), args.callback_ident, confirm);
                if let Some(v40) = self.clients.get_mut(&id).and_then(|client| client.v40.as_mut()) {
                    v40.update = Some(update);
                }
                return Ok(ConfirmArgs { clientid: id, confirm });
            }
        }
        self.make_room_for_client(now, host)?;
        let id = self.new_client(now, host, false, &args.client.id.0, args.client.verifier, principal);
        if let Some(client) = self.clients.get_mut(&id) {
            client.v40 = Some(V40 {
                callback: args.callback.clone(),
                ident: args.callback_ident,
                confirm,
                update: None,
                path_up: false,
            });
        }
        Ok(ConfirmArgs { clientid: id, confirm })
    }

    /// SETCLIENTID_CONFIRM (RFC 7530 section 16.34). Test the callback path after it:
    /// [`StateManager::set_callback_path`].
    pub fn set_client_id_confirm(
        &mut self,
        now: Time,
        principal: &Principal,
        args: &ConfirmArgs,
    ) -> Step<()> {
        let Some(client) = self.clients.get_mut(&args.clientid) else { return fail(NfsStat::StaleClientid) };
        let (confirmed, same) = (client.confirmed, client.principal == *principal);
        let Some(v40) = &mut client.v40 else { return fail(NfsStat::StaleClientid) };
        // [RFC7530 16.34.5]
        if v40.update.as_ref().is_some_and(|(_, _, confirm)| *confirm == args.confirm) && confirmed {
            if !same {
                return fail(NfsStat::ClidInuse);
            }
            if let Some((callback, ident, confirm)) = v40.update.take() {
                v40.path_up &= callback == v40.callback;
                (v40.callback, v40.ident, v40.confirm) = (callback, ident, confirm);
            }
            self.renew(now, args.clientid);
            return Ok(());
        }
        if v40.confirm != args.confirm {
            return fail(NfsStat::StaleClientid);
        }
        if !same {
            return fail(NfsStat::ClidInuse);
        }
        if confirmed {
            self.renew(now, args.clientid);
            return Ok(());
        }
        self.confirm(now, args.clientid)
    }

    /// RENEW (RFC 7530 section 16.28).
    pub fn renew_client(&mut self, now: Time, id: ClientId) -> Step<()> {
        if self.caller(id)? != Caller::V40 {
            return fail(NfsStat::StaleClientid);
        }
        self.renew(now, id);
        let client = &self.clients[&id];
        // [RFC7530 16.28.3]
        if client.delegations > 0 && !self.can_call(id) {
            return fail(NfsStat::CbPathDown);
        }
        Ok(())
    }

    /// Returns the callback address of an NFSv4.0 client, for a test.
    pub fn callback_address(&self, id: ClientId) -> Option<(CallbackClient, u32)> {
        let v40 = self.clients.get(&id)?.v40.as_ref()?;
        Some((v40.callback.clone(), v40.ident))
    }

    /// Reports whether callbacks to a client work.
    pub fn set_callback_path(&mut self, id: ClientId, works: bool) {
        let Some(v40) = self.clients.get_mut(&id).and_then(|client| client.v40.as_mut()) else { return };
        let was = std::mem::replace(&mut v40.path_up, works);
        if works && !was {
            self.callback_path_up(id);
        }
    }

    /// RELEASE_LOCKOWNER (RFC 7530 section 16.37).
    pub fn release_lock_owner(&mut self, now: Time, id: ClientId, owner: &[u8]) -> Step<()> {
        if self.caller(id)? != Caller::V40 {
            return fail(NfsStat::StaleClientid);
        }
        self.renew(now, id);
        let key = (OwnerKind::Lock, owner.to_vec());
        let Some(number) = self.clients[&id].owners.get(&key).copied() else { return Ok(()) };
        let stateids: Vec<u32> = self.owners[&number].entries.iter().copied().collect();
        // [RFC7530 16.37.4]
        if stateids.iter().any(|index| self.has_ranges(self.entries[index].file, number)) {
            return fail(NfsStat::LocksHeld);
        }
        for index in stateids {
            self.drop_lock_state(index);
        }
        self.forget_owner(number);
        Ok(())
    }

    /// Returns how to look up this client's stateids. Fails if it is unknown or being evicted.
    pub(super) fn caller(&self, id: ClientId) -> Step<Caller> {
        let Some(client) = self.clients.get(&id).filter(|client| client.confirmed) else {
            // [RFC7530 9.1.1]
            let ours = id >> 32 == u64::from(self.boot);
            let known = self.clients.contains_key(&id);
            return fail(if ours && !known { NfsStat::Expired } else { NfsStat::StaleClientid });
        };
        if client.evicting.is_some() {
            return fail(NfsStat::Delay);
        }
        Ok(self.caller_of(client.id))
    }

    pub(super) fn caller_of(&self, id: ClientId) -> Caller {
        match self.clients.get(&id) {
            Some(client) if !client.with_sessions => Caller::V40,
            _ => Caller::Client(id),
        }
    }
}
