//! Tells whether a file changed since this program last ran.
//!
//! ```text
//! changed FILE NOTE
//! ```
//!
//! NOTE keeps what the last run saw. Exit code: 0 unchanged, 1 changed or seen for the first time, 2 error.
//! The programs in C and Python beside this one do the same and share the form of NOTE. Crates: `xattr`,
//! `serde_json`.

use std::error::Error;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, io};

fn ask(path: &Path, name: &str) -> Result<String, Box<dyn Error>> {
    let value = xattr::get_deref(path, format!("system.ivers.{name}"));
    let value = value.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8(value.ok_or_else(|| format!("{}: no change attribute", path.display()))?)?)
}

/// Everything that two equal notes must agree on.
fn query(path: &Path) -> Result<String, Box<dyn Error>> {
    let mount: serde_json::Value = serde_json::from_str(&ask(path, "mount")?)?;
    // "instance" tells filesystems apart; where values do not outlive a mount it also tells mounts apart.
    let instance = mount["instance"].as_str().ok_or("the mount does not name its instance")?;
    let (ino, generation) = (fs::metadata(path)?.ino(), ask(path, "generation")?);
    Ok(format!("{instance} {ino} {generation} {}\n", ask(path, "change")?))
}

/// Whether the file is as it was when `note` was written. Updates `note` if not.
pub fn is_unchanged(path: &Path, note: &Path) -> Result<bool, Box<dyn Error>> {
    let kept = match fs::read_to_string(note) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        kept => kept?,
    };
    let (before, contents) = loop {
        let before = query(path)?;
        if before == kept {
            return Ok(true);
        }
        let contents = fs::read(path)?; // whatever the program does with the file
        if query(path)? == before {
            break (before, contents); // the contents belong to this value
        }
    };
    let bytes = contents.len();
    match kept.as_str() {
        "" => println!("{}: new, {bytes} bytes", path.display()),
        _ => println!("{}: changed, {bytes} bytes now", path.display()),
    }
    fs::write(note, before)?;
    Ok(false)
}

pub fn main() -> ExitCode {
    let words: Vec<_> = env::args_os().skip(1).collect();
    let result = match &words[..] {
        [file, note] => is_unchanged(Path::new(file), Path::new(note)),
        _ => Err("two arguments are required".into()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("changed: {error}\nusage: changed FILE NOTE; FILE must be on an ivers mount");
            ExitCode::from(2)
        }
    }
}
