//! Other sharing and other leases than the paper's, on the same parameters. All exact for Poisson reads and writes.

use super::exact::{fraction, lasting};
use super::{ModelError, Network, Sharing, Term, amount};

impl Sharing {
    /// All N read, `writers` of them write as well, W each: messages per second. The paper lets all N write.
    ///
    /// # Errors
    /// If there are more writers than clients, or less than none.
    pub fn subset_cost(&self, writers: f64, term: Term, network: Network) -> Result<f64, ModelError> {
        let writers = self.some_of(writers)?;
        let fraction = fraction(lasting(writers * self.writes, term.0), self.reads);
        let asked = writers * self.writes * fraction * (self.clients - 1.0);
        let writes = match network {
            Network::Unicast => 2.0 * asked,
            Network::Multicast => writers * self.writes + asked,
        };
        Ok(self.read_cost_at(fraction) + writes)
    }

    /// Equation (8) for a subset of writers: leases pay exactly if R/W > M (N - 1) / N, whatever the term.
    ///
    /// # Errors
    /// As [`Sharing::subset_cost`].
    pub fn subset_leases_pay(&self, writers: f64) -> Result<bool, ModelError> {
        let writers = self.some_of(writers)?;
        Ok(self.reads * self.clients > writers * self.writes * (self.clients - 1.0))
    }

    /// Renewal on use: a lease that was read under during its term is renewed when the term ends, so that who reads
    /// steadily never waits for the server. E(L) = (1 - exp(-NWt)) / (NW (1 - c)) with c = exp(-NWt) (1 - exp(-Rt)), the
    /// chance that a term ends in a renewal; 1 / (1 - c) grants in each such time.
    pub fn renewed_on_use(&self, term: Term) -> Renewed {
        let all_writes = self.clients * self.writes;
        if term.0.is_infinite() || term.0 == 0.0 || self.reads == 0.0 {
            let cost = self.exact_lease_cost(term, Network::Unicast);
            return Renewed { cost, waiting_reads: 1.0 - self.exact_leased_fraction(term) };
        }
        let goes_on = (-all_writes * term.0).exp() * -(-self.reads * term.0).exp_m1();
        let grants = 1.0 / (1.0 - goes_on);
        let length = lasting(all_writes, term.0) * grants;
        let fraction = fraction(length, self.reads);
        let granted = 2.0 * self.clients * grants / (length + 1.0 / self.reads);
        let cost = granted + self.write_cost_at(fraction, Network::Unicast);
        Renewed { cost, waiting_reads: 1.0 - fraction }
    }

    /// Session and object leases (volume leases, Yin et al.): leases on `files` files like this one last as long as the
    /// client's session, and the session is renewed by any message of the client, or by one of its own when it has sent none
    /// for a third of its term. Messages per second for all the files.
    ///
    /// A client sends k (R (1 - p) + W) messages a second anyway, so 1 / (exp(that T/3) - 1) times that a heartbeat.
    ///
    /// # Errors
    /// If there is not one file.
    pub fn session_lease_cost(&self, files: f64, session: Term, network: Network) -> Result<f64, ModelError> {
        let files = some("k", files)?;
        if session == Term::ZERO {
            return Ok(files * self.sprite_cost());
        }
        let objects = files * self.exact_lease_cost(Term::INFINITE, network);
        let missed = 1.0 - self.exact_leased_fraction(Term::INFINITE);
        let traffic = files * (self.reads * missed + self.writes);
        Ok(objects + 2.0 * self.clients * heartbeats(traffic, session.0 / 3.0))
    }

    /// Delayed-write leases (section 2.1): a writer gets the file for itself and changes it in its cache; who reads or writes
    /// next has the server ask for it. The write that gets the lease goes through with its request. Messages per second, data
    /// included: compare with [`Sharing::write_through_cost`].
    /// `age`: seconds after which what was written is told anyway.
    ///
    /// A Markov chain: W (one writer), then 2, 3, ... readers, then W again.
    ///
    /// # Errors
    /// If the age is negative or no number.
    pub fn delayed_write_cost(&self, age: f64) -> Result<f64, ModelError> {
        let age = if age == f64::INFINITY { age } else { amount("age", age)? };
        let Sharing { clients: n, reads: r, writes: w } = *self;
        if w == 0.0 {
            return Ok(0.0);
        }
        // The rate at which somebody else needs what the writer has.
        let others = (n - 1.0) * (r + w);
        if others == 0.0 {
            // Alone: nothing but what age makes it tell, a message and its answer.
            return Ok(2.0 / (age + 1.0 / w));
        }
        // Weights of the states in the long run, W's is 1: flow in equals flow out.
        let mut readers = Vec::new();
        let mut inflow = (n - 1.0) * r;
        let mut m = 2.0;
        while m <= n && inflow > 0.0 {
            let weight = inflow / ((n - m).max(0.0) * r + n * w);
            readers.push((m, weight));
            inflow = weight * (n - m).max(0.0) * r;
            m += 1.0;
        }
        let all = 1.0 + readers.iter().map(|(_, weight)| weight).sum::<f64>();
        let mut per_second = 0.0;
        // In W: told by age, or when somebody asks for it while it is dirty. A visit begins clean.
        let (early, again) = ((-others * age).exp(), w / (w + others));
        let by_age = again * early / (1.0 - early * again);
        let dirty = again * (1.0 - early) / (1.0 - early * again);
        per_second += others * 2.0 * (by_age + dirty);
        // Asked for (2) by the message and the answer of who wants it (2).
        per_second += others * 4.0;
        for (m, weight) in &readers {
            per_second += weight * (n - m).max(0.0) * r * 2.0;
            // By one of the m readers, who keeps its own; by somebody else.
            per_second += weight * m * w * (2.0 + 2.0 * (m - 1.0));
            per_second += weight * (n - m).max(0.0) * w * (2.0 + 2.0 * m);
        }
        Ok(per_second / all)
    }

    /// C_total and two messages for every write: what write-through costs with its data.
    pub fn write_through_cost(&self, term: Term) -> f64 {
        self.exact_lease_cost(term, Network::Unicast) + 2.0 * self.clients * self.writes
    }

    fn some_of(&self, writers: f64) -> Result<f64, ModelError> {
        let fits = (0.0..=self.clients).contains(&writers);
        if fits { Ok(writers) } else { Err(ModelError::Writers { writers, clients: self.clients }) }
    }
}

/// What renewal on use costs and saves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Renewed {
    /// Messages per second.
    pub cost: f64,
    /// The part of reads that wait for the server.
    pub waiting_reads: f64,
}

/// At least one.
pub(super) fn some(name: &'static str, value: f64) -> Result<f64, ModelError> {
    if value.is_finite() && value >= 1.0 { Ok(value) } else { Err(ModelError::None { name, value }) }
}

/// How often nothing happens for `gap` seconds, per second, if things happen at that rate and each gap counts anew.
fn heartbeats(traffic: f64, gap: f64) -> f64 {
    match traffic * gap {
        0.0 => 1.0 / gap,
        expected => traffic / expected.exp_m1(),
    }
}

#[cfg(test)]
#[path = "variants_tests.rs"]
mod tests;
