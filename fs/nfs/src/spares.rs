//! Further connections of the session, for parallel requests (`nconnect=`).
//!
//! The slot of a request selects its connection. Consecutive requests use the first one, which `client` makes
//! and replaces. The others are spares. If a spare is missing, the first connection is used. So a server that
//! refuses further connections costs only an attempt now and then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ivers_nfs4::types::SessionId;
use ivers_vfs::sync::{RankedMutex, rank};

use crate::connection::{Broken, Connection};

/// The shortest and the longest pause before a spare is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// The place of a spare.
struct Place {
    connection: Option<Arc<Connection>>,
    /// The session that the connection is bound to.
    session: SessionId,
    /// Whether a thread is making the connection.
    busy: bool,
    not_before: Instant,
    pause: Duration,
}

/// The spares of a client.
pub struct Spares {
    places: RankedMutex<rank::Leaf, Vec<Place>>,
}

/// Which connection carries a request.
pub enum Choice {
    /// The first one.
    First,
    /// This spare.
    Spare(Arc<Connection>),
    /// None yet: the caller must make the spare of this place, and then call [`Spares::made`]. If there is a
    /// connection, it is bound to another session, and must be bound to this one.
    Make(usize, Option<Arc<Connection>>),
}

impl Spares {
    /// Creates places for this many spares.
    pub fn new(count: usize) -> Self {
        let place = || Place {
            connection: None,
            session: SessionId::default(),
            busy: false,
            not_before: Instant::now(),
            pause: PAUSES.0,
        };
        Self { places: RankedMutex::new((0..count).map(|_| place()).collect()) }
    }

    /// Returns the connection for a request in this slot of a session.
    pub fn choose(&self, slot: usize, session: SessionId) -> Choice {
        let (nth, connection, bound_to) = {
            let places = self.places.lock();
            let Some(nth) = (slot % (places.len() + 1)).checked_sub(1) else { return Choice::First };
            let Some(place) = places.get(nth).filter(|place| !place.busy) else { return Choice::First };
            (nth, place.connection.clone(), place.session)
        };
        // Not under the lock of the places, because `is_usable` takes the lock of the connection.
        let connection = connection.filter(|connection| connection.is_usable());
        if let Some(connection) = &connection
            && bound_to == session
        {
            return Choice::Spare(connection.clone());
        }
        let mut places = self.places.lock();
        match places.get_mut(nth) {
            Some(place) if !place.busy && place.not_before <= Instant::now() => {
                place.busy = true;
                Choice::Make(nth, connection)
            }
            _ => Choice::First,
        }
    }

    /// Stores the result of what [`Choice::Make`] asked for.
    pub fn made(&self, nth: usize, session: SessionId, made: &Result<Arc<Connection>, Broken>) {
        let mut places = self.places.lock();
        let Some(place) = places.get_mut(nth) else { return };
        (place.busy, place.session) = (false, session);
        place.connection = made.as_ref().ok().cloned();
        if made.is_ok() {
            place.pause = PAUSES.0;
        } else {
            place.pause = (place.pause * 2).min(PAUSES.1);
        }
        place.not_before = Instant::now() + place.pause;
    }

    /// Closes all spares, with this reason.
    pub fn fail(&self, why: &str) {
        let connections: Vec<_> =
            self.places.lock().iter_mut().filter_map(|place| place.connection.take()).collect();
        connections.iter().for_each(|connection| drop(connection.fail(why)));
    }
}
