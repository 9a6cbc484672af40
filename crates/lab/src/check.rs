//! What an experiment is held to: claims beside its figures, each with the numbers that it was judged by.

use crate::LabError;
use serde::{Deserialize, Serialize};

/// A claim, and whether what was found bears it out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// A sentence that is true if all is well.
    pub claim: String,
    pub holds: bool,
    /// What it was judged by.
    pub numbers: String,
    pub basis: Basis,
}

/// What a claim is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Basis {
    /// Messages, what files have, what was simulated, the least that a distance takes: the same on any machine, however busy.
    /// Where such a claim does not hold, the experiment has failed.
    Counted,
    /// How long something took here, and messages that depend on when something came (such as before or after the end of a
    /// lease), which is said and judged by readers.
    Timed,
}

impl Basis {
    /// In a table.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Basis::Counted => "counts",
            Basis::Timed => "times here",
        }
    }
}

impl Check {
    pub(crate) fn counted(claim: impl Into<String>, holds: bool, numbers: impl Into<String>) -> Check {
        Check { claim: claim.into(), holds, numbers: numbers.into(), basis: Basis::Counted }
    }

    pub(crate) fn timed(claim: impl Into<String>, holds: bool, numbers: impl Into<String>) -> Check {
        Check { claim: claim.into(), holds, numbers: numbers.into(), basis: Basis::Timed }
    }

    /// In a table.
    pub fn answer(&self) -> &'static str {
        if self.holds { "yes" } else { "no" }
    }

    /// What does not hold though it does not depend on the machine.
    pub(crate) fn broken(checks: &[Check]) -> Option<LabError> {
        let broken = checks.iter().filter(|check| check.basis == Basis::Counted && !check.holds);
        let said: Vec<String> = broken.map(ToString::to_string).collect();
        if said.is_empty() { None } else { Some(LabError::Failed(said.join("; "))) }
    }
}

/// A line.
impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Check { claim, holds, numbers, .. } = self;
        let answer = if *holds { "holds" } else { "does not hold" };
        write!(f, "{answer}: {claim} ({numbers})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_does_not_depend_on_the_machine_breaks_an_experiment() {
        let fine = [Check::counted("a", true, "1"), Check::timed("b is fast", false, "2 s")];
        assert!(Check::broken(&fine).is_none());
        let broken = [fine[1].clone(), Check::counted("each file is there", false, "3 of 4")];
        let said = Check::broken(&broken).expect("one does not hold").to_string();
        assert_eq!(said, "does not hold: each file is there (3 of 4)");
    }
}
