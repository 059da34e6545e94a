//! `ivers serve`: its configuration, which clients it accepts, how it ends.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::served::{Server, command, export, image_with_file};
use crate::common::*;
use ivers_nfs_test::client::{Client, change_and_size, data, guarded, named, open, opened};
use ivers_nfs4::ops::v40::{
    CallbackClient, ClientOwner, CommitArgs, OpenDelegation, ReadArgs, SetClientIdArgs, WriteArgs, share,
};
use ivers_nfs4::ops::{Op, OpResult, SetClientIdRes};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{FileHandle, NetAddr, Opaque, StableHow, StateId, Verifier};
use ivers_oracle::have_programs;
use rustix::process::Signal;

fn can_serve() -> bool {
    have_programs(&["mkfs.ext4", "e2fsck", "nfs-ls", "nfs-cat"])
}

/// Runs a program of libnfs.
fn libnfs(tool: &str, address: SocketAddr, path: &str) -> Output {
    let url = format!("nfs://{}{path}?version=4&nfsport={}", address.ip(), address.port());
    ivers_oracle::output(tool, [url]).unwrap()
}

fn refused(command: &mut Command, code: i32, expected: &str) {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{}", said(&output));
    let text = String::from_utf8(output.stderr).unwrap();
    // The commands of these tests have --json.
    let error: serde_json::Value = serde_json::from_str(&text).expect(&text);
    assert!(error["message"].as_str().unwrap().contains(expected), "{expected} not in: {text}");
}

#[test]
fn exports_are_listed_and_read_by_other_clients() {
    if !can_serve() {
        return;
    }
    let (one, two) = (image_with_file(), image_with_file());
    let state = one.dir().join("state");
    let server = Server::start(
        &state,
        ["--export".to_owned(), format!("photos={}", export(&one, "ro")), export(&two, "name=/deep/er")],
    );
    let listed = libnfs("nfs-ls", server.address(), "/photos");
    assert!(listed.status.success() && said(&listed).contains("hello"), "{}", said(&listed));
    for path in ["/photos/hello", "/deep/er/hello"] {
        let read = libnfs("nfs-cat", server.address(), path);
        assert_eq!(read.stdout, b"hello over the wire\n", "{}: {}", said(&read), server.log());
    }
    let exports = server.told["exports"].as_array().unwrap();
    assert_eq!(exports.len(), 2, "{exports:?}");
    assert_eq!((&exports[0]["name"], &exports[0]["read_only"]), (&"/deep/er".into(), &false.into()));
    assert_eq!((&exports[1]["name"], &exports[1]["read_only"]), (&"/photos".into(), &true.into()));
    assert!(server.stop().success());
    for image in [one, two] {
        image.check().unwrap();
    }
}

#[test]
fn the_example_configuration_serves() {
    if !can_serve() {
        return;
    }
    let (photos, shared) = (image_with_file(), image_with_file());
    let dir = tempfile::tempdir().unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/serve.toml");
    let mut text = fs::read_to_string(example).unwrap();
    for (theirs, ours) in [
        ("/srv/photos.img", photos.path().to_str().unwrap()),
        ("/srv/shared.img", shared.path().to_str().unwrap()),
        ("/var/lib/ivers/serve", dir.path().join("state").to_str().unwrap()),
        ("\"127.0.0.1:2049\", \"[::1]:2049\"", "\"127.0.0.1:0\""),
        ("127.0.0.1:9149", "127.0.0.1:0"),
    ] {
        assert!(text.contains(theirs), "{theirs} is not in the example");
        text = text.replace(theirs, ours);
    }
    let file = dir.path().join("serve.toml");
    fs::write(&file, text).unwrap();
    let server = Server::of(Command::new(IVERS).args(["serve", "--json", "--config"]).arg(&file));
    let read = libnfs("nfs-cat", server.address(), "/photos/hello");
    assert_eq!(read.stdout, b"hello over the wire\n", "{}: {}", said(&read), server.log());
    assert!(server.stop().success());
}

