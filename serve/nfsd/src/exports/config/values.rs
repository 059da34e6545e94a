//! What stands behind the keys of the file, and in flags: addresses, domains, and words of which there are a few.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use ivers_nfs4::NFS_PORT;
use serde::Deserialize;

/// Where to listen. Without a port it is that of NFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Address(pub SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = || text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let address = text.parse().or_else(|_| bare().map(|address| SocketAddr::new(address, NFS_PORT)));
        address.map(Self).map_err(|_| {
            format!("{text:?} is no address like 192.0.2.1, 192.0.2.1:2049 or [2001:db8::1]:2049")
        })
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// One address, or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Network(IpNet);

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        // A name would have to be looked up, and whoever answers would say who comes in.
        net.map(|net| Self(net.trunc())).map_err(|_| {
            format!("{text:?} is neither an address nor a network like 192.0.2.0/24 or 2001:db8::/64")
        })
    }
}

impl Network {
    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

/// Reading alone, or writing too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Reading.
    Ro,
    /// Both.
    Rw,
}

/// A flavour of `sec=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavor {
    /// `AUTH_NONE`: nobody, always squashed.
    None,
    /// `AUTH_SYS`.
    Sys,
}

/// What TLS must have shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Secured {
    /// Nothing: it may be used.
    Optional,
    /// It must be used.
    Required,
    /// It must be used, and the client must have shown a certificate.
    Certificate,
}

/// What stands behind the `@` of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Domain(pub String);

impl FromStr for Domain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if text.is_empty() || text.len() > 255 || !text.bytes().all(plain) {
            return Err(format!("{text:?} is no domain like example.org"));
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

/// How messages look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// An object of JSON a line.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_port_of_nfs_unless_they_say_another() {
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
