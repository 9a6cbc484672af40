//! A deterministic world around the *production* lease core: [`soda_lease::LeaseTable`] in a small server,
//! [`soda_lease::Holder`] in small clients, and between and around them everything that goes wrong: connections that
//! break, links that are cut, messages that come late or twice, clocks that drift, nodes that freeze, crash and come
//! back, recalls that are not answered.
//!
//! With delayed writes ([`SimConfig::behind`]) the clients are ahead of the server: they change a small tree under their
//! write leases, log it in the production [`soda_oplog::Log`] and send it later.
//!
//! Everything follows from a seed ([`SimConfig::from_seed`]). [`run`] has two phases: with faults only safety is asked
//! for; then all is healed and every operation must end. What must hold is in [`invariants`], a module each. Mistakes
//! put in on purpose ([`Sabotage`]) prove that they would be found.
//!
//! ```
//! use soda_sim::{Show, SimConfig, run};
//! let report = run(SimConfig::from_seed(7), Show::No);
//! assert!(report.violations.is_empty(), "{}", SimConfig::from_seed(7).command());
//! ```

pub mod client;
pub mod clock;
pub mod config;
pub mod context;
pub mod deed;
pub mod delivery;
pub mod event;
pub mod invariants;
pub mod layout;
pub mod message;
pub mod network;
pub mod property;
pub mod register;
pub mod sabotage;
pub mod server;
pub mod world;

pub use config::{
    Behind, Copies, Extent, FileLocks, Fsync, Heirs, LogPlace, Order, Room, SimConfig, Syncs, TakeOver,
    Writes,
};
pub use context::{Digest, Show};
pub use property::{Property, Violation};
pub use sabotage::Sabotage;
pub use world::{Report, run};
