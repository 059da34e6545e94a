//! `cargo xtask demo`: a tour of the cost and the use of the change attribute.

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

/// Returns the change attribute from the output of `ivers stat --json`.
fn change(ivers: &Path, file: &str) -> Outcome<String> {
    let said = call(ivers, &["stat", "--json", file])?;
    let value = said.split("\"change\":\"").nth(1).and_then(|rest| rest.split('"').next());
    value.map(str::to_owned).ok_or_else(|| format!("{file} has no change attribute: {said}"))
}

fn show(ivers: &Path, file: &str, what: &str, last: &mut String, moves: bool) -> Outcome<()> {
    let now = change(ivers, file)?;
    let verdict = if now == *last { "the same" } else { "different" };
    println!("{what:<34} {now:>8}  {verdict}");
    if !last.is_empty() && (now != *last) != moves {
        return Err(format!("{what}: the change attribute is {verdict}, but should not be"));
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
    show(ivers, &name, "query", &mut last, true)?;
    fs::OpenOptions::new().write(true).open(&file).and_then(|f| f.write_all_at(b"two", 0)).map_err(io)?;
    show(ivers, &name, "write, query", &mut last, true)?;
    show(ivers, &name, "do nothing, query", &mut last, false)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).map_err(io)?;
    show(ivers, &name, "chmod, query", &mut last, true)?;
    let renamed = dir.join("renamed");
    fs::rename(&file, &renamed).map_err(io)?;
    let name = renamed.to_string_lossy().into_owned();
    show(ivers, &name, "rename, query", &mut last, true)?;
    xattr::set(&renamed, "user.tour", b"1").map_err(io)?;
    show(ivers, &name, "set an attribute, query", &mut last, true)?;
    fs::read(&renamed).map_err(io)?;
    show(ivers, &name, "read, query", &mut last, false)?;
    call(ivers, &["unmount", &dir_word])?;
    call(ivers, &["mount", image, &dir_word])?;
    show(ivers, &name, "unmount, mount, query", &mut last, false)?;
    call(ivers, &["unmount", &dir_word])?;
    Ok(())
}

/// Runs the tour without FUSE: `ivers cp` changes files in the image.
fn tour_unmounted(ivers: &Path, image: &str, scratch: &Path) -> Outcome<()> {
    println!("(FUSE is not available: `ivers cp` changes the file in the image)");
    let name = format!("{image}:/file");
    let source = scratch.join("source");
    let write = |text: &str| {
        fs::File::create(&source).and_then(|mut f| f.write_all(text.as_bytes())).map_err(|e| e.to_string())
    };
    let source_word = source.to_string_lossy().into_owned();
    write("one")?;
    call(ivers, &["cp", &source_word, &name])?;
    let mut last = String::new();
    show(ivers, &name, "query", &mut last, true)?;
    write("two")?;
    call(ivers, &["cp", &source_word, &name])?;
    show(ivers, &name, "write, query", &mut last, true)?;
    show(ivers, &name, "do nothing, query", &mut last, false)?;
    call(ivers, &["cat", &name])?;
    show(ivers, &name, "read, query", &mut last, false)
}

fn tour() -> Outcome<()> {
    let bench = crate::bench::build()?;
    let ivers = bench.with_file_name("ivers");
    println!("A million one-byte writes in each mode, without queries");
    const ROWS: &str = "overwrite_1_byte,append_1_byte,append_4k,sequential_4k_8_jobs";
    print!("{}", call(&bench, &["--fs", "ext4", "--only", ROWS])?);

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
    // After a failure the image can still be mounted: then keep the files.
    let _ = call(&ivers, &["unmount", "--lazy", &dir.to_string_lossy()]);
    if fs::remove_dir(&dir).is_ok() {
        let _ = fs::remove_dir_all(&scratch);
    }
    result
}

/// Runs the tour.
pub fn demo() -> bool {
    match tour() {
        Ok(()) => true,
        Err(error) => {
            eprintln!("xtask: {error}");
            false
        }
    }
}
