//! The kernel's IMA, in a virtual machine, measures the same files: its entries equal ours, byte by byte.

use super::*;
use ivers_oracle::machine::{self, Boot, Initramfs, Kernel};

/// The files: name, contents, and the command that creates them in the machine.
const FILES: [(&str, &str); 4] = [
    ("/measured/plain", "plain"),
    ("/measured/empty", ""),
    ("/measured/name with spaces", "spaces"),
    ("/measured/deep/er", "deeper"),
];

#[test]
fn the_kernel_writes_the_same_list_entries() {
    let programs: Vec<&str> = machine::PROGRAMS.iter().map(|(program, _)| *program).collect();
    if !ivers_oracle::have_programs(&[&programs[..], &["apt-get", "apt-cache", "dpkg", "base64"]].concat()) {
        return;
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let kernel = Kernel::newest(&target.join("kernel")).unwrap();
    let boot = Boot::new(kernel, Initramfs::new().unwrap(), &[]).unwrap();
    let mut guest =
        boot.boot_with("ima", "ima_policy=tcb ima_template=ima-ng ima_hash=sha256 lsm=integrity").unwrap();
    guest.run("mount -t securityfs none /sys/kernel/security").unwrap();
    // The policy excludes tmpfs, which the machine's root is; it does not know ramfs.
    guest.run("mkdir -p /measured && mount -t ramfs none /measured && mkdir /measured/deep").unwrap();
    for (name, contents) in FILES {
        guest.run(&format!("printf '%s' '{contents}' > '{name}'; cat '{name}' > /dev/null")).unwrap();
    }
    guest.run("exec 5>>/measured/plain; cat /measured/plain > /dev/null; echo -n x >&5; exec 5>&-").unwrap();
    guest.run("cat /measured/plain > /dev/null").unwrap();
    let policy = guest.run("cat /sys/kernel/security/ima/policy || true").unwrap();
    let ascii = guest.run("cat /sys/kernel/security/ima/ascii_runtime_measurements").unwrap();
    let binary = guest.run("base64 /sys/kernel/security/ima/binary_runtime_measurements").unwrap();
    guest.off().unwrap();
    println!("{policy}\n{ascii}");
    let kept = Kept::new();
    fs::write(kept.path("base64"), binary).unwrap();
    let path = kept.path("base64");
    let words: [&OsStr; 2] = ["-d".as_ref(), path.as_ref()];
    let theirs = ivers_oracle::run("base64", words).unwrap().stdout;

    // Our reader and writer return the same bytes.
    let entries: Vec<_> = ivers_ima::reader::Reader::new(&theirs).map(Result::unwrap).collect();
    let again: Vec<u8> = entries.iter().flat_map(|entry| entry.encode()).collect();
    assert_eq!(again, theirs);
    let ours_ascii: Vec<u8> = entries.iter().flat_map(|entry| entry.ascii()).collect();
    assert_eq!(String::from_utf8_lossy(&ours_ascii).trim_end(), ascii);

    // Entries that we compute from the same contents and names.
    use ivers_ima::digest::Algorithm;
    use ivers_ima::list::{Entry, Template};
    let boot_aggregate = Entry::boot_aggregate(Template::ImaNg, Algorithm::Sha256);
    assert_eq!(entries[0], boot_aggregate);
    for (name, contents) in FILES {
        let digest = Algorithm::Sha256.digest(contents.as_bytes());
        let entry = Entry::measured(Template::ImaNg, &digest, name.as_bytes(), None);
        // The kernel does not measure empty files.
        assert!(contents.is_empty() || entries.contains(&entry), "{name}");
    }
    let changed =
        Entry::measured(Template::ImaNg, &Algorithm::Sha256.digest(b"plainx"), b"/measured/plain", None);
    assert!(entries.contains(&changed), "measured again after its writer");
    let violation = Entry::violation(Template::ImaNg, Algorithm::Sha256, b"/measured/plain");
    assert!(entries.contains(&violation), "open_writers");
}
