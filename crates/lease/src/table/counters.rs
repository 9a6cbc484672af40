//! What happened, by kind: the messages that the SODA paper's equations (3) and (4) count, and why operations waited.

use std::time::Duration;

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident),* $(,)?) => {
        /// Counts since the table was made. Never reset, so that rates can be taken from differences.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $(#[doc = $doc] pub $name: u64,)*
            /// Total time that operations waited before they were admitted.
            pub waited: Duration,
            /// The longest of these waits.
            pub longest_wait: Duration,
        }

        impl Counters {
            /// Name of each, what it counts, and its value; times in microseconds, with the unit last in the name.
            pub fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                let waited = "Total time that operations waited before they were admitted.";
                let longest = "The longest wait of an operation before it was admitted.";
                vec![
                    $((stringify!($name), $doc.trim_ascii(), self.$name),)*
                    ("waited_us", waited, micros(self.waited)),
                    ("longest_wait_us", longest, micros(self.longest_wait)),
                ]
            }
        }
    };
}

counters! {
    /// Read leases given to sessions that held none.
    read_grants,
    /// Write leases given, upgrades of read leases included.
    write_grants,
    /// Deep leases given, those in place of a weaker one included.
    deep_grants,
    /// Deep write leases whose holders keep reading only, unasked.
    deep_lowered,
    /// Leases given again, under a new epoch, to the session that held them.
    regrants,
    /// Session leases renewed by traffic: one for each client message, however many leases hang on it.
    renewals,
    /// Recalls sent for the first time.
    recalls,
    /// Recalls of part of a deep lease; they are among all recalls, too.
    recalls_inside,
    /// Objects taken out of deep leases by a recall of that part.
    holes,
    /// Objects taken out of deep leases of sessions that were away, and had not been told of them.
    holes_untold,
    /// Objects back under the deep lease that they were taken out of.
    holes_healed,
    /// Objects taken out of deep leases that were looked at to see whether they lie below one that is taken out with all below.
    holes_examined,
    /// Recalls sent again because no answer came.
    recall_resends,
    /// Recalls answered.
    acks,
    /// Leases given back unasked.
    releases,
    /// Acks and releases of leases that were gone or granted anew: a packet of the past, no harm done.
    stale_acks,
    /// Times a holder said that it is still at work on a recall.
    progress_reports,
    /// Holders asked what an object is like, instead of for their lease.
    inquiries,
    /// Inquiries to which a holder said that it would rather be asked for the lease.
    inquiries_declined,
    /// Inquiries that were not answered in time.
    inquiries_unanswered,
    /// Leases that ended by their own term.
    expiries,
    /// Sessions ended because their lease ran out and somebody waited.
    fences,
    /// Sessions ended because they went on renewing but left a recall unanswered past the deadline.
    fences_for_silence,
    /// Sessions ended because they did not come back in the grace period.
    fences_after_grace,
    /// Sessions opened.
    sessions_opened,
    /// Sessions that said goodbye.
    sessions_closed,
    /// Leases taken over from before a restart.
    reclaims,
    /// Reclaims refused.
    reclaims_refused,
    /// Operations admitted.
    admissions,
    /// Operations that went ahead of the queue because their session still held a covering lease.
    admissions_covered,
    /// Operations that had to wait for others.
    waits,
    /// Leases looked at to see whether they are in the way of an operation.
    leases_examined,
    /// Leases not given because they would cost more than they save (equation 8).
    refusals_equation_8,
    /// Leases not given because somebody already waits for the object.
    refusals_contended,
    /// Write leases not given because the last one was recalled a moment ago.
    refusals_back_off,
    /// Leases not given because the table is full.
    refusals_full,
    /// Times a cache was used under a lease, as holders reported it.
    reported_uses,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
