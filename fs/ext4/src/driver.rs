//! The calls of the VFS.
