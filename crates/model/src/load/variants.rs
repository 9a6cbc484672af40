//! Other sharing and other leases than the paper's, on the same parameters. All exact for Poisson reads and writes.

use super::exact::{fraction, lasting, missing};
use super::{ModelError, Network, Sharing, Term, amount, time};

impl Sharing {
    /// All N read, `writers` of them write as well, W each: messages per second. The paper lets all N write.
    ///
    /// # Errors
    /// If there are more writers than clients, or less than none.
    pub fn subset_cost(&self, writers: f64, term: Term, network: Network) -> Result<f64, ModelError> {
        let writers = self.some_of(writers)?;
        let length = lasting(writers * self.writes, term.0);
        let asked = writers * self.writes * fraction(length, self.reads) * (self.clients - 1.0);
        let writes = match network {
            Network::Unicast => 2.0 * asked,
            Network::Multicast => writers * self.writes + asked,
        };
        Ok(self.read_cost_at(length) + writes)
    }

    /// Equation (8) for a subset of writers: leases pay exactly if R/W > M (N - 1) / N, whatever the term.
    ///
    /// # Errors
    /// As [`Sharing::subset_cost`].
    pub fn subset_leases_pay(&self, writers: f64) -> Result<bool, ModelError> {
        let writers = self.some_of(writers)?;
        Ok(self.reads * self.clients > writers * self.writes * (self.clients - 1.0))
    }

    /// Leases as Soda uses them with writes that go through: who writes has the file for itself then, for a whole term, until the
    /// next who reads has that lease lowered (2 messages), and both keep theirs. So a lease is ended by its term since its
    /// holder's last write, or by others' writes, and one begins with a write, too. Messages per second, the writes themselves
    /// not counted; compare [`Sharing::exact_lease_cost`], where a write ends its writer's own lease.
    ///
    /// E(L) = (1 - exp(-NWt)) / (NW) N / (N - 1 + exp(-NWt)): of the writes that end a term early, one of N is the holder's
    /// own and begins it anew. Without a lease a client is 1 / (R + W), so p = (R + W) E(L) / (1 + (R + W) E(L)). As Poisson
    /// events see what there is on average, reads cost 2NR (1 - p), and writes 2NW (N - 1) p. One has the file for itself if
    /// nobody else has read since the last write, and that was in the last t: q = NW (1 - exp(-xt)) / x of the time, x = NW +
    /// (N - 1) R; then each of the (N - 1) R others' reads costs 2 more.
    pub fn kept_lease_cost(&self, term: Term) -> f64 {
        let Sharing { clients: n, reads: r, writes: w } = *self;
        let (all_writes, others) = (n * w, (n - 1.0) * r);
        // The chance of no write in a term: where nobody writes, also in an infinite one.
        let untouched = if all_writes == 0.0 { 1.0 } else { (-all_writes * term.0).exp() };
        let length = lasting(all_writes, term.0) * (n / (n - 1.0 + untouched));
        let asked = 2.0 * n * r * missing(length, r + w);
        let recalled = 2.0 * all_writes * (n - 1.0) * fraction(length, r + w);
        // A part, also where the rate of writes is next to nothing and its inverse infinite.
        let alone = if all_writes == 0.0 { 0.0 } else { all_writes * lasting(all_writes + others, term.0) };
        asked + recalled + 2.0 * others * alone.min(1.0)
    }

    /// Renewal on use: a lease that was read under during its term is renewed when the term ends, so that who reads
    /// steadily never waits for the server. E(L) = (1 - exp(-NWt)) / (NW (1 - c)) with c = exp(-NWt) (1 - exp(-Rt)), the
    /// chance that a term ends in a renewal; 1 / (1 - c) grants in each such time.
    pub fn renewed_on_use(&self, term: Term) -> Renewed {
        let (reads, all_writes) = (self.reads, self.clients * self.writes);
        if term.0.is_infinite() || term.0 == 0.0 || reads == 0.0 {
            let cost = self.exact_lease_cost(term, Network::Unicast);
            return Renewed { cost, waiting_reads: missing(self.exact_lease_length(term), reads) };
        }
        // 1 - c, without the loss of digits where c is almost 1.
        let ends = -(-all_writes * term.0).exp_m1() + (-(all_writes + reads) * term.0).exp();
        let length = lasting(all_writes, term.0);
        let granted = 2.0 * self.clients * reads / (ends + reads * length);
        let cost = granted + self.write_cost_at(length / ends, Network::Unicast);
        Renewed { cost, waiting_reads: ends / (ends + reads * length) }
    }

