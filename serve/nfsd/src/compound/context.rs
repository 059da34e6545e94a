//! Where a request stands.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::StateId;
use ivers_vfs::InodeRef;

use super::clients::{Held, News, Shown};
use super::names::Spelling;
use super::place::{Object, Place};
use super::service::{Exports, Filesystem, Service};
use crate::exports::policy::{Refusal, Who};
use crate::exports::table::{Export, Node};
use crate::net::tls::TlsPeer;
use crate::ops::status::OrStatus;
use crate::rpc::Credential;
use crate::state::{Caller, Conn, Digest, Does, File, Step, Stop};

/// Who asks, and over which connection.
#[derive(Debug, Clone)]
pub struct Origin {
    /// From where.
    pub address: IpAddr,
    /// Who he says he is.
    pub credential: Credential,
    /// Who TLS says is there.
    pub tls: Option<TlsPeer>,
    /// The connection.
    pub conn: Conn,
    /// The number of the call.
    pub xid: u32,
    /// Bytes of the call before its arguments: a session bounds them with these.
    pub head_bytes: usize,
}

impl Origin {
    /// For the exports' rules.
    pub fn who(&self) -> Who<'_> {
        Who { address: self.address, credential: &self.credential, tls: self.tls.as_ref() }
    }
}

/// Where a request stands between two of its operations.
pub struct Context {
    /// What all requests share.
    pub service: Arc<Service>,
    /// The exports: the request ends under the table that it began under.
    pub exports: Arc<Exports>,
    /// Who asks.
    pub origin: Origin,
    /// The minor version.
    pub minor: u32,
    /// The current filehandle.
    pub current: Option<Place>,
    /// The current stateid; [`StateId::INVALID`]: none.
    pub stateid: StateId,
    /// The saved filehandle, with its stateid.
    pub saved: Option<(Place, StateId)>,
    /// For whom operations on files are done; SEQUENCE says it.
    pub caller: Caller,
    /// What SEQUENCE has begun: [`Clients::finish`](super::Clients::finish) gets it back.
    pub session: Option<Box<dyn Any + Send>>,
    /// The reply is to be kept.
    pub keep: bool,
    /// It is a retry whose reply was not kept: the second operation says NFS4ERR_RETRY_UNCACHED_REP.
    pub uncached: bool,
    /// Bytes of the reply, its head included.
    pub reply_bytes: usize,
    /// Tells the request from another one in the same slot.
    pub digest: Digest,
    /// Size of the request, its head included.
    pub request_bytes: usize,
    /// How many operations it has.
    pub operations: u32,
    /// The number of the operation that comes next, if one does.
    pub next: Option<u32>,
    /// Bytes that are left for the result of this operation.
    pub(crate) room: usize,
    asking: Option<File>,
    told: Option<(File, Option<Shown>, Arc<Held>)>,
}

impl Context {
    pub(super) fn new(service: Arc<Service>, origin: Origin, minor: u32) -> Self {
        Self {
            exports: service.exports(),
            reply_bytes: service.bounds.reply_bytes,
            service,
            origin,
            minor,
            current: None,
            stateid: StateId::INVALID,
            saved: None,
            caller: Caller::V40,
            session: None,
            keep: false,
            uncached: false,
            digest: Digest(0),
            request_bytes: 0,
            operations: 0,
            next: None,
            room: 0,
            asking: None,
            told: None,
        }
    }

    // ---- filehandles -----------------------------------------------------------------------------------------------

    /// The current filehandle.
    pub fn current(&self) -> Res<&Place> {
        self.current.as_ref().ok_or(NfsStat::Nofilehandle)
    }

    /// The current object; for a directory of the pseudo-root, `otherwise`. Whoever may not use it is told so.
    pub fn object(&self, otherwise: NfsStat) -> Res<&Object> {
        let object = self.current()?.object(otherwise)?;
        object.reader()?;
        Ok(object)
    }

    /// The current directory, to be changed.
    pub fn directory(&self) -> Res<&Object> {
        let object = self.object(NfsStat::Rofs)?;
        if object.inode.kind != ivers_vfs::FileType::Directory {
            return Err(NfsStat::Notdir);
        }
        object.writer()?;
        Ok(object)
    }

