//! Files of an NFS server: commands and mounts on `nfs://server:port/path`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::served::{Server, export};
use crate::common::*;
use ivers_oracle::{Image, have_programs};
use rustix::process::Signal;

pub fn can_serve() -> bool {
    have_programs(&["mkfs.ext4", "e2fsck"])
}

/// An export `/photos` with a tree, and the tree on the host that it was made of.
pub struct Exported {
    pub image: Image,
    tree: PathBuf,
    server: Server,
}

impl Exported {
    pub fn new() -> Self {
        Self::with(Self::fill)
    }

    /// The tree is what `fill` puts into an empty directory.
    fn with(fill: impl FnOnce(&Path)) -> Self {
        let image = Image::new("ext4", 64 << 20, &[]).unwrap();
        let tree = image.dir().join("tree");
        fs::create_dir(&tree).unwrap();
        fill(&tree);
        let (from, to) = (format!("{}/.", tree.display()), format!("{}:/", image.path().display()));
        works(&["cp", "-a", &from, &to]);
        let flag = format!("photos={}", export(&image, "no_root_squash"));
        let server = Server::start(&image.dir().join("state"), ["--export".to_owned(), flag]);
        Self { image, tree, server }
    }

    fn fill(tree: &Path) {
        fs::create_dir_all(tree.join("sub/deeper")).unwrap();
        fs::write(tree.join("hello"), "hello over the wire\n").unwrap();
        let big: Vec<u8> = (0..2_500_000_u32).map(|at| (at % 251) as u8).collect();
        fs::write(tree.join("sub/big"), big).unwrap();
        std::os::unix::fs::symlink("../hello", tree.join("sub/link")).unwrap();
        (0..300).for_each(|nth| fs::write(tree.join(format!("sub/deeper/n{nth}")), "x").unwrap());
    }

    pub fn name(&self, path: &str) -> String {
        format!("nfs://{}/photos{path}", self.server.address())
    }
}

/// Asserts that two trees have the same files and contents. Access times and ctimes are not compared.
fn assert_same(one: &Path, other: &Path) {
    let list = |root: &Path| {
        let mut found = Vec::new();
        let mut left = vec![PathBuf::new()];
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(root.join(&dir)).unwrap() {
                let path = dir.join(entry.unwrap().file_name());
                if path.as_os_str() == "lost+found" {
                    continue;
                }
                let meta = fs::symlink_metadata(root.join(&path)).unwrap();
                let contents = match meta.file_type() {
                    kind if kind.is_file() => fs::read(root.join(&path)).unwrap(),
                    kind if kind.is_symlink() => {
                        fs::read_link(root.join(&path)).unwrap().into_os_string().into_encoded_bytes()
                    }
                    _ => {
                        left.push(path.clone());
                        Vec::new()
                    }
                };
                found.push((path, meta.mode(), meta.uid(), meta.mtime(), meta.mtime_nsec(), contents));
            }
        }
        found.sort();
        found
    };
    let (one, other) = (list(one), list(other));
    assert!(!one.is_empty() && one.len() == other.len(), "{} and {} files", one.len(), other.len());
    for (one, other) in one.iter().zip(&other) {
        assert_eq!(one, other);
    }
}

#[test]
fn commands_read_files_of_a_server() {
    if !can_serve() {
        return;
    }
    let exported = Exported::new();
    let name = |path: &str| exported.name(path);
    assert_eq!(works(&["cat", &name("/hello")]), "hello over the wire\n");
    let listed = works(&["ls", "-l", &name("/sub")]);
    assert!(listed.contains("link -> ../hello") && listed.contains("2500000"), "{listed}");
    let root = format!("nfs://{}", exported.server.address());
    assert_eq!(works(&["ls", &root]), "photos\n", "the server's root");
    let tree = works(&["tree", &name("")]);
    assert!(tree.contains("deeper") && tree.contains("303 files"), "{tree}");
    assert_eq!(works(&["ls", &name("/sub/deeper/n1[01]")]).lines().count(), 2, "patterns");

    let shown = works(&["stat", "--json", &name("/hello")]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["path"], name("/hello"));
    assert_eq!((&shown["size"], &shown["semantics"]["persistent"]), (&20.into(), &true.into()), "{shown}");
    assert!(shown["change"].as_str().is_some_and(|change| change.parse::<u64>().is_ok()), "{shown}");
    let info = works(&["info", &name("")]);
    assert!(info.contains("nfs") && info.contains("NFSv4.2"), "{info}");

    let copy = exported.image.dir().join("copy");
    works(&["cp", "-a", &format!("{}/.", name("")), copy.to_str().unwrap()]);
    fs::remove_dir_all(copy.join("lost+found")).unwrap();
    assert_same(&exported.tree, &copy);
    works(&["cp", &name("/sub/deeper/n2*"), copy.to_str().unwrap()]);
    assert!(copy.join("n299").exists());
}

