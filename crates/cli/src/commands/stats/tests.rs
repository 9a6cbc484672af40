use super::*;

fn counters<const N: usize>(figures: [(&str, u64); N]) -> Counters {
    figures.into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect()
}

fn sample(who: &str, counters: Counters) -> Sample {
    Sample(BTreeMap::from([(who.to_owned(), counters)]))
}

fn mount(reads: u64, recalls: u64) -> Sample {
    let figures = [
        ("op_read", reads),
        ("op_write", 0),
        ("op_lookup", 2),
        ("data_hits", reads - 2),
        ("data_misses", 2),
        ("disk_hits", 5),
        ("xattr_hits", 0),
        ("bytes_read", reads << 20),
        ("msg_read", 1234),
        ("recalls", recalls),
        ("recall_nanos", recalls * recalls * 1_000_000),
        ("recall_nanos_max", 2_500_000_000),
        ("memory_bytes", 3 << 30),
        ("of_tomorrow", 7),
    ];
    sample("/mnt", counters(figures))
}

#[test]
fn a_mount_in_groups_with_units() {
    let expected = "\
/mnt   cache hits 100.0 %

OPERATIONS  SINCE START
lookup                2
read                 10
all                  12

CACHE                     HITS  MISSES  HIT RATIO
file data                    8       2     80.0 %
of these, pieces on disk     5

MESSAGES SENT  SINCE START
read                 1,234
all                  1,234

FILE DATA         SINCE START
read by programs     10.0 MiB

RECALLS                  SINCE START
received                           3
mean time to the answer       3.0 ms
longest                        2.5 s

MEMORY         NOW
of the daemon  3.0 GiB

OTHER        SINCE START
of_tomorrow            7

";
    assert_eq!(text(&mount(10, 3), None, None), expected);
}

#[test]
fn rates_come_from_two_samples() {
    let before = mount(10, 3);
    let second = text(&mount(30, 5), Some((Duration::from_secs(2), &before)), None);
    for line in [
        "OPERATIONS  SINCE START  NOW\n",
        "read                 30  10/s\n",
        "lookup                2  0/s\n",
        "all                  32  10/s\n",
        "file data                   28       2     93.3 %  100.0 %\n",
        "read by programs     30.0 MiB  10.0 MiB/s\n",
        "received                           5  1.0/s\n",
        "mean time to the answer       5.0 ms  8.0 ms\n",
        "longest                        2.5 s\n",
        "MEMORY         NOW\n",
        "of the daemon  3.0 GiB\n",
    ] {
        assert!(second.contains(line), "{line}\n{second}");
    }
}

#[test]
fn a_server_in_groups_with_units() {
    let figures = [
        ("calls.read", 4),
        ("calls.read.failed", 1),
        ("calls.read.total_us", 1000),
        ("cache.inodes.hits", 3),
        ("cache.inodes.misses", 1),
        ("cache.names.hits", 0),
        ("cache.names.misses", 0),
        ("leases", 12),
        ("lease.waits", 2),
        ("lease.waited_us", 5000),
        ("lease.sessions_opened", 1),
        ("sessions_opened", 1),
        ("grace_ms", 1500),
    ];
    let expected = "\
server host:7632   cache hits 75.0 %

CALLS  SINCE START  FAILED  MEAN TIME
read             4       1     250 us

CACHE   HITS  MISSES  HIT RATIO
inodes     3       1     75.0 %

LEASES  NOW
held     12

ADMISSION    SINCE START
had to wait            2
mean wait         2.5 ms

SESSIONS           SINCE START  NOW
opened                       1
grace period left               1.5 s

";
    assert_eq!(text(&sample("server host:7632", counters(figures)), None, None), expected);
}

