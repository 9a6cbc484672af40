//! The server's side, one file for each area. Every test says the exact list of what comes out, the empty list too.

mod admission;
mod conflicts;
mod covered;
mod deep;
mod fairness;
mod grace;
mod grants;
mod inquiries;
mod policy;
mod precedence;
mod recalls;
mod sessions;
mod support;
