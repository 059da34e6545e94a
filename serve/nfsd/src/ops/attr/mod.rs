//! Attributes: which are supported, their values, and setting them.

pub mod acl_from_posix;
pub mod acl_to_posix;
pub mod get;
pub mod set;
pub mod supported;

use ivers_nfs4::attr::{self, Attrs, Fattr, is_write_only};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::Bitmap;

use crate::compound::{Context, CurrentFh};
use crate::state::Step;

pub use set::{NewAttrs, parse_new_attrs, set_attr};

use supported::supported;

/// Attributes that the holder of a write delegation may have changed.
const DELEGATED: [u32; 5] =
    [attr::CHANGE, attr::SIZE, attr::TIME_MODIFY, attr::TIME_METADATA, attr::SPACE_USED];

/// GETATTR.
pub fn get_attr(context: &mut Context, want: &Bitmap) -> Step<Fattr> {
    // [RFC8881 18.7.3]
    if want.iter().any(is_write_only) {
        return Err(NfsStat::Inval.into());
    }
    let fh = context.current_fh()?.clone();
    Ok(gather_current(context, &fh, want)?.encode())
}

/// The current values of the supported attributes in `want`. The holder of a write delegation is asked first.
pub fn gather_current(context: &mut Context, fh: &CurrentFh, want: &Bitmap) -> Step<Attrs> {
    let (mut reported, mut _guard) = (None, None);
    if let CurrentFh::Object(object) = fh {
        object.read_cred()?;
        if DELEGATED.iter().any(|&bit| want.contains(bit)) {
            (reported, _guard) = context.begin_getattr(object)?;
        }
    }
    let want = want.and(supported(context.minor, fh));
    Ok(get::gather(context, fh, &want, reported)?)
}

/// Whether the attributes have the given values, for VERIFY and NVERIFY.
fn compare(context: &mut Context, given: &Fattr) -> Step<bool> {
    let fh = context.current_fh()?.clone();
    let supported = supported(context.minor, &fh);
    // [RFC8881 18.31.3] [RFC8881 18.15.3]
    if given.mask.iter().any(|bit| is_write_only(bit) || bit == attr::RDATTR_ERROR) {
        return Err(NfsStat::Inval.into());
    }
    if given.mask.iter().any(|bit| !supported.contains(bit)) {
        return Err(NfsStat::Attrnotsupp.into());
    }
    Attrs::decode(given).map_err(NfsStat::from)?;
    Ok(gather_current(context, &fh, &given.mask)?.encode() == *given)
}

/// VERIFY.
pub fn verify(context: &mut Context, given: &Fattr) -> Step<()> {
    if compare(context, given)? { Ok(()) } else { Err(NfsStat::NotSame.into()) }
}

/// NVERIFY.
pub fn nverify(context: &mut Context, given: &Fattr) -> Step<()> {
    if compare(context, given)? { Err(NfsStat::Same.into()) } else { Ok(()) }
}
