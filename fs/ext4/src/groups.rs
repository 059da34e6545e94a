//! Group descriptors and bitmaps, loaded on demand.

/// The groups.
#[derive(Debug, Default)]
pub struct Groups {}
