//! Draws figures as SVG and PNG. The font is part of the program: nothing has to be installed.

mod axis;

use crate::LabError;
use crate::figure::{Figure, Scale, Series, Style, amount};
use axis::{Marked, Range, TICKS};
use plotters::backend::DrawingBackend;
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::Path;
use std::sync::Once;

const SIZE: (u32, u32) = (960, 520);
/// Beside the axes, so that it hides no point.
const LEGEND_WIDTH: u32 = 260;
/// Left of bars.
const NAMES_WIDTH: u32 = 250;
const FONT: &str = "sans-serif";
/// Images are drawn so much larger, and made smaller then, which smooths lines.
const FINER: u32 = 3;
const GRID: RGBColor = RGBColor(222, 222, 222);

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
/// Of formulas, by turns: length and gap.
const DASHES: [Option<(u32, u32)>; 3] = [None, Some((14, 6)), Some((4, 4))];
const PAPER_DASHES: (u32, u32) = (8, 5);

/// The figure as an SVG document.
///
/// # Errors
/// If the figure has no point, or the library fails.
pub fn svg(figure: &Figure) -> Result<String, LabError> {
    let mut text = String::new();
    draw(figure, &SVGBackend::with_string(&mut text, SIZE).into_drawing_area(), 1)?;
    Ok(text)
}

/// Writes the figure as a PNG image.
///
/// # Errors
/// As [`svg`]; if the file cannot be written.
pub fn png(figure: &Figure, path: &Path) -> Result<(), LabError> {
    // What the library says of a missing directory nobody understands.
    std::fs::File::create(path).map_err(LabError::io(path))?;
    let (width, height) = (SIZE.0 * FINER, SIZE.1 * FINER);
    let mut large = vec![0; (width * height * 3) as usize];
    draw(figure, &BitMapBackend::with_buffer(&mut large, (width, height)).into_drawing_area(), FINER)?;
    let failed = |error: &dyn std::fmt::Display| LabError::Plot(figure.name.clone(), error.to_string());
    let mut image = BitMapBackend::new(path, SIZE);
    image.blit_bitmap((0, 0), SIZE, &smaller(&large, width as usize)).map_err(|error| failed(&error))?;
    image.present().map_err(|error| failed(&error))
}

/// Each pixel is the mean of those that it stands for.
fn smaller(large: &[u8], width: usize) -> Vec<u8> {
    let finer = FINER as usize;
    let rows = large.chunks_exact(width * 3 * finer);
    let pixels = rows.flat_map(|rows| {
        (0..width / finer * 3).map(move |at| {
            let (column, color) = (at / 3 * finer, at % 3);
            let parts = (0..finer * finer).map(|part| {
                let (down, right) = (part / finer, part % finer);
                u32::from(rows[(down * width + column + right) * 3 + color])
            });
            (parts.sum::<u32>() / (FINER * FINER)) as u8
        })
    });
    pixels.collect()
}

/// How a series is drawn.
#[derive(Clone, Copy)]
struct Look {
    color: RGBColor,
    marker: usize,
    dashes: Option<(u32, u32)>,
}

impl Look {
    fn all(series: &[Series]) -> Vec<Look> {
        let mut lines = DASHES.into_iter().cycle();
        let look = |(number, series): (usize, &Series)| {
            let (color, marker) = series.look.unwrap_or((number, number));
            let dashes = match series.style {
                // Beside a curve of the same colour.
                Style::Line if series.look.is_some() => DASHES[1],
                Style::Line => lines.next().flatten(),
                Style::Paper => Some(PAPER_DASHES),
                Style::Points | Style::Both => None,
            };
            Look { color: PALETTE[color % PALETTE.len()], marker, dashes }
        };
        series.iter().enumerate().map(look).collect()
    }
}

/// `k`: pixels for each of [`SIZE`].
fn draw<B: DrawingBackend>(figure: &Figure, area: &DrawingArea<B, Shift>, k: u32) -> Result<(), LabError> {
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
    let drawn = match figure.x.names.is_empty() {
        true => curves(figure, area, (&x.with_room(), &y), k),
        false => bars(figure, area, y, k),
    };
    drawn.and_then(|()| area.present()).map_err(|error| failed(&error))
}

type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

