//! Generated requests with unusual arguments, and checks of their replies.

use std::sync::Arc;

use ivers_nfs4::attr::Attrs;
use ivers_nfs4::compound::CompoundRes;
use ivers_nfs4::ops::{Op, number};
use ivers_nfs4::types::{Ace, FileHandle};
use ivers_nfs4::xdr::{Encoder, List, Xdr};
use ivers_nfsd::compound::{Origin, WakeReason};
use ivers_nfsd::executor::Progress;
use ivers_vfs::{CreateSpec, Cred, FileType, RenameFlags, Vfs};

use crate::harness::{Server, put, sequence};

/// Encodes arguments of an operation: most can be decoded, and many values are limits.
fn arguments(number: u32, handles: &[FileHandle], random: &mut impl FnMut() -> u64, out: &mut Encoder) {
    const NAMES: [&[u8]; 8] = [b"f", b"d", b"x", b"..", b"", b"a/b", b"\xff", b"lost+found"];
    let edge = |value: u64| match value % 8 {
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
        number::PUTFH => out.opaque(&handles[random() as usize % handles.len()].0),
        number::LOOKUP
        | number::REMOVE
        | number::LINK
        | number::SECINFO
        | number::GETXATTR
        | number::REMOVEXATTR => name(out, random()),
        number::RENAME => {
            name(out, random());
            name(out, random());
        }
        number::GETATTR => {
            // All readable attributes, or all attributes.
            let write_only = [0, 1 << 16 | 1 << 22, 1 << 10 | 1 << 17 | 3 << 20];
            let include_write_only = random().is_multiple_of(4);
            out.word(3);
            write_only
                .into_iter()
                .for_each(|bits| out.word(random() as u32 & if include_write_only { !0 } else { !bits }));
        }
        number::VERIFY | number::NVERIFY => {
            out.word(1);
            out.word(1 << 4 | random() as u32 & 1 << 12);
            out.opaque(&[0_u64, 1, 8, 4096][random() as usize % 4].to_be_bytes());
        }
        number::SECINFO_NO_NAME => out.word(random() as u32 % 3),
        number::IO_ADVISE => {
            stateid(out, random());
            (0..2).for_each(|_| edge(random()).put(out));
            out.word(0);
        }
        number::READ | number::READ_PLUS => {
            stateid(out, random());
            edge(random()).put(out);
            out.word(edge(random()) as u32);
        }
        number::WRITE => {
            stateid(out, random());
            edge(random()).put(out);
            out.word(random() as u32 % 4);
            out.opaque(&vec![7; random() as usize % 5000]);
        }
        number::READDIR => {
            (random() % 2 * edge(random())).put(out);
            edge(random()).put(out);
            out.word(edge(random()) as u32);
            out.word(edge(random()) as u32);
            out.word(1);
            out.word(random() as u32);
        }
        number::ALLOCATE | number::DEALLOCATE => {
            stateid(out, random());
            edge(random()).put(out);
            // The server really allocates: keep it short.
            (edge(random()) % 100_000).put(out);
        }
        number::SEEK => {
            stateid(out, random());
            edge(random()).put(out);
            out.word(random() as u32 % 3);
        }
        number::COPY => {
            stateid(out, random());
            stateid(out, random());
            (0..3).for_each(|_| (edge(random()) % 5000 * (random() % 3)).put(out));
            out.word(1);
            out.word(1);
            out.word(0);
        }
        number::SETATTR => {
            stateid(out, random());
            let values: Vec<u8> = (0..random() % 5).flat_map(|_| edge(random()).to_be_bytes()).collect();
            match random() % 4 {
                0 => {
                    out.word(1);
                    out.word(1 << 4);
                    out.opaque(&edge(random()).to_be_bytes());
                }
                3 => {
                    let List(mut aces) = sample_acl();
                    aces.rotate_left(random() as usize % 6);
                    aces.truncate(random() as usize % 8);
                    let size = (random().is_multiple_of(3)).then(|| edge(random()));
                    Attrs { acl: Some(List(aces)), size, ..Attrs::default() }.encode().put(out);
                }
                1 => {
                    out.word(2);
                    out.word(0);
                    out.word(1 << 1);
                    out.opaque(&(random() as u32 % 0o20000).to_be_bytes());
                }
                _ => {
                    out.word(2);
                    out.word(1 << 4 & random() as u32);
                    out.word(random() as u32 & (1 << 1 | 1 << 16 | 1 << 22));
                    out.opaque(&values);
                }
            }
        }
        number::CREATE => {
            match random() % 4 {
                0 => out.word(2),
                1 => {
                    out.word(5);
                    name(out, random());
                }
                _ => out.word(7),
            }
            name(out, random());
            out.word(0);
            out.opaque(&[]);
        }
        number::ACCESS => out.word(random() as u32 % 0x400),
        number::COMMIT => {
            edge(random()).put(out);
            out.word(random() as u32);
        }
        number::SETXATTR => {
            out.word(random() as u32 % 3);
            name(out, random());
            out.opaque(&vec![1; random() as usize % 3000]);
        }
        number::LISTXATTRS => {
            edge(random()).put(out);
            out.word(edge(random()) as u32);
        }
        _ => {}
    }
}

