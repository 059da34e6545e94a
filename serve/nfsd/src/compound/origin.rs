//! The origin of a request.

use std::net::IpAddr;

use crate::exports::policy::CallerInfo;
use crate::net::tls::TlsPeer;
use crate::rpc::Credential;
use crate::state::ConnId;

/// The caller of a request and its connection.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The address of the client.
    pub address: IpAddr,
    /// The credential of the call.
    pub credential: Credential,
    /// The peer that TLS has authenticated.
    pub tls: Option<TlsPeer>,
    /// The connection.
    pub conn: ConnId,
    /// The transaction number of the call.
    pub xid: u32,
    /// The size of the call before its arguments, in bytes. The size limit of a session includes it.
    pub head_bytes: usize,
}

impl Origin {
    /// The caller, as the export rules need it.
    pub fn caller_info(&self) -> CallerInfo<'_> {
        CallerInfo { address: self.address, credential: &self.credential, tls: self.tls.as_ref() }
    }
}
