//! Structures as stored on devices.

/// Defines structures that can be read from bytes at any offset. The caller imports what they need of
/// zerocopy: the traits that are derived, and integers of a fixed byte order.
#[macro_export]
macro_rules! on_disk {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub struct $name { $(pub $field: $kind,)* }
    )*};
}