fn curves<B: DrawingBackend>(
    figure: &Figure,
    area: &DrawingArea<B, Shift>,
    (x, y): (&Range, &Range),
    k: u32,
) -> Drawn<B> {
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally((SIZE.0 - LEGEND_WIDTH) * k);
    let (margin, labels) = (12, 72);
    let mut chart = ChartBuilder::on(&left)
        .caption(&figure.title, (FONT, 18 * k))
        .margin(margin * k)
        .x_label_area_size(48 * k)
        .y_label_area_size(labels * k)
        .build_cartesian_2d(Marked::of(x, figure.x.scale), Marked::of(y, figure.y.scale))?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID.stroke_width(k))
        .axis_style(BLACK.stroke_width(k))
        .set_all_tick_mark_size(5 * k)
        .x_desc(&figure.x.label)
        .y_desc(&figure.y.label)
        .x_labels(TICKS)
        .y_labels(TICKS)
        .axis_desc_style((FONT, 16 * k))
        .label_style((FONT, 14 * k))
        .draw()?;
    let pixel = (x.to - x.from) / f64::from(SIZE.0 - LEGEND_WIDTH - 2 * margin - labels);
    let with_spread = figure.series.iter().filter(|series| !series.spread.is_empty()).count();
    let mut beside = (0..with_spread).map(|number| (number as f64 - (with_spread as f64 - 1.0) / 2.0) * 4.0);
    for (series, look) in figure.series.iter().zip(Look::all(&figure.series)) {
        // Whiskers at the same place would cover each other.
        let shift = if series.spread.is_empty() { 0.0 } else { beside.next().unwrap_or(0.0) * pixel };
        let place = |point: &(f64, f64)| {
            Some((figure.x.scale.place(point.0)? + shift, figure.y.scale.place(point.1)?))
        };
        let points: Vec<(f64, f64)> = series.points.iter().filter_map(place).collect();
        let pen = look.color.stroke_width(2 * k);
        if series.style != Style::Points {
            match look.dashes {
                None => chart.draw_series(LineSeries::new(points.iter().copied(), pen)).map(drop)?,
                Some((length, gap)) => {
                    let dashed = DashedLineSeries::new(points.iter().copied(), length * k, gap * k, pen);
                    chart.draw_series(dashed).map(drop)?;
                }
            }
        }
        let whiskers = series.points.iter().zip(&series.spread).filter_map(|((x, _), (low, high))| {
            let x = figure.x.scale.place(*x)? + shift;
            let (low, high) = (figure.y.scale.place(*low)?, figure.y.scale.place(*high)?);
            let cap = 3.0 * pixel;
            let lines =
                [[(x, low), (x, high)], [(x - cap, low), (x + cap, low)], [(x - cap, high), (x + cap, high)]];
            Some(lines.map(|line| PathElement::new(line.to_vec(), look.color.stroke_width(k))))
        });
        chart.draw_series(whiskers.flatten())?;
        if series.style != Style::Line {
            mark(&mut chart, points, look, k)?;
        }
    }
    legend(&right, figure, k)
}

/// Markers, by turns, for who cannot tell colours at all.
fn mark<B: DrawingBackend>(
    chart: &mut ChartContext<'_, B, Cartesian2d<Marked, Marked>>,
    points: Vec<(f64, f64)>,
    look: Look,
    k: u32,
) -> Drawn<B> {
    let (filled, open) = (look.color.filled(), look.color.stroke_width(2 * k));
    let points = points.into_iter();
    match look.marker % 4 {
        0 => chart.draw_series(points.map(|at| Circle::new(at, 4 * k, filled))).map(drop),
        1 => chart.draw_series(points.map(|at| TriangleMarker::new(at, 6 * k, filled))).map(drop),
        2 => chart.draw_series(points.map(|at| Cross::new(at, 5 * k, open))).map(drop),
        _ => chart.draw_series(points.map(|at| Circle::new(at, 5 * k, open))).map(drop),
    }
}

