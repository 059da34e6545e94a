//! Malformed and adversarial requests.

use ivers_nfs_test::harness::{Server, ext4, mem};
use ivers_nfs_test::malformed::*;
use ivers_nfs4::ops::number;
use proptest::prelude::*;

/// Each operation succeeds and fails at least once, so that the requests are meaningful.
#[test]
fn malformed_requests_reach_every_operation() {
    let mut lcg = Lcg(1);
    for server in [mem(), ext4()].map(sample_server) {
        for op in STATELESS_OPS {
            let (mut worked, mut failed) = (false, false);
            for _ in 0..300 {
                let res = run(&server, Server::origin(0, 0), request(&server, 2, op, &mut lcg));
                restore_samples(&server.vfs);
                for result in res.iter().flat_map(|res| &res.results).filter(|res| res.number() == op) {
                    *(if result.status().number() == 0 { &mut worked } else { &mut failed }) = true;
                }
            }
            let never = [number::GETFH, number::SAVEFH, number::RESTOREFH, number::PUTROOTFH];
            assert!(worked && (failed || never.contains(&op)), "{op}: worked {worked}, failed {failed}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_never_panic(
        minor in 0u32..4,
        op in prop_oneof![6 => prop::sample::select(&STATELESS_OPS[..]), 2 => 3u32..78, 1 => any::<u32>()],
        seed: u64,
        cut: Option<usize>,
    ) {
        thread_local! { static SERVERS: [Server; 2] = [mem(), ext4()].map(sample_server); }
        SERVERS.with(|servers| {
            for server in servers {
                let mut bytes = request(server, minor, op, &mut Lcg(seed));
                if let Some(at) = cut {
                    bytes.truncate(at % (bytes.len() + 1));
                }
                run(server, Server::origin(0, 0), bytes);
                restore_samples(&server.vfs);
            }
        });
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let server = Server::new(mem(), "no_root_squash");
        run(&server, Server::origin(0, 0), bytes);
    }
}
