//! How many messages consistency costs: the analytical model of Kon & Mandel, "SODA: A Lease-Based Consistent
//! Distributed File System", section 3. Equation numbers are the paper's.
//!
//! N clients read and write one file of one server, each as Poisson processes with rates R and W; a read without a
//! valid lease fetches one of term t; a write invalidates every valid lease but the writer's own, and goes through
//! to the server. Counted are the messages that only consistency needs. The write itself is not counted.
//!
//! Beside it, on the same parameters: [`exact`] (a lease that really lasts t), [`GrayCheriton`] (the model it started from),
//! [`variants`] (other sharing, other leases), [`Subtree`] (deep leases), [`delay`] (writes that wait for the dead), [`terms`]
//! (which term to choose).
//!
//! Rates and terms are checked where they are made, so no formula has to refuse anything: what it returns is a number that is
//! not negative, or infinite, never NaN.

pub mod delay;
pub mod exact;
mod gray_cheriton;
mod subtree;
pub mod terms;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trial;
pub mod variants;

use exact::{fraction, missing};
pub use gray_cheriton::GrayCheriton;
pub use subtree::{Covered, Subtree};

/// The most that a number of things, a rate, or a time that is not infinite may be: more than anybody has, and so little that
/// products of some of them are far from infinite.
pub const LARGEST: f64 = 1e12;

/// A parameter that the model has no meaning for.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{name} is {value}: it has to be a number that is not negative")]
    Negative { name: &'static str, value: f64 },
    #[error("{name} is {value:e}: the model computes with {most:e} at most", most = LARGEST)]
    TooLarge { name: &'static str, value: f64 },
    #[error("N is {0}: it has to be a number, and at least one client has to share the file")]
    NoClients(f64),
    #[error("{name} is {value}: it has to be a part of a whole, from 0 to 1")]
    NotAPart { name: &'static str, value: f64 },
    #[error("{writers} of {clients} clients write: they have to be from none to all")]
    Writers { writers: f64, clients: f64 },
    #[error(
        "S is {sharers} of N = {clients} clients: of those that share the file, one to all have it in their caches"
    )]
    Sharers { sharers: f64, clients: f64 },
    #[error("{name} is {value}: there has to be at least one")]
    None { name: &'static str, value: f64 },
}

/// A rate, or a time that is not infinite: from 0 to [`LARGEST`].
pub(crate) fn amount(name: &'static str, value: f64) -> Result<f64, ModelError> {
    match value {
        _ if value.is_nan() || value < 0.0 => Err(ModelError::Negative { name, value }),
        _ if value > LARGEST => Err(ModelError::TooLarge { name, value }),
        _ => Ok(value),
    }
}

/// A time that may be infinite.
pub(crate) fn time(name: &'static str, secs: f64) -> Result<f64, ModelError> {
    if secs == f64::INFINITY { Ok(secs) } else { amount(name, secs) }
}

/// A probability.
pub(crate) fn part(name: &'static str, value: f64) -> Result<f64, ModelError> {
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(ModelError::NotAPart { name, value }) }
}

/// Whether one message of the server reaches all clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    Unicast,
    Multicast,
}

/// Table 1 of the paper: who shares the file and how often each of them uses it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sharing {
    clients: f64,
    reads: f64,
    writes: f64,
}

/// Seconds that a lease lasts, t. 0: ask each time; infinite: a callback.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Term(f64);

impl Term {
    pub const ZERO: Term = Term(0.0);
    pub const INFINITE: Term = Term(f64::INFINITY);

    /// # Errors
    /// If it is negative or no number, or more than [`LARGEST`] and not infinite.
    pub fn new(secs: f64) -> Result<Term, ModelError> {
        Term::named("t", secs)
    }

    /// The same of another lease's term, which errors call by that name.
    ///
    /// # Errors
    /// As [`Term::new`].
    pub fn named(name: &'static str, secs: f64) -> Result<Term, ModelError> {
        time(name, secs).map(Term)
    }

    /// Seconds; infinite for a callback.
    pub fn secs(self) -> f64 {
        self.0
    }
}

impl Sharing {
    /// N clients that each read R times and write W times a second.
    ///
    /// # Errors
    /// If N is less than one, a rate is negative, or one of them is no number or more than [`LARGEST`].
    pub fn new(clients: f64, reads: f64, writes: f64) -> Result<Sharing, ModelError> {
        if clients.is_nan() || clients < 1.0 {
            return Err(ModelError::NoClients(clients));
        }
        Ok(Sharing {
            clients: amount("N", clients)?,
            reads: amount("R", reads)?,
            writes: amount("W", writes)?,
        })
    }

    /// N: clients that access the file.
    pub fn clients(&self) -> f64 {
        self.clients
    }

