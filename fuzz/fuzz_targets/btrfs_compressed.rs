#![no_main]

ivers_fuzz::target!("btrfs_compressed");