/// A bar for each name, the first on top. On a logarithmic axis, which has no zero to begin at, the length of a bar would mean
/// nothing: a marker.
fn bars<B: DrawingBackend>(figure: &Figure, area: &DrawingArea<B, Shift>, mut y: Range, k: u32) -> Drawn<B> {
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally((SIZE.0 - LEGEND_WIDTH) * k);
    let names = &figure.x.names;
    // For the figure at the end of the longest.
    y.to += 0.1 * (y.to - y.from);
    let name_of = |place: &f64| {
        let number = (names.len() as f64 - place).round().max(0.0) as usize;
        names.get(number).cloned().unwrap_or_default()
    };
    let mut chart = ChartBuilder::on(&left)
        .caption(&figure.title, (FONT, 18 * k))
        .margin(12 * k)
        .x_label_area_size(48 * k)
        .y_label_area_size(NAMES_WIDTH * k)
        .build_cartesian_2d(Marked::of(&y, figure.y.scale), Marked::places(names.len()))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID.stroke_width(k))
        .axis_style(BLACK.stroke_width(k))
        .x_desc(&figure.y.label)
        .x_labels(TICKS)
        .y_labels(names.len())
        .y_label_formatter(&name_of)
        .axis_desc_style((FONT, 16 * k))
        .label_style((FONT, 12 * k))
        .draw()?;
    let looks = Look::all(&figure.series);
    for name in 1..=names.len() {
        let of = |series: &Series| series.points.iter().find(|(x, _)| *x == name as f64).map(|(_, y)| *y);
        let here: Vec<(f64, Look)> = figure
            .series
            .iter()
            .zip(&looks)
            .filter_map(|(series, look)| Some((of(series)?, *look)))
            .collect();
        let height = 0.8 / here.len().max(1) as f64;
        for (number, (value, look)) in here.into_iter().enumerate() {
            let Some(end) = figure.y.scale.place(value) else { continue };
            let top = (names.len() - name) as f64 + 1.4 - number as f64 * height;
            let from_zero = figure.y.scale == Scale::Linear;
            if from_zero {
                let bar = Rectangle::new([(y.from, top - height), (end, top)], look.color.filled());
                chart.draw_series(std::iter::once(bar))?;
            } else {
                mark(&mut chart, vec![(end, top - 0.5 * height)], look, k)?;
            }
            // Beside the marker.
            let gap = if from_zero { " " } else { "   " };
            let text = format!("{gap}{}", amount(value));
            let text = Text::new(text, (end, top - 0.2 * height), (FONT, 11 * k));
            chart.draw_series(std::iter::once(text))?;
        }
    }
    legend(&right, figure, k)
}