    /// Session and object leases (volume leases, Yin et al.): leases on `files` files like this one last as long as the
    /// client's session, and the session is renewed by any message of the client, or by one of its own when it has sent none
    /// for a third of its term. Messages per second for all the files.
    ///
    /// A client sends m = k (R (1 - p) + W) messages a second anyway, so m / (exp(mT/3) - 1) heartbeats; 3/T if m is 0.
    ///
    /// # Errors
    /// If there is not one file.
    pub fn session_lease_cost(&self, files: f64, session: Term, network: Network) -> Result<f64, ModelError> {
        let files = some("k", files)?;
        if session == Term::ZERO {
            return Ok(files * self.sprite_cost());
        }
        let objects = files * self.exact_lease_cost(Term::INFINITE, network);
        let missed = missing(self.exact_lease_length(Term::INFINITE), self.reads);
        let traffic = files * (self.reads * missed + self.writes);
        Ok(objects + 2.0 * self.clients * heartbeats(traffic, session.0 / 3.0))
    }

    /// Delayed-write leases (section 2.1): a writer gets the file for itself and changes it in its cache; who reads or writes
    /// next has the server ask for it. The write that gets the lease goes through with its request. Messages per second, data
    /// included: compare with [`Sharing::write_through_cost`].
    /// `age`: seconds after which what was written is told anyway.
    ///
    /// One writer has the file, or some read it. Of the time, NW / (NW + (N-1)R) belongs to a writer, until somebody else reads
    /// or writes; then it is asked for (2 messages), and who wanted it is answered (2). Before that it has told its changes,
    /// by age or because it was asked, W / (1 + W L) times a second, L = (1 - exp(-oa)) / o with o = (N-1)(R+W) others. The
    /// rest belongs to readers, two at first, and everybody who reads joins them until the next write, so there are
    /// M = 2 + (N-2) R / (R + NW) on average. A reader who joins costs 2, a write 2 and 2 for each other reader:
    /// 2R (N-M) + 2W (N + (N-1) M) a second.
    ///
    /// # Errors
    /// If the age is negative or no number.
    pub fn delayed_write_cost(&self, age: f64) -> Result<f64, ModelError> {
        self.delayed_subset_cost(self.clients, age)
    }

    /// The same if only `writers` of the N write, W each: a writer loses the file to (N-1) R reads and (M-1) W writes a second,
    /// and there are M W writes in all. For as many writes in all this costs at most what it does if everybody writes.
    ///
    /// While there are readers, a write finds M' - h others: M' = 2 + (N-2) R / (R + MW), and h is the chance that a client who
    /// writes is among them. It is if it wrote last, was the first to read after that (s = (N + M - 2) / (M (N-1)) for both), or
    /// has read since: h = 1 - (1 - s) MW / (R + MW).
    ///
    /// # Errors
    /// As [`Sharing::delayed_write_cost`] and [`Sharing::subset_cost`].
    pub fn delayed_subset_cost(&self, writers: f64, age: f64) -> Result<f64, ModelError> {
        let (age, writers) = (time("age", age)?, self.some_of(writers)?);
        let Sharing { clients: n, reads: r, writes: w } = *self;
        let all = writers * w;
        if all == 0.0 {
            return Ok(0.0);
        }
        let others = (n - 1.0) * r + (writers - 1.0).max(0.0) * w;
        let of_writers = 4.0 * others + 2.0 * w / (1.0 + w * lasting(others, age));
        if n == 1.0 {
            return Ok(of_writers);
        }
        // N - M': they do not read before the next write.
        let unread = all / (r + all);
        let outside = (n - 2.0) * unread;
        let was_first = match writers {
            ..=1.0 => 1.0,
            _ => ((n + writers - 2.0) / (writers * (n - 1.0))).clamp(0.0, 1.0),
        };
        let is_reader = 1.0 - (1.0 - was_first) * unread;
        let of_readers = 2.0 * r * outside + 2.0 * all * (1.0 + (n - outside) - is_reader);
        let written = all / (all + (n - 1.0) * r);
        let read = (n - 1.0) * r / (all + (n - 1.0) * r);
        Ok(written * of_writers + read * of_readers)
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
    if value.is_nan() || value < 1.0 { Err(ModelError::None { name, value }) } else { amount(name, value) }
}

/// How often nothing happens for `gap` seconds, per second, if things happen at that rate and each gap counts anew.
fn heartbeats(traffic: f64, gap: f64) -> f64 {
    if gap.is_infinite() {
        return 0.0;
    }
    let expected = traffic * gap;
    if expected < f64::EPSILON { 1.0 / gap } else { traffic / expected.exp_m1() }
}

#[cfg(test)]
#[path = "variants_tests.rs"]
mod tests;
