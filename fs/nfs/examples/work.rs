//! Work of the NFS client in one process, without a mount: `work HOST:PORT EXPORT COUNT WORK`. It prints the
//! seconds that the work took. WORK is one of those of `xtask/src/nfs_client/libnfs.c`, but for "unpack",
//! which `ivers tar -x` does.

use ivers_nfs::identity::Identity;
use ivers_nfs::target::ServerName;
use ivers_nfs::{Nfs, NfsOptions};
use ivers_vfs::{CreateSpec, Cred, FileType, InodeRef, MountOptions, OpenMode, Result, Vfs, WriteFlags};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// That of `ivers`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Any<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 64 * MIB;
const READ_WRITE: OpenMode = OpenMode::READ.union(OpenMode::WRITE);
/// Names that are listed at a time.
const LISTED: usize = 1000;

/// Writes with `depth` threads, and syncs the file at the end.
fn write_small(vfs: &Vfs, file: &InodeRef, count: u64, depth: usize, flags: WriteFlags) -> Result<()> {
    let (next, bytes) = (AtomicU64::new(0), [7; 4096]);
    vfs.open(&Cred::root(), file, READ_WRITE)?;
    let one = || -> Result<()> {
        loop {
            let nth = next.fetch_add(1, Relaxed);
            if nth >= count {
                return Ok(());
            }
            let random = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            vfs.write(&Cred::root(), file, random % (DATA_BYTES / 4096) * 4096, &bytes, flags)?;
        }
    };
    std::thread::scope(|threads| {
        let all: Vec<_> = (0..depth).map(|_| threads.spawn(one)).collect();
        all.into_iter().try_for_each(|thread| thread.join().expect("a writer panics"))
    })?;
    vfs.fsync(file, false)?;
    vfs.close(file, READ_WRITE);
    Ok(())
}

fn write_large(vfs: &Vfs, root: &InodeRef, count: u64) -> Result<()> {
    let (cred, bytes) = (Cred::root(), vec![7; MIB as usize]);
    match vfs.unlink(&cred, root, b"large", false) {
        Err(ivers_vfs::Error::Name(ivers_vfs::NameError::NotFound)) => {}
        removed => drop(removed?),
    }
    let (file, _) = vfs.create(&cred, root, b"large", &CreateSpec::file(0o644), false)?;
    vfs.open(&cred, &file, READ_WRITE)?;
    for nth in 0..count {
        vfs.write(&cred, &file, nth * MIB, &bytes, WriteFlags::CACHED_BY_CALLER)?;
    }
    vfs.fsync(&file, false)?;
    vfs.close(&file, READ_WRITE);
    Ok(())
}

fn read_large(vfs: &Vfs, file: &InodeRef, count: u64) -> Result<()> {
    let mut bytes = vec![0; MIB as usize];
    vfs.open(&Cred::root(), file, OpenMode::READ)?;
    for nth in 0..count {
        let read = vfs.read_direct(&Cred::root(), file, nth * MIB % DATA_BYTES, &mut bytes)?;
        assert_eq!(read, bytes.len(), "a short read");
    }
    vfs.close(file, OpenMode::READ);
    Ok(())
}

fn create(vfs: &Vfs, root: &InodeRef, count: u64) -> Result<()> {
    let cred = Cred::root();
    for nth in 0..count {
        let name = format!("created-{nth}");
        let (file, _) = vfs.create(&cred, root, name.as_bytes(), &CreateSpec::file(0o644), false)?;
        vfs.open(&cred, &file, READ_WRITE)?;
        vfs.close(&file, READ_WRITE);
        drop(file);
        vfs.unlink(&cred, root, name.as_bytes(), false)?;
    }
    Ok(())
}

/// Lists a tree and asks for the attributes of each file. Returns the number of names.
fn walk(vfs: &Vfs, dir: &InodeRef) -> Result<u64> {
    let (mut names, mut cursor) = (1, 0);
    loop {
        let listed = vfs.list(&Cred::root(), dir, cursor, LISTED)?;
        let Some(last) = listed.last() else { return Ok(names) };
        cursor = last.next;
        for entry in listed {
            let inode = entry.inode?;
            vfs.get_attr(&Cred::root(), &inode)?;
            names += if inode.kind == FileType::Directory { walk(vfs, &inode)? } else { 1 };
        }
    }
}

fn main() -> Any<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, export, count, work, rest @ ..] = &words[..] else { return Err("too few words".into()) };
    let (address, count): (SocketAddr, u64) = (address.parse()?, count.parse()?);
    let server = ServerName { host: address.ip().to_string(), port: address.port() };
    // Each question goes to the server, as with libnfs.
    let asks = matches!(work.as_str(), "getattr" | "create");
    let options = NfsOptions {
        root: export.clone().into_bytes(),
        attribute_timeout: if asks { Duration::ZERO } else { Duration::from_secs(3) },
        ..NfsOptions::new(Identity::of(Cred::root()))
    };
    let nfs = Nfs::open("nfs", Box::new(move |timeout| ivers_nfs::connect(&server, timeout)), &options)?;
    let vfs = Vfs::mount(nfs, MountOptions::default())?;
    let (root, data) = (vfs.root()?, || vfs.resolve(&Cred::root(), "/data", false));
    let first = rest.first().map_or("", String::as_str);
    let begin = Instant::now();
    match work.as_str() {
        "write" => write_small(&vfs, &data()?, count, first.parse()?, WriteFlags::empty())?,
        "durable" => write_small(&vfs, &data()?, count, first.parse()?, WriteFlags::DIRECT)?,
        "getattr" => {
            let file = data()?;
            (0..count).try_for_each(|_| vfs.get_attr(&Cred::root(), &file).map(drop))?;
        }
        "create" => create(&vfs, &root, count)?,
        "write-large" => write_large(&vfs, &root, count)?,
        "read-large" => read_large(&vfs, &data()?, count)?,
        "walk" => {
            let names = walk(&vfs, &vfs.resolve(&Cred::root(), first, false)?)?;
            if names != count {
                return Err(format!("{names} names instead of {count}").into());
            }
        }
        _ => return Err(format!("unknown work {work}").into()),
    }
    println!("{:.6}", begin.elapsed().as_secs_f64());
    vfs.unmount()?;
    Ok(())
}
