//! What leases cost, three times: by formula, by simulation of the production lease core, and measured of the real system;
//! beside what the papers say that Soda comes from. `docs/LAB.md` explains it to a newcomer.
//!
//! * [`model`]: the formulas of `soda-model` as tables and curves.
//! * [`workload`]: what clients do, drawn by chance.
//! * [`sim`]: the production [`soda_lease::LeaseTable`] and [`soda_lease::Holder`], and other systems' protocols, under the same
//!   workloads, message by message, repeatable by seed.
//! * [`trace`]: what programs asked of a real mount, as a workload for the simulation.
//! * [`setup`], [`experiment`]: the papers' experiments by name; those of the real system start servers and mounts as processes.
//! * [`figure`], [`check`], [`machine`], [`plot`], [`report`]: what was found, as data, what it is held to, when and where,
//!   drawn, and on one page.
//! * [`advise`]: what the model makes of a running server's counters.

pub mod advise;
mod cell;
pub mod check;
pub mod experiment;
pub mod figure;
pub mod machine;
pub mod model;
pub mod plot;
mod proxy;
pub mod report;
pub mod setup;
pub mod sim;
pub mod trace;
pub mod workload;

use std::path::PathBuf;

/// Why something was not computed, measured or written.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error(transparent)]
    Model(#[from] soda_model::load::ModelError),
    #[error("{0}")]
    Usage(String),
    #[error("the figure {0} cannot be drawn: {1}")]
    Plot(String, String),
    #[error("{path}: {cause}", path = .path.display())]
    Io { path: PathBuf, cause: std::io::Error },
    #[error("{0}")]
    Failed(String),
}

impl LabError {
    /// About this file or directory.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> LabError {
        let path = path.into();
        move |cause| LabError::Io { path, cause }
    }
}
