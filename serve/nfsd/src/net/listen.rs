//! Sockets that the server listens on: opened by address, or passed in by the service manager (systemd's
//! `LISTEN_FDS`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

pub use ivers_nfs4::NFS_PORT;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use thiserror::Error;

const BACKLOG: i32 = 1024;

/// The reason why the server cannot listen.
#[derive(Debug, Error)]
pub enum ListenError {
    /// An address cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The error of the system call.
        source: io::Error,
    },
    /// An inherited socket cannot be used.
    #[error("socket {number} of LISTEN_FDS is not a listening TCP socket: {source}")]
    Inherited {
        /// Its index, from 0.
        number: usize,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Returns the loopback addresses of IPv4 and IPv6 with the NFS port.
pub fn loopback() -> [SocketAddr; 2] {
    [(Ipv4Addr::LOCALHOST, NFS_PORT).into(), (Ipv6Addr::LOCALHOST, NFS_PORT).into()]
}

/// Listens on an address. An IPv6 socket accepts IPv6 only, whatever the system's default is, so that the
/// configured list of addresses means exactly what it says.
pub fn on(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let open = || -> rustix::io::Result<TcpListener> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // A restarted server does not wait for connections of the previous one to time out.
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

/// Returns the inherited sockets, if any.
pub fn inherited() -> Result<Vec<TcpListener>, ListenError> {
    let mut from = listenfd::ListenFd::from_env();
    let mut found = Vec::new();
    for number in 0..from.len() {
        let listener = from.take_tcp_listener(number).and_then(|listener| match listener {
            Some(listener) if sockopt::socket_acceptconn(&listener)? => Ok(Some(listener)),
            Some(_) => Err(io::Error::from(io::ErrorKind::InvalidInput)),
            None => Ok(None),
        });
        found.extend(listener.map_err(|source| ListenError::Inherited { number, source })?);
    }
    Ok(found)
}
