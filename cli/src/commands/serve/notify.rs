//! Status messages to systemd (sd_notify(3)).

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The socket to systemd. It is connected before the sandbox, which forbids new sockets. (The crate
/// `sd-notify` connects for each message.)
#[derive(Debug)]
pub struct Notify(Option<UnixDatagram>);

impl Notify {
    /// Connects to the socket that `NOTIFY_SOCKET` names, if it is set.
    pub fn from_env() -> Self {
        Self::to(std::env::var_os("NOTIFY_SOCKET"))
    }

    fn to(name: Option<OsString>) -> Self {
        let connect = |name: OsString| -> std::io::Result<UnixDatagram> {
            let socket = UnixDatagram::unbound()?;
            match name.as_bytes() {
                [b'@', name @ ..] => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
                _ => socket.connect(&name)?,
            }
            Ok(socket)
        };
        let connected = name.map(connect).transpose();
        Self(connected.unwrap_or_else(|error| {
            log::warn!("cannot notify systemd: {error}");
            None
        }))
    }

    /// Sends assignments, one per line.
    pub fn send(&self, text: &str) {
        if let Some(socket) = &self.0
            && let Err(error) = socket.send(text.as_bytes())
        {
            log::warn!("cannot notify systemd: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_socket_is_notified() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let name = format!("ivers-notify-test-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (socket, name) in [(by_path, path.into()), (by_name, format!("@{name}").into())] {
            Notify::to(Some(name)).send("READY=1");
            let mut text = [0; 64];
            let length = socket.recv(&mut text).unwrap();
            assert_eq!(&text[..length], b"READY=1");
        }
        Notify::to(Some(dir.path().join("nobody").into())).send("READY=1");
        Notify::to(None).send("READY=1");
    }
}
