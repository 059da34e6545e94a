//! Holders of delegations who are called back and say nothing, or go.

use super::*;

const FILES: usize = 40;

/// Somebody who holds delegations, and what it takes to ask for their files.
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

/// Everybody gets his file in the end.
fn get_on(client: &mut Client, files: &[(String, FileHandle)]) {
    let begun = Instant::now();
    let mut left: Vec<&str> = files.iter().map(|(name, _)| &**name).collect();
    while !left.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(40), "for ever in the way: {left:?}");
        left.retain(|name| {
            let open = open("o", share::READ | share::WANT_NO_DELEG, OpenHow::NoCreate, named(name));
            client.call([data(), vec![open]].concat()).0 != NfsStat::Ok
        });
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// He reads nothing, and answers nothing.
pub fn say_nothing(target: &Target) {
    let (silent, files) = holder(target, "silent");
    let mut curious = Client::new(target.address, "curious");
    // More questions than there are slots for them; each waits for as long as callbacks may take.
    let (mut known, mut delayed) = (0, 0);
    let ask = |number: u64| vec![Op::PutFh(files[number as usize % FILES].1.clone()), change_and_size()];
    curious.stream(16, 32, ask, |status, _| match status {
        NfsStat::Ok => known += 1,
        NfsStat::Delay => delayed += 1,
        other => panic!("{other:?}"),
    });
    assert!(delayed > 0, "{known} answers that nobody gave");
    get_on(&mut curious, &files);
    drop(silent);
}

/// His connection ends while he is asked.
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