    /// The saved object.
    pub fn saved(&self, otherwise: NfsStat) -> Res<&Object> {
        let (place, _) = self.saved.as_ref().ok_or(NfsStat::Nofilehandle)?;
        let object = place.object(otherwise)?;
        object.reader()?;
        Ok(object)
    }

    /// Go to a place. What was the current stateid belongs to another one.
    pub fn go(&mut self, place: Place) {
        self.current = Some(place);
        // [RFC8881 16.2.3.1.2]
        self.stateid = StateId::INVALID;
    }

    /// An object of an export, as this request may use it. Whose address has no business there gets an error.
    pub fn enter(&self, export: &Arc<Export<Filesystem>>, inode: InodeRef) -> Res<Object> {
        let access = export.policy.admit(self.origin.who());
        if let Err(why) = access {
            self.service.refusals.note(&export.path, self.origin.address, why);
            if why == Refusal::Address {
                return Err(NfsStat::Access);
            }
        }
        Ok(Object { export: export.clone(), inode, access })
    }

    /// What a name of the pseudo-root means.
    pub fn node(&self, node: &Node<Filesystem>) -> Res<Place> {
        match node {
            Node::Directory(number) => Ok(Place::Pseudo(*number)),
            Node::Export(export) => {
                let root = export.filesystem.vfs.root().nfs()?;
                self.enter(export, root).map(Place::Object)
            }
        }
    }

    /// Owners, as whoever asks spells them.
    pub fn names(&self) -> Spelling<'_> {
        self.service.owners.of(self.origin.address)
    }

    // ---- clients ---------------------------------------------------------------------------------------------------

    /// A stateid as it was meant: the current one has a name of its own since NFSv4.1.
    pub fn meant(&self, stateid: &StateId) -> Res<StateId> {
        if self.minor == 0 || *stateid != StateId::CURRENT {
            // [RFC8881 8.2.3]
            let invalid = self.minor > 0 && *stateid == StateId::INVALID;
            return if invalid { Err(NfsStat::BadStateid) } else { Ok(*stateid) };
        }
        // [RFC8881 16.2.3.1.2]
        if self.stateid == StateId::INVALID { Err(NfsStat::BadStateid) } else { Ok(self.stateid) }
    }

    /// Leave to do something to a file by right of a stateid, which is given as it was meant.
    pub fn permit(&self, object: &Object, stateid: &StateId, does: Does) -> Step<Held> {
        self.service.clients.permit(self.caller, object.file(), stateid, does)
    }

    /// Whether who asks has opened himself what a stateid, given as it was meant, is of.
    pub fn is_opener(&self, stateid: &StateId) -> bool {
        self.service.clients.is_opener(&self.origin, self.caller, stateid)
    }

    /// Leave to change a file where no stateid is needed. No client holds anything of what is no regular file.
    pub fn permit_change(&self, object: &Object, does: Does) -> Step<Option<Held>> {
        if object.inode.kind != ivers_vfs::FileType::Regular {
            return Ok(None);
        }
        self.permit(object, &StateId::ANONYMOUS, does).map(Some)
    }

    /// Look at a file that the holder of a write delegation may have written: what he has made of it, if he was asked and has; otherwise the VFS knows,
    /// as long as the leave lives.
    pub fn look(&mut self, object: &Object) -> Step<(Option<Shown>, Option<Held>)> {
        let file = object.file();
        if object.inode.kind != ivers_vfs::FileType::Regular {
            return Ok((None, None));
        }
        if let Some((of, shown, _)) = &self.told
            && *of == file
        {
            return Ok((*shown, None));
        }
        self.asking = Some(file);
        self.service.clients.look(self.caller, file).map(|leave| (None, Some(leave)))
    }

    /// News have come; an error, if the operation ends by that.
    pub(super) fn hear(&mut self, news: News) -> Step<()> {
        match (news, self.asking.take()) {
            (News::Again, _) => {}
            (News::Told(shown, until), Some(file)) => self.told = Some((file, shown, until)),
            (News::Told(..), None) | (News::Late, _) => return Err(Stop::Fail(NfsStat::Delay)),
        }
        Ok(())
    }

    /// An operation is over: what was told for it is old by now.
    pub(super) fn next_operation(&mut self) {
        (self.asking, self.told) = (None, None);
    }
}
