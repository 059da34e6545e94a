//! Types of values in the configuration file and in flags: addresses, domains and keywords.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use ivers_nfs4::NFS_PORT;
use serde::Deserialize;

/// An address to listen on. The default port is that of NFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Address(pub SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = || text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let address = text.parse().or_else(|_| bare().map(|address| SocketAddr::new(address, NFS_PORT)));
        address.map(Self).map_err(|_| {
            format!("{text:?} is not an address like 192.0.2.1, 192.0.2.1:2049 or [2001:db8::1]:2049")
        })
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// An address or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Network(IpNet);

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        // Host names are refused: a DNS reply would decide who has access.
        net.map(|net| Self(net.trunc())).map_err(|_| {
            format!("{text:?} is neither an address nor a network like 192.0.2.0/24 or 2001:db8::/64")
        })
    }
}

impl Network {
    /// Returns whether the network contains an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

/// Access mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Read-only.
    Ro,
    /// Read-write.
    Rw,
}

/// A security flavor in `sec=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavor {
    /// `AUTH_NONE`: no identity, always squashed.
    None,
    /// `AUTH_SYS`.
    Sys,
}

/// Required TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Secured {
    /// TLS is optional.
    Optional,
    /// TLS is required.
    Required,
    /// TLS with a client certificate is required.
    Certificate,
}

/// The domain after the `@` of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Domain(pub String);

impl FromStr for Domain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if text.is_empty() || text.len() > 255 || !text.bytes().all(plain) {
            return Err(format!("{text:?} is not a domain like example.org"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Domain {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Format of log messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text lines.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_port_is_that_of_nfs() {
        for (text, address) in [
            ("192.0.2.1", "192.0.2.1:2049"),
            ("192.0.2.1:7", "192.0.2.1:7"),
            ("::1", "[::1]:2049"),
            ("[::1]", "[::1]:2049"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(text.parse(), Ok(Address(address.parse().unwrap())), "{text}");
        }
        for text in ["", "host", "host:2049", "192.0.2.1:", "192.0.2.1:65536"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
