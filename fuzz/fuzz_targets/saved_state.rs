#![no_main]

ivers_fuzz::target!("saved_state");
