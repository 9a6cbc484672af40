//! What is found: figures and tables, as data. [`crate::plot`] draws them.

mod table;

use serde::{Deserialize, Serialize};
use std::fmt::Write;
pub use table::{Table, Value};

/// Curves and points over one pair of axes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Part of file names: letters, digits, `-`.
    pub name: String,
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
    /// What the whiskers are, as the legend says it. Empty: quartiles.
    #[serde(default)]
    pub whiskers: String,
}

/// One axis, with its unit in the label.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Axis {
    pub label: String,
    pub scale: Scale,
    /// Of x: what 1, 2, 3, ... stand for. There is a bar for each, then, as long as y says.
    #[serde(default)]
    pub names: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Scale {
    /// From zero on.
    Linear,
    /// Values of zero and below have no place on it.
    Logarithmic,
    /// As `Logarithmic`, of sizes: B, KiB, MiB, GiB.
    Bytes,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Series {
    pub name: String,
    pub style: Style,
    pub points: Vec<(f64, f64)>,
    /// Of each point: between what values of y half of the measurements were, or a simulation's confidence interval. Empty where
    /// that is not known.
    #[serde(default)]
    pub spread: Vec<(f64, f64)>,
    /// Numbers of its colour and its marker, where these mean something. `None`: those that are next.
    #[serde(default)]
    pub look: Option<(usize, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Style {
    /// A formula: known everywhere.
    Line,
    /// Simulated or measured at these places only.
    Points,
    /// Measured, with lines to lead the eye.
    Both,
    /// What a paper found.
    Paper,
}

impl Axis {
    pub fn linear(label: &str) -> Axis {
        Axis { label: label.to_owned(), scale: Scale::Linear, names: Vec::new() }
    }

    pub fn logarithmic(label: &str) -> Axis {
        Axis { scale: Scale::Logarithmic, ..Axis::linear(label) }
    }

    /// Sizes.
    pub fn bytes(label: &str) -> Axis {
        Axis { scale: Scale::Bytes, ..Axis::linear(label) }
    }

    /// One place for each name: 1, 2, 3, ...
    pub fn named(label: &str, names: impl IntoIterator<Item = impl Into<String>>) -> Axis {
        Axis { names: names.into_iter().map(Into::into).collect(), ..Axis::linear(label) }
    }
}

impl Series {
    pub fn new(name: impl Into<String>, style: Style, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), style, points, spread: Vec::new(), look: None }
    }

    /// With the colour and the marker of these numbers.
    pub fn looking(self, color: usize, marker: usize) -> Series {
        Series { look: Some((color, marker)), ..self }
    }
}

impl Figure {
    pub fn new(name: &str, title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Figure {
        let whiskers = String::new();
        Figure { name: name.to_owned(), title: title.to_owned(), x, y, series, whiskers }
    }

    /// A line for each point: series, x, y, and from where to where y was measured, if that is known.
    pub fn csv(&self) -> String {
        let has_spread = self.series.iter().any(|series| !series.spread.is_empty());
        let more = if has_spread { ",from,to" } else { "" };
        let mut out = format!("series,{},{}{more}\n", quoted(&self.x.label), quoted(&self.y.label));
        for series in &self.series {
            for (number, (x, y)) in series.points.iter().enumerate() {
                let _ = write!(out, "{},{x},{y}", quoted(&series.name));
                let _ = match series.spread.get(number) {
                    Some((low, high)) => writeln!(out, ",{low},{high}"),
                    None => writeln!(out, "{}", if has_spread { ",," } else { "" }),
                };
            }
        }
        out
    }
}

/// A cell of CSV (RFC 4180).
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// `64 B`, `4 KiB`, `1 GiB`.
pub fn size(bytes: f64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fitting = units.into_iter().find(|(power, _)| bytes >= f64::from(1_u32 << power));
    let (power, unit) = fitting.unwrap_or((0, "B"));
    let amount = bytes / f64::from(1_u32 << power);
    format!("{} {unit}", (amount * 10.0).round() / 10.0)
}

/// A count as it is, what is none with the digits that say something.
pub fn amount(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e9 { format!("{value:.0}") } else { digits(value) }
}

/// A number with three digits that say something.
pub fn digits(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => format!("{value}").replace("inf", "infinite"),
        0.0 => "0".to_owned(),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 1.0 => format!("{value:.2}"),
        _ if size >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_keeps_commas() {
        let series = vec![Series::new("s,t", Style::Line, vec![(1.0, 2.5)])];
        let figure = Figure::new("f", "F", Axis::linear("x (s)"), Axis::linear("y"), series);
        assert_eq!(figure.csv(), "series,x (s),y\n\"s,t\",1,2.5\n");
        let mut measured = figure;
        measured.series[0].spread = vec![(2.0, 3.0)];
        measured.series.push(Series::new("u", Style::Line, vec![(1.0, 2.0)]));
        assert_eq!(measured.csv(), "series,x (s),y,from,to\n\"s,t\",1,2.5,2,3\nu,1,2,,\n");
    }

    #[test]
    fn sizes_have_units() {
        let sizes = [3.0, 1113.0, 4096.0, 262_144.0, 4_194_304.0, 1_073_741_824.0].map(size);
        assert_eq!(sizes, ["3 B", "1.1 KiB", "4 KiB", "256 KiB", "4 MiB", "1 GiB"]);
    }

    #[test]
    fn results_of_an_older_lab_can_be_read() {
        let old = r#"{"name":"f","title":"F","x":{"label":"x","scale":"Linear"},"y":{"label":"y","scale":"Logarithmic"},
            "series":[{"name":"s","style":"Both","points":[[1.0,2.0]]}]}"#;
        let figure: Figure = serde_json::from_str(old).expect("read");
        assert_eq!((figure.whiskers.as_str(), figure.x.names.len(), figure.series[0].look), ("", 0, None));
    }

    #[test]
    fn counts_are_whole_and_what_is_measured_has_three_digits() {
        assert_eq!(
            [amount(16.0), amount(0.0), amount(2.5), amount(f64::INFINITY)],
            ["16", "0", "2.50", "infinite"]
        );
        assert_eq!([digits(1234.5), digits(0.25), digits(f64::INFINITY)], ["1234", "0.2500", "infinite"]);
    }
}
