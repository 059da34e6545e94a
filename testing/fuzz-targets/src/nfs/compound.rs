//! COMPOUND on a fresh filesystem in memory, for a client who is granted everything, or nearly.

use crate::input::Input;
use ivers_nfs_alone::odd::{Lcg, OURS, ready, request, run as perform};
use ivers_nfs_alone::{Server, mem};
use ivers_nfs4::xdr::Xdr;
use ivers_nfsd::state::{Stop, Ticket};

/// Runs one input: who asks and what is refused to him (a byte), then the arguments.
pub fn run(input: &[u8]) {
    let mut rest = Input::new(input);
    let flags = rest.byte();
    let server = ready(mem());
    let user = if flags & 1 == 0 { 0 } else { 1000 };
    if flags & 2 != 0 {
        server.clients.refuse_nth(usize::from(flags >> 4));
    }
    if flags & 4 != 0 {
        server.clients.stops.lock().push_back(Stop::Gate(Ticket(1)));
    }
    *server.clients.uncached.lock() = flags & 8 != 0;
    perform(&server, Server::origin(user, user), input.get(1..).unwrap_or_default().to_vec());
}

/// What a request of [`request`] is answered.
pub fn answer(server: &Server, request: Vec<u8>) -> Vec<u8> {
    perform(server, Server::origin(0, 0), request).map(|res| res.to_bytes()).unwrap_or_default()
}

/// First inputs: every operation, some with what is refused.
pub fn seeds() -> Vec<Vec<u8>> {
    let server = ready(mem());
    let mut lcg = Lcg(1);
    let mut seeds = Vec::new();
    for (number, op) in OURS.into_iter().enumerate() {
        for (minor, flags) in
            [(0, 0), (2, 0), (2, 1 + 4 * (number as u8 % 2)), (1, 2 + 16 * (number as u8 % 3))]
        {
            seeds.push([&[flags][..], &request(&server, minor, op, &mut lcg)].concat());
        }
    }
    seeds
}
