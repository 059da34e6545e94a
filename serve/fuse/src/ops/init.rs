//! What the kernel and we agree on when a session starts.

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
        if s.options.kernel_checks() && s.vfs.info().xattr_value_max > 0 {
            // Also makes the kernel check modes; without that it would be wrong to take it. Where there are no attributes at all the kernel
            // must not ask for ACLs: it takes "not supported" for the answer to whoever is not the owner.
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        if s.options.strict_queries {
            // What these change the kernel would show without a lock of its own: O_TRUNC comes as SETATTR then, and asynchronous direct I/O is waited for.
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
            log::warn!("the kernel takes back {missing:?}");
        }
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(64);
        let granule = u64::from(s.vfs.info().time_granularity_ns).clamp(1, 1_000_000_000);
        // Refused unless a power of ten: then the VFS does the cutting alone.
        let _ = config.set_time_granularity(Duration::from_nanos(granule));
    }
}
