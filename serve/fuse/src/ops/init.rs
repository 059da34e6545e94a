//! Negotiation with the kernel at the start of a session.

use super::Ops;
use fuser::{InitFlags, KernelConfig};
use std::sync::atomic::Ordering;
use std::time::Duration;

const WRITE_BYTES_MAX: u32 = 1 << 20;

impl Ops {
    pub(super) fn negotiate(&self, config: &mut KernelConfig) {
        let s = &self.0;
        let mut wanted = InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        if s.options.kernel_checks() && s.vfs.xattr_value_max() > 0 {
            // This also makes the kernel check modes, so it requires `default_permissions`. Without extended
            // attributes the kernel must not ask for ACLs: it would take "not supported" as the answer for
            // callers other than the owner.
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        if s.vfs.fs().server().is_some() {
            // A program that has a file open sees what others write to it: before it reads cached pages, the
            // kernel asks for the attributes.
            wanted |= InitFlags::FUSE_AUTO_INVAL_DATA;
        }
        if s.vfs.has_locks() {
            wanted |= InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
        }
        if s.options.strict_queries {
            // The kernel would show the changes of these without a lock. Without them O_TRUNC arrives as
            // SETATTR, and the kernel waits for asynchronous direct I/O.
            wanted -= InitFlags::FUSE_ATOMIC_O_TRUNC | InitFlags::FUSE_ASYNC_DIO;
        }
        if s.options.writeback_cache {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        let offered = config.capabilities();
        let writes_back = (wanted & offered).contains(InitFlags::FUSE_WRITEBACK_CACHE);
        s.kernel_keeps_times.store(writes_back, Ordering::Relaxed);
        s.set_no_opendir(offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT));
        if let Err(missing) = config.add_capabilities(wanted & offered) {
            let names: Vec<_> = missing.iter_names().map(|(name, _)| name).collect();
            log::warn!("the kernel does not support {}", names.join(", "));
        }
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(64);
        let granule = u64::from(s.vfs.info().time_granularity_ns).clamp(1, 1_000_000_000);
        // The kernel accepts only a power of ten; otherwise the VFS alone truncates times.
        let _ = config.set_time_granularity(Duration::from_nanos(granule));
    }
}
