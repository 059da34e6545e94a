//! Processes that parse an image without mounting it run in a sandbox.

use crate::common::*;
use ivers_oracle::Image;
use rustix::process::Signal;
use std::io::{PipeReader, PipeWriter, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Returns an image with a large file.
fn image() -> Option<Image> {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return None;
    }
    let image = Image::new("ext4", 160 << 20, &[]).unwrap();
    std::fs::write(image.dir().join("big"), vec![7; 24 << 20]).unwrap();
    let inside = format!("{}:/", image.path().display());
    let output = ivers(["cp".as_ref(), image.dir().join("big").as_os_str(), inside.as_ref()]);
    assert!(output.status.success(), "{}", said(&output));
    Some(image)
}

/// Returns a pipe that is full to the last byte.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (from, mut into) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&into).unwrap();
    rustix::fs::fcntl_setfl(&into, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while into.write(&[0; 4096]).is_ok() {}
    while into.write(&[0]).is_ok() {}
    rustix::fs::fcntl_setfl(&into, flags).unwrap();
    (from, into)
}

/// Compares with the test's own process, which may run under a filter itself, for example in a container.
fn is_sandboxed(pid: i32) -> bool {
    let filters = |pid| status(pid, "Seccomp_filters").parse::<u32>().unwrap_or_default();
    let own = filters(i32::try_from(std::process::id()).unwrap());
    filters(pid) == own + 2
        && status(pid, "Seccomp") == "2"
        && status(pid, "NoNewPrivs") == "1"
        && status(pid, "CapEff") == "0000000000000000"
}

fn pid(child: &Child) -> i32 {
    i32::try_from(child.id()).unwrap()
}

#[test]
fn reading_commands_are_sandboxed_before_they_print() {
    let Some(image) = image() else { return };
    let root = format!("{}:/", image.path().display());
    let big = format!("{root}big");
    let commands: [&[&str]; 7] = [
        &["ls", "-l", &root],
        &["tree", &root],
        &["cat", &big],
        &["stat", &big],
        &["info", image.path().to_str().unwrap()],
        &["stat", &root, &big],
        &["ls", "-o", "nosandbox", &root],
    ];
    for words in commands {
        let (from, into) = full_pipe();
        let mut child = Command::new(IVERS).args(words).stdin(Stdio::null()).stdout(into).spawn().unwrap();
        // The command sleeps in a write that nobody reads: the image has been parsed.
        wait_until("the command blocks", || {
            std::fs::read_to_string(format!("/proc/{}/wchan", child.id()))
                .is_ok_and(|at| at.contains("pipe_write"))
                || std::fs::read_to_string(format!("/proc/{}/syscall", child.id()))
                    .is_ok_and(|call| call.starts_with("1 0x1 "))
        });
        assert_eq!(is_sandboxed(pid(&child)), !words.contains(&"nosandbox"), "{words:?}");
        drop(from);
        child.wait().unwrap();
    }
}

/// Returns whether a child of the process is sandboxed. The process is stopped meanwhile, so that it cannot
/// reap the child.
fn has_sandboxed_child(parent: &Child) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    while Instant::now() < deadline && runs(pid(parent)) {
        let found = std::fs::read_to_string(&children).unwrap_or_default();
        if let Some(child) = found.split(' ').find_map(|word| word.parse().ok()) {
            signal(pid(parent), Signal::STOP);
            std::thread::sleep(Duration::from_millis(20));
            let locked_in = is_sandboxed(child);
            signal(pid(parent), Signal::CONT);
            if locked_in {
                return true;
            }
        }
    }
    false
}

#[test]
fn commands_with_host_files_parse_in_a_sandboxed_process() {
    let Some(image) = image() else { return };
    let path = |name: &str| image.dir().join(name).to_str().unwrap().to_owned();
    let name = image.path().to_str().unwrap();
    let inside = |path: &str| format!("{name}:{path}");
    let commands: [&[&str]; 4] = [
        &["cp", &inside("/big"), &path("back")],
        &["cp", &path("big"), &inside("/again")],
        &["cp", &inside("/big"), &inside("/third")],
        &["changed", name, "--save", &path("state")],
    ];
    for words in commands {
        // A copy takes long; a walk of this image does not, so it may need several attempts.
        let seen = (0..50).any(|_| {
            let mut child = Command::new(IVERS).args(words).stdin(Stdio::null()).spawn().unwrap();
            let seen = has_sandboxed_child(&child);
            assert!(child.wait().unwrap().success(), "{words:?}");
            let _ = std::fs::remove_file(path("back"));
            seen
        });
        assert!(seen, "{words:?}");
    }
    image.check().unwrap();
}