fn make(client: &mut Client, name: &str) -> (StateId, FileHandle) {
    let open = open("o", share::BOTH | share::WANT_NO_DELEG, guarded(), named(name));
    let (opened, handle) = opened(&client.call([data(), vec![open, Op::GetFh(())]].concat()));
    (opened.stateid, handle)
}

fn write(client: &mut Client, handle: &FileHandle, stateid: StateId, text: &[u8]) -> Verifier {
    let args = WriteArgs { stateid, offset: 0, stable: StableHow::Unstable, data: text.to_vec().into() };
    let (status, results) = client.call(vec![Op::PutFh(handle.clone()), Op::Write(args)]);
    assert_eq!(status, NfsStat::Ok);
    let Some(OpResult::Write(Ok(written))) = results.last() else { panic!("{results:?}") };
    written.verifier
}

fn commit(client: &mut Client, handle: &FileHandle) -> Verifier {
    let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
    let (_, results) = client.call(vec![Op::PutFh(handle.clone()), commit]);
    let Some(OpResult::Commit(Ok(verifier))) = results.last() else { panic!("{results:?}") };
    *verifier
}

fn read(client: &mut Client, handle: &FileHandle) -> Vec<u8> {
    let read = Op::Read(ReadArgs { stateid: StateId::ANONYMOUS, offset: 0, count: 100 });
    let (_, results) = client.call_with_retry(&[Op::PutFh(handle.clone()), read]);
    let Some(OpResult::Read(Ok(read))) = results.last() else { panic!("{results:?}") };
    read.data.to_vec()
}

/// Returns a new client after the grace period of the restarted server.
fn after_grace(server: &Server, name: &str) -> Client {
    assert!(server.log().contains("grace period begins"), "{}", server.log());
    wait_until("grace is over", || server.log().contains("grace period ends"));
    Client::new(server.address(), name)
}

#[test]
fn a_signal_ends_the_server_cleanly_and_a_crash_is_detected() {
    if !can_serve() {
        return;
    }
    let image = image_with_file();
    let state = image.dir().join("state");
    let words = ["--lease", "1", &export(&image, "name=/data,no_root_squash")].map(str::to_owned);
    let server = Server::start(&state, &words);
    let mut client = Client::new(server.address(), "a");
    let (stateid, handle) = make(&mut client, "f");
    let first = write(&mut client, &handle, stateid, b"not committed");
    let dirty = image.check();
    assert!(server.stop().success());
    assert!(dirty.is_err(), "while it serves the image is not clean");
    image.check().unwrap();
    assert!(!state.join("stats").exists());

    // Nothing was lost, and the verifier says so; the filehandle is valid.
    let server = Server::start(&state, &words);
    let mut client = after_grace(&server, "b");
    assert_eq!(read(&mut client, &handle), b"not committed");
    assert_eq!(commit(&mut client, &handle), first);
    let (stateid, second) = make(&mut client, "g");
    write(&mut client, &second, stateid, b"committed");
    assert_eq!(commit(&mut client, &second), first);
    let boot = ask(&state)["boot"].as_u64().unwrap();
    server.kill();
    let dead = ivers(["stats".as_ref(), state.as_os_str()]);
    assert!(!dead.status.success() && said(&dead).contains("has died"), "{}", said(&dead));

    let server = Server::start(&state, &words);
    assert_eq!(ask(&state)["boot"], boot + 1);
    let mut client = after_grace(&server, "c");
    assert_eq!(read(&mut client, &second), b"committed");
    assert_ne!(commit(&mut client, &second), first, "something may have been lost");
    assert!(server.stop().success());
    image.check().unwrap();
}

fn fetch(client: &mut Client, name: &str) -> NfsStat {
    client.call_with_retry(&[data(), vec![Op::Lookup(name.into()), Op::GetFh(())]].concat()).0
}

