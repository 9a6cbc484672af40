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
//! # Deep leases in the table and the holder
//! `table/ancestry.rs` is the ancestry table, `table/deep.rs` says what a deep lease covers, `table/holes.rs` what not,
//! `table/offers.rs` who gets one, `table/parts.rs` asks for parts, `holder/deep.rs` is the client's side. The stories
//! `testdata/D_*` and `E_*` tell it, and `tests/deep` holds the table against these rules on trees that change.
//! What was chosen:
//!
//! * *A hole is one object.* A directory that another session uses, to change its names say, leaves what is below it covered.
//!   That user may move things in and out of it without another word; a directory that it moves takes along what others were
//!   told of below it: in that step the table gives each of them a deep lease on the directory, in the place of the one above,
//!   and asks for all of it. They never hear of that lease but by the question.
//! * *A hole with all below it* is where another session has a deep lease or has made a directory, where too many holes are in
//!   one directory, and where the place of an object was not known.
//! * *Covered is what the server has said so of*, with the answers (`Covered`), object by object. So the client need not know
//!   the holes, hard links need no word of their own, and holes heal in the table alone.
//! * *Each question has an epoch of its own.* A deep lease keeps its epoch unless it gets another mode or comes to stand for
//!   more; questions have theirs. So an answer of before an own change or move, or to a weaker question, does not count.
//! * *A deep lease is beside the node leases of its session,* not in their place: a session may read a whole tree under a
//!   deep lease and hold write leases on objects of it.
//!
//! * *What a session moves it takes along.* An object that its own rename, link or unlink takes out of reach of its deep lease
//!   stays covered for it, because the table puts another lease in the old one's place in the same step: a node lease on the
//!   object, and on what is below a directory a deep one with the old one's holes. So it need not be told before, and the
//!   client drops nothing.
//!
//! # What a server and a client have to do
//! * *Places.* A plan takes [`LeaseTable::tree_version`](crate::LeaseTable::tree_version) first, then the chain of each object
//!   from the volume, which knows the parent of what has one name. `Access::not_deep` is for what has several names or none.
//!   What has no place is asked of every deep lease of the volume, and while a lease is held on such an object nobody else
//!   gets a deep one there: right, and useless if it happens often.
//! * *Ends.* `finish_tree`, and `finish_covered_tree` for digests: with what was created, moved and linked. What is covered goes
//!   into the reply, together with the deep lease: the reply that brought that one may have been lost. A digest that is refused
//!   because nobody can say just now where something lies (`Refusal::Unplaced`) comes again. `forget_holes_of` for what is gone.
//! * *Restart.* A deep lease says nothing of what a power cut may have taken from the server. So clients claim what it covered
//!   object by object, each with its version, as node leases ([`Holder::fall_back_to_nodes`](crate::Holder::fall_back_to_nodes)).
//! * *Client.* `handle_reply_covered`; `begin_move` before every rename, link and unlink that goes through, `begin_own_move` for
//!   those that the log tells later; `RecallStep::DropPart` drops and flushes a list of objects; `release_deep` when idle. A
//!   question about part of a deep lease is not answered while a digest is under way: its answer, if it was lost with a
//!   connection, may have said that what it made is covered.
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
