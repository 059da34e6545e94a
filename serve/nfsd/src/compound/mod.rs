//! One request: the current and the saved filehandle, operation by operation (RFC 7530 section 15.2, RFC 8881 section 16.2).
//!
//! [`Compound::begin`] takes the arguments of a call, [`Compound::run`] does its operations. Each is decoded when its turn comes. Where one must wait (for stable storage, or
//! for what the holder of a delegation says), the request becomes a [`Waiting`] that is data: no thread waits with it. When the news is there,
//! [`Waiting::go_on`] does the same operation again.
//!
//! What an operation does to files is [`ops`](crate::ops)' to know; whose they are, and what he holds, that of [`Clients`].

mod clients;
mod context;
mod names;
mod place;
mod refusals;
mod replies;
mod runner;
mod service;
mod tally;

pub use clients::{Answered, Clients, CopyOrder, Held, News, Shown};
pub use context::{Context, Origin};
pub use names::{Names, Numeric, Owners, Spelling, Tables};
pub use place::{Object, Place};
pub use refusals::Refusals;
pub use runner::{Compound, Progress, Unanswerable, Waiting};
pub use service::{Bounds, Exports, Filesystem, Service};
pub use tally::{Operation, Tally};
