//! Draws figures as SVG and PNG. The font is part of the program: nothing has to be installed.

use crate::LabError;
use crate::figure::{Axis, Figure, Scale, Series, Style};
use plotters::backend::DrawingBackend;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, KeyPointWeight, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::Path;
use std::sync::Once;

const SIZE: (u32, u32) = (960, 520);
/// Beside the axes, so that it hides no point.
const LEGEND_WIDTH: u32 = 250;
const FONT: &str = "sans-serif";

/// Okabe and Ito's colours, which colour-blind people can tell apart, and two more. Markers differ, too.
const PALETTE: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(120, 120, 120),
    RGBColor(102, 51, 0),
];

/// The figure as an SVG document.
///
/// # Errors
/// If the figure has no point, or the library fails.
pub fn svg(figure: &Figure) -> Result<String, LabError> {
    let mut text = String::new();
    draw(figure, &SVGBackend::with_string(&mut text, SIZE).into_drawing_area())?;
    Ok(text)
}

/// Writes the figure as a PNG image.
///
/// # Errors
/// As [`svg`]; if the file cannot be written.
pub fn png(figure: &Figure, path: &Path) -> Result<(), LabError> {
    // What the library says of a missing directory nobody understands.
    std::fs::File::create(path).map_err(LabError::io(path))?;
    draw(figure, &BitMapBackend::new(path, SIZE).into_drawing_area())
}

fn draw<B: DrawingBackend>(figure: &Figure, area: &DrawingArea<B, Shift>) -> Result<(), LabError> {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // It is part of the program and was tried by the tests: it cannot be damaged.
        let _ = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    });
    let failed = |error: &dyn std::fmt::Display| LabError::Plot(figure.name.clone(), error.to_string());
    let all = || figure.series.iter().flat_map(|series| &series.points);
    let spread = figure.series.iter().flat_map(|series| &series.spread).flat_map(|(low, high)| [*low, *high]);
    let x = Range::of(&figure.x, all().map(|point| point.0));
    let y = Range::of(&figure.y, all().map(|point| point.1).chain(spread));
    let (Some(x), Some(y)) = (x, y) else { return Err(failed(&"it has no point to draw")) };
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    let (left, right) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
    let mut chart = ChartBuilder::on(&left)
        .caption(&figure.title, (FONT, 19))
        .margin(12)
        .x_label_area_size(48)
        .y_label_area_size(72)
        .build_cartesian_2d(Marked::of(&x, figure.x.scale), Marked::of(&y, figure.y.scale))
        .map_err(|error| failed(&error))?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(&figure.x.label)
        .y_desc(&figure.y.label)
        .x_labels(TICKS)
        .y_labels(TICKS)
        .axis_desc_style((FONT, 16))
        .label_style((FONT, 14))
        .draw()
        .map_err(|error| failed(&error))?;
    for (number, series) in figure.series.iter().enumerate() {
        let color = PALETTE[number % PALETTE.len()];
        let place =
            |point: &(f64, f64)| Some((figure.x.scale.place(point.0)?, figure.y.scale.place(point.1)?));
        let points: Vec<(f64, f64)> = series.points.iter().filter_map(place).collect();
        if series.style != Style::Points {
            chart
                .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))
                .map_err(|error| failed(&error))?;
        }
        let whiskers = series.points.iter().zip(&series.spread).filter_map(|((x, _), (low, high))| {
            let x = figure.x.scale.place(*x)?;
            let (low, high) = (figure.y.scale.place(*low)?, figure.y.scale.place(*high)?);
            Some(PathElement::new(vec![(x, low), (x, high)], color.stroke_width(1)))
        });
        chart.draw_series(whiskers).map_err(|error| failed(&error))?;
        if series.style != Style::Line {
            let (filled, open) = (color.filled(), color.stroke_width(2));
            let points = points.into_iter();
            // By turns, for who cannot tell colours at all.
            match number % 4 {
                0 => chart.draw_series(points.map(|at| Circle::new(at, 4, filled))),
                1 => chart.draw_series(points.map(|at| TriangleMarker::new(at, 6, filled))),
                2 => chart.draw_series(points.map(|at| Cross::new(at, 5, open))),
                _ => chart.draw_series(points.map(|at| Circle::new(at, 5, open))),
            }
            .map_err(|error| failed(&error))?;
        }
    }
    legend(&right, &figure.series).map_err(|error| failed(&error))?;
    area.present().map_err(|error| failed(&error))
}

fn legend<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    series: &[Series],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    for (number, series) in series.iter().enumerate() {
        let color = PALETTE[number % PALETTE.len()];
        let y = 60 + 24 * i32::try_from(number).unwrap_or(0);
        if series.style != Style::Points {
            area.draw(&PathElement::new(vec![(4, y), (32, y)], color.stroke_width(2)))?;
        }
        if series.style != Style::Line {
            let (at, filled, open) = ((18, y), color.filled(), color.stroke_width(2));
            match number % 4 {
                0 => area.draw(&Circle::new(at, 4, filled))?,
                1 => area.draw(&TriangleMarker::new(at, 6, filled))?,
                2 => area.draw(&Cross::new(at, 5, open))?,
                _ => area.draw(&Circle::new(at, 5, open))?,
            }
        }
        area.draw(&Text::new(series.name.clone(), (40, y - 7), (FONT, 14)))?;
    }
    Ok(())
}

