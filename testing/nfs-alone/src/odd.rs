//! Requests that nobody in his senses would send, and what must be true of their answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ivers_nfs4::attr::Attrs;
use ivers_nfs4::compound::CompoundRes;
use ivers_nfs4::ops::{Op, number};
use ivers_nfs4::types::{Ace, FileHandle};
use ivers_nfs4::xdr::{Encoder, List, Xdr};
use ivers_nfsd::compound::{Compound, News, Origin, Progress};
use ivers_vfs::{CreateSpec, Cred, FileType, RenameFlags, Vfs};

use crate::{Server, put, sequence};

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
            // All that can be asked for, or whatever there is.
            let write_only = [0, 1 << 16 | 1 << 22, 1 << 10 | 1 << 17 | 3 << 20];
            let odd = seed().is_multiple_of(4);
            out.word(3);
            write_only.into_iter().for_each(|bits| out.word(seed() as u32 & if odd { !0 } else { !bits }));
        }
        number::VERIFY | number::NVERIFY => {
            out.word(1);
            out.word(1 << 4 | seed() as u32 & 1 << 12);
            out.opaque(&[0_u64, 1, 8, 4096][seed() as usize % 4].to_be_bytes());
        }
        number::SECINFO_NO_NAME => out.word(seed() as u32 % 3),
        number::IO_ADVISE => {
            stateid(out, seed());
            (0..2).for_each(|_| odd(seed()).put(out));
            out.word(0);
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
            (seed() % 2 * odd(seed())).put(out);
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
            (0..3).for_each(|_| (odd(seed()) % 5000 * (seed() % 3)).put(out));
            out.word(1);
            out.word(1);
            out.word(0);
        }
        number::SETATTR => {
            stateid(out, seed());
            let values: Vec<u8> = (0..seed() % 5).flat_map(|_| odd(seed()).to_be_bytes()).collect();
            match seed() % 4 {
                0 => {
                    out.word(1);
                    out.word(1 << 4);
                    out.opaque(&odd(seed()).to_be_bytes());
                }
                3 => {
                    let List(mut aces) = acl();
                    aces.rotate_left(seed() as usize % 6);
                    aces.truncate(seed() as usize % 8);
                    let size = (seed().is_multiple_of(3)).then(|| odd(seed()));
                    Attrs { acl: Some(List(aces)), size, ..Attrs::default() }.encode().put(out);
                }
                1 => {
                    out.word(2);
                    out.word(0);
                    out.word(1 << 1);
                    out.opaque(&(seed() as u32 % 0o20000).to_be_bytes());
                }
                _ => {
                    out.word(2);
                    out.word(1 << 4 & seed() as u32);
                    out.word(seed() as u32 & (1 << 1 | 1 << 16 | 1 << 22));
                    out.opaque(&values);
                }
            }
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

/// Entries of each kind that can be kept.
pub fn acl() -> List<Ace> {
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

/// Do what the arguments of a COMPOUND say; nothing if they are none. Panics if the answer is not one, or if something is left behind.
pub fn run(server: &Server, origin: Origin, bytes: Vec<u8>) -> Option<CompoundRes> {
    let limit = server.service.bounds.reply_bytes;
    let begun = Compound::begin(server.service.clone(), origin, bytes, Encoder::default());
    let compound = begun.ok()?;
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
    let last = statuses.last().copied().unwrap_or(res.status);
    assert_eq!(res.status, last, "the status is that of the last operation");
    assert_eq!(server.clients.out.load(Ordering::SeqCst), 0);
    Some(res)
}

/// The operations that the server does without clients' state, but for those without arguments that could be odd.
pub const OURS: [u32; 33] = [
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

/// A source of numbers that are the same each time.
pub struct Lcg(pub u64);

impl Lcg {
    /// The next one.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 20
    }
}

/// A request around one operation, with filehandles before it and another operation behind it.
pub fn request(server: &Server, minor: u32, op: u32, lcg: &mut Lcg) -> Vec<u8> {
    let handles = [
        server.handle(&["f"]),
        server.handle(&["d"]),
        server.handle(&[]),
        server.handle(&["l"]),
        FileHandle::default(),
    ];
    // The last one is none, and comes seldom.
    let pick = |lcg: &mut Lcg| handles[(lcg.next_number() % 16 * 4 / 15) as usize].clone();
    let numbers = [op, OURS[lcg.next_number() as usize % OURS.len()]];
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

/// A server that exports what the requests are about.
pub fn ready(vfs: Arc<Vfs>) -> Server {
    let server = Server::new(vfs, "no_root_squash");
    restore(&server.vfs);
    server
}

/// Whatever was done, these are there for the next one.
pub fn restore(vfs: &Vfs) {
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
