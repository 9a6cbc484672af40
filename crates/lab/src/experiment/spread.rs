//! What is measured again and again while the machine does other things, too: the middle, and how far the rest is from it.

use crate::figure::{Series, Style, Value};
use std::time::Duration;

/// The median of some measurements and their quartiles; of three, the least and the greatest.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Spread {
    pub(super) middle: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Spread {
    /// `None`: of nothing.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let middle = (values[last / 2] + values[last.div_ceil(2)]) / 2.0;
        Some(Spread { middle, low: values[last / 4], high: values[(3 * last).div_ceil(4)] })
    }

    /// In another unit.
    pub(super) fn scaled(self, factor: f64) -> Spread {
        Spread { middle: self.middle * factor, low: self.low * factor, high: self.high * factor }
    }

    /// Of the means of equal stretches of time, microseconds. A burst of other work spoils the stretches that it falls into, and
    /// with them the mean of all, but not their median; what is rare and slow by itself is in all of them.
    pub(super) fn of_means(calls: &[(Duration, Duration)], length: Duration) -> Option<Spread> {
        let mut stretches = vec![(0.0, 0_u32); STRETCHES];
        for (at, took) in calls {
            let number = (at.as_secs_f64() / length.as_secs_f64() * STRETCHES as f64) as usize;
            let (sum, count) = &mut stretches[number.min(STRETCHES - 1)];
            *sum += took.as_secs_f64() * 1e6;
            *count += 1;
        }
        let means = stretches.into_iter().filter(|(_, count)| *count > 0);
        Spread::of(means.map(|(sum, count)| sum / f64::from(count)).collect())
    }
}

/// Into so many a measurement is divided.
const STRETCHES: usize = 9;

impl From<Spread> for Value {
    fn from(Spread { middle, low, high }: Spread) -> Value {
        Value::Spread { middle, low, high }
    }
}

/// A curve of them.
pub(super) fn series(name: impl Into<String>, points: &[(f64, Spread)]) -> Series {
    let middles = points.iter().map(|(x, spread)| (*x, spread.middle)).collect();
    let spread = points.iter().map(|(_, spread)| (spread.low, spread.high)).collect();
    Series { spread, ..Series::new(name, Style::Both, middles) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_what_is_around_it() {
        assert_eq!(Spread::of(Vec::new()), None);
        let of = |values: &[f64]| {
            let Spread { middle, low, high } = Spread::of(values.to_vec()).expect("some");
            [middle, low, high]
        };
        assert_eq!(of(&[7.0]), [7.0, 7.0, 7.0]);
        assert_eq!(of(&[3.0, 1.0, 2.0]), [2.0, 1.0, 3.0]);
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), [2.5, 1.0, 4.0]);
        assert_eq!(of(&[8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0]), [5.0, 3.0, 7.0]);
    }

    #[test]
    fn a_burst_of_other_work_does_not_show_and_what_is_rare_does() {
        let length = Duration::from_secs(9);
        let micros = Duration::from_micros;
        // Of ten calls one is slow: 1.9 us on average. In one second the machine does something else.
        let calls: Vec<(Duration, Duration)> = (0..90)
            .map(|number| {
                let took = if number % 10 == 0 { micros(10) } else { micros(1) };
                let is_spoilt = (30..40).contains(&number);
                (Duration::from_millis(100 * number), if is_spoilt { micros(50_000) } else { took })
            })
            .collect();
        let found = Spread::of_means(&calls, length).expect("calls");
        assert!((found.middle - 1.9).abs() < 1e-6 && (found.high - 1.9).abs() < 1e-6, "{found:?}");
        assert_eq!(Spread::of_means(&[], length), None);
    }
}
