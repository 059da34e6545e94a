//! Copies that the server makes.

use super::*;

/// The kinds of requests that were sent.
fn logging() -> (Both, Arc<Mutex<Vec<String>>>) {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let it = both({
        let sent = sent.clone();
        move |what| {
            sent.lock().push(what.to_owned());
            Ok(())
        }
    });
    (it, sent)
}

#[test]
fn whole_blocks_are_shared_and_the_rest_is_copied_on_the_server() {
    let (it, sent) = logging();
    let (from, to) = (create(&it.client, "from"), create(&it.client, "to"));
    let data: Vec<u8> = (0..8192).map(|at| (at % 251) as u8).collect();
    write(&it.client, &from, &data);
    write(&it.client, &to, &[9; 100]);
    it.client.clone_range(&Cred::root(), &from, 0, &to, 0, 0).unwrap();
    assert_eq!(read(&it.client, &to), data[..100]);
    it.client.change(&to).unwrap();
    sent.lock().clear();

    let copy = |at, len| it.client.copy_range(&Cred::user(0, 0), &from, 0, &to, at, len).unwrap();
    assert_eq!(copy(8192, 4096), 4096);
    assert_eq!(copy(3, 5000), 5000);
    assert_eq!(copy(20_000, 1 << 30), 8192, "to the end of the source");
    let moved: Vec<_> = sent.lock().iter().filter(|what| !what.ends_with(" reply")).cloned().collect();
    assert_eq!(moved, ["clone", "copy", "copy"], "no byte comes here");
    assert_eq!(it.fs.last_caller("copy"), Some(Cred::user(0, 0)));
    let mut want = data.clone();
    want.extend_from_slice(&data[..4096]);
    want[3..5003].copy_from_slice(&data[..5000]);
    let mut bytes = vec![0; want.len()];
    it.client.read(&Cred::root(), &to, 0, &mut bytes).unwrap();
    assert_eq!(bytes, want, "what was cached of the target is gone");
    assert_eq!(it.client.get_attr(&Cred::root(), &to).unwrap().size, 28_192);
}

#[test]
fn a_server_that_cannot_copy_leaves_it_to_the_client() {
    let (it, answers) = both_with_answers();
    let (from, to) = (create(&it.client, "from"), create(&it.client, "to"));
    write(&it.client, &from, b"bytes");
    for what in ["clone", "copy"] {
        answers.lock().insert(what, NameError::NotSupported.into());
    }
    let cloned = it.client.clone_range(&Cred::root(), &from, 0, &to, 0, 0);
    assert!(matches!(cloned, Err(Error::Name(NameError::NotSupported))));
    assert_eq!(it.client.copy_range(&Cred::root(), &from, 0, &to, 0, 5).unwrap(), 5);
    assert_eq!(read(&it.client, &to), b"bytes");
}
