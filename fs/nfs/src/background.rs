//! Which threads work in the background. No program waits for their requests.

use std::cell::Cell;

thread_local! {
    static IN_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a program waits for the requests of this thread.
pub fn has_caller() -> bool {
    !IN_BACKGROUND.get()
}

/// This thread works in the background from now on.
pub fn enter() {
    IN_BACKGROUND.set(true);
}
