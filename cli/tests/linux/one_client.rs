//! One client.

use std::time::Duration;

use anyhow::{Result, ensure};
use ivers_nfs4::ops::number;

use crate::guest::{Client, machines};
use crate::server::Server;
use crate::{ends_with_the_tree, image, rounds};

/// Programs that work with every version.
const ALWAYS: [&str; 7] = ["files", "locks", "mapped", "open-files", "direct", "append", "copies"];
/// Errors that the programs cause on purpose. The client has no name for NFS4ERR_NOXATTR.
///
/// A process of the client may request a lock before the process that released it has told the server. Reads
/// ahead and write-back under an open may run beside the next open of the file, which in NFSv4.0 changes the
/// stateid: requests on one connection run in parallel, and the client repeats them (RFC 7530 section
/// 9.1.4.2).
const EXPECTED: [(u32, &str); 15] = [
    (number::LOCK, "DENIED"),
    (number::READ, "OLD_STATEID"),
    (number::WRITE, "OLD_STATEID"),
    (number::LOOKUP, "ENOENT"),
    (number::OPEN, "ENOENT"),
    (number::OPEN, "EACCES"),
    (number::REMOVE, "NOTEMPTY"),
    (number::RENAME, "EEXIST"),
    (number::SETATTR, "EPERM"),
    (number::SEEK, "ENXIO"),
    (number::CLONE, "NOTSUPP"),
    (number::GETXATTR, "0x276f"),
    (number::SETXATTR, "0x276f"),
    (number::SETXATTR, "EEXIST"),
    (number::REMOVEXATTR, "0x276f"),
];
/// Operations of fsx that work with every version.
const FSX: &str = "flen = 1048576\\n[opsize]\\nmax = 65536\\n[weights]\\nclose_open = 1\\n\
    read = 10\\nwrite = 10\\nmapread = 10\\nmapwrite = 10\\ninvalidate = 1\\ntruncate = 5\\n\
    fsync = 1\\nfdatasync = 1\\nsendfile = 3\\nposix_fadvise = 1\\n";
const FSX_OPERATIONS: usize = 10_000;
const FSX_SEEDS: usize = 2;
/// Programs that require NFSv4.2.
const SINCE_2: [&str; 2] = ["xattrs", "sparse"];

fn untar(client: &mut Client, dir: &str) -> Result<()> {
    client.guest.run(&format!(
        "mkdir -p {dir}/tree /tmp/tree && tar xf /tree.tar -C {dir}/tree && tar xf /tree.tar -C /tmp/tree"
    ))?;
    client.guest.run("echo 3 > /proc/sys/vm/drop_caches")?;
    client.guest.run(&format!("diff -r {dir}/tree /tmp/tree"))?;
    // Busybox sets the times of a directory before it fills it, so they are not compared.
    let list = "(find . -type f | sort | xargs stat -c '%n %f %u %g %Y'; \
                find . -type d | sort | xargs stat -c '%n %f %u %g')";
    client.guest.run(&format!("cd {dir}/tree && {list} > /tmp/there"))?;
    client.guest.run(&format!("cd /tmp/tree && {list} > /tmp/here && cmp /tmp/here /tmp/there"))?;
    println!("{} files and directories unpacked", client.guest.run("wc -l < /tmp/here")?);
    Ok(())
}

/// Runs fsx, the same operations on a file in memory for comparison.
fn fsx(client: &mut Client, dir: &str, version: &str) -> Result<()> {
    if std::env::var_os("IVERS_FSX").is_none() {
        return Ok(());
    }
    let since_2 = "posix_fallocate = 3\\npunch_hole = 5\\ncopy_file_range = 5\\n";
    let more = if version == "4.2" { since_2 } else { "" };
    client.guest.run(&format!("printf '{FSX}{more}' > /tmp/fsx.toml"))?;
    for seed in 1..=FSX_SEEDS {
        let line = format!("fsx -q -N {FSX_OPERATIONS} -S {seed} -P /tmp -f /tmp/fsx.toml {dir}/fsx");
        client.guest.run_within(&line, Duration::from_secs(1800))?;
    }
    println!("{FSX_SEEDS} times {FSX_OPERATIONS} operations of fsx in {dir}");
    Ok(())
}

fn work(client: &mut Client, version: &str) -> Result<()> {
    let dir = format!("/mnt/v{version}");
    client.mount(version, "/mnt", "")?;
    client.guest.run(&format!("mkdir {dir} && ls /mnt && df /mnt"))?;
    let names = if rounds().is_some() || version == "4.2" { 2000 } else { 200 };
    client.attempt("names", &dir, &names.to_string())?;
    for what in ALWAYS {
        client.attempt(what, &dir, "")?;
    }
    if version == "4.2" {
        for what in SINCE_2 {
            client.attempt(what, &dir, "")?;
        }
        let ended = client.events("nfs4_cb_offload")?;
        ensure!(ended > 0, "a copy of many MiB was synchronous");
        println!("{ended} asynchronous copies");
        untar(client, &dir)?;
    }
    fsx(client, &dir, version)?;
    client.unmount("/mnt")
}

fn run() -> Result<()> {
    let Some(machines) = machines() else { return Ok(()) };
    let image = image();
    let server = Server::start(image.path())?;
    let mut client = machines.client("a", server.port())?;
    for version in ["4.0", "4.1", "4.2"] {
        work(&mut client, version)?;
    }
    // Mounts again, so that the client has nothing cached.
    client.mount("4.2", "/mnt", "")?;
    ends_with_the_tree(client, "/mnt", server, image.path(), &EXPECTED)
}

#[test]
fn one_client_of_each_version_works() {
    run().unwrap();
}
