#![no_main]

ivers_fuzz::target!("xfs_directories");
