//! How many digests may be under way at once: as many as cover the round trip to the server, and no more. One more than that
//! waits at the server, and whoever asks for something else waits for it. A connection begins with few (slow start): what its
//! line takes is not known before digests were answered on it.

use soda_types::Monotonic;
use std::time::Duration;

/// What a full digest is expected to take, of the server and of the network together, before one was answered.
const EXPECTED: Duration = Duration::from_millis(4);
/// None is taken for quicker: clocks and threads are not better.
const QUICKEST: Duration = Duration::from_micros(200);
/// Of the last answer in the mean.
const WEIGHT: u32 = 4;
/// Most on a connection on which none was answered; each answer allows one more.
const FIRST: usize = 2;
/// Of a stream beside the server.
const STREAM: usize = 3;

#[derive(Debug)]
pub(crate) struct Window {
    /// The quickest answer on this connection: no round trip is longer.
    round_trip: Option<Duration>,
    /// By how much a digest keeps those behind it waiting, on the average.
    each: Duration,
    answered_at: Monotonic,
    /// What was handed in before that waited for the connection.
    opened_at: Monotonic,
    /// Most as the connection is known.
    known: usize,
    /// Most that the server's slots allow.
    most: usize,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            round_trip: None,
            each: EXPECTED,
            answered_at: Monotonic::ZERO,
            opened_at: Monotonic::ZERO,
            known: FIRST,
            most: 1,
        }
    }
}

impl Window {
    pub(crate) fn begin_session(&mut self, most: usize) {
        self.most = most;
    }

    /// A connection begins, by another way to the server, perhaps; the first answer on it took so long.
    pub(crate) fn begin_connection(&mut self, took: Duration) {
        self.round_trip = Some(took);
        self.known = FIRST;
    }

    /// Digests go on it from now on.
    pub(crate) fn open(&mut self, now: Monotonic) {
        self.opened_at = now;
    }

    /// Something small has been answered after this time.
    pub(crate) fn note_answer(&mut self, took: Duration) {
        self.round_trip = Some(self.round_trip.map_or(took, |shortest| shortest.min(took)));
    }

    /// A full digest has been answered.
    pub(crate) fn note_digest(&mut self, now: Monotonic, sent_at: Monotonic) {
        if sent_at < self.opened_at {
            // It was sent again, or waited: that tells of the time without a connection.
            self.answered_at = now;
            return;
        }
        self.known = self.known.saturating_add(1);
        // Behind another one its own time is what is between the answers, by itself all but the way.
        let since_last = now.since(self.answered_at);
        let took = now.since(sent_at).saturating_sub(self.round_trip.unwrap_or_default());
        let own = took.min(since_last).max(QUICKEST);
        self.each = (self.each * (WEIGHT - 1) + own) / WEIGHT;
        self.answered_at = now;
    }

    /// Whether a round trip takes longer than what a digest takes of the server and of the line: then who waits for an answer
    /// each time is slower than digests that follow each other.
    pub(crate) fn is_far(&self) -> bool {
        self.round_trip.is_some_and(|trip| trip > self.each)
    }

    /// Digests that may be under way where much is written and nobody waits for anything else: while the server carries out one,
    /// its disk takes the data of the next, and a third one is on the way.
    pub(crate) fn size_of_stream(&self) -> usize {
        // On a thin line more would wait in that.
        let stream = if self.each <= EXPECTED { STREAM.min(self.known) } else { 1 };
        self.size().max(stream).min(self.most)
    }

