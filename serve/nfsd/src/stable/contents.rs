//! The contents of stable storage, and its records.

use std::collections::BTreeMap;

use ivers_nfs4::xdr::{Decoder, Encoder, Result, Xdr, XdrError};

use crate::state::{ClientRecord, Principal, RecordChange};

/// Random numbers that identify a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerIdentity {
    /// The key that authenticates filehandles.
    pub secret: [u8; 16],
    /// `so_major_id`. It differs between servers, because clients take two servers with the same one for one.
    pub owner: [u8; 16],
    /// `server_scope`.
    pub scope: [u8; 16],
}

/// A filesystem that was exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportRecord {
    /// Its identity in filehandles.
    pub identity: u32,
    /// The UUID of the filesystem, which may be zero or cloned.
    pub uuid: [u8; 16],
    /// The name of its device.
    pub device: Vec<u8>,
    /// The write verifier.
    pub verifier: u64,
    /// Whether it is served, or was served when the server crashed.
    pub open: bool,
}

/// One change of the contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Written once.
    ServerIdentity(ServerIdentity),
    /// The boot count.
    Boot(u32),
    /// The longest lease time that a client on record may know, in milliseconds.
    Lease(u64),
    /// Adds or replaces an export.
    Export(ExportRecord),
    /// Adds or replaces a client.
    Client(ClientRecord),
    /// Removes clients whose records are still of the same boot.
    Remove(Vec<ClientRecord>),
    /// Digest and change attribute of the pseudo-root.
    Pseudo(u64, u64),
}

fn put_client(client: &ClientRecord, to: &mut Encoder) {
    client.sessions.put(to);
    client.owner.put(to);
    client.verifier.put(to);
    client.principal.bytes().to_vec().put(to);
    client.revoked.put(to);
}

fn take_client(from: &mut Decoder<'_>) -> Result<ClientRecord> {
    Ok(ClientRecord {
        sessions: Xdr::take(from)?,
        owner: Xdr::take(from)?,
        verifier: Xdr::take(from)?,
        principal: Principal::new(&Vec::<u8>::take(from)?),
        revoked: Xdr::take(from)?,
    })
}

impl Xdr for Record {
    fn put(&self, to: &mut Encoder) {
        match self {
            Self::ServerIdentity(ServerIdentity { secret, owner, scope }) => {
                to.word(1);
                [secret, owner, scope].iter().for_each(|bytes| bytes.put(to));
            }
            Self::Boot(boot) => {
                to.word(2);
                boot.put(to);
            }
            Self::Lease(ms) => {
                to.word(3);
                ms.put(to);
            }
            Self::Export(ExportRecord { identity, uuid, device, verifier, open }) => {
                to.word(4);
                identity.put(to);
                uuid.put(to);
                device.put(to);
                verifier.put(to);
                open.put(to);
            }
            Self::Client(client) => {
                to.word(5);
                put_client(client, to);
            }
            Self::Remove(clients) => {
                to.word(6);
                to.word(clients.len() as u32);
                clients.iter().for_each(|client| put_client(client, to));
            }
            Self::Pseudo(digest, change) => {
                to.word(7);
                digest.put(to);
                change.put(to);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(match from.word()? {
            1 => Self::ServerIdentity(ServerIdentity {
                secret: Xdr::take(from)?,
                owner: Xdr::take(from)?,
                scope: Xdr::take(from)?,
            }),
            2 => Self::Boot(Xdr::take(from)?),
            3 => Self::Lease(Xdr::take(from)?),
            4 => Self::Export(ExportRecord {
                identity: Xdr::take(from)?,
                uuid: Xdr::take(from)?,
                device: Xdr::take(from)?,
                verifier: Xdr::take(from)?,
                open: Xdr::take(from)?,
            }),
            5 => Self::Client(take_client(from)?),
            6 => {
                let count = from.count(usize::MAX)?;
                Self::Remove((0..count).map(|_| take_client(from)).collect::<Result<_>>()?)
            }
            7 => Self::Pseudo(Xdr::take(from)?, Xdr::take(from)?),
            other => return Err(XdrError::BadValue(other)),
        })
    }
}

impl From<&RecordChange> for Record {
    fn from(change: &RecordChange) -> Self {
        match change {
            RecordChange::Put(client) => Self::Client(client.clone()),
            RecordChange::Remove(clients) => Self::Remove(clients.clone()),
        }
    }
}

/// All contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    pub identity: Option<ServerIdentity>,
    pub boot: u32,
    pub lease_ms: u64,
    pub exports: BTreeMap<u32, ExportRecord>,
    pub clients: BTreeMap<(bool, Vec<u8>), ClientRecord>,
    pub pseudo: (u64, u64),
}

impl Contents {
    /// Applies a record.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::ServerIdentity(identity) => self.identity = Some(identity),
            Record::Boot(boot) => self.boot = boot,
            Record::Lease(ms) => self.lease_ms = ms,
            Record::Export(export) => {
                self.exports.insert(export.identity, export);
            }
            Record::Client(client) => {
                self.clients.insert((client.sessions, client.owner.clone()), client);
            }
            Record::Remove(clients) => {
                for client in clients {
                    let key = (client.sessions, client.owner.clone());
                    if self.clients.get(&key).is_some_and(|known| known.is_same_boot(&client)) {
                        self.clients.remove(&key);
                    }
                }
            }
            Record::Pseudo(digest, change) => self.pseudo = (digest, change),
        }
    }

    /// Returns whether a record changes anything.
    pub fn changed_by(&self, record: &Record) -> bool {
        let known = |client: &ClientRecord| self.clients.get(&(client.sessions, client.owner.clone()));
        match record {
            Record::ServerIdentity(identity) => self.identity != Some(*identity),
            Record::Boot(boot) => self.boot != *boot,
            Record::Lease(ms) => self.lease_ms != *ms,
            Record::Export(export) => self.exports.get(&export.identity) != Some(export),
            Record::Client(client) => known(client) != Some(client),
            Record::Remove(clients) => {
                clients.iter().any(|client| known(client).is_some_and(|known| known.is_same_boot(client)))
            }
            Record::Pseudo(digest, change) => self.pseudo != (*digest, *change),
        }
    }

    /// Returns records that produce these contents.
    pub fn records(&self) -> Vec<Record> {
        let once = [
            Record::Boot(self.boot),
            Record::Lease(self.lease_ms),
            Record::Pseudo(self.pseudo.0, self.pseudo.1),
        ];
        self.identity
            .map(Record::ServerIdentity)
            .into_iter()
            .chain(once)
            .chain(self.exports.values().cloned().map(Record::Export))
            .chain(self.clients.values().cloned().map(Record::Client))
            .collect()
    }
}
