//! Unmounting what is in use.

mod common;

use common::*;
use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn busy_is_refused_and_lazy_waits_for_the_last_file() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let supervisor = place.mount("rw");
    let mut file = File::create(place.path("f")).unwrap();
    file.write_all(b"before").unwrap();
    let output = ivers(["unmount".as_ref(), place.dir.as_os_str()]);
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    assert!(mount_line(&place.dir).is_some() && runs(supervisor), "refused, and still there");

    let mut lazy = Command::new(IVERS)
        .args(["unmount".as_ref(), "--lazy".as_ref(), place.dir.as_os_str()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it leaves the tree", || mount_line(&place.dir).is_none());
    assert!(lazy.try_wait().unwrap().is_none(), "the image is not safe yet");
    file.write_all(b" and after").unwrap();
    drop(file);
    assert!(lazy.wait().unwrap().success());
    assert!(!runs(supervisor));
    place.image.check().unwrap();
    place.mount("ro");
    assert_eq!(fs::read(place.path("f")).unwrap(), b"before and after");
    place.unmount();
}
