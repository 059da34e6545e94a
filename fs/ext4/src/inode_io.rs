//! Inodes to and from the device.
