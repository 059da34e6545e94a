//! Two clients of one server: one changes files, the other observes them.

use std::any::Any;
use std::sync::Arc;

use crate::op::*;
use crate::subject::{Claims, Limits, Refused, Result, Seen, SharedFile, Subject};

/// What a client is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It changes files, and keeps files open that are in a slot.
    Changes,
    /// It observes them. It has no file open except while it reads: otherwise the other one would get no
    /// write delegation.
    Observes,
}

/// Makes one client. `crowded`: other actors change files at the same time.
pub type MakeClient = Arc<dyn Fn(Role, bool) -> Box<dyn Subject + Send> + Send + Sync>;

/// Which client is asked for the change attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The one that does not change files.
    Other,
    /// The one that changes them: a program sees its own writes, also those that are not sent. The other one
    /// reads what this one reads.
    Same,
}

/// Two clients that are used at close-to-open points: see [`InProcess::of_server`](crate::InProcess).
///
/// Which points count: a change ends when its file was closed, and an observer opens a file before it reads
/// it. A query of the change attribute needs no open: it always asks the server, or is answered under a
/// delegation. So a query sees each change whose close has returned. With write delegations the close need
/// not have sent anything: the server asks the holder, or recalls.
pub struct Clients {
    name: String,
    asked: Asked,
    changes: Box<dyn Subject + Send>,
    queries: Box<dyn Subject + Send>,
    make: MakeClient,
    /// Other actors change files at the same time.
    crowded: bool,
    /// See [`Clients::without_rest`].
    rests: bool,
    /// The server. It is the last field, so that the clients are dropped before it.
    _kept: Option<Box<dyn Any + Send>>,
}

impl Clients {
    /// Makes two clients.
    pub fn new(name: impl Into<String>, asked: Asked, make: MakeClient) -> Self {
        Self::of(name.into(), asked, make, false)
    }

    fn of(name: String, asked: Asked, make: MakeClient, crowded: bool) -> Self {
        let (changes, queries) = (make(Role::Changes, crowded), make(Role::Observes, crowded));
        Self { name, asked, changes, queries, make, crowded, rests: true, _kept: None }
    }

    /// Claims nothing about C3: under a write delegation the server counts each answer of the holder that
    /// shows a write, and the end of the delegation, as a change.
    pub fn without_rest(self) -> Self {
        Self { rests: false, ..self }
    }

    /// Keeps the server alive as long as this subject.
    pub fn keeping(self, server: impl Any + Send) -> Self {
        Self { _kept: Some(Box::new(server)), ..self }
    }
}

impl Subject for Clients {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn claims(&self) -> Claims {
        let claims = self.queries.claims();
        let (rests, persistent) = (claims.rests && self.rests, claims.persistent && self.rests);
        Claims { rests, persistent, ..claims }
    }

    fn limits(&self) -> Limits {
        self.changes.limits()
    }

    fn apply(&mut self, op: &Op) -> Result<Vec<(u64, u64)>> {
        let both = matches!(op, Op::Open { .. } | Op::Close { .. } | Op::Remount | Op::Evict)
            || matches!(op, Op::Sync { on: None });
        let done = self.changes.apply(op)?;
        if both {
            self.queries.apply(op)?;
        }
        Ok(done)
    }

    fn query(&mut self, on: On<'_>) -> Result<Option<u64>> {
        match self.asked {
            Asked::Other => self.queries.query(on),
            Asked::Same => self.changes.query(on),
        }
    }

    fn look(&mut self, on: On<'_>) -> Result<Seen> {
        let mut seen = self.queries.look(on)?;
        if self.asked == Asked::Other && !matches!(on, On::Open(_)) {
            return Ok(seen);
        }
        let own = self.changes.look(on)?;
        if matches!(on, On::Open(_)) {
            // A hidden name counts for the other client.
            seen.nlink = own.nlink;
        }
        if !self.crowded && own != seen {
            return Err(Refused::Error(format!(
                "the client that changes {on:?} sees {own}, the other {seen}"
            )));
        }
        Ok(seen)
    }

    fn another(&mut self) -> Result<Box<dyn Subject + Send>> {
        Ok(Box::new(Self::of(self.name.clone(), self.asked, self.make.clone(), true)))
    }

    fn forced_bumps(&self) -> u64 {
        self.queries.forced_bumps()
    }

    fn share(&mut self, name: &str) -> Result<Arc<dyn SharedFile>> {
        let (writes, reads) = (self.changes.share(name)?, self.queries.share(name)?);
        Ok(Arc::new(Shared { writes, reads }))
    }
}

/// A file that threads write through one client, and read and query through another one.
struct Shared {
    writes: Arc<dyn SharedFile>,
    reads: Arc<dyn SharedFile>,
}

impl SharedFile for Shared {
    fn write(&self, data: &[u8]) -> Result<()> {
        self.writes.write(data)
    }

    fn read(&self, buf: &mut [u8]) -> Result<usize> {
        self.reads.read(buf)
    }

    fn set_note(&self, number: u64) -> Result<()> {
        self.writes.set_note(number)
    }

    fn note(&self) -> Result<u64> {
        self.reads.note()
    }

    fn query(&self) -> Result<Option<u64>> {
        self.reads.query()
    }
}
