//! Clients that do not read replies, and useless connections.

use std::io::Write;
use std::sync::atomic::AtomicUsize;

use ivers_nfs4::compound::{CompoundArgs, CompoundHeader};
use ivers_nfs4::xdr::Xdr;

use super::*;

fn encoded(ops: Vec<Op>) -> Vec<u8> {
    CompoundArgs { header: CompoundHeader { tag: Vec::new(), minor_version: 0 }, ops }.to_bytes()
}

/// READs of 1 MiB over many connections, without reading the replies.
pub fn deaf(target: &Target) {
    let mut maker = Client::new(target.address, "deaf");
    let (stateid, handle) = make(&mut maker, "large");
    assert_eq!(maker.call(write(&handle, stateid, vec![1; 1 << 20])).0, NfsStat::Ok);
    let read = Op::Read(ReadArgs { stateid: StateId::ANONYMOUS, offset: 0, count: 1 << 20 });
    let arguments = encoded(vec![Op::PutFh(handle), read]);
    let written = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(target.address).unwrap();
                stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
                let begun = Instant::now();
                // Until the server closes the connection.
                for xid in 0..u32::MAX {
                    match stream.write_all(&request(xid, 0, &arguments)) {
                        Ok(()) => drop(written.fetch_add(1, Ordering::Relaxed)),
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        Err(_) => break,
                    }
                    assert!(begun.elapsed() < Duration::from_secs(30), "the connection was not closed");
                }
            });
        }
    });
    assert!(written.into_inner() > 12);
}

/// Incomplete calls, calls whose replies nobody reads, and idle connections.
pub fn storms(target: &Target) {
    let call = request(1, 0, &encoded(vec![Op::PutRootFh(()), Op::GetFh(())]));
    let connect = || TcpStream::connect(target.address).unwrap();
    let halves: Vec<TcpStream> = (0..150)
        .map(|number| {
            let mut stream = connect();
            let _ = stream.write_all(&call[..number % call.len()]);
            stream
        })
        .collect();
    for number in 0..1500 {
        let mut stream = connect();
        match number % 3 {
            // Reset before the reply.
            0 => {
                let _ = stream.write_all(&call);
                let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
            }
            1 => drop(stream.write_all(&call[..call.len() / 2])),
            _ => {}
        }
    }
    newcomer(target.address, "in the storm");
    drop(halves);
    newcomer(target.address, "behind the storm");
}
