//! Where the server listens: addresses, or sockets that were opened by who started it (systemd's `LISTEN_FDS`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use ivers_nfs4::NFS_PORT;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use thiserror::Error;

const BACKLOG: i32 = 1024;

/// Why nothing is listened to.
#[derive(Debug, Error)]
pub enum ListenError {
    /// An address.
    #[error("cannot listen on {address}: {source}")]
    Address {
        /// Which.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// A socket that was handed over.
    #[error("socket {number} of LISTEN_FDS is no TCP socket that listens: {source}")]
    HandedOver {
        /// Which, from 0.
        number: usize,
        /// Why not.
        source: io::Error,
    },
}

/// Both addresses of this machine that nobody else reaches.
pub fn loopback() -> [SocketAddr; 2] {
    [(Ipv4Addr::LOCALHOST, NFS_PORT).into(), (Ipv6Addr::LOCALHOST, NFS_PORT).into()]
}

/// Listen on an address. One of IPv6 is for IPv6 alone: a list of addresses means what it says, whatever the system's defaults are.
pub fn on(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let open = || -> rustix::io::Result<TcpListener> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // A server that starts again does not wait for connections of its last life.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        Ok(socket.into())
    };
    open().map_err(|error| ListenError::Address { address, source: error.into() })
}

/// Sockets that were handed over; none if none were.
pub fn handed_over() -> Result<Vec<TcpListener>, ListenError> {
    let mut from = listenfd::ListenFd::from_env();
    let mut found = Vec::new();
    for number in 0..from.len() {
        let listener = from.take_tcp_listener(number).and_then(|listener| match listener {
            Some(listener) if sockopt::socket_acceptconn(&listener)? => Ok(Some(listener)),
            Some(_) => Err(io::Error::from(io::ErrorKind::InvalidInput)),
            None => Ok(None),
        });
        found.extend(listener.map_err(|source| ListenError::HandedOver { number, source })?);
    }
    Ok(found)
}
