//! Holders of delegations that do not answer callbacks, or disconnect.

use super::*;

const FILES: usize = 40;

/// A holder of delegations, and clients that request its files.
fn holder(target: &Target, name: &str) -> (Client, Vec<(String, FileHandle)>) {
    let mut client = Client::new(target.address, name);
    let mut files = Vec::new();
    for number in 0..FILES {
        let name = format!("{name} {number}");
        let open = open("o", share::BOTH, unchecked(), named(&name));
        let (opened, handle) = opened(&client.call_with_retry(&[data(), vec![open, Op::GetFh(())]].concat()));
        assert!(matches!(opened.delegation, OpenDelegation::Write(_)), "{opened:?}");
        files.push((name, handle));
    }
    (client, files)
}

/// All other clients get their files in the end.
fn get_on(client: &mut Client, files: &[(String, FileHandle)]) {
    let begun = Instant::now();
    let mut left: Vec<&str> = files.iter().map(|(name, _)| &**name).collect();
    while !left.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(40), "the silent holder keeps delegations: {left:?}");
        left.retain(|name| {
            let open = open("o", share::READ | share::WANT_NO_DELEG, OpenHow::NoCreate, named(name));
            client.call([data(), vec![open]].concat()).0 != NfsStat::Ok
        });
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The holder neither reads nor replies.
pub fn say_nothing(target: &Target) {
    let (silent, files) = holder(target, "silent");
    let mut curious = Client::new(target.address, "curious");
    // More callbacks than slots. Each waits for the time limit of callbacks.
    let (mut known, mut delayed) = (0, 0);
    let ask = |number: u64| vec![Op::PutFh(files[number as usize % FILES].1.clone()), change_and_size()];
    curious.stream(16, 32, ask, |status, _| match status {
        NfsStat::Ok => known += 1,
        NfsStat::Delay => delayed += 1,
        other => panic!("{other:?}"),
    });
    assert!(delayed > 0, "{known} attributes without a reply of the holder");
    get_on(&mut curious, &files);
    drop(silent);
}

/// The holder disconnects during a callback.
pub fn die(target: &Target) {
    let (dying, files) = holder(target, "dying");
    let mut curious = Client::new(target.address, "curious of the dying");
    curious.send(vec![Op::PutFh(files[0].1.clone()), change_and_size()]);
    let open = open("o", share::READ, OpenHow::NoCreate, named(&files[1].0));
    let mut another = Client::new(target.address, "another");
    assert_eq!(another.call([data(), vec![open]].concat()).0, NfsStat::Delay);
    drop(dying);
    let (status, _) = curious.reply();
    assert!(matches!(status, NfsStat::Delay | NfsStat::Ok), "{status:?}");
    get_on(&mut another, &files);
}