#[test]
fn commands_change_files_of_a_server() {
    if !can_serve() {
        return;
    }
    let exported = Exported::new();
    let name = |path: &str| exported.name(path);
    let state = exported.image.dir().join("saved").to_str().unwrap().to_owned();
    works(&["changed", &name(""), "--save", &state]);
    assert_eq!(works(&["changed", &name(""), "--since", &state]), "");

    works(&["mkdir", "-p", "-m", "750", &name("/new/below")]);
    works(&["cp", "-a", &format!("{}/.", exported.tree.display()), &name("/new")]);
    works(&["cp", &name("/sub/big"), &name("/new/copied on the server")]);
    works(&["mv", &name("/new/hello"), &name("/new/moved")]);
    works(&["ln", "-s", "../hello", &name("/new/link")]);
    works(&["chmod", "600", &name("/new/moved")]);
    works(&["chown", "1234:5", &name("/new/moved")]);
    works(&["touch", "-d", "2001-02-03", &name("/new/touched")]);
    works(&["attr", "set", "user.a", "value", &name("/new/moved")]);
    works(&["rm", &name("/sub/deeper/n2*")]);
    works(&["shell", "-c", "mkdir new/by_shell", "-c", "put /etc/hostname new/by_shell/host", &name("")]);
    let refused = ivers(["shell", "-c", "rm new/none", &name("")]);
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));

    let listed = works(&["ls", "-l", &name("/new")]);
    for has in ["copied on the server", "moved", "link -> ../hello", "by_shell", "1234"] {
        assert!(listed.contains(has), "{has}: {listed}");
    }
    assert!(works(&["stat", &name("/new/touched")]).contains("2001-02-03"));
    assert_eq!(works(&["attr", "get", "user.a", &name("/new/moved")]).trim(), "value");
    assert_eq!(works(&["ls", &name("/sub/deeper")]).lines().count(), 300 - 111);
    let changed = works(&["changed", &name(""), "--since", &state]);
    for line in ["N new/moved", "C sub/deeper", "R sub/deeper/n2", "R sub/deeper/n299"] {
        assert!(changed.lines().any(|found| found == line), "{line}: {changed}");
    }
    assert!(changed.lines().all(|line| !line.ends_with(" sub/big")), "{changed}");

    // What the server has now.
    let there = exported.image.dir().join("there");
    works(&["cp", "-a", &name("/new/sub"), there.to_str().unwrap()]);
    assert_same(&exported.tree.join("sub"), &there);
    let Exported { image, tree: _, server } = exported;
    assert!(server.stop().success());
    let image = image.path().to_str().unwrap();
    assert_eq!(works(&["cat", &format!("{image}:/new/moved")]), "hello over the wire\n");
    works(&["check", image]);
}

/// Returns how many calls a server has answered.
pub fn answered(exported: &Exported) -> u64 {
    let state = exported.image.dir().join("state");
    let stats = works(&["stats", "--json", state.to_str().unwrap()]);
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    stats["total"]["calls"].as_u64().unwrap()
}

#[test]
fn archives_are_made_of_and_unpacked_on_a_server() {
    if !can_serve() {
        return;
    }
    let exported = Exported::new();
    let name = |path: &str| exported.name(path);
    let dir = exported.image.dir();
    let archive = dir.join("a.tar").to_str().unwrap().to_owned();
    works(&["tar", "-c", "--exclude", "lost+found", "-f", &archive, &name("")]);
    let unpacked = dir.join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let tar = Command::new("tar").arg("-xpf").arg(&archive).arg("-C").arg(&unpacked).status().unwrap();
    assert!(tar.success());
    assert_same(&exported.tree, &unpacked);

    works(&["mkdir", &name("/again")]);
    works(&["tar", "-x", "-f", &archive, &name("/again")]);
    let copy = dir.join("copy");
    works(&["cp", "-a", &name("/again"), copy.to_str().unwrap()]);
    assert_same(&exported.tree, &copy);
    let refused = ivers(["tar", "-x", "-f", &archive, &name("/none")]);
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    let Exported { image, tree: _, server } = exported;
    assert!(server.stop().success());
    works(&["check", image.path().to_str().unwrap()]);
}

