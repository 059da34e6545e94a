//! Our lists judged by other tools, and their signatures by ours: evmctl (ima-evm-utils), OpenSSL, Python's
//! hashlib, and debugfs to write attributes.

use super::*;
use std::process::Command;

const PROGRAMS: [&str; 5] = ["evmctl", "openssl", "python3", "mkfs.ext4", "debugfs"];

/// Replays a binary list with Python's hashes, from the kernel's documentation: one value for each bank.
const REPLAY: &str = r#"
import hashlib, struct, sys
list = open(sys.argv[1], "rb").read()
banks = {name: bytes(hashlib.new(name).digest_size) for name in ("sha1", "sha256", "sha512")}
at = 0
while at < len(list):
    pcr, digest, length = struct.unpack_from("<I20sI", list, at)
    at += 28 + length
    (length,) = struct.unpack_from("<I", list, at)
    data = list[at + 4:at + 4 + length]
    at += 4 + length
    assert pcr == 10
    violation = digest == bytes(20)
    assert violation or hashlib.sha1(data).digest() == digest
    for name, value in banks.items():
        template = b"\xff" * len(value) if violation else hashlib.new(name, data).digest()
        banks[name] = hashlib.new(name, value + template).digest()
for name, value in banks.items():
    print(name, value.hex())
"#;

/// Asserts that other tools compute the same values from our list.
pub fn agree(list: &Path, pcrs: &Path, aggregates: &Value) {
    let output = Command::new("python3").args(["-c", REPLAY]).arg(list).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let (bank, value) = line.split_once(' ').unwrap();
        assert_eq!(aggregates[bank], value, "{bank}");
    }
    // evmctl reads these two banks.
    let bank = |name: &str| format!("{name},{}", pcrs.join(name).display());
    let output = ivers_oracle::run(
        "evmctl",
        [
            "ima_measurement",
            "--ignore-violations",
            "--pcrs",
            &bank("sha1"),
            "--pcrs",
            &bank("sha256"),
            list.to_str().unwrap(),
        ],
    );
    let text = said(&output.unwrap());
    assert!(text.contains("Matched per TPM bank calculated digest(s)"), "{text}");
}

#[test]
fn evmctl_computes_the_printed_aggregates() {
    if !ivers_oracle::have_programs(&PROGRAMS) {
        return;
    }
    let kept = Kept::new();
    let tree = kept.path("tree");
    fill(&tree, 30, 777);
    fs::write(tree.join("a name with spaces"), "").unwrap();
    let (list, pcrs, ascii) = (kept.path("list"), kept.path("pcrs"), kept.path("ascii"));
    for template in ["ima-ng", "ima-sig"] {
        for hash in ["sha1", "sha256", "sha512"] {
            let (sums, well) = kept.run(&[
                "--hash".as_ref(),
                hash.as_ref(),
                "--template".as_ref(),
                template.as_ref(),
                "--pcrs".as_ref(),
                pcrs.as_ref(),
                "--ascii".as_ref(),
                ascii.as_ref(),
                tree.as_ref(),
            ]);
            assert!(well && sums["new_entries"] == 31, "{sums}");
            agree(&list, &pcrs, &sums["aggregates"]);
        }
    }
    let ascii = fs::read_to_string(ascii).unwrap();
    assert_eq!(ascii.lines().count(), 1 + 6 * 31);
    assert!(ascii.lines().all(|line| line.trim_end().split(' ').count() == 5), "no name has a space");
    // A truncated list must not give the same values.
    let whole = fs::read(&list).unwrap();
    fs::write(&list, &whole[..whole.len() / 2]).unwrap();
    let bank = format!("sha1,{}", pcrs.join("sha1").display());
    assert!(
        ivers_oracle::run("evmctl", ["ima_measurement", "--pcrs", &bank, list.to_str().unwrap()]).is_err()
    );
}

/// Creates a key of one type, with its certificate.
fn key(dir: &Path, name: &str, openssl: &[&str]) -> (PathBuf, PathBuf) {
    let (key, certificate) = (dir.join(format!("{name}.key")), dir.join(format!("{name}.der")));
    let pem = dir.join(format!("{name}.pem"));
    ivers_oracle::run("openssl", openssl.iter().copied().chain(["-out", key.to_str().unwrap()])).unwrap();
    let subject = format!("/CN={name}");
    let words = ["req", "-new", "-x509", "-days", "30", "-subj", &subject, "-key", key.to_str().unwrap()];
    ivers_oracle::run("openssl", words.iter().copied().chain(["-out", pem.to_str().unwrap()])).unwrap();
    let words =
        ["x509", "-in", pem.to_str().unwrap(), "-outform", "DER", "-out", certificate.to_str().unwrap()];
    ivers_oracle::run("openssl", words).unwrap();
    (key, certificate)
}

