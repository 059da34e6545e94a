//! Read delegations of mounts: what they save, and that they never show old bytes.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::served::{export, image_with_file};
use crate::common::*;
use ivers_oracle::Image;

/// Starts and kills servers, in a separate process. In the process of the test, exec(2) would wait for the
/// mounts whose files its threads have open, and these mounts wait for the server.
const STARTER: &str = r#"
while read -r word address; do
    if [ "$word" = start ]; then
        "$0" serve --json --listen "$address" "$@" &
        server=$!
    else
        kill -9 $server
        wait $server
        echo killed
    fi
done
kill -9 $server
"#;

struct Fixture {
    image: Image,
    starter: Child,
    said: Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.starter.stdin.take());
        let _ = self.starter.wait();
    }
}

impl Fixture {
    fn new() -> Self {
        let image = image_with_file();
        let flag = format!("photos={}", export(&image, "no_root_squash"));
        let log = fs::File::create(image.dir().join("log of the server")).unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", STARTER, IVERS, "--export", &flag, "--state"]).arg(image.dir().join("state"));
        let mut starter = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let said = BufReader::new(starter.stdout.take().unwrap()).lines();
        let mut fixture = Self { image, starter, said, address: "127.0.0.1:0".to_owned() };
        fixture.start();
        fixture
    }

    fn tell(&mut self, line: &str) -> String {
        writeln!(self.starter.stdin.as_ref().unwrap(), "{line}").unwrap();
        self.said.next().expect("the server starts").unwrap()
    }

    fn start(&mut self) {
        let told = self.tell(&format!("start {}", self.address));
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        self.address = told["addresses"][0].as_str().unwrap().to_owned();
    }

    fn restart(&mut self) {
        assert_eq!(self.tell("kill"), "killed");
        self.start();
    }

    fn mount(&self, name: &str, options: &str) -> Mount {
        let dir = self.image.dir().join(name);
        fs::create_dir(&dir).unwrap();
        let output = Command::new(IVERS)
            .args(["mount", "-o", options, "--log"])
            .arg(self.image.dir().join("log"))
            .arg(format!("nfs://{}/photos", self.address))
            .arg(&dir)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", said(&output));
        Mount(dir)
    }
}

struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

impl Mount {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn count(&self, name: &str) -> u64 {
        let stats = works(&["stats", "--json", self.0.to_str().unwrap()]);
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        stats[name].as_u64().unwrap_or_else(|| panic!("{name}: {stats}"))
    }

    /// Returns how many operations on files were sent.
    fn asked(&self) -> Vec<u64> {
        ["open", "close", "getattr", "access", "lookup", "read"]
            .map(|name| self.count(&format!("server_{name}")))
            .to_vec()
    }

    fn unmount(&self) {
        works(&["unmount", self.0.to_str().unwrap()]);
    }
}

/// Here, attributes of directories count as current for an hour. At an open, those of the file do not.
#[test]
fn an_unchanged_file_is_opened_and_read_without_a_request() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new();
    let (here, there) = (fixture.mount("here", "actimeo=3600"), fixture.mount("there", ""));
    let without = fixture.mount("without", "actimeo=3600,nodelegations");
    let text = b"hello over the wire\n";
    for mount in [&here, &without] {
        (0..2).for_each(|_| assert_eq!(fs::read(mount.path("hello")).unwrap(), text));
    }
    let (asked, asked_without) = (here.asked(), without.asked());
    let value = change(&here.path("hello"));
    for _ in 0..5 {
        assert_eq!(fs::read(here.path("hello")).unwrap(), text);
        assert_eq!(fs::read(without.path("hello")).unwrap(), text);
        assert_eq!(change(&here.path("hello")), value);
    }
    assert_eq!(here.asked(), asked, "open, close, getattr, access, lookup, read");
    assert_ne!(without.asked(), asked_without);
    assert_eq!((here.count("server_delegations"), without.count("server_delegations")), (1, 0));

    fs::write(there.path("hello"), "changed").unwrap();
    assert_eq!(here.count("server_recalls"), 1);
    assert_eq!(fs::read(here.path("hello")).unwrap(), b"changed");
    assert!(change(&here.path("hello")) > value);
    [here, there, without].iter().for_each(Mount::unmount);
}

fn write_durably(path: &Path, text: &str) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.sync_all().unwrap();
}

/// Close-to-open holds: a reader sees what the writer has closed, also when the server restarts in between.
#[test]
fn readers_follow_a_writer_across_restarts_of_the_server() {
    const THREE: usize = 3;
    if !can_mount() {
        return;
    }
    let mut fixture = Fixture::new();
    let (here, there) = (fixture.mount("here", "actimeo=3600"), fixture.mount("there", ""));
    let mut newest = vec![String::new(); THREE];
    for round in 0..48 {
        let nth = round % THREE;
        newest[nth] = format!("round {round}");
        write_durably(&there.path(&format!("f{nth}")), &newest[nth]);
        if round % 16 == 7 {
            fixture.restart();
        }
        for (nth, text) in newest.iter().enumerate().take(round + 1) {
            for _ in 0..2 {
                assert_eq!(fs::read_to_string(here.path(&format!("f{nth}"))).unwrap(), *text, "{round}");
            }
        }
    }
    assert!(here.count("server_delegations") > THREE as u64, "files were delegated again");
    assert!(here.count("server_recalls") > 0);
    assert!(here.count("server_local_opens") > 0);
    [here, there].iter().for_each(Mount::unmount);
}