    /// Digests that may be under way.
    pub(crate) fn size(&self) -> usize {
        let trip = self.round_trip.unwrap_or_default();
        let beside = (trip + self.each / 2).as_nanos() / self.each.as_nanos().max(1);
        usize::try_from(beside).unwrap_or(usize::MAX).saturating_add(1).min(self.known).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window() -> Window {
        let mut window = Window::default();
        window.begin_session(8);
        window
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A server that takes `each` for a digest, so far away; digests are sent as the window allows.
    fn settle(window: &mut Window, trip: Duration, each: Duration) -> usize {
        let (mut now, mut free_at) = (Monotonic::ZERO + ms(1), Monotonic::ZERO);
        window.note_answer(trip);
        let mut open = std::collections::VecDeque::new();
        for _ in 0..200 {
            while open.len() < window.size() {
                free_at = free_at.max(now + trip / 2) + each;
                open.push_back((now, free_at + trip / 2));
            }
            let Some((sent_at, answered)) = open.pop_front() else { continue };
            now = answered;
            window.note_digest(now, sent_at);
        }
        window.size()
    }

    #[test]
    fn beside_its_server_a_client_tells_one_digest_after_the_other() {
        for each in [ms(1), ms(3), ms(30)] {
            assert_eq!(settle(&mut window(), Duration::from_micros(150), each), 1, "{each:?}");
        }
        assert_eq!(window().size(), 1, "as long as nothing is known");
    }

    #[test]
    fn a_stream_beside_the_server_has_some_more_but_not_on_a_thin_line() {
        let mut window = window();
        assert_eq!(window.size_of_stream(), 2, "a connection begins with few");
        assert_eq!(settle(&mut window, Duration::from_micros(150), ms(1)), 1);
        assert_eq!(window.size_of_stream(), 3);
        assert_eq!(settle(&mut window, Duration::from_micros(150), ms(40)), 1);
        assert_eq!(window.size_of_stream(), 1);
    }

    #[test]
    fn far_from_it_as_many_as_cover_the_way() {
        assert_eq!(settle(&mut window(), ms(2), ms(2)), 2);
        assert_eq!(settle(&mut window(), ms(20), ms(5)), 5);
        assert_eq!(settle(&mut window(), ms(20), ms(40)), 2, "a thin line");
        assert_eq!(settle(&mut window(), ms(200), ms(1)), 8);
    }

    #[test]
    fn far_is_where_the_way_takes_longer_than_a_digest() {
        for (trip, each, is_far) in
            [(0, 1, false), (2, 3, false), (20, 5, true), (20, 40, false), (200, 1, true)]
        {
            let mut window = window();
            settle(&mut window, ms(trip), ms(each));
            assert_eq!(window.is_far(), is_far, "{trip} {each}");
        }
        assert!(!window().is_far(), "as long as nothing is known");
    }

    #[test]
    fn another_connection_is_another_way() {
        let mut window = window();
        assert_eq!(settle(&mut window, ms(200), ms(5)), 8);
        window.begin_connection(Duration::from_micros(100));
        assert_eq!(settle(&mut window, Duration::from_micros(100), ms(5)), 1);
    }

    #[test]
    fn a_line_that_nobody_has_measured_gets_one_more_with_each_answer() {
        let mut window = window();
        let mut now = Monotonic::ZERO + ms(1);
        for _connection in 0..2 {
            window.begin_connection(ms(400));
            window.open(now);
            for expected in 2..=8 {
                assert_eq!(window.size(), expected);
                let sent_at = now;
                now = now + ms(401);
                window.note_digest(now, sent_at);
            }
            assert_eq!(window.size(), 8, "as many as there are slots");
        }
    }

    #[test]
    fn what_was_sent_before_the_connection_tells_nothing_of_it() {
        let mut window = window();
        assert_eq!(settle(&mut window, ms(20), ms(5)), 5);
        let each = window.each;
        let sent_at = Monotonic::ZERO + Duration::from_secs(100);
        let opened_at = sent_at + Duration::from_secs(60);
        window.begin_connection(ms(20));
        window.open(opened_at);
        window.note_digest(opened_at + ms(20), sent_at);
        window.note_digest(opened_at + ms(25), sent_at);
        assert_eq!((window.each, window.size()), (each, 2), "an outage is no slow server");
        window.note_digest(opened_at + ms(30), opened_at + ms(1));
        assert_eq!(window.size(), 3);
    }
}
