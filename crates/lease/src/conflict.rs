//! Which leases exclude each other, as pure rules on (scope, mode) and on how two objects lie in the tree.
//!
//! A *node* lease covers one object. A *subtree* lease covers a directory and all below it. Two leases of different
//! sessions conflict exactly when they cover an object in common and one of them is a write lease. So for a lease
//! that is asked for, there are three places to look (Zhang & Honeyman, "Hierarchical replication control in a global
//! file system", figure 2):
//!
//! * the object itself: any lease;
//! * its ancestors: only deep ones reach down to it;
//! * its descendants: only if the lease that is asked for is deep.
//!
//! The third place would be a walk of the whole subtree. The *ancestry table* avoids it: for each directory, how many
//! read and write leases each session holds anywhere below it. Granting a lease adds one to each ancestor's count,
//! which is one step per path element; the check for a deep lease is then one look-up. A rename moves the counts of
//! what it moves from the old ancestors to the new ones, which is why renames across the edge of a deep lease recall
//! both sides, and why hard-linked files, which have several chains of ancestors, are never covered by a deep lease.
//!
//! # Where deep leases go into the table
//! Node leases are all that the table grants so far. What a deep lease adds, and where:
//!
//! * An access names its object; it will also name the chain of ancestors, from the parent to the root, as the volume has it
//!   while the operation is planned. The table does not keep the tree.
//! * `store.rs`: a lease gets its [`Scope`], an object the ancestry counts of each session; `add_lease` and `remove_lease` are
//!   the only places where leases come and go, so the counts are kept there. A lease is looked up by (object, session), so one
//!   session holds at most one lease on an object: the wider scope takes the narrower one's place.
//! * `admission.rs`: `clear_leases` is the only place that decides which leases are in the way. It looks at the object
//!   ([`Place::Same`]) and will look at the ancestors with deep leases ([`Place::Above`]) and, for a deep one, at the counts
//!   ([`Place::Below`]). `examine_covered_or` asks [`covers`] of the ancestors in the same way. `precedence.rs` has to
//!   count an answer that is owed for an ancestor too.
//! * A hole is a recall that names another object than the lease's own. So `Recall` and `RecallAck` will have a field
//!   for it, and the outstanding recalls, which are found by the epoch of the lease, will be found by (epoch, object).
//!
//! For node leases the object itself is the only place to look. The table does so in its own words (`clear_leases`), and
//! `tests/table/conflicts.rs` holds these rules against them.

use soda_types::{Mode, Scope};

/// Where the object of a held lease lies, seen from the object that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Same,
    /// The held lease is on a directory above.
    Above,
    /// The held lease is on something below.
    Below,
    /// Neither contains the other.
    Elsewhere,
}

/// A lease as far as conflicts are concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    pub scope: Scope,
    pub mode: Mode,
}

/// What the holder of a lease must do before another session gets one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Concession {
    /// Nothing, the two go together.
    Nothing,
    /// Keep reading, no more.
    LowerToRead,
    /// Give it up; for a deep lease on a directory above: punch a hole for the object.
    GiveUp,
}

/// The leases cover an object in common.
pub fn overlap(held: Scope, place: Place, asked: Scope) -> bool {
    match place {
        Place::Same => true,
        Place::Above => held == Scope::Subtree,
        Place::Below => asked == Scope::Subtree,
        Place::Elsewhere => false,
    }
}

/// What the holder of `held`, whose object lies at `place` seen from the one that is asked for, must do before another
/// session gets `asked`.
pub fn concession(held: Reach, place: Place, asked: Reach) -> Concession {
    if !overlap(held.scope, place, asked.scope) {
        return Concession::Nothing;
    }
    match (held.mode, asked.mode) {
        (Mode::Read, Mode::Read) => Concession::Nothing,
        (Mode::Write, Mode::Read) => Concession::LowerToRead,
        (_, Mode::Write) => Concession::GiveUp,
    }
}

/// `held` allows what `asked` would, so that the same session needs no new lease.
pub fn covers(held: Reach, place: Place, asked: Reach) -> bool {
    let reaches = match place {
        Place::Same => held.scope >= asked.scope,
        Place::Above => held.scope == Scope::Subtree,
        Place::Below | Place::Elsewhere => false,
    };
    reaches && held.mode >= asked.mode
}

#[cfg(test)]
mod tests;