#[test]
fn signatures_of_evmctl_are_checked() {
    if !ivers_oracle::have_programs(&PROGRAMS) {
        return;
    }
    let kept = Kept::new();
    let curve = |name| format!("ec_paramgen_curve:{name}");
    let (p256, p384) = (curve("P-256"), curve("P-384"));
    let keys = [
        ("rsa", vec!["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]),
        ("p256", vec!["genpkey", "-algorithm", "EC", "-pkeyopt", &p256]),
        ("p384", vec!["genpkey", "-algorithm", "EC", "-pkeyopt", &p384]),
    ];
    let image = kept.path("image");
    let made = ivers([OsStr::new("mkfs"), "-q".as_ref(), image.as_ref(), "--size".as_ref(), "16M".as_ref()]);
    assert!(made.status.success(), "{}", said(&made));
    let mut certificates = Vec::new();
    let mut commands = String::new();
    for (name, openssl) in &keys {
        let (key, certificate) = key(kept.0.path(), name, openssl);
        certificates.push(certificate);
        for hash in ["sha1", "sha256", "sha384", "sha512"] {
            let file = kept.path(&format!("{name}-{hash}"));
            fs::write(&file, format!("signed by {name} with {hash}")).unwrap();
            let words = ["ima_sign", "--sigfile", "--hashalgo", hash, "--key", key.to_str().unwrap()];
            ivers_oracle::run("evmctl", words.into_iter().chain([file.to_str().unwrap()])).unwrap();
            let (file, shown) = (file.display(), format!("{name}-{hash}"));
            commands += &format!("write {file} {shown}\nea_set -f {file}.sig {shown} security.ima\n");
        }
    }
    // A digest without a signature; and neither.
    let digest = ivers_ima::digest::Algorithm::Sha256.digest(b"hashed");
    fs::write(kept.path("label"), ivers_ima::signature::Label::encode_digest(&digest)).unwrap();
    fs::write(kept.path("hashed"), "hashed").unwrap();
    let (hashed, label) = (kept.path("hashed"), kept.path("label"));
    let (hashed, label) = (hashed.display(), label.display());
    commands +=
        &format!("write {hashed} hashed\nea_set -f {label} hashed security.ima\nwrite {hashed} plain\n");
    // Other contents under a valid signature.
    let sig = kept.path("rsa-sha256.sig");
    commands += &format!("write {hashed} forged\nea_set -f {} forged security.ima\n", sig.display());
    fs::write(kept.path("commands"), commands).unwrap();
    let script = kept.path("commands");
    let words: [&OsStr; 4] = ["-w".as_ref(), "-f".as_ref(), script.as_ref(), image.as_ref()];
    ivers_oracle::run("debugfs", words).unwrap();

    let root = format!("{}:/", image.display());
    let policy = kept.path("policy");
    fs::write(&policy, "measure template=ima-sig\nappraise appraise_type=imasig\n").unwrap();
    let mut words: Vec<&OsStr> = vec!["--policy".as_ref(), policy.as_ref()];
    words.extend(certificates.iter().flat_map(|path| [OsStr::new("--key"), path.as_os_str()]));
    words.push(root.as_ref());
    let verified = |kept: &Kept, words: &[&OsStr]| {
        let (sums, well) = kept.run(words);
        assert!(!well, "{sums}");
        (sums["verified"].as_u64().unwrap(), sums["refused"].as_u64().unwrap(), sums)
    };
    let (good, bad, sums) = verified(&kept, &words);
    assert_eq!((good, bad), (12, 3), "hashed, plain and forged are not signed: {sums}");
    // Measured files are checked again, but not read again.
    let (good, bad, sums) = verified(&kept, &words);
    assert_eq!((good, bad, &sums["read"]), (12, 3, &0.into()));
    let shown = kept.path("ascii");
    let (sums, _) = kept.run(&["--ascii".as_ref(), shown.as_ref(), root.as_ref()]);
    let ascii = fs::read_to_string(shown).unwrap();
    let line = ascii.lines().find(|line| line.contains("/p256-sha512 ")).unwrap();
    assert!(line.contains(" ima-sig sha512:") && line.contains(" 030206"), "{line}");
    assert_eq!(sums["refused"], 0, "nothing was refused");
    // Keys without a policy check every signed file.
    words.drain(..2);
    let (good, bad, sums) = verified(&kept, &words);
    assert_eq!((good, bad), (12, 1), "{sums}");
    // A missing key.
    let (good, bad, _) = verified(&kept, &["--key".as_ref(), certificates[1].as_ref(), root.as_ref()]);
    assert_eq!((good, bad), (4, 9));
}
