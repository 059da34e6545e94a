//! An NFSv4.0 to 4.2 client: a filesystem whose files are on a server. See `docs/nfs.md`.
//!
//! | module | contents |
//! |---|---|
//! | [`target`] | names of servers and files: `nfs://server[:port]/path` |
//! | [`identity`] | credentials of requests |
//! | [`owners`] | numbers of owners that the server sends as names |
//! | `counters` | counters of a mount |
//! | `status` | errors of the server as errors of the VFS |
//! | `reply` | replies, checked against their request |
//! | `clock` | the clock of leases |
//! | `wire` | the bytes of a connection, with or without TLS |
//! | `callbacks` | callbacks of the server |
//! | `connection` | a TCP connection and the threads that wait for replies |
//! | [`tls`] | requesting TLS from a server |
//! | `owner_seqids` | NFSv4.0: sequence IDs of owners |
//! | `session` | slots and sequence IDs |
//! | `exchange` | one request and its reply |
//! | `establish` | making a session |
//! | `unfinished` | NFSv4.0: a reclaim that continues if its connection breaks |
//! | `client_id` | NFSv4.0: a client ID instead of a session |
//! | `spares` | further connections of the session |
//! | `client` | what the threads of a client share |
//! | `linking` | making and replacing the connection and the session |
//! | `back_channel` | running callbacks; whether the server still keeps the client's state |
//! | `requests` | requests, repeated until there is an answer |
//! | `requests40` | NFSv4.0: one request |
//! | `background` | which threads work in the background |
//! | `together` | requests of several threads in one COMPOUND |
//! | `lease` | the thread that renews the lease |
//! | `attributes` | attributes of files |
//! | `all_names` | all names of a directory that this client has made |
//! | `own_changes` | which attributes include the changes of this client |
//! | `unstable` | writes that the server may lose |
//! | `file_locks` | byte-range locks of a file |
//! | `file_names` | NFSv4.0: names by which a file can be opened |
//! | `deferred` | attributes that are not sent yet |
//! | `file_open` | the state of a file on the server |
//! | `returns` | what must be done with delegations |
//! | `opens`, `delegations`, `reclaim` | opens on the server; delegations; reclaiming after a restart |
//! | `closing` | closing several files in one request |
//! | `opens_by_name` | NFSv4.0: opens by name |
//! | `nodes` | numbers and filehandles, and what is known of each file |
//! | `listing` | READDIR |
//! | `open` | finding the exported directory and the facts of its filesystem |
//! | `read_ahead` | listings that a program is likely to ask for next |
//! | `directory`, `names` | finding names, changing names |
//! | `data`, `settings` | bytes, attributes and opens |
//! | `xattrs`, `holes`, `locks` | extended attributes, holes, byte-range locks |
//! | `space`, `copies` | space of files, copies on the server |
//! | `batches` | attributes of many files in few requests |
//! | `kept`, `contents` | the persistent cache of contents |
//! | `unsent` | the files that closes have deferred |
//! | `sender` | sending what closes have deferred |
//! | `driver` | the interface to the VFS |
//!
//! Each reply is hostile: its size is bounded, and it is decoded against the request.

#![forbid(unsafe_code)]

mod all_names;
mod attributes;
mod back_channel;
mod background;
mod batches;
pub mod callbacks;
mod client;
mod client_id;
mod clock;
mod closing;
mod connection;
mod contents;
mod copies;
mod counters;
mod data;
mod deferred;
mod delegations;
mod directory;
mod driver;
mod establish;
mod exchange;
mod file_locks;
mod file_names;
mod file_open;
mod holes;
pub mod identity;
mod kept;
mod lease;
mod linking;
mod listing;
mod locks;
mod names;
mod nodes;
mod open;
mod opens;
mod opens_by_name;
mod own_changes;
mod owner_seqids;
pub mod owners;
mod read_ahead;
mod reclaim;
mod reply;
mod requests;
mod requests40;
mod returns;
mod sender;
mod session;
mod settings;
mod space;
mod spares;
mod status;
pub mod target;
pub mod tls;
mod together;
mod unfinished;
mod unsent;
mod unstable;
mod wire;
mod xattrs;

pub use client::{Dial, NO_RECONNECTION, Patience};
pub use connection::connect;
pub use driver::Nfs;
pub use open::NfsOptions;