#[test]
fn what_a_recall_costs_has_words() {
    let figures = [
        ("recalls_for_names", 3),
        ("recalls_flushed", 2),
        ("recall_records", 9),
        ("recall_collateral", 4),
        ("recall_flush_nanos", 8_000_000),
        ("fsync_flush_nanos", 2_500_000),
        ("log_full_nanos", 1_000_000),
        ("inquiries", 5),
        ("locks_here", 6),
    ];
    let shown = text(&sample("/mnt", counters(figures)), None, None);
    for (words, value) in [
        ("by who changes names", "3"),
        ("that delayed writes had to be told for", "2"),
        ("of these, of other objects", "4"),
        ("mean time until they were told", "4.0 ms"),
        ("time waited for room", "1.0 ms"),
        ("time fsync waited for digests", "2.5 ms"),
        ("asked of this mount by others", "5"),
        ("decided here", "6"),
    ] {
        let is_it = |line: &str| line.starts_with(words) && line.ends_with(&format!("  {value}"));
        assert!(shown.lines().any(is_it), "{words} {value}\n{shown}");
    }
    assert!(!shown.contains("OTHER"), "{shown}");
}

#[test]
fn a_backlog_stands_at_the_head() {
    let figures = [("records", 120), ("bytes", 1536), ("age_ms", 250), ("not_durable", 1)];
    let figures = figures.map(|(name, figure)| (format!("{BACKLOG}{name}"), figure));
    let expected =
        "/mnt   cache hits -   not told 120 changes, 1.5 KiB, the oldest 250.0 ms   not durable 1 change\n\n";
    assert_eq!(text(&sample("/mnt", Counters::from(figures)), None, None), expected);
}

#[test]
fn groups_stand_side_by_side_where_there_is_room() {
    let figures = counters([("op_read", 1), ("msg_read", 2), ("msg_write", 3)]);
    let expected = "\
/mnt   cache hits -

OPERATIONS  SINCE START   MESSAGES SENT  SINCE START
read                  1   read                     2
all                   1   write                    3
                          all                      5

";
    assert_eq!(text(&sample("/mnt", figures.clone()), None, Some(80)), expected);
    let narrow = text(&sample("/mnt", figures.clone()), None, Some(40));
    assert_eq!(narrow, text(&sample("/mnt", figures), None, None));
}

#[test]
fn a_screen_is_written_over_and_never_scrolls() {
    let screen = Screen { columns: 5, rows: 4 };
    let whole = screen.in_place_of_the_last("one\ntwo\n\n");
    assert_eq!(whole, "\x1b[Hone\x1b[K\ntwo\x1b[K\n\x1b[J");
    let cut = screen.in_place_of_the_last("one\ntwo is long\nthree\nfour\n");
    assert_eq!(cut, "\x1b[Hone\x1b[K\ntwo i\x1b[K\n2 mor\x1b[K\n\x1b[J");
}

#[test]
fn a_server_has_the_models_messages_beside_the_measured_ones() {
    let figures = [
        ("calls.read", 100),
        ("lease.reported_uses", 900),
        ("calls.write", 100),
        ("lease.recalls", 50),
        ("sessions", 2),
    ];
    let before = sample("server h:1", counters(figures));
    let shown = text(&before, None, None);
    for line in [
        "MESSAGES FOR CONSISTENCY         SINCE START\n",
        "measured                                 300\n",
        "model: all share all, callbacks          500\n",
        "model: all uses ask                    2,000\n",
    ] {
        assert!(shown.contains(line), "{line}{shown}");
    }
    // What is new is a read by each, of which nobody is recalled.
    let later = sample(
        "server h:1",
        counters(figures.map(|(name, figure)| match name {
            "calls.read" => (name, figure + 2),
            _ => (name, figure),
        })),
    );
    let shown = text(&later, Some((Duration::from_secs(1), &before)), None);
    assert!(shown.contains("measured                                 304    4\n"), "{shown}");
    let idle = text(&sample("server h:1", counters([("sessions", 2)])), None, None);
    assert!(!idle.contains("CONSISTENCY"), "{idle}");
}
