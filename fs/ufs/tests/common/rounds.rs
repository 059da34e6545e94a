//! Rounds of random changes, with unmounts between them. The tests of OCFS2 use this file too. `IVERS_SEED`
//! replays a run, `IVERS_CHECK_EACH` compares the model after each so many steps.

use super::storm::Storm;
use ivers_vfs::Vfs;
use std::sync::Arc;

pub fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

/// Changes a filesystem in three rounds of so many steps. `in_use` is called once while it is mounted,
/// `closed` after each unmount. Returns how many steps there was no space for.
pub fn storm_rounds(
    name: &str,
    steps: u64,
    mount: impl Fn() -> Arc<Vfs>,
    in_use: impl Fn(&Arc<Vfs>, &str),
    closed: impl Fn(&str),
) -> usize {
    let (seed, check_each) = (number("IVERS_SEED", 1), number("IVERS_CHECK_EACH", 0));
    println!("{name}: IVERS_SEED={seed} IVERS_STEPS={steps}");
    let mut storm = Storm::of(mount(), seed);
    for round in 0..3 {
        let what = format!("{name}, seed {seed}, round {round}");
        for step in 0..steps {
            if step % 5 == 0 {
                storm.step_in_file()
            } else {
                storm.step()
            }
            if check_each > 0 && step % check_each == 0 {
                storm.check(&format!("{what}, step {step}"));
            }
        }
        storm.check(&what);
        if round == 1 {
            in_use(storm.vfs(), &what);
        }
        let before = storm.values();
        storm.vfs().sync().unwrap();
        assert_eq!(storm.values(), before, "{what}: C3");
        storm.unmount();
        closed(&what);
        storm.mount(mount());
        storm.check(&format!("{what}, mounted again"));
    }
    storm.unmount();
    closed(name);
    storm.full
}
