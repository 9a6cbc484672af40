//! Delayed writes: what this client does by itself under its write leases, and tells the server afterwards (the delayed-write
//! leases of the SODA paper; the operation log and the digests of Strata).
//!
//! # Here or through
//! An operation is carried out *here* when nobody else can see what it touches: each inode is covered by a write lease that
//! nobody has asked for, or was made here and is not known to the server yet; and when everything is known that decides
//! its outcome. Then it changes the caches and becomes a record of the [log](soda_oplog::Log). Everything else goes
//! *through*: to the server at once, after what the server has to know before (`Inner::settled`).
//!
//! # Digests
//! Records travel in digests, in slots of their own, so that no operation which waits at the server can keep the flush waiting
//! that it waits for; where the server is far away several are under way, each applied only after the one before it. They are
//! sent for those who wait (recalls, fsync, operations that go through) before all others, else by age and size. fsync has the
//! server asked for a sync in the same round trip: it is done when the digest is applied.
//!
//! # What is made here
//! An inode that the server does not know is covered by the session: nobody else can reach it. The answer to the digest that
//! creates it brings its own write lease.
//!
//! # The parts
//! `here` says what may be done here; `names`, `data` and `attrs` do it; `digest` tells the server, `wait` is for those who
//! need that done, `report` says how much there is to tell, `reserve` sets aside what it will need, `loss` is about sessions
//! that end, and servers that come back with less. `doomed` is for files that are removed while the server is full. The log
//! itself is in [`crate::log`].

pub(crate) mod attrs;
pub(crate) mod data;
pub(crate) mod digest;
pub(crate) mod doomed;
pub(crate) mod here;
pub(crate) mod loss;
pub(crate) mod moves;
pub(crate) mod names;
pub(crate) mod report;
pub(crate) mod reserve;
pub(crate) mod wait;