/// What an export acknowledges before it is durable, and what it does not.
#[test]
fn a_crash_of_an_async_export_loses_names_but_no_committed_data() {
    if !can_serve() {
        return;
    }
    let image = image_with_file();
    let state = image.dir().join("state");
    // (options, whether an uncommitted name is there after the crash, seconds until then)
    let cases = [("commit=900", true, 0), ("commit=900,async", false, 0), ("commit=1,async", true, 3)];
    for (nth, (options, kept, seconds)) in cases.into_iter().enumerate() {
        let export = export(&image, &format!("name=/data,no_root_squash,{options}"));
        let words = ["--lease", "1", &export].map(str::to_owned);
        let server = Server::start(&state, &words);
        let mut client = Client::new(server.address(), "a");
        let [committed, gone, new] = ["committed", "gone", "new"].map(|name| format!("{name}{nth}"));
        let (stateid, handle) = make(&mut client, &committed);
        let before = write(&mut client, &handle, stateid, b"all of it");
        make(&mut client, &gone);
        assert_eq!(commit(&mut client, &handle), before);
        let (_, results) = client.call([data(), vec![Op::Remove(gone.clone().into())]].concat());
        assert!(matches!(results.last(), Some(OpResult::Remove(Ok(_)))), "{results:?}");
        make(&mut client, &new);
        std::thread::sleep(Duration::from_secs(seconds));
        server.kill();

        let server = Server::start(&state, &words);
        let mut client = after_grace(&server, "b");
        assert_eq!(read(&mut client, &handle), b"all of it", "{options}");
        assert_ne!(commit(&mut client, &handle), before, "something may have been lost");
        let (there, not) = (NfsStat::Ok, NfsStat::Noent);
        let expected = if kept { (there, there, not) } else { (there, not, there) };
        let found = (fetch(&mut client, &committed), fetch(&mut client, &new), fetch(&mut client, &gone));
        assert_eq!(found, expected, "{options}");
        assert!(server.stop().success());
        image.check().unwrap();
    }
}

#[test]
fn read_only_exports_and_access_lists_are_enforced() {
    if !can_serve() {
        return;
    }
    let (ro, theirs) = (image_with_file(), image_with_file());
    let state = ro.dir().join("state");
    let before = fs::read(ro.path()).unwrap();
    let words = [export(&ro, "name=/data,ro"), export(&theirs, "name=/theirs,clients=192.0.2.1")];
    let server = Server::start(&state, &words);
    let mut client = Client::new(server.address(), "a");
    let making = open("o", share::BOTH | share::WANT_NO_DELEG, guarded(), named("f"));
    assert_eq!(client.call([data(), vec![making]].concat()).0, NfsStat::Rofs);
    let theirs = vec![Op::PutRootFh(()), Op::Lookup(b"theirs".to_vec())];
    for _ in 0..3 {
        assert_eq!(client.call(theirs.clone()).0, NfsStat::Noent);
    }
    let said = server.log().matches("access to an export denied").count();
    assert_eq!(said, 1, "once, however often: {}", server.log());
    assert!(server.log().contains("address=127.0.0.1 export=/theirs"), "{}", server.log());
    assert_eq!(ask(&state)["total"]["refusals"], 3);
    assert!(server.stop().success());
    assert!(fs::read(ro.path()).unwrap() == before, "read-only means that nothing is written");
}

