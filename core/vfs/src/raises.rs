//! Why the epoch rose: what the [epoch record](crate::epoch) remembers of its last raises.

use std::fmt;
use std::str::FromStr;

/// Why every change attribute rose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A session of ivers did not end cleanly, and no other program has written since it began.
    UncleanEnd,
    /// Another program wrote to the filesystem.
    OtherProgram,
    /// Both.
    Both,
}

impl Cause {
    const ALL: [Cause; 3] = [Cause::UncleanEnd, Cause::OtherProgram, Cause::Both];

    /// The name, also in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::UncleanEnd => "unclean_end",
            Cause::OtherProgram => "other_program",
            Cause::Both => "both",
        }
    }

    fn bits(self) -> u16 {
        match self {
            Cause::UncleanEnd => 1,
            Cause::OtherProgram => 2,
            Cause::Both => 3,
        }
    }

    fn of_bits(bits: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.bits() == bits)
    }
}

/// Bits of a raise in the record. 0 means that the cause is not known.
const BITS: u32 = 2;
/// Raises that the record remembers.
const KEPT: u32 = u16::BITS / BITS;
const UNKNOWN: &str = "unknown";
/// The name of the fact in [`FileSystem::describe`](crate::FileSystem::describe) that has these causes.
pub const RAISED_BY: &str = "raised by";

/// The causes of the last eight steps of the epoch. The newest is in the lowest bits. A step is 0 if its
/// cause is not known, also because it is older than such records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Raises(u16);

impl Raises {
    /// What the record stores.
    pub fn to_bits(self) -> u16 {
        self.0
    }

    /// Reads what [`Raises::to_bits`] returned.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Adds steps of the epoch.
    #[must_use]
    pub fn with(self, cause: Option<Cause>, steps: u64) -> Self {
        let add = |bits: u16, _| bits << BITS | cause.map_or(0, Cause::bits);
        Self((0..steps.min(u64::from(KEPT))).fold(self.0, add))
    }

    fn step(self, back: u32) -> Option<Cause> {
        Cause::of_bits(self.0 >> (back * BITS) & ((1 << BITS) - 1))
    }

    /// Returns the causes of the last `steps` steps together. `None`: not all of them are known.
    pub fn of_last(self, steps: u64) -> Option<Cause> {
        let steps = u32::try_from(steps).ok().filter(|steps| (1..=KEPT).contains(steps))?;
        let mut all = 0;
        for back in 0..steps {
            all |= self.step(back)?.bits();
        }
        Cause::of_bits(all)
    }
}

/// Names, the newest first.
impl fmt::Display for Raises {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = (0..KEPT).rev().find(|&back| self.step(back).is_some()).map_or(0, |last| last + 1);
        let names: Vec<_> = (0..known).map(|back| self.step(back).map_or(UNKNOWN, Cause::name)).collect();
        f.write_str(&names.join(" "))
    }
}

impl FromStr for Raises {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut raises = Self::default();
        for name in text.split_whitespace().rev() {
            let cause = Cause::ALL.into_iter().find(|cause| cause.name() == name);
            if cause.is_none() && name != UNKNOWN {
                return Err("not the name of a cause");
            }
            raises = raises.with(cause, 1);
        }
        Ok(raises)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Cause::*;

    #[test]
    fn causes_of_several_steps_are_joined() {
        let raises = Raises::default()
            .with(None, 1)
            .with(Some(UncleanEnd), 1)
            .with(Some(OtherProgram), 2)
            .with(Some(OtherProgram), 2);
        let expected = [
            (1, Some(OtherProgram)),
            (4, Some(OtherProgram)),
            (5, Some(Both)),
            (6, None),
            (9, None),
            (0, None),
        ];
        for (steps, cause) in expected {
            assert_eq!(raises.of_last(steps), cause, "{steps}");
        }
        assert_eq!(raises.of_last(u64::MAX), None);
        assert_eq!(Raises::default().with(Some(Both), 2).of_last(2), Some(Both));
        assert_eq!(
            raises.with(Some(UncleanEnd), 100).of_last(8),
            Some(UncleanEnd),
            "older ones are forgotten"
        );
    }

    #[test]
    fn names_round_trip() {
        for bits in [0, 1, 2, 3, 0b01_00_10, 0xFFFF, 0x4000] {
            let raises = Raises::from_bits(bits);
            assert_eq!(raises.to_string().parse(), Ok(raises), "{raises}");
        }
        assert_eq!(Raises::from_bits(0b10_00_01).to_string(), "unclean_end unknown other_program");
        assert!("nonsense".parse::<Raises>().is_err());
        let many = "both ".repeat(20);
        assert_eq!(many.parse(), Ok(Raises::from_bits(u16::MAX)));
    }
}
