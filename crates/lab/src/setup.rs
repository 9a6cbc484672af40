//! What an experiment needs to run.

use std::fmt;
use std::path::Path;

/// In the environment of programs that an experiment starts beside servers and mounts, with [`Lab::scratch`]: they and all that
/// they start can be told from others, and be ended when the lab was killed.
pub const STARTED_FOR: &str = "SODA_LAB_SCRATCH";

/// How much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// All in about two minutes: fewer points, shorter runs, small files.
    Quick,
    Full,
}

/// What an experiment needs to run.
pub struct Lab<'a> {
    /// The program `soda`, for servers and mounts.
    pub program: &'a Path,
    /// Where servers have their data, and mounts their places. Whoever runs the experiment takes away what is left there, also
    /// when this process is killed.
    pub scratch: &'a Path,
    pub extent: Extent,
    /// Hears what is being done.
    pub progress: &'a dyn Fn(&str),
}

impl fmt::Debug for Lab<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lab")
            .field("program", &self.program)
            .field("scratch", &self.scratch)
            .field("extent", &self.extent)
            .finish_non_exhaustive()
    }
}

impl Lab<'_> {
    pub(crate) fn is_quick(&self) -> bool {
        self.extent == Extent::Quick
    }

    /// One of two, by extent.
    pub(crate) fn by_extent<T>(&self, quick: T, full: T) -> T {
        if self.is_quick() { quick } else { full }
    }
}