/// A member costs one round trip. Contents and closes of several files share requests.
#[test]
fn an_unpacked_archive_costs_few_round_trips() {
    const FILES: u64 = 400;
    if !can_serve() {
        return;
    }
    let exported = Exported::new();
    let dir = exported.image.dir();
    let tree = dir.join("many");
    fs::create_dir(&tree).unwrap();
    (0..FILES).for_each(|nth| fs::write(tree.join(format!("file{nth}")), vec![nth as u8; 700]).unwrap());
    let archive = dir.join("many.tar");
    let tar = Command::new("tar")
        .args(["--format=posix", "-cf"])
        .arg(&archive)
        .arg("-C")
        .arg(dir)
        .arg("many")
        .status();
    assert!(tar.unwrap().success());
    let before = answered(&exported);
    works(&["tar", "-x", "-f", archive.to_str().unwrap(), &exported.name("")]);
    let calls = answered(&exported) - before;
    // 400 files are created. 25 times, 16 files are sent, closed and returned.
    assert!((FILES..FILES + FILES / 4 + 20).contains(&calls), "{calls} round trips");
    let copy = dir.join("copy of many");
    works(&["cp", "-a", &exported.name("/many"), copy.to_str().unwrap()]);
    assert_same(&tree, &copy);
}

/// A change attribute of a server may repeat after its crash, so a second run reads the files again.
#[test]
fn files_of_a_server_are_measured() {
    if !can_serve() {
        return;
    }
    let exported = Exported::new();
    let list = exported.image.dir().join("list");
    let store = exported.image.dir().join("store");
    let measure = |what: &str| {
        let (list, store) = (list.to_str().unwrap(), store.to_str().unwrap());
        let said = works(&["measure", "--json", "--list", list, "--store", store, what]);
        let sums: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        let numbers = ["files", "read", "entries"].map(|name| sums[name].as_u64().unwrap());
        (numbers, sums["unvouched"].to_string())
    };
    let (numbers, unvouched) = measure(&exported.name("/sub"));
    // The first entry of a list is `boot_aggregate`.
    assert_eq!(numbers, [301, 301, 302]);
    assert!(unvouched.contains("nfs://"), "{unvouched}");
    assert_eq!(measure(&exported.name("/sub")).0, [301, 301, 302], "the same digests");
    works(&["touch", &exported.name("/sub/deeper/more")]);
    assert_eq!(measure(&exported.name("/sub")).0, [302, 302, 303]);
}

