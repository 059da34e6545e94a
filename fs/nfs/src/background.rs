//! Threads whose requests no program waits for.

use std::cell::Cell;

thread_local! {
    static IN_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a program waits for the requests of this thread.
pub fn has_caller() -> bool {
    !IN_BACKGROUND.get()
}

/// From now on no program waits for the requests of this thread.
pub fn enter() {
    IN_BACKGROUND.set(true);
}
