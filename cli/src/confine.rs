//! The sandbox of the commands that parse an image without mounting it.
//!
//! Whatever the command needs is open before: the images, standard output. From then on the process can open no file, make no socket and run no
//! program. Commands that go on working with the system's files (`cp`, `changed`) leave the parsing to a [keeper](crate::keeper).

/// Lock this process in, before it reads the first byte of an image and before it starts a thread.
pub fn enter(wanted: bool) {
    if !wanted {
        return;
    }
    let sandbox = ivers_sandbox::enter();
    if !sandbox.is_whole() {
        crate::failure::say(format_args!("ivers: the sandbox is not whole: {sandbox}"));
    }
}
