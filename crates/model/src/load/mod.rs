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
//! Rates and terms are checked where they are made, so no formula has to refuse anything.

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

pub use gray_cheriton::GrayCheriton;
pub use subtree::Subtree;

/// A parameter that the model has no meaning for.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{name} is {value}: it has to be a number that is not negative")]
    Negative { name: &'static str, value: f64 },
    #[error("N is {0}: it has to be a number, and at least one client has to share the file")]
    NoClients(f64),
    #[error("{name} is {value}: it has to be a part of a whole, from 0 to 1")]
    NotAPart { name: &'static str, value: f64 },
    #[error("{writers} of {clients} clients write: they have to be from none to all")]
    Writers { writers: f64, clients: f64 },
    #[error("{name} is {value}: there has to be at least one")]
    None { name: &'static str, value: f64 },
}

/// A rate or a time: finite and not negative.
pub(crate) fn amount(name: &'static str, value: f64) -> Result<f64, ModelError> {
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err(ModelError::Negative { name, value }) }
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
    /// [`ModelError::Negative`], also if it is no number.
    pub fn new(secs: f64) -> Result<Term, ModelError> {
        if secs == f64::INFINITY { Ok(Term::INFINITE) } else { Ok(Term(amount("t", secs)?)) }
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
    /// If N is less than one, or a rate is negative, infinite or no number.
    pub fn new(clients: f64, reads: f64, writes: f64) -> Result<Sharing, ModelError> {
        if !(clients.is_finite() && clients >= 1.0) {
            return Err(ModelError::NoClients(clients));
        }
        Ok(Sharing { clients, reads: amount("R", reads)?, writes: amount("W", writes)? })
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

    /// Equation (1) with E(L) and E(T) put in: the part of the time, 0 to 1, in which a client has a valid lease,
    /// Rt / (1 + Rt + NWt).
    pub fn leased_fraction(&self, term: Term) -> f64 {
        let lost = self.lease_end_rate(term);
        if lost.is_infinite() {
            return 0.0;
        }
        if self.reads == 0.0 {
            return 0.0;
        }
        // E(L) / (E(L) + E(T)) = (1/lost) / (1/lost + 1/R), written so that an infinite term and W = 0 divide nothing
        // by zero.
        self.reads / (self.reads + lost)
    }

    /// Equation (2): S, the expected number of clients that hold a valid lease, NRt / (1 + Rt + NWt).
    pub fn holders(&self, term: Term) -> f64 {
        self.clients * self.leased_fraction(term)
    }

    /// Equation (3): C_R, messages per second for granting leases to readers, 2NR(1 + NWt) / (1 + Rt + NWt): two
    /// messages for the one read of 1 + R E(L) that has no lease.
    pub fn read_cost(&self, term: Term) -> f64 {
        self.read_cost_at(self.leased_fraction(term))
    }

    /// Equation (4): C_W, messages per second for invalidating leases before writes. Unicast 2S(N-1)W; multicast
    /// NW + S(N-1)W, one message out and a reply of each holder.
    pub fn write_cost(&self, term: Term, network: Network) -> f64 {
        self.write_cost_at(self.leased_fraction(term), network)
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

    /// Whether leases cost less than asking the server at each read.
    ///
    /// Unicast, equation (8): R/W > N - 1, whatever the term. Multicast, the condition after it:
    /// R > NW/4 (1 + sqrt(1 + 8/N (1 + 1/(NWt)))).
    pub fn leases_pay(&self, term: Term, network: Network) -> bool {
        match network {
            Network::Unicast => self.reads > (self.clients - 1.0) * self.writes,
            Network::Multicast => self.reads > self.multicast_break_even(term),
        }
    }

    /// The R above which leases pay on a multicast network, reads per second (section 3.4, after equation (8)).
    pub fn multicast_break_even(&self, term: Term) -> f64 {
        if self.writes == 0.0 {
            return 0.0;
        }
        let all_writes = self.clients * self.writes;
        all_writes / 4.0 * (1.0 + (1.0 + 8.0 / self.clients * (1.0 + 1.0 / (all_writes * term.0))).sqrt())
    }

    /// Section 3.5: (R + W) / W, the number of clients from which on leases cost more than asking (equation (8) solved
    /// for N). Infinite when nobody writes.
    pub fn break_even_clients(&self) -> f64 {
        (self.reads + self.writes) / self.writes
    }

    /// Equation (3) for any part of the time in which a client has a lease.
    fn read_cost_at(&self, leased: f64) -> f64 {
        2.0 * self.clients * self.reads * (1.0 - leased)
    }

    /// Equation (4), likewise.
    fn write_cost_at(&self, leased: f64, network: Network) -> f64 {
        let replies = self.clients * leased * (self.clients - 1.0) * self.writes;
        match network {
            Network::Unicast => 2.0 * replies,
            Network::Multicast => self.clients * self.writes + replies,
        }
    }

    /// NW + 1/t, the rate at which a valid lease ends, per second: by anybody's write or by its term. 1/E(L).
    fn lease_end_rate(&self, term: Term) -> f64 {
        self.clients * self.writes + 1.0 / term.0
    }
}
