//! Connections for callbacks to NFSv4.0 clients, which name the address to call (RFC 7530 sections 10.2.1,
//! 16.33.5).
//!
//! The server connects only to the host from which the client sent its address, so that nobody can direct it
//! at another host. A server in a sandbox cannot connect: [`Dial`](super::Dial) does, and gets a connection
//! of the client as proof. Clients with the same address share a connection. It is closed when idle and made
//! again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Weak};

use ivers_nfs4::PROC_NULL;
use ivers_nfs4::callback::CALLBACK_VERSION;
use ivers_nfs4::ops::v40::CallbackClient;
use ivers_nfs4::rpc::{AuthSys, OpaqueAuth};
use ivers_nfs4::types::{ClientId, NetAddr};
use ivers_nfs4::xdr::List;

use super::core::{CALLBACK_TIMEOUT, Core};
use super::runtime::Runtime;
use crate::net::connection::Connection;
use crate::rpc::Procedure;

/// The credential for clients that use AUTH_SYS: their callback services accept AUTH_NONE for CB_NULL only.
pub(super) fn system() -> OpaqueAuth {
    OpaqueAuth::sys(&AuthSys { stamp: 0, machine: Vec::new(), uid: 0, gid: 0, gids: List(Vec::new()) })
}

/// Parses a universal address (RFC 5665 section 5.2.3): the host, then the two bytes of the port, separated
/// by dots.
fn address(location: &NetAddr) -> Option<SocketAddr> {
    let text = std::str::from_utf8(&location.addr).ok()?;
    let (rest, low) = text.rsplit_once('.')?;
    let (host, high) = rest.rsplit_once('.')?;
    let ip: IpAddr = match &location.netid[..] {
        b"tcp" => host.parse::<Ipv4Addr>().ok()?.into(),
        b"tcp6" => host.parse::<Ipv6Addr>().ok()?.into(),
        _ => return None,
    };
    let port = u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?]);
    (port != 0).then(|| SocketAddr::new(ip.to_canonical(), port))
}

impl Core {
    /// Sends CB_NULL to the address that a client has given from the host `from`. Until the client answers,
    /// it gets no delegations.
    pub fn probe_v40_callback(self: &Arc<Self>, client: ClientId, from: IpAddr) {
        if !self.delegations {
            return;
        }
        let Some((callback, _)) = self.with(|state, _| state.callback_address(client)) else { return };
        // [RFC7530 16.33.5] Never connect to another host than the client's.
        if address(&callback.location).is_none_or(|to| to.ip() != from) {
            return;
        }
        let (core, probed) = (self.clone(), callback.clone());
        let then = move |answers: bool| {
            core.with(|state, _| {
                // The client may have changed its address meanwhile.
                if state.callback_address(client).is_some_and(|(now, _)| now == probed) {
                    state.set_callback_path(client, answers);
                }
            });
        };
        if let Some(Runtime::Simulated { peer, .. }) = self.runtime.get() {
            return then(peer(&[]).is_some());
        }
        let Some(connection) = self.v40_connection(&callback) else { return };
        let procedure = Procedure {
            program: callback.program,
            version: CALLBACK_VERSION,
            procedure: PROC_NULL,
            credential: OpaqueAuth::NONE,
        };
        self.callbacks
            .call(&connection, &procedure, &[], CALLBACK_TIMEOUT, move |outcome| then(outcome.is_ok()));
    }

    /// A connection to the address of a client, which the caller has checked.
    pub fn v40_connection(&self, callback: &CallbackClient) -> Option<Arc<Connection>> {
        let to = address(&callback.location)?;
        let open = |weak: &Weak<Connection>| weak.upgrade().filter(|connection| !connection.is_closed());
        let mut connections = self.v40_connections.lock();
        if let Some(connection) = connections.get(&to).and_then(open) {
            return Some(connection);
        }
        connections.retain(|_, weak| open(weak).is_some());
        // A client without a connection is not called.
        let client = self.connection_of(to.ip())?;
        match self.runtime.get()?.dial(self.dial.as_ref(), to, &client, CALLBACK_TIMEOUT) {
            Ok(connection) => {
                connections.insert(to, Arc::downgrade(&connection));
                Some(connection)
            }
            Err(error) => {
                log::debug!("cannot connect to {to} for callbacks: {error}");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn universal_addresses_are_parsed() {
        let read = |netid: &str, addr: &str| {
            address(&NetAddr { netid: netid.as_bytes().to_vec(), addr: addr.as_bytes().to_vec() })
                .map(|address| address.to_string())
        };
        assert_eq!(read("tcp", "192.0.2.7.8.1").as_deref(), Some("192.0.2.7:2049"));
        assert_eq!(read("tcp6", "2001:db8::1.255.255").as_deref(), Some("[2001:db8::1]:65535"));
        assert_eq!(read("tcp6", "::ffff:192.0.2.7.8.1").as_deref(), Some("192.0.2.7:2049"));
        for (netid, addr) in [
            ("udp", "192.0.2.7.8.1"),
            ("tcp", "192.0.2.7.0.0"),
            ("tcp", "192.0.2.7.256.1"),
            ("tcp", "192.0.2.7.8"),
            ("tcp", "localhost.8.1"),
            ("tcp", ""),
            ("tcp6", "192.0.2.7.8.1"),
        ] {
            assert_eq!(read(netid, addr), None, "{netid} {addr}");
        }
    }
}
