//! Axes: from where to where, their marks, and what is written there.

use crate::figure::{Axis, Scale, size};
use plotters::coord::ranged1d::{KeyPointHint, KeyPointWeight, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;

impl Scale {
    /// Where a value is drawn.
    pub(super) fn place(self, value: f64) -> Option<f64> {
        match self {
            Scale::Linear => value.is_finite().then_some(value),
            Scale::Logarithmic => (value.is_finite() && value > 0.0).then(|| value.log10()),
            Scale::Bytes => (value.is_finite() && value > 0.0).then(|| value.log2()),
        }
    }

    pub(super) fn label(self, place: f64) -> String {
        match self {
            Scale::Linear => short(place),
            Scale::Logarithmic => short(10_f64.powf(place)),
            Scale::Bytes => size(place.exp2()),
        }
    }
}

/// As few characters as say it: `0.05`, `20`, `3.2M`. Thousands are written out: a `k` beside `ms` is misread.
pub(super) fn short(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size < 1e-12 => "0".to_owned(),
        _ if size >= 999_950.0 => format!("{}M", short(value / 1e6)),
        _ if size >= 99.95 => format!("{value:.0}"),
        _ => {
            // Two digits that say something, without the zeros at the end.
            let places = (1.0 - size.log10().floor()).clamp(0.0, 9.0) as usize;
            let text = format!("{value:.places$}");
            if text.contains('.') {
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            } else {
                text
            }
        }
    }
}

/// An axis whose marks are chosen here.
pub(super) struct Marked {
    range: RangedCoordf64,
    marks: Vec<f64>,
    scale: Scale,
}

impl Marked {
    pub(super) fn of(range: &Range, scale: Scale) -> Marked {
        Marked { range: (range.from..range.to).into(), marks: range.ticks(scale), scale }
    }

    /// So many places, one above the other.
    pub(super) fn places(count: usize) -> Marked {
        let marks = (1..=count).map(|place| place as f64).collect();
        Marked { range: (0.5..count as f64 + 0.5).into(), marks, scale: Scale::Linear }
    }
}

impl Ranged for Marked {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.range.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight() {
            KeyPointWeight::Bold => self.marks.clone(),
            KeyPointWeight::Any => Vec::new(),
        }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.range()
    }
}

impl ValueFormatter<f64> for Marked {
    fn format(value: &f64) -> String {
        short(*value)
    }

    fn format_ext(&self, value: &f64) -> String {
        self.scale.label(*value)
    }
}

/// On an axis, at most.
pub(super) const TICKS: usize = 12;

pub(super) struct Range {
    pub(super) from: f64,
    pub(super) to: f64,
    /// Whether all values are whole numbers: so are the marks then.
    pub(super) is_whole: bool,
}

impl Range {
    /// What the axis has to show; `None`: nothing.
    pub(super) fn of(axis: &Axis, values: impl Iterator<Item = f64>) -> Option<Range> {
        let places: Vec<f64> = values.filter_map(|value| axis.scale.place(value)).collect();
        let most = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = places.iter().copied().fold(f64::INFINITY, f64::min);
        if places.is_empty() {
            return None;
        }
        let is_whole = places.iter().all(|place| place.fract() == 0.0);
        Some(match axis.scale {
            Scale::Linear => {
                let to = if most > 0.0 { most * 1.05 } else { 1.0 };
                Range { from: least.min(0.0), to, is_whole }
            }
            Scale::Logarithmic | Scale::Bytes => {
                let room = ((most - least) * 0.04).max(0.1);
                Range { from: least - room, to: most + room, is_whole }
            }
        })
    }

    /// With room before the first value, so that what is drawn there does not hide on the other axis.
    pub(super) fn with_room(self) -> Range {
        Range { from: self.from - 0.02 * (self.to - self.from), ..self }
    }

    /// Where marks and grid lines are: 1, 2 and 5 times powers of ten. On a logarithmic axis powers of ten only, if there are
    /// enough.
    pub(super) fn ticks(&self, scale: Scale) -> Vec<f64> {
        match scale {
            Scale::Linear => {
                let rough = (self.to - self.from) / 8.0;
                let power = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power);
                let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
                let step = if self.is_whole { step.max(1.0) } else { step };
                // Of the smallest numbers there are an eighth is none, and its logarithm no number.
                if !(step > 0.0 && step.is_finite()) {
                    return Vec::new();
                }
                let (first, last) = ((self.from / step).ceil() as i64, (self.to / step).floor() as i64);
                (first..=last).map(|number| number as f64 * step).collect()
            }
            Scale::Logarithmic => {
                let decades = self.from.floor() as i32..=self.to.ceil() as i32;
                let factors: &[f64] = match self.to - self.from {
                    wide if wide > 6.0 => &[1.0],
                    wide if wide > 3.0 => &[1.0, 3.0],
                    _ => &[1.0, 2.0, 5.0],
                };
                let all = decades
                    .flat_map(|decade| factors.iter().map(move |factor| f64::from(decade) + factor.log10()));
                all.filter(|at| (self.from..=self.to).contains(at)).collect()
            }
            Scale::Bytes => {
                let wide = self.to - self.from;
                let step =
                    [1, 2, 4, 5, 10].into_iter().find(|step| f64::from(*step) * 9.0 >= wide).unwrap_or(10);
                let powers =
                    (self.from.ceil() as i32..=self.to.floor() as i32).filter(|power| power % step == 0);
                powers.map(f64::from).collect()
            }
        }
    }
}