/// Returns one ACL entry of each kind that the server can store.
pub fn sample_acl() -> List<Ace> {
    let ace = |kind, flags, mask, who: &str| Ace { kind, flags, mask, who: who.into() };
    List(vec![
        ace(1, 0, 0x2, "1000"),
        ace(0, 0, 0x7, "OWNER@"),
        ace(0, 0x3, 0x23, "1001"),
        ace(0, 0x40, 0x1, "GROUP@"),
        ace(0, 0x4b, 0x20, "7"),
        ace(0, 0, 0x1, "EVERYONE@"),
    ])
}

/// Executes a COMPOUND. Returns `None` if its arguments cannot be decoded.
///
/// Panics if the reply is malformed or if a granted access is not released.
pub fn run(server: &Server, origin: Origin, bytes: Vec<u8>) -> Option<CompoundRes> {
    let limit = server.service.limits.reply_bytes_max;
    let begun = server.executor.begin(origin, bytes, Encoder::default());
    let compound = begun.ok()?;
    let mut progress = compound.run();
    let reply = loop {
        match progress {
            Progress::Done(reply) => break reply,
            Progress::Waits(_, waiting) => progress = waiting.resume(WakeReason::TimedOut),
        }
    };
    assert!(reply.len() <= limit, "{} bytes", reply.len());
    let res = CompoundRes::from_bytes(reply.as_bytes()).expect("a reply that can be read");
    let statuses: Vec<_> = res.results.iter().map(|result| result.status()).collect();
    let failed = statuses.iter().position(|status| status.number() != 0);
    assert!(failed.is_none_or(|at| at + 1 == statuses.len()), "it went on after a failure: {statuses:?}");
    let last = statuses.last().copied().unwrap_or(res.status);
    assert_eq!(res.status, last, "the status is that of the last operation");
    assert_eq!(server.clients.permits.outstanding(), 0);
    Some(res)
}

/// The operations that need no client state, except most of those without arguments.
pub const STATELESS_OPS: [u32; 33] = [
    number::ACCESS,
    number::COMMIT,
    number::CREATE,
    number::GETATTR,
    number::GETFH,
    number::LINK,
    number::LOOKUP,
    number::LOOKUPP,
    number::NVERIFY,
    number::PUTFH,
    number::PUTROOTFH,
    number::READ,
    number::READDIR,
    number::READLINK,
    number::REMOVE,
    number::RENAME,
    number::RESTOREFH,
    number::SAVEFH,
    number::SECINFO,
    number::SECINFO_NO_NAME,
    number::SETATTR,
    number::VERIFY,
    number::WRITE,
    number::ALLOCATE,
    number::COPY,
    number::DEALLOCATE,
    number::IO_ADVISE,
    number::READ_PLUS,
    number::SEEK,
    number::GETXATTR,
    number::SETXATTR,
    number::LISTXATTRS,
    number::REMOVEXATTR,
];

/// A linear congruential generator: the same numbers for the same seed.
pub struct Lcg(pub u64);

impl Lcg {
    /// Returns the next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 20
    }
}

/// Returns a request with two filehandles, the operation `op`, and a second, random operation.
pub fn request(server: &Server, minor: u32, op: u32, lcg: &mut Lcg) -> Vec<u8> {
    let handles = [
        server.handle(&["f"]),
        server.handle(&["d"]),
        server.handle(&[]),
        server.handle(&["l"]),
        FileHandle::default(),
    ];
    // The last handle is invalid. It is chosen rarely.
    let pick = |lcg: &mut Lcg| handles[(lcg.next_number() % 16 * 4 / 15) as usize].clone();
    let numbers = [op, STATELESS_OPS[lcg.next_number() as usize % STATELESS_OPS.len()]];
    let mut bytes = Encoder::default();
    bytes.opaque(b"");
    bytes.word(minor);
    bytes.word(5 + u32::from(minor > 0));
    if minor > 0 {
        sequence().put(&mut bytes);
    }
    put(&pick(lcg)).put(&mut bytes);
    Op::SaveFh(()).put(&mut bytes);
    put(&pick(lcg)).put(&mut bytes);
    for number in numbers {
        bytes.word(number);
        arguments(number, &handles, &mut || lcg.next_number(), &mut bytes);
    }
    bytes.into_bytes()
}

/// Returns a server that exports the files that the requests name.
pub fn sample_server(vfs: Arc<Vfs>) -> Server {
    let server = Server::new(vfs, "no_root_squash");
    restore_samples(&server.vfs);
    server
}

/// Creates the files that requests name again, if a request removed or replaced them.
pub fn restore_samples(vfs: &Vfs) {
    let (root, cred) = (vfs.root().unwrap(), Cred::root());
    for (name, spec) in
        [("f", CreateSpec::file(0o644)), ("d", CreateSpec::directory(0o755)), ("l", CreateSpec::symlink("f"))]
    {
        match vfs.lookup(&cred, &root, name.as_bytes()) {
            Ok(inode) if inode.kind == spec.kind => continue,
            Ok(inode) if inode.kind == FileType::Directory => {
                let to = format!("was {name} {}", inode.ino);
                let flags = RenameFlags::empty();
                let moved = vfs.rename(&cred, &root, name.as_bytes(), &root, to.as_bytes(), flags, false);
                moved.unwrap();
            }
            Ok(_) => drop(vfs.unlink(&cred, &root, name.as_bytes(), false).unwrap()),
            Err(_) => {}
        }
        vfs.create(&cred, &root, name.as_bytes(), &spec, false).unwrap();
    }
}