/// Writes the certificate of an authority, and certificates that it signed with keys for server and client.
fn make_certificates(dir: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(dir.join("ca.pem"), authority.as_ref().pem()).unwrap();
    for (file, name) in [("server", "127.0.0.1"), ("client", "client.example")] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        fs::write(dir.join(format!("{file}.pem")), params.signed_by(&key, &authority).unwrap().pem())
            .unwrap();
        fs::write(dir.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

#[test]
fn connections_are_encrypted() {
    if !can_serve() {
        return;
    }
    let Exported { image, tree, server } = Exported::new();
    assert!(server.stop().success());
    make_certificates(image.dir());
    let path = |name: &str| image.dir().join(name).display().to_string();
    let flag = format!("photos={}", export(&image, "no_root_squash,tls=certificate"));
    let (key, certificate, authorities) = (path("server.key"), path("server.pem"), path("ca.pem"));
    let words = ["--tls-key", &key, "--tls-certificate", &certificate, "--tls-client-authorities"];
    let words = words.into_iter().chain([authorities.as_str(), "--export", &flag]);
    let server = Server::start(&image.dir().join("state2"), words);
    let exported = Exported { image, tree, server };
    let path = |name: &str| exported.image.dir().join(name).display().to_string();
    let name = |path: &str| exported.name(path);
    let only_tls = format!("xprtsec=tls,tls_authorities={}", path("ca.pem"));
    let (client, key) = (path("client.pem"), path("client.key"));
    let both =
        format!("xprtsec=mtls,tls_authorities={},tls_certificate={client},tls_key={key}", path("ca.pem"));
    assert_eq!(works(&["cat", "-o", &both, &name("/hello")]), "hello over the wire\n");
    let refused = |options: &str, code: i32, has: &str| {
        let output = ivers(["cat", "-o", options, &name("/hello")]);
        assert_eq!(output.status.code(), Some(code), "{options}: {}", said(&output));
        assert!(said(&output).contains(has), "{options}: {}", said(&output));
    };
    refused("xprtsec=none", 4, "requires TLS");
    refused(&only_tls, 4, "requires TLS");
    refused("xprtsec=tls,tls_authorities=/none.pem", 3, "/none.pem");
    refused(&format!("xprtsec=tls,tls_authorities={key}"), 1, "not PEM with certificates");
    refused(&format!("xprtsec=tls,tls_key={key}"), 2, "require xprtsec=mtls");
    refused("xprtsec=mtls", 2, "requires tls_certificate=FILE");
    refused("xprtsec=gss", 2, "takes none, tls or mtls");
    refused(&format!("tls_key={key}"), 2, "require xprtsec=tls");
    let image = exported.image.path().to_str().unwrap();
    let output = ivers(["ls", "-o", "xprtsec=tls", image]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    if can_mount() {
        let mounted = mount(&exported, "mnt", &["-o", &format!("{both},nconnect=2")]);
        assert_same(&exported.tree, &mounted.0);
        fs::write(mounted.0.join("new"), vec![7; 3_000_000]).unwrap();
        unmount(&mounted);
        assert_eq!(works(&["cat", "-o", &both, &name("/new")]).len(), 3_000_000);
    }
    let without = Exported::new();
    let output = ivers(["cat", "-o", &only_tls, &without.name("/hello")]);
    assert!(said(&output).contains("offers no TLS") && output.status.code() == Some(1), "{}", said(&output));
}

#[test]
fn what_a_server_cannot_do_is_refused() {
    if !can_serve() {
        return;
    }
    let exported = Exported::new();
    let name = |path: &str| exported.name(path);
    let refused = |words: &[&str], code: i32, has: &str| {
        let output = ivers(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(has), "{words:?}: {}", said(&output));
    };
    refused(&["cat", &name("/none")], 3, "no such file");
    refused(&["rm", &name("/none")], 3, "no such file");
    refused(&["mkdir", &name("/hello")], 1, "file exists");
    refused(&["label", &name(""), "x"], 4, "is on a server");
    let image = exported.image.path().to_str().unwrap().to_owned();
    refused(&["mount", "-o", "soft", &image, "/nowhere"], 2, "for servers only");
    refused(&["mount", "-o", "rsize=7", &name(""), "/nowhere"], 2, "1024 to 1048576 bytes");
    // As fsck(8) ends when it cannot run.
    refused(&["check", &name("")], 8, "is on a server");
    refused(&["ls", "-o", "partition=1", &name("")], 2, "option partition");
    refused(&["ls", "nfs://127.0.0.1:1/x"], 1, "cannot connect");
    refused(&["ls", "nfs://:7/x"], 2, "write nfs://server[:port]/path");
    assert_eq!(works(&["cat", &name("/hello")]), "hello over the wire\n", "nothing changed");
}

pub struct Mounted(pub PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

pub fn mount(exported: &Exported, name: &str, words: &[&str]) -> Mounted {
    let dir = exported.image.dir().join(name);
    fs::create_dir(&dir).unwrap();
    let log = exported.image.dir().join("log");
    let output = Command::new(IVERS)
        .args(["mount", "--log"])
        .arg(&log)
        .args(words)
        .arg(exported.name(""))
        .arg(&dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    Mounted(dir)
}

pub fn unmount(mounted: &Mounted) {
    works(&["unmount", mounted.0.to_str().unwrap()]);
}

#[test]
fn a_mount_shows_the_server_and_follows_it() {
    if !can_serve() || !can_mount() {
        return;
    }
    let exported = Exported::new();
    let mounted = mount(&exported, "mnt", &["-o", "ro"]);
    let other = mount(&exported, "other", &[]);
    for dir in [&mounted.0, &other.0] {
        assert_same(&exported.tree, dir);
    }
    let hello = mounted.0.join("hello");
    assert_eq!(change(&hello), change(&other.0.join("hello")), "the server's value");
    let error = fs::write(&hello, "x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let sandbox = about(&mounted.0)["sandbox"].to_string();
    assert!(sandbox.contains("seccomp"), "{sandbox}");
    unmount(&mounted);
    unmount(&other);
}

/// The server permits what the mode alone does not, and the other way round.
#[test]
fn the_server_decides_who_may_read_on_a_mount_of_root() {
    if !can_serve() || !can_mount() || !is_root() || !have_programs(&["setpriv", "setfacl"]) {
        return;
    }
    const USER: &str = "4711";
    let exported = Exported::with(|tree| {
        for (name, acl) in [("granted", "u:4711:r,g::-,o::-"), ("refused", "u:4711:-,g::r,o::r")] {
            let file = tree.join(name);
            fs::write(&file, name).unwrap();
            ivers_oracle::run("setfacl", ["-m", acl, file.to_str().unwrap()]).unwrap();
        }
    });
    let read_as_user = |dir: &Path, name: &str| {
        let cat = ["--reuid", USER, "--regid", USER, "--clear-groups", "cat"];
        Command::new("setpriv").args(cat).arg(dir.join(name)).output().unwrap().status.success()
    };
    let mounted = mount(&exported, "mnt", &["-o", "allow_other"]);
    let line = mount_line(&mounted.0).unwrap();
    assert!(!line.contains("default_permissions"), "{line}");
    fs::set_permissions(exported.image.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(read_as_user(&mounted.0, "granted"));
    assert!(!read_as_user(&mounted.0, "refused"));
    unmount(&mounted);
}

/// The requests of an ordinary user's mount carry that user's credentials: the kernel must keep others out.
#[test]
fn the_kernel_keeps_others_out_of_a_users_mount_of_a_server() {
    let has_helper = have_programs(&["setpriv", "fusermount3"]);
    if !can_serve() || !can_mount() || !is_root() || !has_helper {
        return;
    }
    let exported = Exported::new();
    let dir = exported.image.dir().join("mnt");
    fs::create_dir(&dir).unwrap();
    // A user who may mount and open the device, but is not root.
    const RIGHTS: &str = "+sys_admin,+dac_override";
    let user = ["--reuid", "4711", "--clear-groups", "--inh-caps", RIGHTS, "--ambient-caps", RIGHTS];
    for (options, checks) in [("rw", false), ("allow_other", true)] {
        let mut command = Command::new("setpriv");
        command.args(user).arg(IVERS).args(["mount", "-o", options]).arg(exported.name("")).arg(&dir);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let line = mount_line(&dir).unwrap();
        assert_eq!(line.contains("default_permissions"), checks, "{line}");
        rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).unwrap();
    }
}

/// Locks hold between two mounts, and a mount with options of nfs(5) counts what it asks for.
#[test]
fn two_mounts_share_locks_and_count_what_they_ask() {
    use rustix::fs::{FlockOperation, flock};
    if !can_serve() || !can_mount() {
        return;
    }
    let exported = Exported::new();
    let wanted = "rsize=4096,wsize=8192,actimeo=0,soft,timeo=100";
    let (mounted, other) = (mount(&exported, "mnt", &["-o", wanted]), mount(&exported, "other", &[]));
    let open = |dir: &Path| fs::File::options().read(true).write(true).open(dir.join("hello")).unwrap();
    let (here, there) = (open(&mounted.0), open(&other.0));
    flock(&here, FlockOperation::NonBlockingLockExclusive).unwrap();
    let refused = flock(&there, FlockOperation::NonBlockingLockShared);
    assert_eq!(refused, Err(rustix::io::Errno::AGAIN));
    drop(here);
    // Waits until the server hears of the close.
    flock(&there, FlockOperation::LockExclusive).unwrap();
    drop(there);

    assert_eq!(fs::read(mounted.0.join("sub/big")).unwrap().len(), 2_500_000);
    fs::write(mounted.0.join("new"), vec![1; 80_000]).unwrap();
    let stats = works(&["stats", "--json", mounted.0.to_str().unwrap()]);
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    let count = |name: &str| stats[name].as_u64().unwrap();
    assert!(count("server_read") >= 2_500_000 / 4096, "{stats}");
    assert!((10..100).contains(&count("server_write")), "{stats}");
    assert!(count("server_lock") == 1 && count("server_locku") == 1, "{stats}");
    assert!(count("server_connections") == 1 && count("server_sessions") == 1, "{stats}");
    assert!(count("server_requests") >= count("server_read"), "{stats}");
    unmount(&mounted);
    unmount(&other);
}

/// The next owner of a lock reads all that was written under it, also if the kernel knew another size.
#[test]
fn the_next_owner_of_a_lock_reads_a_file_that_has_grown() {
    use rustix::fs::{FlockOperation, flock};
    use std::os::unix::fs::FileExt;
    if !can_serve() || !can_mount() {
        return;
    }
    let exported = Exported::new();
    let mounts = [mount(&exported, "mnt", &[]), mount(&exported, "other", &[])];
    fs::write(mounts[0].0.join("grows"), "").unwrap();
    let files = mounts
        .each_ref()
        .map(|mounted| fs::File::options().read(true).write(true).open(mounted.0.join("grows")).unwrap());
    let mut expected = Vec::new();
    for round in 0..12_u8 {
        let (writer, reader) = (usize::from(round % 2), usize::from(round / 2 % 2));
        flock(&files[writer], FlockOperation::LockExclusive).unwrap();
        let more = vec![round; 1000 + usize::from(round) * 500];
        files[writer].write_all_at(&more, expected.len() as u64).unwrap();
        expected.extend(more);
        flock(&files[writer], FlockOperation::Unlock).unwrap();
        flock(&files[reader], FlockOperation::LockExclusive).unwrap();
        let mut found = vec![0; 100_000];
        let len = files[reader].read_at(&mut found, 0).unwrap();
        assert!(found[..len] == expected, "round {round}: {len} of {} bytes", expected.len());
        flock(&files[reader], FlockOperation::Unlock).unwrap();
    }
    drop(files);
    mounts.iter().for_each(unmount);
}

/// The supervisor makes several connections if programs send requests in parallel.
#[test]
fn a_mount_uses_several_connections() {
    if !can_serve() || !can_mount() {
        return;
    }
    let exported = Exported::new();
    let mounted = mount(&exported, "mnt", &["-o", "nconnect=3,rsize=4096"]);
    std::thread::scope(|scope| {
        for nth in 0..8 {
            let dir = &mounted.0;
            scope.spawn(move || {
                fs::write(dir.join(format!("new{nth}")), vec![nth; 100_000]).unwrap();
                assert_eq!(fs::read(dir.join("sub/big")).unwrap().len(), 2_500_000);
            });
        }
    });
    let stats = works(&["stats", "--json", mounted.0.to_str().unwrap()]);
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert!((2..=3).contains(&stats["server_connections"].as_u64().unwrap()), "{stats}");
    assert_eq!(stats["server_sessions"], 1, "{stats}");
    unmount(&mounted);
    for nth in 0..8 {
        assert_eq!(works(&["cat", &exported.name(&format!("/new{nth}"))]).len(), 100_000);
    }
}

/// A later mount sends no READ for files that did not change. One mount at a time uses the cache.
#[test]
fn contents_are_kept_for_the_next_mount() {
    if !can_serve() || !can_mount() {
        return;
    }
    let exported = Exported::new();
    let dir = exported.image.dir().join("cache");
    let options = format!("cache-dir={},cache-size=256M", dir.display());
    let reads = |mounted: &Mounted| {
        let stats = works(&["stats", "--json", mounted.0.to_str().unwrap()]);
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        (stats["server_read"].as_u64().unwrap(), stats["disk_cache_hits"].as_u64().unwrap())
    };
    let first = mount(&exported, "first", &["-o", &options]);
    assert_same(&exported.tree, &first.0);
    assert!(reads(&first).0 > 300);
    let refused = |options: &str, code: i32, has: &str| {
        let at = exported.image.dir().join("refused");
        fs::create_dir_all(&at).unwrap();
        let output = ivers(["mount", "-o", options, &exported.name(""), at.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(code), "{options}: {}", said(&output));
        assert!(said(&output).contains(has), "{options}: {}", said(&output));
    };
    refused(&options, 6, "another mount uses it");
    refused(&format!("cache-dir={}", exported.tree.display()), 4, "no other user may enter it");
    refused("cache-dir=/none/none", 1, "cannot open the directory");
    refused("cache-size=1G", 2, "requires cache-dir");
    refused("cache-size=1K,cache-dir=x", 2, "cache-size 1M or more");
    unmount(&first);

    let second = mount(&exported, "second", &["-o", &options]);
    assert_same(&exported.tree, &second.0);
    let (sent, hits) = reads(&second);
    assert!(sent == 0 && hits > 300, "{sent} READs, {hits} hits");
    unmount(&second);
    works(&["touch", &exported.name("/hello")]);
    let third = mount(&exported, "third", &["-o", &options]);
    assert_eq!(fs::read(third.0.join("hello")).unwrap(), b"hello over the wire\n");
    assert_eq!(fs::read(third.0.join("sub/big")).unwrap().len(), 2_500_000);
    assert_eq!(reads(&third).0, 1, "one file changed");
    unmount(&third);
}

/// [`P4`] If a mount is killed while programs write, its cache returns no old bytes.
#[test]
fn a_killed_mount_leaves_no_old_bytes() {
    if !can_serve() || !can_mount() {
        return;
    }
    let exported = Exported::new();
    let options = format!("cache-dir={},cache-size=8M", exported.image.dir().join("cache").display());
    for round in 0..5_u8 {
        let mounted = mount(&exported, &format!("killed{round}"), &["-o", &options]);
        let pid = i32::try_from(about(&mounted.0)["pid"].as_i64().unwrap()).unwrap();
        std::thread::scope(|scope| {
            for nth in 0..4_u8 {
                let dir = &mounted.0;
                scope.spawn(move || {
                    // Writes and reads until the mount is killed.
                    for turn in 0..u8::MAX {
                        let file = dir.join(format!("w{nth}"));
                        let bytes = vec![turn ^ round; 60_000 + usize::from(turn) * 100];
                        if fs::write(&file, bytes).and_then(|()| fs::read(&file)).is_err() {
                            return;
                        }
                        let _ = fs::read(dir.join("sub/big"));
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(400 + u64::from(round) * 130));
            signal(pid, Signal::KILL);
        });
        wait_until("the processes of the mount end", || !runs(pid));
        drop(mounted);
        let plain = mount(&exported, &format!("plain{round}"), &["-o", "ro"]);
        let mut kept = None;
        wait_until("the cache is free", || {
            let dir = exported.image.dir().join(format!("kept{round}"));
            let _ = fs::create_dir(&dir);
            let words = ["mount", "-o", &options, &exported.name(""), dir.to_str().unwrap()];
            kept = ivers(words).status.success().then_some(Mounted(dir));
            kept.is_some()
        });
        let kept = kept.unwrap();
        assert_same(&plain.0, &kept.0);
        assert_same(&plain.0, &kept.0);
        unmount(&kept);
        unmount(&plain);
    }
}

#[test]
fn a_mount_changes_the_server() {
    if !can_serve() || !can_mount() {
        return;
    }
    let exported = Exported::new();
    let (mounted, other) = (mount(&exported, "mnt", &[]), mount(&exported, "other", &[]));
    let (here, there) = (&mounted.0, &other.0);
    let copied = Command::new("cp").arg("-a").arg(&exported.tree).arg(here.join("new")).status().unwrap();
    assert!(copied.success());
    assert_same(&exported.tree, &here.join("new"));
    assert_same(&exported.tree, &there.join("new"));

    let (file, again) = (here.join("hello"), there.join("hello"));
    let before = change(&again);
    fs::write(&file, "written by one").unwrap();
    assert_eq!(fs::read(&again).unwrap(), b"written by one", "after the close");
    assert!(change(&again) != before && change(&again) == change(&file));
    let mut appended = fs::OpenOptions::new().append(true).open(&again).unwrap();
    appended.write_all(b", and by the other").unwrap();
    appended.sync_all().unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"written by one, and by the other");
    assert_eq!(fs::File::create_new(&file).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);

    fs::remove_file(&again).unwrap();
    appended.write_all(b"!").unwrap();
    let hidden = |dir: &Path| {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.as_encoded_bytes().starts_with(b".nfs")).count()
    };
    assert_eq!((appended.metadata().unwrap().len(), hidden(here)), (33, 1));
    drop(appended);
    wait_until("the hidden name goes with the last close", || hidden(here) == 0);
    fs::rename(here.join("new"), here.join("sub/moved")).unwrap();
    assert_same(&exported.tree, &there.join("sub/moved"));
    fs::remove_dir_all(there.join("sub/deeper")).unwrap();
    assert!(!here.join("sub/deeper").exists() && !here.join("hello").exists());
    unmount(&mounted);
    unmount(&other);
    let Exported { image, tree, server } = exported;
    drop(server);
    let on_image = |path: &str| format!("{}:{path}", image.path().display());
    assert_eq!(works(&["cat", &on_image("/sub/moved/hello")]), "hello over the wire\n");
    assert_eq!(works(&["ls", &on_image("/")]), "lost+found\nsub\n");
    drop(tree);
}

/// The supervisor makes the connections: the worker cannot.
/// Each MiB fills an eighth of the memory for data that is not sent yet.
#[test]
fn a_full_server_stops_a_writing_program() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("ext4", 32 << 20, &["-m", "0"]).unwrap();
    let flag = format!("full={}", export(&image, "no_root_squash"));
    let server = Server::start(&image.dir().join("state"), ["--export".to_owned(), flag]);
    let (dir, log) = (image.dir().join("mnt"), image.dir().join("log"));
    fs::create_dir(&dir).unwrap();
    let name = format!("nfs://{}/full", server.address());
    let words = ["mount", "--log", log.to_str().unwrap(), "-o", "cache=16M", &name, dir.to_str().unwrap()];
    works(&words);
    let mounted = Mounted(dir);
    full_disk::stops_a_writing_program(&mounted.0, "nfs");
    // Files that lack data at the end, and others that had.
    let path = |name: &str| mounted.0.join(name);
    let endless = |name: &str| {
        let mut file = fs::File::create(path(name)).unwrap();
        let written = (0..1024).take_while(|_| file.write_all(&[7; 1 << 20]).is_ok()).count();
        assert!((8..64).contains(&written), "{name}: {written} MiB");
        file
    };
    drop(endless("cut"));
    fs::OpenOptions::new().write(true).open(path("cut")).unwrap().set_len(0).unwrap();
    drop(endless("removed"));
    fs::remove_file(path("removed")).unwrap();
    drop(endless("lost"));
    let unmounted = ivers(["unmount", mounted.0.to_str().unwrap()]);
    assert_eq!(unmounted.status.code(), Some(1), "{}", said(&unmounted));
    let said = said(&unmounted);
    assert!(said.contains("1 file lacks data") && said.contains(": lost"), "{said}");
    assert!(!said.contains("cut") && !said.contains("removed"), "{said}");
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("(lost): "), "{log}");
}

#[test]
fn a_mount_survives_a_restart_of_its_server() {
    if !can_serve() || !can_mount() {
        return;
    }
    let Exported { image, tree, server } = Exported::new();
    let address = server.address();
    let exported = Exported { image, tree, server };
    let mounted = mount(&exported, "mnt", &["-o", "ro"]);
    assert_eq!(fs::read(mounted.0.join("hello")).unwrap(), b"hello over the wire\n");
    let Exported { image, tree, server } = exported;
    server.kill();
    let flag = format!("photos={}", export(&image, "no_root_squash"));
    let mut command = Command::new(IVERS);
    command.args(["serve", "--json", "--listen", &address.to_string(), "--export", &flag, "--state"]);
    let server = Server::of(command.arg(image.dir().join("state")));
    assert_same(&tree, &mounted.0);
    unmount(&mounted);
    drop((server, tree));
}

/// A server that is stopped answers nothing: the mount can be taken away.
#[test]
fn an_unmount_ends_although_the_server_hangs() {
    if !can_serve() || !can_mount() {
        return;
    }
    let exported = Exported::new();
    let mounted = mount(&exported, "mnt", &["-o", "ro"]);
    let pid = i32::try_from(about(&mounted.0)["pid"].as_i64().unwrap()).unwrap();
    signal(exported.server.pid(), Signal::STOP);
    let mut reader = Command::new("cat").arg(mounted.0.join("hello")).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(reader.try_wait().unwrap().is_none(), "it waits for the server");
    signal(pid, Signal::TERM);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(runs(pid) && reader.try_wait().unwrap().is_none(), "the mount is detached, and in use");
    signal(pid, Signal::TERM);
    wait_until("the processes of the mount end", || !runs(pid));
    assert!(!reader.wait().unwrap().success());
    assert!(mount_line(&mounted.0).is_none());
    signal(exported.server.pid(), Signal::CONT);
}
