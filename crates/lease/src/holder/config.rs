//! What a client may choose.

use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HolderConfig {
    pub drift_margin: DriftMargin,
}

/// How much earlier than the server the client takes a lease for ended: a part of the term, for clocks of different
/// speed, and a constant for what happens between looking at the clock and using the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriftMargin {
    /// Parts per million of the term: the most by which the two clocks' speeds may differ.
    pub drift_ppm: u32,
    pub constant: Duration,
}

impl Default for DriftMargin {
    fn default() -> DriftMargin {
        DriftMargin { drift_ppm: 1000, constant: Duration::from_millis(50) }
    }
}

impl DriftMargin {
    pub const NONE: DriftMargin = DriftMargin { drift_ppm: 0, constant: Duration::ZERO };

    /// What is left of a term. Zero if nothing is: such a lease is never used.
    pub fn usable(self, term: Duration) -> Duration {
        let drift = term.as_nanos() * u128::from(self.drift_ppm) / 1_000_000;
        let drift = Duration::from_nanos(u64::try_from(drift).unwrap_or(u64::MAX));
        term.saturating_sub(drift).saturating_sub(self.constant)
    }
}
