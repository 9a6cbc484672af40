//! Places at which a test can have the client die ([`soda_crash`]). Those of the server are `soda_storage::crash`.

/// Every crash point of the client.
pub const ALL: &[&str] = &[
    "client.session-begun",
    "client.record-queued",
    "client.record-written",
    "client.digest-noted",
    "client.digest-answered",
    "client.digest-applied",
    "client.durable",
    "client.replay-resumed",
    "client.replay-noted",
    "client.replay-answered",
    "client.replay-told",
    "client.replay-over",
];

/// Those of a session that passes to another process.
pub const OF_HANDOVER: &[&str] = &["client.let-go", "client.heir-connected", "client.heir-begun"];

/// Those of records that the server will never take.
pub const OF_LOSS: &[&str] = &["client.given-up", "client.kept-apart"];

/// Passes one of these.
pub(crate) fn point_of_loss(name: &'static str) {
    soda_crash::point(OF_LOSS, name);
}

/// Passes one of those.
pub(crate) fn point_of_handover(name: &'static str) {
    soda_crash::point(OF_HANDOVER, name);
}

/// Passes a crash point.
pub(crate) fn point(name: &'static str) {
    soda_crash::point(ALL, name);
}
