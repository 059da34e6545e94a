#![no_main]

ivers_fuzz::target!("check_xfs");
