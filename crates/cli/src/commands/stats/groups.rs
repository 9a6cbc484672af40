//! What is shown of a mount and of a server, in which groups and words. What no group knows comes last, under its own name.

use super::show::Figure::{Bytes, Count, Level, LevelBytes, LevelTime, Longest, Mean, Sum};
use super::show::{Figure, Reading, Unit, rate};
use crate::answer::BACKLOG;
use crate::commands::Hits;
use crate::table::Table;
use crate::units::{show_count, show_duration};
use std::collections::BTreeSet;
use std::time::Duration;

type Group = (&'static str, &'static [(&'static str, Figure)]);

const MOUNT: &[Group] = &[
    (
        "file data",
        &[
            ("read by programs", Bytes("bytes_read")),
            ("written by programs", Bytes("bytes_written")),
            ("sent to the server", Bytes("bytes_sent")),
            ("from the server", Bytes("bytes_received")),
            ("read ahead", Bytes("readahead_bytes")),
            ("small files fetched ahead", Count("next_files")),
            ("... and read", Count("next_files_read")),
            ("directories listed ahead", Count("directories_ahead")),
        ],
    ),
    (
        "answers",
        &[
            ("replies", Count("replies")),
            ("told to wait: grace period", Count("grace_waits")),
            ("told to wait: server busy", Count("busy_waits")),
            ("asked again for a lease that others have", Count("lease_polls")),
            ("notes sent", Count("notes_sent")),
        ],
    ),
    (
        "leases",
        &[
            ("held", Level("held_leases")),
            ("given back unasked", Count("leases_released")),
            ("lowered to reading", Count("leases_lowered")),
        ],
    ),
    (
        "recalls",
        &[
            ("received", Count("recalls")),
            ("of leases that were gone", Count("recalls_gone")),
            ("by who reads", Count("recalls_for_reading")),
            ("by who changes names", Count("recalls_for_names")),
            ("by who changes attributes", Count("recalls_for_attributes")),
            ("by who changes data", Count("recalls_for_data")),
            ("by the server, of leases not used", Count("recalls_for_reclaim")),
            ("that the kernel had a part in", Count("recalls_kernel")),
            ("mean time to the answer", Mean { total: "recall_nanos", of: "recalls", unit: Unit::Nanos }),
            ("longest", Longest("recall_nanos_max", Unit::Nanos)),
            ("answered before the kernel", Count("recalls_forced")),
            ("answered as names ran out", Count("recalls_run_out")),
            ("changes of names taken back", Count("names_cancelled")),
            ("that delayed writes had to be told for", Count("recalls_flushed")),
            ("changes told for them", Count("recall_records")),
            ("of these, of other objects", Count("recall_collateral")),
            (
                "mean time until they were told",
                Mean { total: "recall_flush_nanos", of: "recalls_flushed", unit: Unit::Nanos },
            ),
            ("longest until they were told", Longest("recall_flush_nanos_max", Unit::Nanos)),
        ],
    ),
    (
        "attributes alone",
        &[
            ("asked of this mount by others", Count("inquiries")),
            ("of these, not answered", Count("inquiries_declined")),
            ("told by other mounts", Count("described")),
        ],
    ),
    (
        "file locks",
        &[
            ("decided here", Count("locks_here")),
            ("files asked back", Count("lock_recalls")),
            ("files handed over", Count("lock_returns")),
        ],
    ),
    (
        "session",
        &[
            ("connections made again", Count("reconnects")),
            ("sessions lost", Count("sessions_lost")),
            ("leases reclaimed", Count("reclaimed")),
            ("reclaims refused", Count("reclaim_refused")),
        ],
    ),
    (
        "delayed writes",
        &[
            ("changes made here", Count("here")),
            ("changes told", Count("digested")),
            ("of these, made void by later ones", Count("coalesced")),
            ("digests sent", Count("digests")),
            ("digests refused", Count("digests_refused")),
            ("waits for room in the log", Count("log_full")),
            ("time waited for room", Sum("log_full_nanos", Unit::Nanos)),
            ("time fsync waited for digests", Sum("fsync_flush_nanos", Unit::Nanos)),
            ("time that waited before a change told at once", Sum("through_flush_nanos", Unit::Nanos)),
            ("reservations given back, idle", Count("reservations_idle")),
            ("fsync answered by the log", Count("fsyncs_local")),
            ("told after a crash", Count("replayed")),
            ("changes lost", Count("lost_records")),
            ("logs kept for `soda recover`", Count("kept_logs")),
        ],
    ),
    (
        "changes told at once, why",
        &[
            ("no lease", Count("through_no_lease")),
            ("lease recalled", Count("through_recalled")),
            ("others use it", Count("through_contended")),
            ("not all of it known here", Count("through_unknown")),
            ("access list", Count("through_access_list")),
            ("no reservation", Count("through_reservation")),
            ("too large", Count("through_large")),
            ("kind of change", Count("through_kind")),
            ("local disk", Count("through_local_disk")),
        ],
    ),
    (
        "kernel",
        &[
            ("threads that read /dev/fuse", Level("kernel_readers")),
            ("descriptors of /dev/fuse", Level("kernel_descriptors")),
            ("requests", Count("kernel_requests")),
            ("waiting", Level("kernel_waiting")),
            ("entries for io_uring", Level("kernel_entries")),
            ("inodes known", Level("kernel_inodes")),
            ("files open", Level("kernel_open_files")),
            ("directories open", Level("kernel_open_directories")),
            ("attributes dropped", Count("kernel_dropped_attributes")),
            ("file data dropped", Count("kernel_dropped_data")),
            ("names dropped", Count("kernel_dropped_names")),
            ("all names dropped", Count("kernel_dropped_all_names")),
            ("waits for a directory's lock", Count("kernel_lock_waits")),
        ],
    ),
    (
        "memory",
        &[
            ("of the daemon", LevelBytes("memory_bytes")),
            ("file data cached", LevelBytes("cached_bytes")),
            ("of entries for io_uring, at most", LevelBytes("kernel_entry_bytes")),
            ("inodes cached", Level("cached_inodes")),
        ],
    ),
];

const SERVER: &[Group] = &[
    (
        "file data",
        &[
            ("sent to clients", Bytes("bytes_read")),
            ("written by clients", Bytes("bytes_written")),
            ("written with digests", Bytes("digest_bytes")),
            ("reserved", LevelBytes("reserved_bytes")),
        ],
    ),
    (
        "leases",
        &[
            ("held", Level("leases")),
            ("objects known", Level("lease_objects")),
            ("given for reading", Count("lease.read_grants")),
            ("given for writing", Count("lease.write_grants")),
            ("deep ones given", Count("lease.deep_grants")),
            ("given again", Count("lease.regrants")),
            ("given back unasked", Count("lease.releases")),
            ("run out", Count("lease.expiries")),
            ("reclaimed", Count("lease.reclaims")),
            ("reclaims refused", Count("lease.reclaims_refused")),
            ("uses of caches reported", Count("lease.reported_uses")),
            ("messages that renewed", Count("lease.renewals")),
        ],
    ),
    (
        "leases not given, why",
        &[
            ("dearer than asking (eq. 8)", Count("lease.refusals_equation_8")),
            ("somebody waits", Count("lease.refusals_contended")),
            ("recalled a moment ago", Count("lease.refusals_back_off")),
            ("table full", Count("lease.refusals_full")),
        ],
    ),
    (
        "recalls",
        &[
            ("recalls", Count("lease.recalls")),
            ("of part of a deep lease", Count("lease.recalls_inside")),
            ("sent, repeats included", Count("recalls_pushed")),
            ("repeated", Count("lease.recall_resends")),
            ("answered", Count("lease.acks")),
            ("answers out of date", Count("lease.stale_acks")),
            ("holder still at work", Count("lease.progress_reports")),
            ("holes made", Count("lease.holes")),
            ("holes healed", Count("lease.holes_healed")),
            ("deep leases lowered to reading", Count("lease.deep_lowered")),
        ],
    ),
    (
        "admission",
        &[
            ("operations admitted", Count("lease.admissions")),
            ("ahead of the queue", Count("lease.admissions_covered")),
            ("had to wait", Count("lease.waits")),
            ("mean wait", Mean { total: "lease.waited_us", of: "lease.waits", unit: Unit::Micros }),
            ("longest wait", Longest("lease.longest_wait_us", Unit::Micros)),
            ("waiting", Level("waiting")),
            ("waiting for file locks", Level("lock_waits")),
            ("leases looked at", Count("lease.leases_examined")),
            ("planned again", Count("replans")),
        ],
    ),
    (
        "sessions",
        &[
            ("all", Level("sessions")),
            ("connected", Level("sessions_connected")),
            ("opened", Count("sessions_opened")),
            ("gone on with", Count("sessions_resumed")),
            ("closed", Count("sessions_closed")),
            ("ended by the server", Count("sessions_fenced")),
            ("of these, run out", Count("lease.fences")),
            ("of these, left a recall unanswered", Count("lease.fences_for_silence")),
            ("of these, gone after a restart", Count("lease.fences_after_grace")),
            ("changes they have not told", Level("backlog_records")),
            ("what these weigh", LevelBytes("backlog_bytes")),
            ("oldest of these", LevelTime("backlog_oldest_ms", Unit::Millis)),
            ("grace period left", LevelTime("grace_ms", Unit::Millis)),
            ("connections", Level("connections_open")),
            ("connections accepted", Count("connections")),
            ("connections refused", Count("connections_refused")),
            ("ended for foreign bytes", Count("bad_frames")),
        ],
    ),
    (
        "changes",
        &[
            ("batches committed", Count("commits")),
            ("rounds of group commit", Count("sync_rounds")),
            ("calls of sync answered", Count("sync_waiters")),
            ("digests", Count("digests")),
            ("changes in digests", Count("digest_records")),
            ("answered again, not done again", Count("retries")),
            ("turned away, too much waited", Count("turned_away")),
            ("deleted but open", Level("orphans")),
            ("deleted, freed at close", Count("orphans_dropped")),
        ],
    ),
    (
        "memory",
        &[("of the server", LevelBytes("memory_bytes")), ("of requests", LevelBytes("request_bytes"))],
    ),
];

/// Counted twice: the server's own figures are shown.
const SERVER_TWICE: [&str; 2] = ["lease.sessions_opened", "lease.sessions_closed"];

pub(super) fn of_mount(reading: Reading<'_>) -> Vec<Table> {
    let caches = [
        ("names", "name_hits", "name_misses"),
        ("attributes", "attr_hits", "attr_misses"),
        ("file data", "data_hits", "data_misses"),
        ("extended attributes", "xattr_hits", "xattr_misses"),
    ];
    let mut tables = Groups::new(reading);
    tables.family("operations", "op_");
    let mut table = cache_table(reading);
    for (title, hits, misses) in caches {
        tables.shown([hits, misses]);
        add_cache(&mut table, reading, title, hits, misses);
    }
    tables.shown(["disk_hits"]);
    if reading.total("disk_hits") > 0 {
        // A read that misses the memory may take several pieces from the disk: no ratio would be right.
        let cells = ["of these, pieces on disk", &show_count(reading.total("disk_hits")), "", ""];
        reading.row(&mut table, cells.map(str::to_owned), None);
    }
    tables.out.push(table);
    tables.family("messages sent", "msg_");
    tables.add(MOUNT);
    tables.finish()
}

pub(super) fn of_server(reading: Reading<'_>) -> Vec<Table> {
    let mut tables = Groups::new(reading);
    let calls = calls(&mut tables);
    tables.out.push(calls);
    let names = reading.counters.keys();
    let caches: Vec<String> = names
        .filter_map(|name| Some(name.strip_prefix("cache.")?.strip_suffix(".hits")?.to_owned()))
        .collect();
    let mut table = cache_table(reading);
    for cache in caches {
        let [hits, misses] = ["hits", "misses"].map(|what| format!("cache.{cache}.{what}"));
        add_cache(&mut table, reading, &cache, &hits, &misses);
        tables.shown([hits, misses]);
    }
    tables.out.push(table);
    tables.shown(SERVER_TWICE);
    tables.out.push(super::predicted::of_server(reading));
    tables.add(SERVER);
    tables.finish()
}

/// The calls of clients, with the time from the request's arrival to its reply.
fn calls(tables: &mut Groups<'_>) -> Table {
    let reading = tables.reading;
    let mut table = reading.headed(["calls", "since start", "failed", "mean time"]);
    for name in reading.counters.keys() {
        let Some(call) = name.strip_prefix("calls.").filter(|call| !call.contains('.')) else { continue };
        let [failed, micros] = ["failed", "total_us"].map(|what| format!("{name}.{what}"));
        let total = reading.total(name);
        let mean = reading.total(&micros).checked_div(total).map(Duration::from_micros);
        let cells = [
            call.to_owned(),
            show_count(total),
            show_count(reading.total(&failed)),
            mean.map_or_else(String::new, show_duration),
        ];
        reading.row(&mut table, cells, reading.per_second(name).map(rate));
        tables.shown([name.clone(), failed, micros]);
    }
    table
}

fn cache_table(reading: Reading<'_>) -> Table {
    reading.headed(["cache", "hits", "misses", "hit ratio"])
}

fn add_cache(table: &mut Table, reading: Reading<'_>, title: &str, hits: &str, misses: &str) {
    let all = Hits { hits: reading.total(hits), misses: reading.total(misses) };
    if all.asked() > 0 {
        let now = reading.since_last(hits).zip(reading.since_last(misses));
        let now = now.map(|(hits, misses)| Hits { hits, misses }.to_string());
        let cells = [title.to_owned(), show_count(all.hits), show_count(all.misses), all.to_string()];
        reading.row(table, cells, now);
    }
}

struct Groups<'a> {
    reading: Reading<'a>,
    /// The counters that are in some table.
    shown: BTreeSet<String>,
    out: Vec<Table>,
}

impl<'a> Groups<'a> {
    fn new(reading: Reading<'a>) -> Groups<'a> {
        Groups { reading, shown: BTreeSet::new(), out: Vec::new() }
    }

    fn shown(&mut self, names: impl IntoIterator<Item = impl Into<String>>) {
        self.shown.extend(names.into_iter().map(Into::into));
    }

    fn add(&mut self, groups: &[Group]) {
        for (title, figures) in groups {
            self.shown(figures.iter().flat_map(|(_, figure)| figure.names()));
            self.out.push(self.reading.table(title, figures));
        }
    }

    /// All counters whose names begin like that, and their sum.
    fn family(&mut self, title: &str, prefix: &str) {
        let reading = self.reading;
        let mut table = reading.headed([title, "since start"]);
        let (mut sum, mut sum_rate) = (0, None);
        for (name, total) in reading.counters.iter().filter(|(_, total)| **total > 0) {
            let Some(member) = name.strip_prefix(prefix) else { continue };
            let per_second = reading.per_second(name);
            reading.row(&mut table, [member.to_owned(), show_count(*total)], per_second.map(rate));
            sum += total;
            sum_rate = per_second.map(|per_second| sum_rate.unwrap_or(0.0) + per_second);
        }
        if sum > 0 {
            reading.row(&mut table, ["all".to_owned(), show_count(sum)], sum_rate.map(rate));
        }
        self.shown(reading.counters.keys().filter(|name| name.starts_with(prefix)).cloned());
        self.out.push(table);
    }

    fn finish(mut self) -> Vec<Table> {
        let mut other = self.reading.headed(["other", "since start"]);
        for (name, total) in self.reading.counters {
            if *total > 0 && !self.shown.contains(name) && !name.starts_with(BACKLOG) {
                let now = self.reading.per_second(name).map(rate);
                self.reading.row(&mut other, [name.clone(), show_count(*total)], now);
            }
        }
        self.out.push(other);
        self.out.retain(|table| !table.is_empty());
        self.out
    }
}
