//! Other people's tools that tests and the demo check against.

use std::path::Path;
use std::process::{Command, Stdio};

/// A program and the Debian package that has it.
const TOOLS: &[(&str, &str)] = &[
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("fusermount3", "fuse3"),
    ("setfattr", "attr"),
    ("setfacl", "acl"),
    ("cc", "gcc"),
];

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(program).exists())
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.starts_with(b"0\n"))
}

fn apt(args: &[&str]) -> bool {
    let status = Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// See that all tools are there: install what is missing where we may, otherwise say in one message what to install.
pub fn provide() -> Result<(), String> {
    let missing = || {
        let mut packages: Vec<&str> =
            TOOLS.iter().filter(|(program, _)| !is_installed(program)).map(|&(_, package)| package).collect();
        packages.dedup();
        packages
    };
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    if is_root() && is_installed("apt-get") {
        println!("== installing {}", packages.join(" "));
        let mut install = vec!["install", "-y", "-qq", "--no-install-recommends"];
        install.extend(&packages);
        if apt(&["update", "-qq"]) && apt(&install) && missing().is_empty() {
            return Ok(());
        }
    }
    Err(format!("missing tools; install these Debian packages and run this again: {}", packages.join(" ")))
}

/// Whether this machine can mount through FUSE.
pub fn has_fuse() -> bool {
    Path::new("/dev/fuse").exists() && is_installed("fusermount3")
}
