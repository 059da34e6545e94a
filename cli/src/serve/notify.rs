//! What systemd is told (sd_notify(3)).

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Connected while that is still allowed: in the sandbox there are no new sockets.
#[derive(Debug)]
pub struct Notify(Option<UnixDatagram>);

impl Notify {
    /// To whoever `NOTIFY_SOCKET` names; to nobody if it names nobody.
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
            log::warn!("cannot tell systemd how it goes: {error}");
            None
        }))
    }

    /// Tell it, one assignment a line.
    pub fn tell(&self, text: &str) {
        if let Some(socket) = &self.0
            && let Err(error) = socket.send(text.as_bytes())
        {
            log::warn!("cannot tell systemd how it goes: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_named_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let name = format!("ivers-notify-test-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (socket, name) in [(by_path, path.into()), (by_name, format!("@{name}").into())] {
            Notify::to(Some(name)).tell("READY=1");
            let mut text = [0; 64];
            let length = socket.recv(&mut text).unwrap();
            assert_eq!(&text[..length], b"READY=1");
        }
        Notify::to(Some(dir.path().join("nobody").into())).tell("READY=1");
        Notify::to(None).tell("READY=1");
    }
}
