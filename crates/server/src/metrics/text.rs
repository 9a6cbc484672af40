//! Prometheus's text format, version 0.0.4.

use super::Histogram;
use std::fmt::{Display, Write};

/// A page in the making.
#[derive(Debug, Default)]
pub(crate) struct Text(String);

impl Text {
    pub(crate) fn into_string(self) -> String {
        self.0
    }

    /// What only grows. `name` as in `soda stats --json`.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        let (name, value) = in_base_units(name, value);
        self.plain(&format!("soda_{name}_total"), "counter", help, value);
    }

    /// What goes up and down.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: u64) {
        let (name, value) = in_base_units(name, value);
        self.plain(&format!("soda_{name}"), "gauge", help, value);
    }

    fn plain(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        self.sample(name, "", value);
    }

    pub(crate) fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        if labels.is_empty() {
            self.line(format_args!("{name} {value}"));
        } else {
            self.line(format_args!("{name}{{{labels}}} {value}"));
        }
    }

    pub(crate) fn histogram(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        let separator = if labels.is_empty() { "" } else { "," };
        let mut count = 0;
        for (bound, below) in histogram.cumulative() {
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
            self.line(format_args!("{name}_bucket{{{labels}{separator}le=\"{bound}\"}} {below}"));
            count = below;
        }
        self.sample(&format!("{name}_sum"), labels, histogram.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), labels, count);
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String does not fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// Times are seconds for Prometheus, whatever unit the name ends with.
fn in_base_units(name: &str, value: u64) -> (String, f64) {
    let value = value as f64;
    for (unit, a_second) in [("_us", 1e6), ("_ms", 1e3)] {
        if let Some(name) = name.strip_suffix(unit) {
            return (format!("{name}_seconds"), value / a_second);
        }
    }
    (name.to_owned(), value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_page_is_what_prometheus_reads() {
        let mut text = Text::default();
        text.counter("a", "Help", 3);
        text.counter("waited_us", "Help", 1_500_000);
        text.gauge("left_ms", "Help", 20);
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(2));
        text.histogram("h", "call=\"x\"", &histogram);
        let page = text.into_string();
        let start = "# HELP soda_a_total Help\n# TYPE soda_a_total counter\nsoda_a_total 3\n";
        assert!(page.starts_with(start), "{page}");
        assert!(
            page.contains("# TYPE soda_waited_seconds_total counter\nsoda_waited_seconds_total 1.5\n"),
            "{page}"
        );
        assert!(page.contains("# TYPE soda_left_seconds gauge\nsoda_left_seconds 0.02\n"), "{page}");
        assert!(page.contains("h_bucket{call=\"x\",le=\"0.000001\"} 0\n"), "{page}");
        assert!(page.contains("h_bucket{call=\"x\",le=\"0.000002\"} 1\n"), "{page}");
        assert!(page.contains("h_bucket{call=\"x\",le=\"+Inf\"} 1\n"), "{page}");
        assert!(page.ends_with("h_sum{call=\"x\"} 0.000002\nh_count{call=\"x\"} 1\n"), "{page}");
    }
}
