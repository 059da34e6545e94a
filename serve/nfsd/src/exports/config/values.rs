//! Types of values in the configuration: networks and keywords.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// An address or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network(IpNet);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Read-only.
    Ro,
    /// Read-write.
    Rw,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ro" => Ok(Self::Ro),
            "rw" => Ok(Self::Rw),
            _ => Err(format!("{text:?} is not an access mode; expected \"ro\" or \"rw\"")),
        }
    }
}

/// A security flavor in `sec=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flavor {
    /// `AUTH_NONE`: no identity, always squashed.
    None,
    /// `AUTH_SYS`.
    Sys,
}

impl FromStr for Flavor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "sys" => Ok(Self::Sys),
            _ => Err(format!("{text:?} is not a supported flavor; expected \"sys\" or \"none\"")),
        }
    }
}

/// Required TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Secured {
    /// TLS is optional.
    Optional,
    /// TLS is required.
    Required,
    /// TLS with a client certificate is required.
    Certificate,
}

impl FromStr for Secured {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "optional" => Ok(Self::Optional),
            "required" => Ok(Self::Required),
            "certificate" => Ok(Self::Certificate),
            _ => Err(format!("{text:?}: expected \"optional\", \"required\" or \"certificate\"")),
        }
    }
}
