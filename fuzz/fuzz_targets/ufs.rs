#![no_main]

ivers_fuzz::target!("ufs");
