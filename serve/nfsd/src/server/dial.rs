//! The way to clients of NFSv4.0, who say where they want to be called (RFC 7530 sections 10.2.1, 16.33.5): over connections that the server makes.
//!
//! One is made to the caller's own host and to no other: nobody can have the server knock at a stranger's door. A server in a sandbox makes none itself ([`Dial`](super::Dial)): it shows
//! whoever does it a connection of the client's. Clients who are called at one address share a
//! connection; it ends when nothing was said over it for a while, and is made again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Weak};

use ivers_nfs4::PROC_NULL;
use ivers_nfs4::callback::CALLBACK_VERSION;
use ivers_nfs4::ops::v40::CallbackClient;
use ivers_nfs4::rpc::{AuthSys, OpaqueAuth};
use ivers_nfs4::types::{ClientId, NetAddr};
use ivers_nfs4::xdr::List;

use super::callback::TIME;
use super::core::Core;
use super::outside::Crew;
use crate::net::connection::Connection;
use crate::rpc::Procedure;

/// Who the server is for clients whom AUTH_SYS is enough: their callback services take calls without any credential for nothing but CB_NULL.
pub(super) fn system() -> OpaqueAuth {
    OpaqueAuth::sys(&AuthSys { stamp: 0, machine: Vec::new(), uid: 0, gid: 0, gids: List(Vec::new()) })
}

/// An address as RFC 5665 section 5.2.3 writes it: the host, and the two bytes of the port behind dots.
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
    /// A client has said from this host where he is to be called: see whether he answers there. Until he does he gets no delegations.
    pub fn try_way_back(self: &Arc<Self>, client: ClientId, from: IpAddr) {
        if !self.delegations {
            return;
        }
        let Some((callback, _)) = self.with(|state, _| state.callback_of(client)) else { return };
        // [RFC7530 16.33.5] Whom we would have to trust with a stranger's address is not called at all.
        if address(&callback.location).is_none_or(|to| to.ip() != from) {
            return;
        }
        let (core, said) = (self.clone(), callback.clone());
        let then = move |answers: bool| {
            core.with(|state, _| {
                // He may want to be called elsewhere by now.
                if state.callback_of(client).is_some_and(|(now, _)| now == said) {
                    state.callback_works(client, answers);
                }
            });
        };
        if let Some(Crew::Caller { peer, .. }) = self.crew.get() {
            return then(peer(&[]).is_some());
        }
        let Some(connection) = self.dialled(&callback) else { return };
        let procedure = Procedure {
            program: callback.program,
            version: CALLBACK_VERSION,
            procedure: PROC_NULL,
            credential: OpaqueAuth::NONE,
        };
        self.callbacks.call(&connection, &procedure, &[], TIME, move |outcome| then(outcome.is_ok()));
    }

    /// A connection to where somebody wants to be called. Whether he may be was looked at before.
    pub fn dialled(&self, callback: &CallbackClient) -> Option<Arc<Connection>> {
        let to = address(&callback.location)?;
        let open = |weak: &Weak<Connection>| weak.upgrade().filter(|connection| !connection.is_closed());
        let mut dialled = self.dialled.lock();
        if let Some(connection) = dialled.get(&to).and_then(open) {
            return Some(connection);
        }
        dialled.retain(|_, weak| open(weak).is_some());
        // Who is gone is not called.
        let client = self.connection_of(to.ip())?;
        match self.crew.get()?.dial(self.dial.as_ref(), to, &client, TIME) {
            Ok(connection) => {
                dialled.insert(to, Arc::downgrade(&connection));
                Some(connection)
            }
            Err(error) => {
                log::debug!("cannot call back at {to}: {error}");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
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
