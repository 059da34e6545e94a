//! Requests that nobody in his senses would send.

use ivers_nfs4::compound::CompoundRes;
use ivers_nfs4::ops::number;
use ivers_nfs4::types::FileHandle;
use ivers_nfs4::xdr::{Encoder, Xdr};
use ivers_nfsd::compound::{Compound, News, Progress};
use proptest::prelude::*;

use crate::common::*;

/// Arguments of an operation: mostly such as can be decoded, with values that matter.
fn arguments(number: u32, handles: &[FileHandle], seed: &mut impl FnMut() -> u64, out: &mut Encoder) {
    const NAMES: [&[u8]; 8] = [b"f", b"d", b"x", b"..", b"", b"a/b", b"\xff", b"lost+found"];
    let odd = |value: u64| match value % 8 {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => u64::MAX - 1,
        4 => 1 << 63,
        5 => 4096,
        _ => value % 10_000,
    };
    let stateid = |out: &mut Encoder, value: u64| match value % 5 {
        0 => out.fixed(&[0xff; 16]),
        1 => out.fixed(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        _ => out.fixed(&[0; 16]),
    };
    let name = |out: &mut Encoder, value: u64| out.opaque(NAMES[value as usize % NAMES.len()]);
    match number {
        number::PUTFH => out.opaque(&handles[seed() as usize % handles.len()].0),
        number::LOOKUP
        | number::REMOVE
        | number::LINK
        | number::SECINFO
        | number::GETXATTR
        | number::REMOVEXATTR => name(out, seed()),
        number::RENAME => {
            name(out, seed());
            name(out, seed());
        }
        number::GETATTR => {
            out.word(3);
            (0..3).for_each(|_| out.word(seed() as u32));
        }
        number::READ | number::READ_PLUS => {
            stateid(out, seed());
            odd(seed()).put(out);
            out.word(odd(seed()) as u32);
        }
        number::WRITE => {
            stateid(out, seed());
            odd(seed()).put(out);
            out.word(seed() as u32 % 4);
            out.opaque(&vec![7; seed() as usize % 5000]);
        }
        number::READDIR => {
            odd(seed()).put(out);
            odd(seed()).put(out);
            out.word(odd(seed()) as u32);
            out.word(odd(seed()) as u32);
            out.word(1);
            out.word(seed() as u32);
        }
        number::ALLOCATE | number::DEALLOCATE => {
            stateid(out, seed());
            odd(seed()).put(out);
            // What is allowed is done: not for hours.
            (odd(seed()) % 100_000).put(out);
        }
        number::SEEK => {
            stateid(out, seed());
            odd(seed()).put(out);
            out.word(seed() as u32 % 3);
        }
        number::COPY => {
            stateid(out, seed());
            stateid(out, seed());
            (0..3).for_each(|_| odd(seed()).put(out));
            out.word(1);
            out.word(1);
            out.word(0);
        }
        number::SETATTR => {
            stateid(out, seed());
            let values: Vec<u8> = (0..seed() % 5).flat_map(|_| odd(seed()).to_be_bytes()).collect();
            out.word(2);
            out.word(1 << 4 & seed() as u32);
            out.word(seed() as u32 & (1 << 1 | 1 << 16 | 1 << 22));
            out.opaque(&values);
        }
        number::CREATE => {
            match seed() % 4 {
                0 => out.word(2),
                1 => {
                    out.word(5);
                    name(out, seed());
                }
                _ => out.word(7),
            }
            name(out, seed());
            out.word(0);
            out.opaque(&[]);
        }
        number::ACCESS => out.word(seed() as u32 % 0x400),
        number::COMMIT => {
            odd(seed()).put(out);
            out.word(seed() as u32);
        }
        number::SETXATTR => {
            out.word(seed() as u32 % 3);
            name(out, seed());
            out.opaque(&vec![1; seed() as usize % 3000]);
        }
        number::LISTXATTRS => {
            odd(seed()).put(out);
            out.word(odd(seed()) as u32);
        }
        _ => {}
    }
}

fn run(server: &Server, bytes: Vec<u8>) {
    let limit = server.service.bounds.reply_bytes;
    let Ok(compound) =
        Compound::begin(server.service.clone(), Server::origin(0, 0), bytes, Encoder::default())
    else {
        return;
    };
    let mut progress = compound.run();
    let reply = loop {
        match progress {
            Progress::Done(reply) => break reply,
            Progress::Waits(_, waiting) => progress = waiting.go_on(News::Late),
        }
    };
    assert!(reply.len() <= limit, "{} bytes", reply.len());
    let res = CompoundRes::from_bytes(reply.as_bytes()).expect("a reply that can be read");
    let statuses: Vec<_> = res.results.iter().map(|result| result.status()).collect();
    let failed = statuses.iter().position(|status| status.number() != 0);
    assert!(failed.is_none_or(|at| at + 1 == statuses.len()), "it went on behind a failure: {statuses:?}");
    assert_eq!(server.clients.out.load(std::sync::atomic::Ordering::SeqCst), 0);
}

fn check(server: &Server, minor: u32, numbers: &[u32], mut state: u64, cut: Option<usize>) {
    let handles = [server.handle(&[]), server.handle(&["f"]), server.handle(&["d"]), FileHandle::default()];
    let mut seed = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 20
    };
    // Most operations need a filehandle, and some two.
    let start = [number::PUTFH, number::SAVEFH, number::PUTFH];
    let numbers: Vec<u32> = start[..seed() as usize % 4].iter().chain(numbers).copied().collect();
    let mut bytes = Encoder::default();
    bytes.opaque(b"");
    bytes.word(minor);
    bytes.word(numbers.len() as u32 + u32::from(minor > 0));
    if minor > 0 {
        sequence().put(&mut bytes);
    }
    for number in &numbers {
        bytes.word(*number);
        arguments(*number, &handles, &mut seed, &mut bytes);
    }
    let mut bytes = bytes.into_bytes();
    if let Some(at) = cut {
        bytes.truncate(at % (bytes.len() + 1));
    }
    run(server, bytes);
    // Whatever was done, these are there for the next one.
    let root = server.vfs.root().unwrap();
    let cred = ivers_vfs::Cred::root();
    for (name, directory) in [("f", false), ("d", true)] {
        match server.vfs.lookup(&cred, &root, name.as_bytes()) {
            Ok(_) => {}
            Err(_) if directory => drop(server.directory(name)),
            Err(_) => drop(server.file(name, b"contents")),
        }
    }
}

fn numbers() -> impl Strategy<Value = Vec<u32>> {
    let common = prop::sample::select(vec![
        number::PUTFH,
        number::PUTROOTFH,
        number::SAVEFH,
        number::RESTOREFH,
        number::LOOKUP,
        number::GETATTR,
        number::READDIR,
    ]);
    prop::collection::vec(prop_oneof![3 => common, 4 => 3u32..78, 1 => any::<u32>()], 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_never_panic(minor in 0u32..4, numbers in numbers(), seed: u64, cut: Option<usize>) {
        thread_local! {
            static SERVERS: Vec<Server> = [mem(), ext4()].into_iter().map(|vfs| {
                let server = Server::new(vfs, "no_root_squash");
                server.file("f", b"contents");
                server.directory("d");
                server
            }).collect();
        }
        SERVERS.with(|servers| servers.iter().for_each(|server| check(server, minor, &numbers, seed, cut)));
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let server = Server::new(mem(), "no_root_squash");
        run(&server, bytes);
    }
}
