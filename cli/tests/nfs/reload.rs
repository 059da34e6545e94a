//! Reloading the configuration of a running server, and names of owners.

use std::fs;
use std::path::Path;

use crate::common::served::{Server, export, image_with_file};
use crate::common::{signal, wait_until};
use ivers_nfs_test::client::{Client, data, decoded, guarded, named, open, opened};
use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{SetAttrArgs, share};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Bitmap, FileHandle, StateId};
use ivers_oracle::have_programs;
use rustix::process::Signal;

fn can_serve() -> bool {
    have_programs(&["mkfs.ext4", "e2fsck"])
}

fn make(client: &mut Client, name: &str) -> FileHandle {
    let open = open("o", share::BOTH | share::WANT_NO_DELEG, guarded(), named(name));
    opened(&client.call([data(), vec![open, Op::GetFh(())]].concat())).1
}

fn give(client: &mut Client, handle: &FileHandle, owner: &str, group: &str) -> NfsStat {
    let owner = (!owner.is_empty()).then(|| owner.into());
    let attrs = Attrs { owner, owner_group: Some(group.into()), ..Attrs::default() }.encode();
    let op = Op::SetAttr(SetAttrArgs { stateid: StateId::ANONYMOUS, attrs });
    client.call(vec![Op::PutFh(handle.clone()), op]).0
}

fn owners(client: &mut Client, handle: &FileHandle) -> [String; 2] {
    let ask = Op::GetAttr(Bitmap::of([attr::OWNER, attr::OWNER_GROUP]));
    let (_, results) = client.call(vec![Op::PutFh(handle.clone()), ask]);
    let attrs = decoded(results.last());
    [attrs.owner, attrs.owner_group].map(|name| String::from_utf8(name.unwrap()).unwrap())
}

fn config(image: &Path, more: &str) -> String {
    format!("{more}\n[[export]]\nname = \"/data\"\nimage = {image:?}\nroot_squash = false\n")
}

/// Reloads and waits until it is done.
fn read_again(server: &Server) {
    let count = |what: &str| server.log().matches(what).count();
    let (done, failed) = (count("reloaded"), count("nothing is changed"));
    signal(server.pid(), Signal::HUP);
    wait_until("it has read again", || count("reloaded") > done || count("nothing is changed") > failed);
    assert_eq!(count("nothing is changed"), failed, "{}", server.log());
}

/// Reloads an invalid configuration, and asserts the error in the log.
fn not_read(server: &Server, why: &str) {
    let count = || server.log().matches("nothing is changed").count();
    let failed = count();
    signal(server.pid(), Signal::HUP);
    wait_until("it has refused", || count() > failed);
    let last = server.log().lines().rfind(|line| line.contains("nothing is changed")).unwrap().to_owned();
    assert!(last.contains(why), "{why} not in: {last}");
}

fn status(client: &mut Client, handle: &FileHandle) -> NfsStat {
    let ask = Op::GetAttr(Bitmap::of([attr::SIZE]));
    client.call(vec![Op::PutFh(handle.clone()), ask]).0
}

