//! The parts of a client that are specific to NFSv4.0.

use ivers_nfs4::ops::v40::CallbackClient;
use ivers_nfs4::types::Verifier;

/// The parts of a client that are specific to NFSv4.0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::state) struct V40 {
    pub callback: CallbackClient,
    pub ident: u32,
    pub confirm: Verifier,
    /// A new callback address that the client has not confirmed yet.
    pub update: Option<(CallbackClient, u32, Verifier)>,
    /// Whether callbacks work.
    pub path_up: bool,
}
