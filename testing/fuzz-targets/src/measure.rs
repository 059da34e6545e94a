//! Decoders of integrity measurement: policies, lists, `security.ima`, keys, stores. The first byte selects
//! one.

use ivers_ima::digest::Algorithm;
use ivers_ima::file_id::Identity;
use ivers_ima::keys::Keyring;
use ivers_ima::list::{Aggregates, Entry, Template};
use ivers_ima::policy::{Appraise, FileAccess, Func, Mask, Policy};
use ivers_ima::reader::Reader;
use ivers_ima::signature::{self, Label};
use ivers_ima::store::{Files, Store};

/// A P-256 public key; the private key was discarded.
const KEY: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEJzhMktLLpufYD7TAx5oNhc3Bfr5Q
i9sU36uu0aTt4vJqKNL+mwhaOicrO7drxeOTtAZzNY+abcNqU6pAZvEU9w==
-----END PUBLIC KEY-----
";

/// Runs an input.
pub fn run(input: &[u8]) {
    let Some((which, rest)) = input.split_first() else { return };
    match which % 6 {
        0 => policy(rest),
        1 => list(rest),
        2 => label(rest),
        3 => {
            let mut keys = Keyring::default();
            if keys.add(rest).is_ok() {
                assert!(!keys.is_empty());
                keys.verify([0; 4], &Algorithm::Sha256.digest(rest), rest);
            }
        }
        4 => {
            let _ = Store::decode(rest);
            if let Some(store) = Store::decode_body(rest) {
                let mut again = Vec::new();
                store.write_to(&mut again).unwrap();
                assert_eq!(Store::decode(&again).as_ref(), Some(&store));
            }
        }
        _ => {
            if let Some(files) = Files::decode(rest) {
                assert_eq!(Files::decode(&files.encode()).as_ref(), Some(&files));
                files.find(&Identity { ino: 12, generation: 1, change: Some(5) });
            }
        }
    }
}

fn policy(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(policy) = text.parse::<Policy>() else { return };
    let used = FileAccess {
        func: Func::FileCheck,
        mask: Mask::READ,
        uid: 1000,
        gid: 1000,
        fowner: 0,
        fgroup: 0,
        fsuuid: [7; 16],
        fsname: "ext4",
        path: Some(b"/etc/passwd"),
    };
    let decision = policy.decide(&used);
    assert_eq!(policy.clone().with_appraise_all().decide(&used).measure, decision.measure);
    assert!(policy.without_appraise().decide(&used).appraise.is_none());
}

fn list(input: &[u8]) {
    let mut reader = Reader::new(input);
    let mut aggregates = Aggregates::default();
    let mut again = Vec::new();
    for entry in reader.by_ref() {
        let Ok(entry) = entry else { break };
        aggregates.extend(&entry);
        again.extend_from_slice(&entry.encode());
        assert_eq!(entry.ascii().last(), Some(&b'\n'));
    }
    assert_eq!(again, input[..reader.complete_len()], "what was read is written again");
}

fn label(input: &[u8]) {
    let mut keys = Keyring::default();
    keys.add(KEY.as_bytes()).expect("a key");
    let otherwise = Algorithm::Sha256;
    let algorithm = signature::algorithm(input, otherwise);
    let digest = algorithm.digest(b"contents");
    let matches = signature::appraise(input, &digest, Appraise::Digest, &keys).is_ok();
    if let Ok(Label::Digest(said)) = Label::decode(input) {
        assert_eq!(matches, said == digest);
    } else {
        assert!(!matches, "nobody has signed this");
    }
}

/// Returns the fuzz inputs of [`run`].
pub fn inputs() -> Vec<Vec<u8>> {
    let digest = Algorithm::Sha256.digest(b"contents");
    let mut signed = vec![3, 2, 4, 0x7a, 0xe7, 0xfc, 0xde, 0, 71, 0x30, 0x45, 2, 0x21, 0];
    signed.resize(9 + 71, 0x5a);
    let policy = "# all\ndont_measure path=/var/log\nmeasure func=FILE_CHECK mask=^MAY_READ uid<1000 \
        template=ima-sig\n\
                  appraise fowner=0 fsuuid=397449cd-687d-4145-8698-7fed4a3e0363 appraise_type=imasig\n";
    let mut list = Entry::boot_aggregate(Template::ImaNg, Algorithm::Sha256).encode();
    list.extend(Entry::measured(Template::ImaSig, &digest, b"/a b", Some(&signed)).encode());
    list.extend(Entry::violation(Template::ImaNg, Algorithm::Sha256, b"/a").encode());
    let mut store = Store::default();
    let files = store.files("00ff");
    for (ino, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        let identity = Identity { ino: ino as u64, generation: 7, change: Some(1 << 40) };
        files.put(&identity, &algorithm.digest(b"x"), &signed);
    }
    let files = files.encode();
    let mut encoded = Vec::new();
    store.write_to(&mut encoded).unwrap();
    let body = &encoded[..encoded.len() - 32];
    let of = |which: u8, bytes: &[u8]| [&[which], bytes].concat();
    vec![
        of(0, policy.as_bytes()),
        of(1, &list),
        of(2, &signed),
        of(2, &Label::encode_digest(&digest)),
        of(3, KEY.as_bytes()),
        of(4, &encoded),
        of(4, body),
        of(5, &files),
    ]
}