#[test]
fn errors_name_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let (file, state) = (dir.path().join("serve.toml"), dir.path().join("state"));
    let missing = dir.path().join("missing");
    let with = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = command(&state);
        command.arg("--config").arg(&file);
        command
    };
    let export = format!("[[export]]\nname = \"/a\"\nimage = {missing:?}\n");
    refused(&mut with("lease_s = 90\nnothing = 1\n"), 2, "line 2: unknown field `nothing`");
    refused(&mut with(&format!("{export}squash = true\n")), 2, "line 4: unknown field `squash`");
    refused(&mut with(&format!("{export}clients = [\"here\"]\n")), 2, "line 4: \"here\" is neither");
    refused(&mut with("lease_s =\n"), 2, "line 1: ");
    refused(
        &mut with(&format!("\n{export}names = [\"x\"]\n")),
        2,
        "line 2: export /a: names are checked against certificates",
    );
    refused(&mut with(&format!("{export}options = \"allow_other\"\n")), 2, "export /a: option allow_other");
    refused(&mut with(&format!("{export}tls = \"required\"\n")), 2, "there is no certificate");
    refused(&mut with(&format!("{export}async = true\noptions = \"sync\"\n")), 2, "async contradicts sync");
    refused(
        &mut with(&format!("{export}options = \"async\"\n")),
        2,
        "option async: not a mount option of an export",
    );
    refused(&mut with("lease_s = 90\n"), 2, "nothing to serve");
    refused(&mut with(&format!("lease_s = 0\n{export}")), 2, "from 1 to 3600");
    refused(&mut with(&format!("{export}[limits]\nclients = 0\n")), 2, "limits.clients");
    refused(&mut with(&format!("threads = 1\n{export}")), 2, "from 3 to 256");
    refused(&mut with(&export), 3, "missing");
    refused(command(&state).arg("--config").arg(&missing), 3, "cannot read");
    refused(command(&state).args(["--export", "image"]), 2, "NAME=IMAGE");
    refused(command(&state).arg("image,clients=host.example"), 2, "neither an address");
    refused(command(&state).arg("image,allow_other"), 2, "\"allow_other\": unknown option");
    refused(command(&state).arg("image,ro,rw"), 2, "contradicts an earlier option");
    for options in ["async,sync", "dirsync,async"] {
        refused(command(&state).arg(format!("image,{options}")), 2, "async contradicts sync and dirsync");
    }
    refused(command(&state).args(["a/disk.img", "b/disk.img"]), 2, "two exports are named /disk");
    assert!(!state.exists(), "a refused call keeps nothing");
}

#[test]
fn images_and_state_in_use_are_refused() {
    if !can_serve() {
        return;
    }
    let (image, other) = (image_with_file(), image_with_file());
    let state = image.dir().join("state");
    let server = Server::start(&state, [image.path()]);
    refused(command(&state).arg(other.path()), 6, "another server uses the state directory");
    refused(command(&image.dir().join("other")).arg(image.path()), 6, "in use");
    let address = server.address().to_string();
    let mut same_port = Command::new(IVERS);
    same_port.args(["serve", "--json", "--listen", &address, "--state"]).arg(image.dir().join("third"));
    refused(same_port.arg(other.path()), 6, &address);
    // The refused servers have not replaced its socket.
    assert_eq!(ask(&state)["pid"], server.pid());
    assert!(server.stop().success());
    let twice = export(&image, "name=/a");
    refused(command(&state).args([&twice, &twice.replace("/a", "/b")]), 6, "in use");
    let same = export(&image, "ro,name=/a");
    refused(command(&state).args([&same, &same.replace("/a", "/b")]), 2, "exported twice");
    fs::write(image.dir().join("zeros"), [0; 4096]).unwrap();
    refused(command(&state).arg(other.path()).arg(image.dir().join("zeros")), 4, "/zeros");
    other.check().unwrap();
}

#[test]
fn the_command_line_overrides_the_file() {
    if !can_serve() {
        return;
    }
    let (image, other) = (image_with_file(), image_with_file());
    let path = |name: &str| image.dir().join(name);
    let text = format!(
        "listen = [\"192.0.2.1\"]\nstate = {:?}\nlog_format = \"json\"\nlease_s = 7\n\
        [[export]]\nname = \"/data\"\nimage = {:?}\naccess = \"ro\"\n\
        [[export]]\nname = \"/second\"\nimage = {:?}\noptions = \"noatime\"\n",
        path("unused"),
        path("missing"),
        other.path(),
    );
    fs::write(path("serve.toml"), text).unwrap();
    let words = ["--config".into(), path("serve.toml"), export(&image, "name=/data").into()];
    let server = Server::start(&path("state"), &words);
    assert_eq!(server.told["state"], path("state").to_str().unwrap());
    let exports = server.told["exports"].as_array().unwrap();
    let one = |name: &str| exports.iter().find(|export| export["name"] == name).unwrap();
    assert_eq!((exports.len(), &one("/data")["read_only"]), (2, &false.into()));
    assert!(one("/second")["image"].as_str().unwrap().ends_with(other.path().to_str().unwrap()));
    for line in server.log().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["message"].is_string() && line["time"].is_string() && line["level"] == "info", "{line}");
    }
    assert!(server.stop().success());
    assert!(!path("unused").exists());
}

