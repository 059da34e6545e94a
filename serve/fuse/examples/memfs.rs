//! Mounts an empty in-memory filesystem: `memfs DIR [OPTION...]`, with options as after `-o`.

use ivers_fuse::FuseOptions;
use ivers_vfs::{MountOptions, Vfs};
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: memfs DIR [OPTION...]")?;
    let mut options = FuseOptions { fsname: "memfs".into(), ..FuseOptions::default() };
    for option in args {
        if !options.set(&option)? {
            return Err(format!("unknown option {option}").into());
        }
    }
    let vfs = Vfs::mount(Arc::new(ivers_mem::Mem::new(16 << 30)), MountOptions::default())?;
    let session = ivers_fuse::mount(vfs.clone(), Path::new(&dir), options)?;
    println!("mounted");
    session.wait()?;
    vfs.unmount()?;
    Ok(())
}
