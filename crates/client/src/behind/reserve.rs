//! What the server has set aside for this client: inode numbers, and space, so that a digest cannot fail for want of them and
//! a full disk shows when a program writes, not later.

use crate::cache::State;
use crate::call::{Order, unexpected};
use crate::config::WritePolicy;
use crate::inner::Inner;
use soda_protocol::{Answer, Call};
use soda_types::{Fid, Ino, Monotonic, Version, VolumeId};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Numbers asked for at once.
const NUMBERS: u32 = 4096;
/// With fewer left, more are asked for.
const LOW: u64 = 1024;
/// So long after the server had no more space it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Reserve {
    numbers: Range<u64>,
    bytes: u64,
    asking: Asking,
    not_before: Monotonic,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Asking {
    #[default]
    No,
    Yes,
}

impl Reserve {
    /// Bytes that the log may weigh.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A number that nobody else has. `None`: they are used up.
    pub(super) fn number(&mut self, volume: VolumeId) -> Option<Fid> {
        self.numbers.next().map(|number| Fid::new(volume, Ino(number)))
    }

    fn is_low(&self, now: Monotonic) -> bool {
        let short = self.numbers.end - self.numbers.start < LOW || self.bytes == 0;
        self.asking == Asking::No && short && now >= self.not_before
    }

    /// Another session: what was set aside for the last one is gone.
    pub(super) fn start_over(&mut self) {
        *self = Reserve { asking: self.asking, ..Reserve::default() };
    }

    fn handle_reserved(&mut self, now: Monotonic, numbers: Range<u64>, bytes: u64) {
        self.asking = Asking::No;
        self.bytes = bytes;
        if bytes == 0 {
            self.not_before = now + ASK_AGAIN;
        }
        if !numbers.is_empty() {
            // What is left of the last batch is given up, if it cannot be joined: numbers are plenty.
            self.numbers = match self.numbers.end == numbers.start {
                true => self.numbers.start..numbers.end,
                false => numbers,
            };
        }
    }

    fn handle_failed(&mut self, now: Monotonic) {
        self.asking = Asking::No;
        self.not_before = now + ASK_AGAIN;
    }
}

impl State {
    /// What to ask the server to set aside, if it is time.
    pub(super) fn next_reservation(&mut self, now: Monotonic) -> Option<Order> {
        let WritePolicy::Behind(policy) = &self.behind.policy else { return None };
        let bytes = policy.max_bytes;
        if !self.behind.reserve.is_low(now) || self.holder.session().is_none() {
            return None;
        }
        self.behind.reserve.asking = Asking::Yes;
        let ticket = self.holder.begin_request(now);
        Some(Order::question(Call::Reserve { inodes: NUMBERS, bytes }, ticket))
    }
}

impl super::Behind {
    pub(super) fn wants_attention(&self, now: Monotonic) -> bool {
        self.reserve.is_low(now) || self.due_at().is_some_and(|due| due <= now)
    }
}

impl Inner {
    pub(super) fn send_reservation(self: &Arc<Inner>, order: Order) {
        drop(self.send(order, |arrived, result| {
            let reserve = &mut arrived.state.behind.reserve;
            let reserved = result.and_then(|(answer, _)| match answer {
                Answer::Reserved { first, count, bytes, version } => Ok((first, count, bytes, version)),
                other => unexpected(&other),
            });
            match reserved {
                Ok((first, count, bytes, version)) => {
                    let numbers = first.0..first.0 + u64::from(count);
                    reserve.handle_reserved(arrived.now, numbers, bytes);
                    let behind = &mut arrived.state.behind;
                    behind.first_version = Version(behind.first_version.0.max(version.0));
                    Ok(())
                }
                Err(error) => {
                    reserve.handle_failed(arrived.now);
                    tracing::debug!(%error, "no reservation: changes go through to the server");
                    Err(error)
                }
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Monotonic {
        Monotonic::from_nanos(secs * 1_000_000_000)
    }

    #[test]
    fn numbers_are_given_once_and_asked_for_before_they_run_out() {
        let mut reserve = Reserve::default();
        assert!(reserve.is_low(at(1)));
        reserve.handle_reserved(at(1), 100..100 + LOW + 1, 1 << 20);
        assert!(!reserve.is_low(at(1)));
        let first = reserve.number(VolumeId(1)).unwrap();
        let second = reserve.number(VolumeId(1)).unwrap();
        assert_eq!((first.ino, second.ino), (Ino(100), Ino(101)));
        assert!(reserve.is_low(at(1)));
        reserve.handle_reserved(at(1), 5000..9000, 1 << 20);
        assert_eq!(reserve.number(VolumeId(1)).unwrap().ino, Ino(5000));
    }

    #[test]
    fn a_full_server_is_not_asked_all_the_time() {
        let mut reserve = Reserve::default();
        reserve.handle_reserved(at(1), 100..9000, 0);
        assert_eq!(reserve.bytes(), 0);
        assert!(!reserve.is_low(at(1)));
        assert!(reserve.is_low(at(3)));
    }
}
