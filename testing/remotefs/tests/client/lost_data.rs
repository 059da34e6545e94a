//! Written bytes that a full server refuses.

use super::*;

fn is_no_space<T: std::fmt::Debug>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::DataRefused(NameError::NoSpace)))
}

fn fill(server: &Answers) {
    server.lock().insert("write", NameError::NoSpace.into());
}

#[test]
fn each_descriptor_is_told_once() {
    let (it, answers) = both_with_answers();
    let (file, other) = (create(&it.client, "f"), create(&it.client, "other"));
    let cursors = [(); 2].map(|()| it.client.error_cursor(&file));
    let told = |cursor: &ErrorCursor| it.client.take_writeback_error(&file, cursor);
    fill(&answers);
    write(&it.client, &file, b"refused");
    assert!(!file.has_lost_data() && told(&cursors[0]).is_ok(), "nothing is sent yet");
    assert!(is_no_space(&it.client.sync()));
    assert!(file.has_lost_data() && !other.has_lost_data());
    answers.lock().clear();
    for cursor in &cursors {
        assert!(is_no_space(&told(cursor)));
        assert!(told(cursor).is_ok());
        assert!(it.client.fsync_descriptor(&file, false, cursor).is_ok(), "the write reported it");
    }
    assert!(told(&it.client.error_cursor(&file)).is_ok(), "a later open");
    // The next loss is the next error, whichever call reports it.
    fill(&answers);
    write(&it.client, &file, b"refused");
    assert!(is_no_space(&it.client.flush_descriptor(&file, &cursors[0])));
    assert!(told(&cursors[0]).is_ok());
    assert!(is_no_space(&told(&cursors[1])));
}

#[test]
fn unmount_names_files_that_still_lack_bytes() {
    let (it, answers) = both_with_answers();
    let losses: Arc<Mutex<Vec<Ino>>> = Arc::default();
    let heard = losses.clone();
    it.client.on_data_loss(Box::new(move |inode, _| {
        heard.lock().push(inode.ino);
        String::new()
    }));
    let [lost, again, cut, removed, kept] =
        ["lost", "again", "cut", "removed", "kept"].map(|name| create(&it.client, name));
    write(&it.client, &kept, b"stored");
    it.client.sync().unwrap();
    fill(&answers);
    let files = [&lost, &again, &cut, &removed];
    let inos = files.map(|file| file.ino);
    for file in files {
        write(&it.client, file, b"bytes");
    }
    assert!(is_no_space(&it.client.sync()));
    assert_eq!(*losses.lock(), inos);
    answers.lock().clear();
    write(&it.client, &again, b"bytes");
    it.client.set_attr(&Cred::root(), &cut, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    it.client.unlink(&Cred::root(), &it.client.root().unwrap(), b"removed", false).unwrap();
    drop(removed);
    assert_eq!(it.client.lost_files(), LostFiles::default(), "it is still mounted");
    it.client.unmount().unwrap();
    assert_eq!(it.client.lost_files(), LostFiles { count: 1, names: vec!["lost".into()] });
}

#[test]
fn unmount_reports_what_its_own_write_back_loses() {
    let (it, answers) = both_with_answers();
    write(&it.client, &create(&it.client, "f"), b"bytes");
    fill(&answers);
    assert!(is_no_space(&it.client.unmount()));
    assert_eq!(it.client.lost_files(), LostFiles { count: 1, names: vec!["f".into()] });
}