#[test]
fn it_serves_inherited_sockets_and_notifies_systemd() {
    if !can_serve() {
        return;
    }
    let image = image_with_file();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let told = UnixDatagram::bind(image.dir().join("notify")).unwrap();
    told.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // Socket activation as by systemd: the socket is descriptor 3, and LISTEN_PID the process that executes
    // the program.
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", IVERS, "serve", "--json", "--listen", "192.0.2.1"]);
    shell.arg(image.path()).env("STATE_DIRECTORY", image.dir().join("state"));
    shell.env("NOTIFY_SOCKET", image.dir().join("notify")).stdin(Stdio::from(OwnedFd::from(listener)));
    let server = Server::of(&mut shell);
    assert_eq!(server.address(), address);
    assert_eq!(server.told["state"], image.dir().join("state").to_str().unwrap());
    let hear = || {
        let mut text = [0; 256];
        let length = told.recv(&mut text).unwrap();
        String::from_utf8(text[..length].to_vec()).unwrap()
    };
    assert!(hear().starts_with("READY=1\n"));
    let mut client = Client::new(address, "a");
    assert_eq!(client.call(vec![Op::PutRootFh(())]).0, NfsStat::Ok);
    assert!(server.stop().success());
    assert!(hear().starts_with("STOPPING=1\n"));

    let script = script.replace("=$$", "=1");
    let mut shell = Command::new("sh");
    let has_ipv6 = TcpListener::bind("[::1]:0").is_ok();
    let at = if has_ipv6 { "[::1]:0" } else { "127.0.0.1:0" };
    shell.args(["-c", &script, "sh"]).arg(IVERS).args(["serve", "--json", "--listen", at]);
    shell.arg("--state").arg(image.dir().join("state")).arg(image.path());
    let server = Server::of(shell.stdin(Stdio::null()));
    assert_ne!(server.address(), address, "sockets of another process are none of its own");
    assert_eq!(server.address().is_ipv6(), has_ipv6);
    assert!(server.stop().success());
}