impl Scale {
    /// Where a value is drawn.
    fn place(self, value: f64) -> Option<f64> {
        match self {
            Scale::Linear => value.is_finite().then_some(value),
            Scale::Logarithmic => (value.is_finite() && value > 0.0).then(|| value.log10()),
        }
    }

    fn label(self, place: f64) -> String {
        match self {
            Scale::Linear => short(place),
            Scale::Logarithmic => short(10_f64.powf(place)),
        }
    }
}

/// As few characters as say it: `0.05`, `20`, `3.2M`.
fn short(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size < 1e-12 => "0".to_owned(),
        _ if size >= 999_950.0 => format!("{}M", short(value / 1e6)),
        _ if size >= 10_000.0 => format!("{}k", short(value / 1e3)),
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
struct Marked {
    range: RangedCoordf64,
    marks: Vec<f64>,
    scale: Scale,
}

impl Marked {
    fn of(range: &Range, scale: Scale) -> Marked {
        Marked { range: (range.from..range.to).into(), marks: range.ticks(scale), scale }
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
const TICKS: usize = 12;

struct Range {
    from: f64,
    to: f64,
    /// Whether all values are whole numbers: so are the marks then.
    is_whole: bool,
}

impl Range {
    /// What the axis has to show; `None`: nothing.
    fn of(axis: &Axis, values: impl Iterator<Item = f64>) -> Option<Range> {
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
            Scale::Logarithmic => {
                let room = ((most - least) * 0.04).max(0.1);
                Range { from: least - room, to: most + room, is_whole }
            }
        })
    }

    /// Where marks and grid lines are: 1, 2 and 5 times powers of ten. On a logarithmic axis powers of ten only, if there are
    /// enough.
    fn ticks(&self, scale: Scale) -> Vec<f64> {
        match scale {
            Scale::Linear => {
                let rough = (self.to - self.from) / 8.0;
                let power = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power);
                let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
                let step = if self.is_whole { step.max(1.0) } else { step };
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(scale: Scale) -> Figure {
        let axis = |label: &str| Axis { label: label.to_owned(), scale };
        let series = vec![
            Series::new("model", Style::Line, vec![(1.0, 1.0), (100.0, 7.0)]),
            Series::new("simulated", Style::Points, vec![(10.0, 3.0), (0.0, 0.0)]),
        ];
        Figure::new("f", "A figure", axis("term (s)"), axis("messages/s"), series)
    }

    #[test]
    fn axes_titles_and_legend_are_written() {
        let text = svg(&figure(Scale::Linear)).expect("drawn");
        for word in ["A figure", "term (s)", "messages/s", "model", "simulated"] {
            assert!(text.contains(word), "{word}");
        }
    }

    #[test]
    fn an_image_has_letters_without_any_font_installed() {
        let dir = tempfile::tempdir().expect("a directory");
        let ink = |title: &str| {
            let path = dir.path().join("f.png");
            png(&Figure { title: title.to_owned(), ..figure(Scale::Logarithmic) }, &path).expect("drawn");
            std::fs::metadata(&path).expect("written").len()
        };
        assert!(ink("A long title with many letters in it") > ink(" "), "the title is not drawn");
    }

    #[test]
    fn a_spread_is_drawn_and_has_room() {
        let mut spread = figure(Scale::Linear);
        spread.series[0].spread = vec![(0.5, 2.0), (5.0, 20.0)];
        let text = svg(&spread).expect("drawn");
        assert_eq!(text.matches("stroke=\"#0072B2\" stroke-width=\"1\"").count(), 2);
        assert!(text.contains("\n20\n"), "the axis ends below what is drawn");
    }

    #[test]
    fn nothing_to_draw_is_said() {
        let empty = Figure { series: Vec::new(), ..figure(Scale::Linear) };
        assert!(svg(&empty).is_err());
        let nothing = vec![Series::new("s", Style::Line, vec![(0.0, f64::NAN)])];
        assert!(svg(&Figure { series: nothing, ..figure(Scale::Logarithmic) }).is_err());
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = png(&figure(Scale::Linear), Path::new("/nowhere/f.png")).expect_err("no directory");
        assert!(error.to_string().starts_with("/nowhere/f.png: No such file"), "{error}");
    }

    #[test]
    fn marks_are_round_numbers() {
        let range = |from: f64, to: f64, is_whole| Range { from, to, is_whole };
        let shown = |range: Range, scale: Scale| -> Vec<String> {
            range.ticks(scale).into_iter().map(|at| scale.label(at)).collect()
        };
        assert_eq!(shown(range(0.0, 3.15, true), Scale::Linear), ["0", "1", "2", "3"]);
        assert_eq!(
            shown(range(0.0, 0.735, false), Scale::Linear),
            ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7"]
        );
        assert_eq!(shown(range(-0.1, 1.4, false), Scale::Logarithmic), ["1", "2", "5", "10", "20"]);
        assert_eq!(shown(range(0.0, 4.0, false), Scale::Logarithmic).len(), 9);
    }

    #[test]
    fn labels_are_short() {
        let labels = [0.0, 0.05, 0.1, 1.0, 2.5, 10.0, 150.0, 20_000.0, 3.2e6].map(short);
        assert_eq!(labels, ["0", "0.05", "0.1", "1", "2.5", "10", "150", "20k", "3.2M"]);
    }
}
