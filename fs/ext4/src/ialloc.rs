//! Inode slots.
