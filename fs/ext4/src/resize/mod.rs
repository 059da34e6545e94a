//! Changing the size of a filesystem that is not mounted.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | the sizes afterwards, and what is refused |
//! | `grow` | making it larger, and the order of writes |

mod grow;
mod plan;

pub use grow::{ResizeReport, grow, plan_grow};
