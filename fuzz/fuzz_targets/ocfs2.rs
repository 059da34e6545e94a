#![no_main]

ivers_fuzz::target!("ocfs2");
