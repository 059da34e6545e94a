//! Names of servers and files: `nfs://server[:port]/path`.

use std::fmt;

use ivers_nfs4::NFS_PORT;
use thiserror::Error;

/// What a name of a server starts with.
pub const SCHEME: &str = "nfs://";

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerName {
    /// The host name or address; an IPv6 address is without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

/// A server and a path on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The server.
    pub server: ServerName,
    /// The path from the root of the server, which starts with a slash. Byte for byte: `%20` is no space.
    pub path: Vec<u8>,
}

/// A name that starts with [`SCHEME`] and does not name a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0}; write nfs://server[:port]/path")]
pub struct BadTarget(&'static str);

/// Returns whether a word names a server or a file of one.
pub fn is_target(word: &[u8]) -> bool {
    word.starts_with(SCHEME.as_bytes())
}

impl Target {
    /// Parses a word for which [`is_target`] is true.
    pub fn parse(word: &[u8]) -> Result<Self, BadTarget> {
        let rest = word.strip_prefix(SCHEME.as_bytes()).ok_or(BadTarget("not the name of an NFS server"))?;
        let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        let (server, path) = rest.split_at(end);
        let server = std::str::from_utf8(server).map_err(|_| BadTarget("the server's name is not text"))?;
        let path = if path.is_empty() { b"/".to_vec() } else { path.to_vec() };
        Ok(Self { server: ServerName::parse(server)?, path })
    }
}

impl ServerName {
    fn parse(text: &str) -> Result<Self, BadTarget> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or(BadTarget("a bracket is missing"))?;
                (host, after.strip_prefix(':').or(after.is_empty().then_some("")))
            }
            None => match text.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(BadTarget("an IPv6 address must be in brackets"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (text, Some("")),
            },
        };
        if host.is_empty() {
            return Err(BadTarget("the server's name is missing"));
        }
        let port = match port {
            Some("") => Some(NFS_PORT),
            Some(port) => port.parse().ok().filter(|&port| port != 0),
            None => None,
        };
        let port = port.ok_or(BadTarget("the port must be a number from 1 to 65535"))?;
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "{SCHEME}[{host}]")?
        } else {
            write!(f, "{SCHEME}{host}")?
        }
        if *port == NFS_PORT { Ok(()) } else { write!(f, ":{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_servers_parse() {
        for (word, shown, path) in [
            ("nfs://host", "nfs://host", "/"),
            ("nfs://host/", "nfs://host", "/"),
            ("nfs://host:2049/a:/b", "nfs://host", "/a:/b"),
            ("nfs://10.0.0.1:20490/export/x", "nfs://10.0.0.1:20490", "/export/x"),
            ("nfs://[::1]:1/x", "nfs://[::1]:1", "/x"),
            ("nfs://[fe80::1]", "nfs://[fe80::1]", "/"),
        ] {
            let target = Target::parse(word.as_bytes()).unwrap();
            assert_eq!((target.server.to_string().as_str(), &target.path[..]), (shown, path.as_bytes()));
        }
        assert_eq!(Target::parse(b"nfs://h/\xff").unwrap().path, b"/\xff");
    }

    #[test]
    fn other_words_are_refused() {
        for word in [
            "nfs://",
            "nfs:///x",
            "nfs://:2049/x",
            "nfs://h:0/",
            "nfs://h:99999/",
            "nfs://[::1/x",
            "nfs://h:x/",
        ] {
            assert!(Target::parse(word.as_bytes()).is_err(), "{word}");
        }
        assert!(Target::parse(b"nfs://::1/x").is_err() && Target::parse(b"nfs://[::1]x/").is_err());
        assert!(Target::parse(b"nfs://\xff/x").is_err() && !is_target(b"nfs:/h") && is_target(b"nfs://h"));
    }
}
