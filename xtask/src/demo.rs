//! The tour of one minute: what the change attribute does, on a real image, through a real mount.

use crate::tools;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

type Result<T> = std::result::Result<T, String>;

struct Tour {
    ivers: PathBuf,
    dir: PathBuf,
}

fn run(program: impl AsRef<Path>, args: &[&str]) -> Result<String> {
    let program = program.as_ref();
    let output =
        Command::new(program).args(args).output().map_err(|e| format!("{}: {e}", program.display()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} {} failed: {}", program.display(), args.join(" "), text.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The decimal string behind `"name":` in a JSON object.
fn json_string(text: &str, name: &str) -> Result<String> {
    let key = format!("\"{name}\":");
    let rest = text.split_once(&key).ok_or_else(|| format!("no {name} in {text}"))?.1;
    let value = rest.trim_start().trim_start_matches('"');
    Ok(value.chars().take_while(char::is_ascii_digit).collect())
}

impl Tour {
    fn look(&self, what: &str) -> Result<u64> {
        let file = self.dir.join("file");
        let text = run(&self.ivers, &["stat", "--json", &file.to_string_lossy()])?;
        let value = json_string(&text, "change")?;
        println!("  {what:<34} change = {value}");
        value.parse().map_err(|_| format!("{value} is no number"))
    }

    /// Look, do something, look again; the value must differ, or must not.
    fn step(
        &self,
        what: &str,
        before: u64,
        differs: bool,
        act: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<u64> {
        act(&self.dir.join("file")).map_err(|e| format!("{what}: {e}"))?;
        let after = self.look(what)?;
        match (after > before, after == before) {
            (true, _) if differs => Ok(after),
            (_, true) if !differs => Ok(after),
            _ => Err(format!("{what}: {before} then {after}, which breaks the contract")),
        }
    }

    fn walk(&self) -> Result<u64> {
        let append =
            |path: &Path| fs::OpenOptions::new().append(true).create(true).open(path)?.write_all(b"hello\n");
        append(&self.dir.join("file")).map_err(|e| e.to_string())?;
        let v = self.look("a new file")?;
        let v = self.step("after a write", v, true, append)?;
        let v = self.step("after nothing", v, false, |_| Ok(()))?;
        let v = self.step("after a read", v, false, |path| fs::read(path).map(drop))?;
        let v = self.step("after chmod", v, true, |path| {
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        })?;
        let v = self.step("after a rename and back", v, true, |path| {
            fs::rename(path, path.with_extension("x"))?;
            fs::rename(path.with_extension("x"), path)
        })?;
        self.step("after setting an attribute", v, true, |path| {
            let status = Command::new("setfattr").args(["-n", "user.tour", "-v", "1"]).arg(path).status()?;
            if status.success() { Ok(()) } else { Err(std::io::Error::other("setfattr failed")) }
        })
    }
}

fn overwrites(ivers: &Path) -> Result<()> {
    println!("A million one-byte overwrites that nobody looks at, in-process on ext4:");
    let text = run(ivers, &["bench", "--fs", "ext4", "--ops", "1000000", "--rounds", "1"])?;
    text.lines().for_each(|line| println!("  {line}"));
    Ok(())
}

pub fn demo(root: &Path) -> Result<()> {
    tools::provide()?;
    println!("== building (release)");
    let built = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--package", "ivers"])
        .current_dir(root)
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the release build failed".into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let ivers = target.join("release/ivers");
    let scratch = std::env::temp_dir().join(format!("ivers-demo-{}", std::process::id()));
    let dir = scratch.join("mnt");
    fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    let result = tour(&ivers, &scratch, dir.clone());
    if result.is_err() {
        let _ = Command::new(&ivers).arg("unmount").arg(&dir).output();
    }
    fs::remove_dir_all(&scratch).map_err(|e| e.to_string())?;
    result
}

fn tour(ivers: &Path, scratch: &Path, dir: PathBuf) -> Result<()> {
    overwrites(ivers)?;
    let image = scratch.join("disk.img");
    fs::File::create(&image).and_then(|file| file.set_len(256 << 20)).map_err(|e| e.to_string())?;
    let (image, mount_at) = (image.to_string_lossy().into_owned(), dir.to_string_lossy().into_owned());
    run("mkfs.ext4", &["-q", &image])?;
    println!("\nAn ext4 image made by mkfs.ext4:");
    if tools::has_fuse() {
        println!("$ ivers mount disk.img mnt");
        run(ivers, &["mount", &image, &mount_at])?;
        let tour = Tour { ivers: ivers.to_owned(), dir: dir.clone() };
        let v = tour.walk()?;
        println!("$ ivers unmount mnt; ivers mount disk.img mnt");
        run(ivers, &["unmount", &mount_at])?;
        run(ivers, &["mount", &image, &mount_at])?;
        tour.step("after unmounting and mounting", v, false, |_| Ok(()))?;
        run(ivers, &["unmount", &mount_at])?;
    } else {
        println!("This machine has no FUSE: the tour goes through the library, on the image itself.");
        let file = scratch.join("file");
        fs::write(&file, "hello\n").map_err(|e| e.to_string())?;
        let (file, target) = (file.to_string_lossy().into_owned(), format!("{image}:/file"));
        let look = || json_string(&run(ivers, &["stat", "--json", &target])?, "change");
        run(ivers, &["cp", &file, &target])?;
        let first = look()?;
        let again = look()?;
        fs::write(&file, "hello again\n").map_err(|e| e.to_string())?;
        run(ivers, &["cp", &file, &target])?;
        let changed = look()?;
        println!("  a new file {first}, looked at again {again}, after a write {changed}");
        if first != again || changed == first {
            return Err("that breaks the contract".into());
        }
    }
    run("e2fsck", &["-fn", &image])?;
    println!("e2fsck calls the image clean.");
    Ok(())
}
