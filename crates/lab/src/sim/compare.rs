//! All protocols beside each other.

use super::leases::{Setting, Use};
use super::{Kind, Outcome, System, replay};
use crate::figure::{Table, digits};
use crate::trace::Trace;
use soda_model::load::Network;

/// What each protocol is called, and what it is.
pub(crate) fn systems() -> Vec<(&'static str, System)> {
    let behind = Use::Behind { age: 1.0 };
    vec![
        ("leases of 10 s (paper)", System::Leases(Setting::paper(10.0, Network::Unicast))),
        ("Soda, write=through", System::Leases(Setting::soda(Use::Through))),
        ("Soda, write=behind", System::Leases(Setting::soda(behind))),
        ("Soda, behind, deep leases", System::Leases(Setting::soda(behind).deep(f64::INFINITY))),
        ("Sprite", System::Sprite),
        ("asking at each read", System::CheckEachRead),
        ("AFS v1", System::AfsV1),
        ("AFS v2", System::AfsV2),
        ("NFS, 3 s", System::Nfs { attributes: 3.0 }),
    ]
}

/// All protocols under a trace, with so many seconds of a round trip.
pub fn under_trace(title: &str, trace: &Trace, round_trip: f64) -> Table {
    let head = [
        "protocol",
        "messages",
        "for consistency",
        "writes and digests",
        "hits %",
        "waited (s)",
        "stale reads",
        "of reads",
    ];
    let mut table = Table::new(title, head);
    let recorded = trace.replay();
    for (name, system) in systems() {
        let outcome = replay(system, &recorded, round_trip);
        table.row([
            name.to_owned(),
            all(&outcome).to_string(),
            (all(&outcome) - changes(&outcome)).to_string(),
            changes(&outcome).to_string(),
            digits(100.0 * outcome.hit_ratio()),
            digits(outcome.read_delay + outcome.write_delay),
            outcome.stale_reads.to_string(),
            outcome.reads.to_string(),
        ]);
    }
    table
}

/// Messages of all kinds.
pub(crate) fn all(outcome: &Outcome) -> u64 {
    outcome.messages.values().sum()
}

/// Of these, those that carry changes and would be there without any cache.
pub(crate) fn changes(outcome: &Outcome) -> u64 {
    let kinds = outcome.messages.iter();
    kinds.filter(|(kind, _)| !Kind::is_for_consistency(**kind)).map(|(_, count)| count).sum()
}
