//! Latencies in buckets that double.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds 1 us, 2 us, ... 2^(BUCKETS-2) us; the last bucket takes the rest.
const BUCKETS: usize = 26;

#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Histogram {
    pub(crate) fn record(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        // 0 and 1 us go to bucket 0, up to 2 us to bucket 1, up to 4 us to bucket 2.
        let bucket = (64 - micros.saturating_sub(1).leading_zeros()) as usize;
        let bucket = if micros <= 1 { 0 } else { bucket.min(BUCKETS - 1) };
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed))
    }

    /// Upper bound of each bucket and how many were at most that; the last has none.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let mut below = 0;
        (0..BUCKETS).map(move |index| {
            below += self.buckets[index].load(Ordering::Relaxed);
            let bound = (index < BUCKETS - 1).then(|| Duration::from_micros(1 << index));
            (bound, below)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_bucket_that_bounds_it() {
        for micros in [0, 1, 2, 3, 4, 5, 1000, 1024, 1025, 1 << 24] {
            let histogram = Histogram::default();
            let time = Duration::from_micros(micros);
            histogram.record(time);
            let (bound, _) = histogram.cumulative().find(|(_, count)| *count == 1).unwrap();
            assert!(time <= bound.unwrap(), "{micros}");
            assert!(micros <= 1 || time * 2 > bound.unwrap(), "{micros}");
        }
        let histogram = Histogram::default();
        histogram.record(Duration::from_secs(3600));
        assert_eq!(histogram.cumulative().last().unwrap(), (None, 1));
        assert_eq!((histogram.count(), histogram.sum()), (1, Duration::from_secs(3600)));
    }
}