    /// R: reads per second of each client.
    pub fn reads(&self) -> f64 {
        self.reads
    }

    /// W: writes per second of each client.
    pub fn writes(&self) -> f64 {
        self.writes
    }

    /// Section 3: E(L), seconds that a lease lasts until a write or its term ends it, 1 / (NW + 1/t).
    /// Compare [`Sharing::exact_lease_length`].
    pub fn lease_length(&self, term: Term) -> f64 {
        1.0 / (self.clients * self.writes + 1.0 / term.0)
    }

    /// Equation (1) with E(L) and E(T) put in: the part of the time, 0 to 1, in which a client has a valid lease,
    /// Rt / (1 + Rt + NWt).
    pub fn leased_fraction(&self, term: Term) -> f64 {
        fraction(self.lease_length(term), self.reads)
    }

    /// Equation (2): S, the expected number of clients that hold a valid lease, NRt / (1 + Rt + NWt).
    pub fn holders(&self, term: Term) -> f64 {
        self.clients * self.leased_fraction(term)
    }

    /// Equation (3): C_R, messages per second for granting leases to readers, 2NR(1 + NWt) / (1 + Rt + NWt): two
    /// messages for the one read of 1 + R E(L) that has no lease.
    pub fn read_cost(&self, term: Term) -> f64 {
        self.read_cost_at(self.lease_length(term))
    }

    /// Equation (4): C_W, messages per second for invalidating leases before writes. Unicast 2S(N-1)W; multicast
    /// NW + S(N-1)W, one message out and a reply of each holder.
    pub fn write_cost(&self, term: Term, network: Network) -> f64 {
        self.write_cost_at(self.lease_length(term), network)
    }

    /// Equation (5): C_total, messages per second that the lease protocol costs.
    pub fn lease_cost(&self, term: Term, network: Network) -> f64 {
        self.read_cost(term) + self.write_cost(term, network)
    }

    /// Section 3.4: messages per second of Sprite's protocol under concurrent write sharing, 2NR: every read asks the
    /// server.
    pub fn sprite_cost(&self) -> f64 {
        2.0 * self.clients * self.reads
    }

    /// Whether leases cost less than asking the server at each read, as the paper has it; a term of 0 saves nothing.
    ///
    /// Unicast, equation (7), which comes to (8): R/W > N - 1, whatever the term. It does not contain E(L), so it is exact.
    /// Multicast, equation (6), which comes to the condition after (8): R > [`Sharing::multicast_break_even`]. That has the
    /// paper's E(L) in it; [`Sharing::exact_leases_pay`] has the exact one.
    pub fn leases_pay(&self, term: Term, network: Network) -> bool {
        match network {
            Network::Unicast => term > Term::ZERO && self.reads > (self.clients - 1.0) * self.writes,
            Network::Multicast => self.reads > self.multicast_break_even(term),
        }
    }

    /// The R above which leases pay on a multicast network, reads per second (section 3.4, after equation (8)):
    /// NW/4 (1 + sqrt(1 + 8/N (1 + 1/(NWt)))). Infinite for a term of 0.
    pub fn multicast_break_even(&self, term: Term) -> f64 {
        self.multicast_break_even_at(self.lease_length(term))
    }

    /// Section 3.5: (R + W) / W, the number of clients from which on leases cost more than asking (equation (8) solved
    /// for N). Infinite when nobody writes.
    pub fn break_even_clients(&self) -> f64 {
        if self.writes == 0.0 { f64::INFINITY } else { (self.reads + self.writes) / self.writes }
    }

    /// Equation (3), 2NR / (1 + R E(L)), for any E(L).
    fn read_cost_at(&self, length: f64) -> f64 {
        2.0 * self.clients * self.reads * missing(length, self.reads)
    }

    /// Equation (4), likewise.
    fn write_cost_at(&self, length: f64, network: Network) -> f64 {
        let holders = self.clients * fraction(length, self.reads);
        let replies = holders * (self.clients - 1.0) * self.writes;
        match network {
            Network::Unicast => 2.0 * replies,
            Network::Multicast => self.clients * self.writes + replies,
        }
    }

    /// (6) for any E(L), solved for R. With p of equation (1) it is p (2R - (N-1)W) > W, so 2R^2 - NWR > W / E(L):
    /// R > NW/4 (1 + sqrt(1 + 8 / (N^2 W E(L)))).
    fn multicast_break_even_at(&self, length: f64) -> f64 {
        if length == 0.0 {
            return f64::INFINITY;
        }
        // The same, divided by nothing that may be zero.
        let all_writes = self.clients * self.writes;
        (all_writes + (all_writes * all_writes + 8.0 * self.writes / length).sqrt()) / 4.0
    }
}
