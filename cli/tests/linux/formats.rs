//! Formats other than ext4: what the client can do with them, also across a restart.

use std::path::Path;

use anyhow::{Context, Result};
use ivers_block::{Device, FileDevice, OpenMode};
use ivers_nfs4::ops::number;
use ivers_vfs::Timestamp;

use crate::ends;
use crate::guest::{Client, machines};
use crate::server::Server;
use crate::several_clients::eventually;

/// Errors of operations that the formats do not support. Filehandles are valid until the server ends.
const EXPECTED: [(u32, &str); 10] = [
    (number::LOOKUP, "ENOENT"),
    (number::OPEN, "ENOENT"),
    (number::OPEN, "GRACE"),
    (number::SETATTR, "EPERM"),
    (number::CREATE, "EPERM"),
    (number::PUTFH, "STALE"),
    (number::GETATTR, "STALE"),
    (number::SEQUENCE, "BADSESSION"),
    (number::DESTROY_SESSION, "BADSESSION"),
    (number::CREATE_SESSION, "STALE_CLIENTID"),
];

fn work(client: &mut Client, dir: &str) -> Result<()> {
    let lines = [
        format!(
            "mkdir -p {dir}/a/b && cd {dir} && dd if=/dev/urandom of=/tmp/data bs=64k count=40 2> /dev/null"
        ),
        format!("cp /tmp/data {dir}/a/data && sync && cmp /tmp/data {dir}/a/data"),
        format!("cd {dir} && mv a/data a/b/moved && cp a/b/moved second && rm a/b/moved && rmdir a/b"),
        format!("cd {dir} && for i in $(seq 40); do echo $i > file-$i; done && test $(ls | wc -l) = 42"),
        format!("cd {dir} && for i in $(seq 40); do test $(cat file-$i) = $i || exit 1; done"),
        format!("cd {dir} && rm file-1? && test $(ls | wc -l) = 32 && echo more >> file-2"),
        format!("cd {dir} && truncate -s 100 second && truncate -s 200000 second && sync"),
        "echo 3 > /proc/sys/vm/drop_caches".to_owned(),
        format!(
            "cd {dir} && head -c 100 /tmp/data > /tmp/want && truncate -s 200000 /tmp/want && \
             cmp second /tmp/want"
        ),
        format!("cd {dir} && printf '2\\nmore\\n' > /tmp/two && cmp file-2 /tmp/two && cd /"),
    ];
    lines.iter().try_for_each(|line| client.guest.run(line).map(drop))
}

fn serve(image: &Path) -> Result<()> {
    let Some(machines) = machines() else { return Ok(()) };
    let mut server = Server::start(image)?;
    let mut client = machines.client("a", server.port())?;
    for version in ["4.0", "4.2"] {
        client.mount(version, "/mnt", "")?;
        work(&mut client, &format!("/mnt/v{version}"))?;
        client.unmount("/mnt")?;
    }
    client.mount("4.2", "/mnt", "")?;
    client.guest.run("echo kept > /mnt/kept && sync")?;
    server.kill()?;
    server.start_again();
    // The files are found by name, from the root of the mount, after the client has closed what it had open.
    for line in
        ["grep -q kept /mnt/kept", "test $(wc -c < /mnt/v4.0/second) = 200000", "echo on >> /mnt/v4.2/second"]
    {
        eventually(&mut client, line).with_context(|| line.to_owned())?;
    }
    client.unmount("/mnt")?;
    ends(client, server, &EXPECTED)
}

fn empty(dir: &Path, bytes: u64) -> Result<(std::path::PathBuf, FileDevice)> {
    let image = dir.join("image");
    std::fs::File::create(&image)?.set_len(bytes)?;
    let device = FileDevice::open(&image, OpenMode::ReadWrite)?;
    Ok((image, device))
}

#[test]
fn fat_works() {
    if !ivers_oracle::have_programs(&["mkfs.vfat", "fsck.fat"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, _) = empty(dir.path(), 64 << 20).unwrap();
    ivers_oracle::run("mkfs.vfat", [&image]).unwrap();
    serve(&image).unwrap();
    ivers_oracle::fat::fsck_fat_after_crash(&image).unwrap();
}

#[test]
fn affs_works() {
    let dir = tempfile::tempdir().unwrap();
    let (image, device) = empty(dir.path(), 32 << 20).unwrap();
    ivers_affs::mkfs::format(&device, 3, 512, "Served", Timestamp { sec: 1 << 30, nsec: 0 }).unwrap();
    device.flush().unwrap();
    drop(device);
    serve(&image).unwrap();
}