/// The server delegates a file again some time after a recall, so each test has many files.
const FILES: usize = 24;
const WRITERS: usize = 3;
const READERS: usize = 6;

/// Ends all threads of a test when one of them ends or fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Replaces the number in a file. Without `durably`, only the close passes it to the server.
fn write_number(path: &Path, number: u64, durably: bool) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(format!("{number:08}").as_bytes(), 0).unwrap();
    if durably {
        file.sync_all().unwrap();
    }
}

fn read_number(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap();
    text.parse().unwrap_or_else(|_| panic!("{}: {text:?}", path.display()))
}

/// Writers on one mount replace the numbers in files, and readers on another mount read them. A reader that
/// opens a file after a write was acknowledged must see this number or a later one. In each of `steps` every
/// thread handles all of its files. The server is killed between the steps if `restarts` is set.
fn readers_keep_up(steps: u32, restarts: bool) {
    if !can_mount() {
        return;
    }
    let mut fixture = Fixture::new();
    let (here, there) = (fixture.mount("here", "actimeo=3600"), fixture.mount("there", ""));
    let paths = |mount: &Mount| (0..FILES).map(|nth| mount.path(&format!("f{nth}"))).collect::<Vec<_>>();
    let (read_paths, written_paths) = (paths(&here), paths(&there));
    // The writer returns its delegations a moment after the closes. Until then there are none for others.
    written_paths.iter().for_each(|path| write_durably(path, "00000000"));
    let deadline = Instant::now() + Duration::from_secs(60);
    while there.count("server_delegreturn") < there.count("server_delegations") {
        assert!(Instant::now() < deadline, "the writer keeps its delegations");
        std::thread::sleep(Duration::from_millis(20));
    }
    read_paths.iter().for_each(|path| assert_eq!(read_number(path), 0));
    assert_eq!(here.count("server_delegations"), FILES as u64);
    let newest: Vec<_> = (0..FILES).map(|_| AtomicU64::new(0)).collect();
    let rounds: Vec<_> = (0..WRITERS + READERS).map(|_| AtomicU64::new(0)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = Over(&over);
        let (writers, readers) = rounds.split_at(WRITERS);
        for (first, round) in writers.iter().enumerate() {
            let (newest, paths, over) = (&newest, &written_paths, &over);
            scope.spawn(move || {
                let _ends = Over(over);
                for number in 1.. {
                    for nth in (first..FILES).step_by(WRITERS) {
                        if over.load(SeqCst) {
                            return;
                        }
                        write_number(&paths[nth], number, restarts);
                        newest[nth].store(number, SeqCst);
                    }
                    round.fetch_add(1, SeqCst);
                }
            });
        }
        for (first, round) in readers.iter().enumerate() {
            let (newest, paths, over) = (&newest, &read_paths, &over);
            scope.spawn(move || {
                let _ends = Over(over);
                while !over.load(SeqCst) {
                    for nth in (0..FILES).map(|nth| (nth + first * FILES / READERS) % FILES) {
                        let least = newest[nth].load(SeqCst);
                        let found = read_number(&paths[nth]);
                        assert!(found >= least, "file {nth}: {found} after {least} was written");
                    }
                    round.fetch_add(1, SeqCst);
                }
            });
        }
        let progress = || rounds.iter().map(|it| it.load(SeqCst)).collect::<Vec<_>>();
        for step in 0..steps {
            if restarts && step > 0 {
                fixture.restart();
            }
            let (before, start) = (progress(), Instant::now());
            while progress().iter().zip(&before).any(|(now, before)| now - before < 2) {
                assert!(!over.load(SeqCst), "a thread has failed");
                // Ends the test only if it hangs.
                assert!(start.elapsed() < Duration::from_secs(400), "{before:?}, now {:?}", progress());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        drop(ends);
    });
    for (path, newest) in read_paths.iter().zip(&newest) {
        assert_eq!(read_number(path), newest.load(SeqCst));
    }
    let (granted, recalled) = (here.count("server_delegations"), here.count("server_recalls"));
    assert!(recalled >= FILES as u64 / 2, "{granted} granted, {recalled} recalled");
    [here, there].iter().for_each(Mount::unmount);
}

#[test]
fn recalls_under_load_show_no_old_bytes() {
    readers_keep_up(2, false);
}

#[test]
fn restarts_under_load_show_no_old_bytes() {
    readers_keep_up(3, true);
}
