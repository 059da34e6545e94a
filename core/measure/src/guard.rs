//! Measurement at the opens and closes of a mounted filesystem.