fn legend<B: DrawingBackend>(area: &DrawingArea<B, Shift>, figure: &Figure, k: u32) -> Drawn<B> {
    let px = |pixels: i32| pixels * i32::try_from(k).unwrap_or(1);
    let row = |number: usize| px(60 + 24 * i32::try_from(number).unwrap_or(0));
    let are_named = !figure.x.names.is_empty();
    let are_bars = are_named && figure.y.scale == Scale::Linear;
    for ((number, series), look) in figure.series.iter().enumerate().zip(Look::all(&figure.series)) {
        let y = row(number);
        let pen = look.color.stroke_width(2 * k);
        let ends = vec![(px(4), y), (px(32), y)];
        if are_bars {
            area.draw(&Rectangle::new([(px(8), y - px(6)), (px(28), y + px(6))], look.color.filled()))?;
        } else if series.style != Style::Points && !are_named {
            match look.dashes {
                None => area.draw(&PathElement::new(ends, pen))?,
                Some((length, gap)) => {
                    area.draw(&DashedPathElement::new(ends, length * k, gap * k, pen))?;
                }
            }
        }
        if !are_bars && series.style != Style::Line {
            let (at, filled) = ((px(18), y), look.color.filled());
            match look.marker % 4 {
                0 => area.draw(&Circle::new(at, 4 * k, filled))?,
                1 => area.draw(&TriangleMarker::new(at, 6 * k, filled))?,
                2 => area.draw(&Cross::new(at, 5 * k, pen))?,
                _ => area.draw(&Circle::new(at, 5 * k, pen))?,
            }
        }
        area.draw(&Text::new(series.name.clone(), (px(40), y - px(7)), (FONT, 14 * k)))?;
    }
    if figure.series.iter().any(|series| !series.spread.is_empty()) {
        let whiskers = if figure.whiskers.is_empty() { "quartiles" } else { &figure.whiskers };
        let (y, pen) = (row(figure.series.len()), BLACK.stroke_width(k));
        for line in [
            [(px(18), y - px(7)), (px(18), y + px(7))],
            [(px(15), y - px(7)), (px(21), y - px(7))],
            [(px(15), y + px(7)), (px(21), y + px(7))],
        ] {
            area.draw(&PathElement::new(line.to_vec(), pen))?;
        }
        area.draw(&Text::new(whiskers.to_owned(), (px(40), y - px(7)), (FONT, 13 * k)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::axis::short;
    use super::*;
    use crate::figure::{Axis, Scale};

    fn figure(scale: Scale) -> Figure {
        let axis = |label: &str| Axis { scale, ..Axis::linear(label) };
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
        // Two, each with a cap at both ends.
        assert_eq!(text.matches("stroke=\"#0072B2\" stroke-width=\"1\"").count(), 2 * 3);
        assert!(text.contains("quartiles"), "the legend does not say what they are");
        assert!(text.contains("\n20\n"), "the axis ends below what is drawn");
    }

    #[test]
    fn formulas_differ_by_dashes_and_papers_are_dashed() {
        let lines = |style| {
            let series = |name| Series::new(name, style, vec![(1.0, 1.0), (2.0, 2.0)]);
            let dashes =
                Look::all(&[series("a"), series("b"), series("c")]).into_iter().map(|look| look.dashes);
            dashes.collect::<Vec<_>>()
        };
        assert_eq!(lines(Style::Line), DASHES);
        assert_eq!(lines(Style::Paper), [Some(PAPER_DASHES); 3]);
        assert_eq!(lines(Style::Both), [None; 3]);
    }

    #[test]
    fn bars_have_names_and_figures() {
        let series = vec![Series::new("waits", Style::Points, vec![(1.0, 0.5), (2.0, 3.25)])];
        let x = Axis::named("", ["the server dies", "a client dies"]);
        let text = svg(&Figure::new("f", "Crashes", x, Axis::linear("wait (s)"), series)).expect("drawn");
        for word in ["the server dies", "a client dies", "wait (s)", "3.25", "waits"] {
            assert!(text.contains(word), "{word}");
        }
        assert!(text.find("the server dies") > text.find("a client dies"), "the first is on top, drawn last");
    }

    #[test]
    fn on_a_logarithmic_axis_there_are_markers_in_place_of_bars() {
        let drawn = |y: Axis| {
            let series = vec![Series::new("messages", Style::Points, vec![(1.0, 16.0), (2.0, 4200.0)])];
            let figure = Figure::new("f", "Traces", Axis::named("", ["one", "two"]), y, series);
            svg(&figure).expect("drawn")
        };
        let bars = |text: &str| text.matches("<rect").count();
        let (linear, logarithmic) = (drawn(Axis::linear("n")), drawn(Axis::logarithmic("n")));
        // The background is one, too; of bars there are two and one in the legend.
        assert_eq!((bars(&linear), bars(&logarithmic)), (4, 1), "{logarithmic}");
        assert_eq!(logarithmic.matches("<circle").count(), 3);
        assert!(logarithmic.contains("   16\n") && !logarithmic.contains("16.0"), "counts are whole");
    }

    #[test]
    fn what_is_drawn_larger_becomes_the_mean() {
        let finer = FINER as usize;
        // Two pixels: the left one is white, of the right one a column is.
        let row: Vec<u8> = (0..2 * finer).flat_map(|x| [if x <= finer { 255 } else { 0 }; 3]).collect();
        assert_eq!(smaller(&row.repeat(finer), 2 * finer), [[255; 3], [85; 3]].concat());
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
        assert_eq!(shown(range(5.0, 31.0, false), Scale::Bytes)[..3], ["256 B", "4 KiB", "64 KiB"]);
        // Between numbers that can hardly be told apart there is no step to go by.
        assert_eq!(shown(range(0.0, 1e-323, false), Scale::Linear), Vec::<String>::new());
    }

    #[test]
    fn labels_are_short() {
        let labels = [0.0, 0.05, 0.1, 1.0, 2.5, 10.0, 150.0, 20_000.0, 3.2e6].map(short);
        assert_eq!(labels, ["0", "0.05", "0.1", "1", "2.5", "10", "150", "20000", "3.2M"]);
    }
}
