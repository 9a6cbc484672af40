//! `soda lab report`: everything on one page that needs nothing but itself.

use crate::check::Check;
use crate::experiment::Findings;
use crate::figure::{Table, Value};
use crate::{LabError, plot};
use std::fmt::Write;

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
table{border-collapse:collapse;margin:1em 0;font-size:14px}td,th{padding:.2em .8em;border-bottom:1px solid \
#ddd;text-align:right}\
td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}.paper{border-left:4px solid \
#0072b2;padding-left:1em}\
.why{border-left:4px solid #d55e00;padding-left:1em}small{color:#666}";

/// The page: HTML with its figures inside.
///
/// # Errors
/// If a figure cannot be drawn.
pub fn html(all: &[Findings]) -> Result<String, LabError> {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Soda: the lab's report</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\n<h1>What leases \
         cost</h1>\n\
         <p>By formula, by simulation of the production lease core, and measured of the real system, beside what the papers \
         found that Soda comes from. The papers are at hand as text without their figures: where no numbers are given, there are \
         their words. docs/LAB.md explains each experiment; <code>soda lab run NAME</code> repeats \
         it.</p>\n<ul>\n"
    );
    for found in all {
        let held = found.checks.iter().filter(|check| check.holds).count();
        let is_broken = found.error.is_some() || Check::broken(&found.checks).is_some();
        let said = match (is_broken, found.checks.len()) {
            (true, _) => ": failed".to_owned(),
            (false, 0) => String::new(),
            (false, claims) => format!(": {held} of {claims} claims hold"),
        };
        let _ = writeln!(
            page,
            "<li><a href=\"#{}\">{}</a>{said}</li>",
            escape(&found.name),
            escape(&found.title)
        );
    }
    page.push_str("</ul>\n");
    for found in all {
        section(&mut page, found)?;
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn section(page: &mut String, found: &Findings) -> Result<(), LabError> {
    let name = escape(&found.name);
    let _ = write!(
        page,
        "<h2 id=\"{name}\">{}</h2>\n<p><b>{}</b></p>\n",
        escape(&found.title),
        escape(&found.question)
    );
    if let Some(error) = &found.error {
        let _ = writeln!(page, "<p class=\"why\"><b>It failed:</b> {}</p>", escape(error));
    } else {
        let _ = write!(
            page,
            "<p class=\"paper\"><b>The paper:</b> {}</p>\n<p class=\"why\"><b>Here:</b> {}</p>\n",
            escape(&found.paper),
            escape(&found.why),
        );
    }
    if !found.checks.is_empty() {
        let mut table = Table::new("What it is held to", ["claim", "holds", "about", "numbers"]);
        for check in &found.checks {
            let about = check.basis.about().to_owned();
            let texts = [check.claim.clone(), check.answer().to_owned(), about, check.numbers.clone()];
            table.row(texts.map(Value::from));
        }
        html_table(page, &table);
    }
    // As `Findings::write` calls them, beside the page.
    let link = |file: String, text: &str| format!("<a href=\"{file}\">{text}</a>");
    for figure in &found.figures {
        page.push_str(&plot::svg(figure)?);
        let _ = writeln!(page, "<small>{}</small>", link(format!("{name}-{}.csv", figure.name), "CSV"));
    }
    for (number, table) in found.tables.iter().enumerate() {
        html_table(page, table);
        let _ = writeln!(page, "<small>{}</small>", link(format!("{name}-table{}.csv", number + 1), "CSV"));
    }
    let machine = found.machine.as_ref().map_or("machine not known".to_owned(), ToString::to_string);
    let (extent, machine) = (escape(&found.extent), escape(&machine));
    let json = link(format!("{name}.json"), "JSON");
    let _ = writeln!(page, "<p><small>{extent} run, {:.1} s; {machine}; {json}</small></p>", found.took);
    Ok(())
}

fn html_table(page: &mut String, table: &Table) {
    let row = |cells: &[String], tag: &str| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let _ = writeln!(page, "<h3>{}</h3>\n<table>", escape(&table.title));
    page.push_str(&row(&table.head, "th"));
    for cells in &table.rows {
        let cells: Vec<String> = cells.iter().map(Value::rounded).collect();
        page.push_str(&row(&cells, "td"));
    }
    page.push_str("</table>\n");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Axis, Figure, Series, Style};
    use crate::machine::Machine;

    #[test]
    fn the_page_has_everything_and_needs_nothing() {
        let series = vec![Series::new("s", Style::Both, vec![(1.0, 2.0)])];
        let mut table = Table::new("t", ["a<b"]);
        table.row(["1 & 2".into()]);
        let found = Findings {
            name: "n".into(),
            title: "A title".into(),
            question: "Why?".into(),
            paper: "13 times".into(),
            why: "another machine".into(),
            figures: vec![Figure::new("f", "F", Axis::linear("x"), Axis::linear("y"), series)],
            tables: vec![table],
            checks: vec![
                Check::timed("it is fast", false, "3 s"),
                Check::counted("it is right", true, "2 of 2"),
            ],
            error: None,
            files: Vec::new(),
            extent: "quick".into(),
            took: 1.0,
            machine: Some(Machine { kernel: "6.18".into(), cores: 2, ..Machine::default() }),
        };
        let failed = Findings { name: "m".into(), error: Some("no <space>".into()), ..found.clone() };
        let wrong = vec![Check::counted("it is complete", false, "3 of 4")];
        let broken = Findings { name: "o".into(), title: "Broken".into(), checks: wrong, ..found.clone() };
        let page = html(&[found, failed, broken]).expect("written");
        for word in [
            "A title",
            "Why?",
            "13 times",
            "another machine",
            "<svg",
            "a&lt;b",
            "1 &amp; 2",
            "Linux 6.18",
            "2 cores",
            "1 of 2 claims hold",
            "<td>it is fast</td><td>no</td><td>times here</td><td>3 s</td>",
            "href=\"n-table1.csv\"",
            "href=\"n.json\"",
            "A title</a>: failed",
            "Broken</a>: failed",
            "<td>it is complete</td><td>no</td><td>counts</td><td>3 of 4</td>",
            "It failed:</b> no &lt;space&gt;",
        ] {
            assert!(page.contains(word), "{word}");
        }
        assert!(!page.contains("src=") && !page.contains("<link"), "it asks for another file");
    }
}