#[test]
fn exports_are_added_and_removed_while_serving() {
    if !can_serve() {
        return;
    }
    let (image, other) = (image_with_file(), image_with_file());
    for sandbox in [true, false] {
        let path = |name: &str| image.dir().join(format!("{sandbox}-{name}"));
        let more = format!("[[export]]\nname = \"/other\"\nimage = {:?}\n", other.path());
        let say = |text: &str| fs::write(path("serve.toml"), format!("sandbox = {sandbox}\n{text}")).unwrap();
        say(&config(image.path(), &more));
        let server = Server::start(&path("state"), ["--config".as_ref(), path("serve.toml").as_os_str()]);
        let mut client = Client::new(server.address(), "a");
        let file = make(&mut client, &format!("f-{sandbox}"));
        let there = |client: &mut Client, name: &str| {
            client.call(vec![Op::PutRootFh(()), Op::Lookup(name.as_bytes().to_vec())]).0
        };
        // An invalid configuration changes nothing.
        say("nonsense");
        not_read(&server, "line 2");
        say(&config(&image.dir().join("elsewhere"), &more));
        not_read(&server, "restart");
        say(&config(image.path(), &format!("{more}tls = \"required\"\n")));
        not_read(&server, "without a certificate");
        fs::remove_file(path("serve.toml")).unwrap();
        not_read(&server, "cannot read");
        assert_eq!((status(&mut client, &file), there(&mut client, "other")), (NfsStat::Ok, NfsStat::Ok));

        // Filehandles of a removed export are stale; they are valid again when the export returns, under any
        // name.
        say(&more);
        read_again(&server);
        assert_eq!(
            (status(&mut client, &file), there(&mut client, "data")),
            (NfsStat::Stale, NfsStat::Noent)
        );
        say(&config(image.path(), "").replace("/data", "/renamed"));
        read_again(&server);
        assert_eq!((status(&mut client, &file), there(&mut client, "renamed")), (NfsStat::Ok, NfsStat::Ok));
        assert_eq!(there(&mut client, "other"), NfsStat::Noent);

        // The export is limited to other clients, and to reading.
        say(&(config(image.path(), "") + "access = \"ro\"\n"));
        read_again(&server);
        let change = Attrs { mode: Some(0o600), ..Attrs::default() }.encode();
        let change = Op::SetAttr(SetAttrArgs { stateid: StateId::ANONYMOUS, attrs: change });
        let changed = |client: &mut Client| client.call(vec![Op::PutFh(file.clone()), change.clone()]).0;
        assert_eq!(changed(&mut client), NfsStat::Rofs);
        say(&(config(image.path(), "") + "access = \"rw\"\nclients = [\"192.0.2.1\"]\n"));
        read_again(&server);
        assert_eq!(status(&mut client, &file), NfsStat::Access);
        say(&format!("lease_s = 7\n{}", config(image.path(), "")));
        read_again(&server);
        assert!(server.log().contains("lease_s"), "that stays: {}", server.log());
        assert_eq!(changed(&mut client), NfsStat::Ok);
        assert!(server.stop().success());
    }
    for image in [image, other] {
        image.check().unwrap();
    }
}

/// [RFC8881 5.9] [RFC7530 5.9]
#[test]
fn owners_are_names_in_a_domain() {
    if !can_serve() {
        return;
    }
    let image = image_with_file();
    let path = |name: &str| image.dir().join(name);
    fs::write(path("passwd"), "root:x:0:0::/:\nann:x:1000:100::/:\n").unwrap();
    fs::write(path("group"), "root:x:0:\nstaff:x:50:ann\n").unwrap();
    let owners_of = format!(
        "[owners]\ndomain = \"example.net\"\npasswd = {:?}\ngroup = {:?}",
        path("passwd"),
        path("group")
    );
    fs::write(path("serve.toml"), config(image.path(), &owners_of)).unwrap();
    let words = ["--config".into(), path("serve.toml"), "--domain".into(), "example.org".into()];
    let server = Server::start(&path("state"), &words);
    let mut client = Client::new(server.address(), "a");
    let file = make(&mut client, "f");
    assert_eq!(owners(&mut client, &file), ["root@example.org", "root@example.org"]);
    assert_eq!(give(&mut client, &file, "ann@example.org", "staff@example.org"), NfsStat::Ok);
    assert_eq!(owners(&mut client, &file), ["ann@example.org", "staff@example.org"]);
    for stranger in ["bob@example.org", "ann@example.net", "ann", "staff@example.org"] {
        assert_eq!(give(&mut client, &file, stranger, "root@example.org"), NfsStat::Badowner, "{stranger}");
    }
    // One user gets a name, another a new name.
    fs::write(path("passwd"), "root:x:0:0::/:\nanna:x:1000:100::/:\n").unwrap();
    read_again(&server);
    assert_eq!(owners(&mut client, &file), ["anna@example.org", "staff@example.org"]);
    fs::remove_file(path("passwd")).unwrap();
    not_read(&server, "cannot read");
    assert_eq!(owners(&mut client, &file), ["anna@example.org", "staff@example.org"]);
    // A number without a name is accepted, and so is every number of a client that sends numbers.
    assert_eq!(give(&mut client, &file, "", "51"), NfsStat::Ok);
    assert_eq!(owners(&mut client, &file), ["1000", "51"]);
    assert!(server.stop().success());

    let words = [export(&image, "name=/data,no_root_squash")];
    let server = Server::start(&path("state"), &words);
    let mut client = Client::new(server.address(), "a");
    assert_eq!(give(&mut client, &file, "ann@example.org", "51"), NfsStat::Badowner);
    assert_eq!(owners(&mut client, &file), ["1000", "51"]);
    assert!(server.stop().success());
    image.check().unwrap();
}
