#![no_main]

ivers_fuzz::target!("mount_walk");
