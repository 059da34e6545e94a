//! Runs the targets of `ivers-fuzz-targets` under libFuzzer, with a bound on memory.

pub use {cap, ivers_fuzz_targets, libfuzzer_sys};

/// What one input may allocate, our images included. An allocation beyond it aborts, which libFuzzer takes
/// for a crash.
pub const MEMORY_BYTES: usize = 512 << 20;

/// Makes the fuzz target of a name.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        #[global_allocator]
        static MEMORY: $crate::cap::Cap<std::alloc::System> =
            $crate::cap::Cap::new(std::alloc::System, $crate::MEMORY_BYTES);

        $crate::libfuzzer_sys::fuzz_target!(|input: &[u8]| {
            static RUN: std::sync::LazyLock<fn(&[u8])> = std::sync::LazyLock::new(|| {
                $crate::ivers_fuzz_targets::target($name).expect("the target exists").run
            });
            RUN(input);
        });
    };
}
