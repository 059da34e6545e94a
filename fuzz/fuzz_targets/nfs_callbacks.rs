#![no_main]

ivers_fuzz::target!("nfs_callbacks");