fn ask(state: &Path) -> serde_json::Value {
    let output = ivers(["stats".as_ref(), "--json".as_ref(), state.as_os_str()]);
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn http(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn statistics_are_text_json_and_prometheus() {
    if !can_serve() {
        return;
    }
    let image = image_with_file();
    let state = image.dir().join("state");
    let words = ["--metrics", "127.0.0.1:0", &export(&image, "name=/data,no_root_squash")].map(str::to_owned);
    let server = Server::start(&state, &words);
    let mut client = Client::new(server.address(), "a");
    let (stateid, handle) = make(&mut client, "f");
    write(&mut client, &handle, stateid, b"bytes");
    client.attrs(&handle);
    assert_eq!(client.call(vec![Op::PutRootFh(()), Op::Lookup(b"x".to_vec())]).0, NfsStat::Noent);

    let json = ask(&state);
    let now = &json["now"];
    assert_eq!((&now["clients"], &now["sessions"], &now["opens"]), (&1.into(), &1.into(), &1.into()));
    assert_eq!((&now["connections"], &now["in_grace"]), (&1.into(), &0.into()));
    assert_eq!(json["operations"]["WRITE"], serde_json::json!({"calls": 1, "errors": 0}));
    assert_eq!(json["operations"]["LOOKUP"]["errors"], 1);
    assert_eq!(json["errors"]["NFS4ERR_NOENT"], 1);
    assert!(json["boot"].is_u64() && json["pid"] == server.pid(), "{json}");
    let export = &json["exports"]["/data"];
    assert!(export["queries"].as_u64().unwrap() >= 1 && export["data_bytes"] == 5, "{export}");
    assert!(json["total"]["bytes_in"].as_u64().unwrap() > 100, "{json}");

    let text = ivers(["stats".as_ref(), state.as_os_str()]);
    let text = String::from_utf8(text.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("operations.WRITE.calls ")).unwrap();
    assert!(line.ends_with(" 1"), "{text}");

    let prometheus = ivers(["stats".as_ref(), "--prometheus".as_ref(), state.as_os_str()]);
    let prometheus = String::from_utf8(prometheus.stdout).unwrap();
    let metrics: SocketAddr = server.told["metrics"].as_str().unwrap().parse().unwrap();
    let answer = http(metrics, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())));
    for line in
        ["ivers_nfsd_operations_total{operation=\"WRITE\"} 1", "ivers_data_bytes_total{export=\"/data\"} 5"]
    {
        assert!(prometheus.lines().any(|other| other == line), "{line} not in {prometheus}");
        assert!(body.lines().any(|other| other == line), "{line} not in {body}");
    }

    assert!(http(metrics, b"GET /secret HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(http(metrics, b"DELETE /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(http(metrics, b"\0\r\n\r\n").starts_with("HTTP/1.1 400"));
    // A slow client is disconnected and does not delay others.
    let begun = Instant::now();
    let mut slow: Vec<_> = (0..20).map(|_| TcpStream::connect(metrics).unwrap()).collect();
    slow.iter_mut().for_each(|stream| drop(stream.write_all(b"GET")));
    wait_until("dawdlers are gone", || {
        let mut stream = TcpStream::connect(metrics).unwrap();
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
    });
    assert!(begun.elapsed() < Duration::from_secs(10));
    let flood = vec![b'x'; 1 << 20];
    let mut stream = TcpStream::connect(metrics).unwrap();
    let _ = stream.write_all(&flood);
    assert!(server.stop().success());
}

#[test]
fn the_server_is_sandboxed_unless_disabled() {
    if !can_serve() {
        return;
    }
    let image = image_with_file();
    let state = image.dir().join("state");
    let own = i32::try_from(std::process::id()).unwrap();
    let filters = |pid| status(pid, "Seccomp_filters").parse::<u32>().unwrap_or_default();
    let server = Server::start(&state, [image.path()]);
    if !server.log().contains("supports only part of the sandbox") {
        assert_eq!(filters(server.pid()), filters(own) + 2);
        assert_eq!(status(server.pid(), "CapEff"), "0000000000000000");
        assert!(ask(&state)["sandbox"].as_str().unwrap().contains("landlock"));
    } else {
        assert!(std::env::var_os("CI").is_none(), "no whole sandbox: {}", server.log());
    }
    assert!(server.stop().success());
    let server = Server::start(&state, ["--no-sandbox".into(), image.path().to_owned()]);
    assert_eq!(filters(server.pid()), filters(own));
    assert!(server.told["sandbox"].is_null());
    assert!(server.stop().success());
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    if !can_serve() {
        return;
    }
    let image = image_with_file();
    let state = image.dir().join("state");
    let words = [export(&image, "name=/data,no_root_squash")];
    let mut server = Server::start(&state, &words);
    // A query of a file whose holder does not answer takes five seconds.
    let mut holder = Client::new(server.address(), "a");
    let open = open("o", share::BOTH, guarded(), named("f"));
    let (opened, handle) = opened(&holder.call([data(), vec![open, Op::GetFh(())]].concat()));
    assert!(matches!(opened.delegation, OpenDelegation::Write(_)), "{opened:?}");
    let mut asking = Client::new(server.address(), "b");
    asking.send(vec![Op::PutFh(handle), change_and_size()]);
    wait_until("the holder is asked", || ask(&state)["total"]["callbacks"] == 1);
    let begun = Instant::now();
    // Two signals at once count as one.
    signal(server.pid(), Signal::INT);
    signal(server.pid(), Signal::TERM);
    wait_until("it ends", || server.log().contains("shutting down; another signal"));
    std::thread::sleep(Duration::from_millis(1200));
    assert!(runs(server.pid()), "{}", server.log());
    signal(server.pid(), Signal::INT);
    assert_eq!(server.child.wait().unwrap().code(), Some(1));
    assert!(begun.elapsed() < Duration::from_secs(4) && server.log().contains("as in a crash"));
    // The next server recovers the image and leaves it clean.
    assert!(Server::start(&state, &words).stop().success());
    image.check().unwrap();
}

#[test]
fn exports_that_require_tls_refuse_plain_connections() {
    if !can_serve() {
        return;
    }
    let image = image_with_file();
    let path = |name: &str| image.dir().join(name);
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["server.example".to_owned()]).unwrap();
    fs::write(path("cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(path("key.pem"), key.serialize_pem()).unwrap();
    let tls = |certificate: &Path| {
        let mut command = command(&path("state"));
        command.arg(export(&image, "name=/data,tls=required"));
        command.arg("--tls-key").arg(path("key.pem")).arg("--tls-certificate").arg(certificate);
        command
    };
    refused(&mut tls(&path("key.pem")), 1, "key.pem");
    refused(&mut tls(&path("none.pem")), 1, "none.pem");
    let server = Server::of(&mut tls(&path("cert.pem")));
    let mut client = Client::new(server.address(), "a");
    assert_eq!(client.call(data()).0, NfsStat::Wrongsec);
    assert!(server.log().contains("TLS or the certificate does not match"), "{}", server.log());
    assert!(server.stop().success());
}

/// A log that grows long is replaced by another file: the sandbox permits that.
#[test]
fn the_log_is_replaced_in_the_sandbox() {
    use std::os::unix::fs::MetadataExt;
    if !can_serve() {
        return;
    }
    let image = image_with_file();
    let state = image.dir().join("state");
    let server = Server::start(&state, [image.path()]);
    let number = || fs::metadata(state.join("state")).unwrap().ino();
    let before = number();
    let mut clients = 0;
    while number() == before {
        assert!(clients < 3000, "the log grows without end: {}", server.log());
        Client::new(server.address(), &format!("{clients} {}", "x".repeat(1000)));
        clients += 1;
    }
    assert!(fs::metadata(state.join("state")).unwrap().len() > 1 << 20, "it holds them all");
    server.kill();
    let server = Server::start(&state, [image.path()]);
    let grace = format!("clients={clients}");
    assert!(server.log().contains(&grace), "{grace} not in {}", server.log());
    assert!(server.stop().success());
}

/// Introduces a client of NFSv4.0 with this callback address.
fn introduce(server: &Server, host: &str, port: u16) -> Client {
    let addr = format!("{host}.{}.{}", port >> 8, port & 0xff).into_bytes();
    let set = SetClientIdArgs {
        client: ClientOwner { verifier: [1; 8], id: Opaque(format!("at {host} {port}").into_bytes()) },
        callback: CallbackClient { program: 0x4000_0000, location: NetAddr { netid: b"tcp".to_vec(), addr } },
        callback_ident: 1,
    };
    let mut old = Client::connect(server.address(), "old");
    let (_, results) = old.compound(0, vec![Op::SetClientId(set)]);
    let Some(OpResult::SetClientId(SetClientIdRes::Ok(confirm))) = results.last() else {
        panic!("{results:?}")
    };
    assert_eq!(old.compound(0, vec![Op::SetClientIdConfirm(confirm.clone())]).0, NfsStat::Ok);
    old
}

/// [RFC7530 16.33.5] A client of NFSv4.0 gives its callback address. The server connects to the client's own
/// host and to no other, also from the sandbox.
#[test]
fn callbacks_go_to_the_clients_own_host() {
    if !can_serve() {
        return;
    }
    let image = image_with_file();
    let state = image.dir().join("state");
    for sandboxed in [true, false] {
        let free = (!sandboxed).then_some("--no-sandbox".to_owned());
        let server = Server::start(&state, free.into_iter().chain([export(&image, "name=/data")]));
        for host in ["127.0.0.2", "127.0.0.1"] {
            let phone = TcpListener::bind((host, 0)).unwrap();
            phone.set_nonblocking(true).unwrap();
            let mut old = introduce(&server, host, phone.local_addr().unwrap().port());
            if host == "127.0.0.1" {
                wait_until("it calls", || phone.accept().is_ok());
            } else {
                std::thread::sleep(Duration::from_millis(200));
                assert!(phone.accept().is_err(), "it has called a stranger");
            }
            assert_eq!(old.compound(0, data()).0, NfsStat::Ok, "{}", server.log());
        }
        // The server never connects to a privileged port, and serves the client all the same.
        let mut old = introduce(&server, "127.0.0.1", 22);
        assert_eq!(old.compound(0, data()).0, NfsStat::Ok, "{}", server.log());
        assert!(server.stop().success());
    }
    image.check().unwrap();
}
