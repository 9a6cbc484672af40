//! How leases are used in a simulation.

use soda_model::load::Network;

/// How leases are used.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setting {
    /// Seconds; infinite as long as the session.
    pub term: f64,
    pub usage: Use,
    pub network: Network,
    /// Whether the server may withhold leases.
    pub policy: Policy,
    /// Seconds that a session lasts unless something is sent; infinite: it needs no renewal, and leases alone are counted.
    pub session: f64,
    /// Chance that a holder that is asked is dead: then its lease has to run out.
    pub dead: f64,
    pub granularity: Granularity,
    /// What was not used for so many seconds goes back (infinite: nothing does): the mount's `lease-idle`.
    pub idle: f64,
    /// A client that has told changes asks for them to be made durable, at most once in so many seconds, and keeps its leases on
    /// what they changed until then: could the server lose them, it would have to tell them again. 0: they are so at once.
    pub syncs: f64,
}

/// Seconds: [`Setting::syncs`] of the real client (`SYNC_AFTER` of its digests).
const SYNCS: f64 = 2.0;

/// What a lease may cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granularity {
    Nodes,
    /// Whole subtrees, too.
    Deep,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// As the papers, and `soda serve --equation-8 off`.
    AlwaysGrant,
    /// Production's defaults: equation (8), and write leases that back off while they are recalled.
    Production,
}

/// What writers do with their leases.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Use {
    /// As in the SODA paper: a write ends every lease, the writer's own as well, and goes through.
    Paper,
    /// As Soda's `write=through`: who writes has a write lease afterwards, which the next reader has lowered.
    Through,
    /// As Soda's `write=behind`: under a write lease writes stay at the client for so many seconds.
    Behind { age: f64 },
}

impl Setting {
    /// The paper's protocol with this term.
    pub fn paper(term: f64, network: Network) -> Setting {
        Setting {
            term,
            usage: Use::Paper,
            network,
            policy: Policy::AlwaysGrant,
            session: f64::INFINITY,
            dead: 0.0,
            granularity: Granularity::Nodes,
            idle: f64::INFINITY,
            syncs: 0.0,
        }
    }

    /// Soda's, with leases as long as the session, whose renewal is not counted.
    pub fn soda(usage: Use) -> Setting {
        Setting {
            term: f64::INFINITY,
            usage,
            network: Network::Unicast,
            policy: Policy::Production,
            session: f64::INFINITY,
            dead: 0.0,
            granularity: Granularity::Nodes,
            idle: f64::INFINITY,
            syncs: 0.0,
        }
    }

    /// The same with leases always given.
    pub fn without_policy(self) -> Setting {
        Setting { policy: Policy::AlwaysGrant, ..self }
    }

    /// The same with a server whose disk is not that fast.
    pub fn syncing(self) -> Setting {
        Setting { syncs: SYNCS, ..self }
    }

    /// The same with deep leases; they and others are given back after so many seconds without use.
    pub fn deep(self, idle: f64) -> Setting {
        Setting { granularity: Granularity::Deep, idle, ..self }
    }
}
