//! A COMPOUND on a fresh in-memory filesystem, for a client with nearly all rights.

use crate::input::Input;
use ivers_nfs_test::harness::{Server, mem};
use ivers_nfs_test::malformed::{Lcg, STATELESS_OPS, request, run as perform, sample_server};
use ivers_nfs4::xdr::Xdr;
use ivers_nfsd::state::{Stop, Ticket};

/// Runs an input: a byte for the client and its restrictions, then the arguments.
pub fn run(input: &[u8]) {
    let mut rest = Input::new(input);
    let flags = rest.byte();
    let server = sample_server(mem());
    let user = if flags & 1 == 0 { 0 } else { 1000 };
    if flags & 2 != 0 {
        server.clients.refuse_after(usize::from(flags >> 4));
    }
    if flags & 4 != 0 {
        server.clients.stops.lock().push_back(Stop::Wait(Ticket(1)));
    }
    *server.clients.uncached.lock() = flags & 8 != 0;
    perform(&server, Server::origin(user, user), input.get(1..).unwrap_or_default().to_vec());
}

/// Returns the server's reply to a request of [`request`].
pub fn answer(server: &Server, request: Vec<u8>) -> Vec<u8> {
    perform(server, Server::origin(0, 0), request).map(|res| res.to_bytes()).unwrap_or_default()
}

/// Returns the fuzz inputs: every operation, some with restrictions.
pub fn inputs() -> Vec<Vec<u8>> {
    let server = sample_server(mem());
    let mut lcg = Lcg(1);
    let mut inputs = Vec::new();
    for (number, op) in STATELESS_OPS.into_iter().enumerate() {
        for (minor, flags) in
            [(0, 0), (2, 0), (2, 1 + 4 * (number as u8 % 2)), (1, 2 + 16 * (number as u8 % 3))]
        {
            inputs.push([&[flags][..], &request(&server, minor, op, &mut lcg)].concat());
        }
    }
    inputs
}
