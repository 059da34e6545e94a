//! Explores several kinds of a format, configured by the environment.

use crate::{Explorer, Target, Workload, env};

/// Explores the `workloads` of a seed on each kind of a format that Linux recovers. It uses the environment
/// variables of `fs/ext4/tests/explore.rs`: `IVERS_CRASH_STATES`, `IVERS_CRASH_SEED`, `IVERS_CRASH_WORKLOAD`,
/// `IVERS_CRASH_KIND`, `IVERS_CRASH_CHECK_EVERY`.
///
/// # Panics
/// If the contract is broken, or the workloads have fewer states than requested.
pub fn explore_kinds<K>(kinds: &[K], workloads: impl Fn(u64) -> Vec<Workload>)
where
    K: Target + Copy + 'static,
{
    let states = env("IVERS_CRASH_STATES").unwrap_or(60);
    let seed = env("IVERS_CRASH_SEED").unwrap_or(1);
    // One in this many states is checked. The checks that take longer are rarer by a factor.
    let check_every = env("IVERS_CRASH_CHECK_EVERY").unwrap_or(4);
    let only = std::env::var("IVERS_CRASH_WORKLOAD").ok();
    let only_kind = std::env::var("IVERS_CRASH_KIND").ok();
    let is_named = |kind: &K| only_kind.as_ref().is_none_or(|only| kind.name() == only);
    assert!(kinds.iter().any(is_named), "IVERS_CRASH_KIND is the name of no kind");
    for (nth, kind) in (0..).zip(kinds) {
        if !is_named(kind) {
            continue;
        }
        let (workloads, whole) = match &only {
            Some(name) => {
                (vec![Workload::by_name(name).expect("a workload's name, as a report gives it")], 1)
            }
            None => (workloads(seed + nth), 0),
        };
        let explorer = Explorer {
            workloads,
            whole,
            most_states: states,
            kernel_first_every: check_every * 5,
            fsck_first_every: check_every * 10,
            fresh_every: check_every * 2,
            check_every,
            ..Explorer::new(*kind, seed)
        };
        let summary = explorer.run().expect("the explorer itself works");
        println!("{summary}");
        assert!(summary.violations.is_empty(), "the contract was broken: see above");
        assert!(only.is_some() || summary.states >= states, "too few workloads for {states} states");
    }
}

/// Explores so many states of each kind of a format that Linux does not recover. It uses
/// `IVERS_CRASH_STATES`, `IVERS_CRASH_SEED` and `IVERS_CRASH_WORKLOAD`.
///
/// # Panics
/// If a promise is broken, or the workloads have fewer states than requested.
pub fn explore_alone<K: Target + 'static>(kinds: impl IntoIterator<Item = K>, states: u64) {
    let states = env("IVERS_CRASH_STATES").unwrap_or(states);
    let seed = env("IVERS_CRASH_SEED").unwrap_or(1);
    let only = std::env::var("IVERS_CRASH_WORKLOAD").ok();
    for kind in kinds {
        let workloads = match &only {
            Some(name) => vec![Workload::by_name(name).expect("the name of a workload, as in a report")],
            None => Workload::short_first(seed),
        };
        let explorer = Explorer {
            workloads,
            whole: 10,
            unmount_one_in: 4,
            most_states: states,
            fsck_first_every: if kind.repairs() { 16 } else { 0 },
            ..Explorer::new(kind, seed)
        };
        let summary = explorer.run().expect("the explorer runs");
        println!("{summary}");
        assert!(summary.violations.is_empty(), "a crash state violated a promise: see above");
        assert!(only.is_some() || summary.states >= states, "too few workloads for {states} states");
    }
}
