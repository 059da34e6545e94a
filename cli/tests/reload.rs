//! What the server is told while it runs, and the names of owners.

mod common;

use std::fs;
use std::path::Path;

use common::served::{Server, export, image_with_file};
use ivers_nfs_peer::{Client, data, decoded, guarded, named, open, opened};
use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{SetAttrArgs, share};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Bitmap, FileHandle, StateId};
use ivers_oracle::have_programs;

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

/// [RFC8881 5.9] [RFC7530 5.9]
#[test]
fn owners_have_names_in_a_domain() {
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
    // A number without a name is one, and to who sends numbers all are.
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
