//! How one figure is shown, from one sample or from two.

use super::Counters;
use crate::table::Table;
use crate::units::{show_count, show_duration, show_size};
use std::time::Duration;

/// Counters, and what they were some time ago.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading<'a> {
    pub(super) counters: &'a Counters,
    pub(super) earlier: Option<(Duration, &'a Counters)>,
}

/// A figure made of counters.
#[derive(Clone, Copy, Debug)]
pub(super) enum Figure {
    /// Counted since the start: how many, and how many in a second now.
    Count(&'static str),
    /// As `Count`, of bytes.
    Bytes(&'static str),
    /// Times of many, added up.
    Sum(&'static str, Unit),
    /// As it is at the moment.
    Level(&'static str),
    LevelBytes(&'static str),
    LevelTime(&'static str, Unit),
    /// The time that one took: of all of them, and of those that ended since the last look.
    Mean {
        total: &'static str,
        of: &'static str,
        unit: Unit,
    },
    /// The longest since the start.
    Longest(&'static str, Unit),
}

/// Of a counter that adds up times.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    Nanos,
    Micros,
    Millis,
}

impl Unit {
    fn time(self, count: u64) -> Duration {
        match self {
            Unit::Nanos => Duration::from_nanos(count),
            Unit::Micros => Duration::from_micros(count),
            Unit::Millis => Duration::from_millis(count),
        }
    }
}

impl Figure {
    /// The counters that it is made of.
    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        let (first, second) = match self {
            Figure::Count(name)
            | Figure::Bytes(name)
            | Figure::Level(name)
            | Figure::LevelBytes(name)
            | Figure::LevelTime(name, _)
            | Figure::Sum(name, _)
            | Figure::Longest(name, _) => (name, None),
            Figure::Mean { total, of, .. } => (total, Some(of)),
        };
        std::iter::once(first).chain(second)
    }

    /// Since the start, and now. `None`: nothing to show.
    fn cells(self, reading: Reading<'_>) -> Option<[String; 2]> {
        let value = |name: &str| Some(reading.total(name)).filter(|value| *value > 0);
        let level = |now: String| Some([String::new(), now]);
        let (total, now) = match self {
            Figure::Level(name) => return level(show_count(value(name)?)),
            Figure::LevelBytes(name) => return level(show_size(value(name)?)),
            Figure::LevelTime(name, unit) => return level(show_duration(unit.time(value(name)?))),
            Figure::Count(name) => (show_count(value(name)?), reading.per_second(name).map(rate)),
            Figure::Bytes(name) => {
                let per_second = reading.per_second(name);
                (show_size(value(name)?), per_second.map(|rate| format!("{}/s", show_size(rate as u64))))
            }
            Figure::Sum(name, unit) => {
                let lately = reading.since_last(name).map(|time| show_duration(unit.time(time)));
                (show_duration(unit.time(value(name)?)), lately)
            }
            Figure::Longest(name, unit) => (show_duration(unit.time(value(name)?)), None),
            Figure::Mean { total, of, unit } => {
                let mean = |total: u64, of: u64| Some(show_duration(unit.time(total.checked_div(of)?)));
                let lately = reading.since_last(total).zip(reading.since_last(of));
                (mean(value(total)?, value(of)?)?, lately.and_then(|(total, of)| mean(total, of)))
            }
        };
        Some([total, now.unwrap_or_default()])
    }
}

impl Reading<'_> {
    pub(super) fn total(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// How many more there are than at the last look.
    pub(super) fn since_last(&self, name: &str) -> Option<u64> {
        let (_, earlier) = self.earlier?;
        Some(self.total(name).saturating_sub(earlier.get(name).copied().unwrap_or(0)))
    }

    pub(super) fn per_second(&self, name: &str) -> Option<f64> {
        let (time, _) = self.earlier?;
        Some(self.since_last(name)? as f64 / time.as_secs_f64())
    }

    /// A table of figures, those without anything to show left out; headed by what the group is.
    pub(super) fn table(&self, title: &str, figures: &[(&str, Figure)]) -> Table {
        let rows: Vec<_> = figures
            .iter()
            .filter_map(|(title, figure)| {
                let [total, now] = figure.cells(*self)?;
                Some([(*title).to_owned(), total, now])
            })
            .collect();
        let used = |column: usize| rows.iter().any(|row: &[String; 3]| !row[column].is_empty());
        let columns = [true, used(1), used(2) || self.earlier.is_some()];
        let mut table = Table::new(of_columns(columns, [title, "since start", "now"]));
        for row in rows {
            table.row(of_columns(columns, row));
        }
        table
    }

    /// An empty table whose last column, `now`, is there only if there was a look before.
    pub(super) fn headed<const N: usize>(&self, head: [&str; N]) -> Table {
        Table::new(head.into_iter().chain(self.earlier.map(|_| "now")))
    }

    /// A row of a table that is [`headed`](Self::headed).
    pub(super) fn row<const N: usize>(&self, table: &mut Table, cells: [String; N], now: Option<String>) {
        let now = self.earlier.map(|_| now.unwrap_or_default());
        table.row(cells.into_iter().chain(now).collect::<Vec<_>>());
    }
}

fn of_columns<T, const N: usize>(columns: [bool; N], cells: [T; N]) -> Vec<T> {
    cells.into_iter().zip(columns).filter_map(|(cell, shown)| shown.then_some(cell)).collect()
}

pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        slow if slow > 0.0 && slow < 10.0 => format!("{slow:.1}/s"),
        fast => format!("{}/s", show_count(fast.round() as u64)),
    }
}
