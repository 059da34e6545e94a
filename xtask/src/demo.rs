//! The tour: what the change attribute costs, and what it tells.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

type Outcome<T> = Result<T, String>;

fn call(program: &Path, args: &[&str]) -> Outcome<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!(
            "{} {}: {}",
            program.display(),
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }
}

/// The decimal behind `"change":"` in what `ivers stat --json` says.
fn change(ivers: &Path, file: &str) -> Outcome<String> {
    let said = call(ivers, &["stat", "--json", file])?;
    let value = said.split("\"change\":\"").nth(1).and_then(|rest| rest.split('"').next());
    value.map(str::to_owned).ok_or_else(|| format!("{file} has no change attribute: {said}"))
}

fn look(ivers: &Path, file: &str, what: &str, last: &mut String, moves: bool) -> Outcome<()> {
    let now = change(ivers, file)?;
    let verdict = if now == *last { "the same" } else { "different" };
    println!("{what:<34} {now:>8}  {verdict}");
    if !last.is_empty() && (now != *last) != moves {
        return Err(format!("{what}: the change attribute is {verdict}, and should not be"));
    }
    *last = now;
    Ok(())
}

fn tour_mounted(ivers: &Path, image: &str, dir: &Path) -> Outcome<()> {
    let dir_word = dir.to_string_lossy().into_owned();
    let file = dir.join("file");
    let name = file.to_string_lossy().into_owned();
    let io = |e: std::io::Error| format!("{name}: {e}");
    call(ivers, &["mount", image, &dir_word])?;
    fs::write(&file, "one").map_err(io)?;
    let mut last = String::new();
    look(ivers, &name, "look", &mut last, true)?;
    fs::OpenOptions::new().write(true).open(&file).and_then(|f| f.write_all_at(b"two", 0)).map_err(io)?;
    look(ivers, &name, "write, look", &mut last, true)?;
    look(ivers, &name, "do nothing, look", &mut last, false)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).map_err(io)?;
    look(ivers, &name, "chmod, look", &mut last, true)?;
    let renamed = dir.join("renamed");
    fs::rename(&file, &renamed).map_err(io)?;
    let name = renamed.to_string_lossy().into_owned();
    look(ivers, &name, "rename, look", &mut last, true)?;
    xattr::set(&renamed, "user.tour", b"1").map_err(io)?;
    look(ivers, &name, "set an attribute, look", &mut last, true)?;
    fs::read(&renamed).map_err(io)?;
    look(ivers, &name, "read, look", &mut last, false)?;
    call(ivers, &["unmount", &dir_word])?;
    call(ivers, &["mount", image, &dir_word])?;
    look(ivers, &name, "unmount, mount, look", &mut last, false)?;
    call(ivers, &["unmount", &dir_word])?;
    Ok(())
}

/// Without FUSE: the same through the library, by `cp` into the image.
fn tour_unmounted(ivers: &Path, image: &str, scratch: &Path) -> Outcome<()> {
    println!("(no FUSE here: the tour goes through the library)");
    let name = format!("{image}:/file");
    let source = scratch.join("source");
    let write = |text: &str| {
        fs::File::create(&source).and_then(|mut f| f.write_all(text.as_bytes())).map_err(|e| e.to_string())
    };
    let source_word = source.to_string_lossy().into_owned();
    write("one")?;
    call(ivers, &["cp", &source_word, &name])?;
    let mut last = String::new();
    look(ivers, &name, "look", &mut last, true)?;
    write("two")?;
    call(ivers, &["cp", &source_word, &name])?;
    look(ivers, &name, "write, look", &mut last, true)?;
    look(ivers, &name, "do nothing, look", &mut last, false)?;
    call(ivers, &["cat", &name])?;
    look(ivers, &name, "read, look", &mut last, false)
}

fn tour() -> Outcome<()> {
    let built = crate::cargo().args(["build", "--release", "-p", "ivers"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("ivers does not build".into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let ivers = std::path::absolute(target.join("release/ivers")).map_err(|e| e.to_string())?;
    println!("Writes that nobody looks at: a million of one byte in each mode");
    const ROWS: &str = "overwrite_1_byte,append_1_byte,append_4k,sequential_4k_8_jobs";
    print!("{}", call(&ivers, &["bench", "--fs", "ext4", "--only", ROWS])?);

    let scratch = std::env::temp_dir().join(format!("ivers-demo-{}", std::process::id()));
    let dir = scratch.join("mnt");
    fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    let image_path = scratch.join("image");
    let image = image_path.to_string_lossy().into_owned();
    let made = fs::File::create(&image_path).and_then(|f| f.set_len(64 << 20)).map_err(|e| e.to_string());
    let system = |name: &str| PathBuf::from(format!("/usr/sbin/{name}"));
    let result = made.and_then(|()| {
        call(&system("mkfs.ext4"), &["-q", "-F", &image])?;
        println!("\nThe change attribute of one file on a fresh ext4 image");
        let fuse = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
        if fuse {
            tour_mounted(&ivers, &image, &dir)?
        } else {
            tour_unmounted(&ivers, &image, &scratch)?
        }
        call(&system("e2fsck"), &["-fn", &image])?;
        println!("\ne2fsck -fn: clean");
        Ok(())
    });
    // After a failure the mount may still be there: then nothing is removed.
    let _ = call(&ivers, &["unmount", "--lazy", &dir.to_string_lossy()]);
    if fs::remove_dir(&dir).is_ok() {
        let _ = fs::remove_dir_all(&scratch);
    }
    result
}

/// Run the tour.
pub fn demo() -> bool {
    match tour() {
        Ok(()) => true,
        Err(error) => {
            eprintln!("xtask: {error}");
            false
        }
    }
}
