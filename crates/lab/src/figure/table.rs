//! Tables, and what stands in them: numbers with all their digits for programs, with three for people.

use super::{amount, quoted};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt::{self, Display, Formatter, Write};

/// What stands in a cell of a table, and what the model says. Numbers made by [`From`] are never NaN.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Number(f64),
    Holds(bool),
    Text(String),
    /// What was measured or simulated several times: the middle, and from where to where it may as well be. Three columns in
    /// CSV and JSON.
    Spread {
        middle: f64,
        low: f64,
        high: f64,
    },
    /// Not measured, or not said by the paper.
    Missing,
}

impl Value {
    /// A mean that is right to within a margin.
    pub(crate) fn within(mean: f64, margin: f64) -> Value {
        Value::Spread { middle: mean, low: mean - margin, high: mean + margin }
    }

    /// For people.
    pub(crate) fn rounded(&self) -> String {
        match self {
            Value::Number(number) => amount(*number),
            Value::Spread { middle, low, high } if low == high => amount(*middle),
            Value::Spread { middle, low, high } => {
                format!("{} ({} to {})", amount(*middle), amount(*low), amount(*high))
            }
            Value::Missing => "-".to_owned(),
            Value::Holds(_) | Value::Text(_) => self.to_string(),
        }
    }

    /// As the three columns of a spread.
    fn apart(self) -> [Value; 3] {
        match self {
            Value::Spread { middle, low, high } => [middle, low, high].map(Value::Number),
            one => [one, Value::Missing, Value::Missing],
        }
    }

    /// What [`Value::apart`] was made of.
    fn together(columns: [Value; 3]) -> Value {
        match columns {
            [Value::Number(middle), Value::Number(low), Value::Number(high)] => {
                Value::Spread { middle, low, high }
            }
            [one, ..] => one,
        }
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        if number.is_nan() { Value::Missing } else { Value::Number(number) }
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Value {
        Value::Number(count as f64)
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Value {
        Value::Number(count as f64)
    }
}

impl From<u32> for Value {
    fn from(count: u32) -> Value {
        Value::Number(count.into())
    }
}

impl From<bool> for Value {
    fn from(holds: bool) -> Value {
        Value::Holds(holds)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Missing, Into::into)
    }
}

/// All digits; `inf`; `yes` or `no`; nothing of what is missing.
impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Value::Holds(holds) => f.write_str(if *holds { "yes" } else { "no" }),
            Value::Number(number)
                if number.is_finite() && *number != 0.0 && !(1e-6..1e15).contains(&number.abs()) =>
            {
                write!(f, "{number:e}")
            }
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => f.write_str(text),
            Value::Spread { .. } => f.write_str(&self.rounded()),
            Value::Missing => Ok(()),
        }
    }
}

/// A number, or the text `inf`, for which JSON has no number; true or false; a text; null of what is missing.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Number(number) if number.is_finite() => serializer.serialize_f64(*number),
            Value::Holds(holds) => serializer.serialize_bool(*holds),
            Value::Spread { middle, low, high } => (middle, low, high).serialize(serializer),
            Value::Missing => serializer.serialize_unit(),
            Value::Number(_) | Value::Text(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        use serde_json::Value as Json;
        let expected = || serde::de::Error::custom("a cell is a number, true or false, a text or null");
        Ok(match Json::deserialize(deserializer)? {
            Json::Null => Value::Missing,
            Json::Bool(holds) => Value::Holds(holds),
            Json::Number(number) => Value::Number(number.as_f64().ok_or_else(expected)?),
            Json::String(text) => match text.as_str() {
                "inf" => Value::Number(f64::INFINITY),
                "-inf" => Value::Number(f64::NEG_INFINITY),
                _ => Value::Text(text),
            },
            Json::Array(_) | Json::Object(_) => return Err(expected()),
        })
    }
}

/// Rows of values.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(from = "Columns", into = "Columns")]
pub struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<Value>>,
}

/// A table as programs read it: where there is a [`Value::Spread`] in a column `x`, `x from` and `x to` are columns of their own.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Columns {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<Value>>,
}

fn from_and_to(name: &str) -> [String; 2] {
    [format!("{name} from"), format!("{name} to")]
}

impl From<Table> for Columns {
    fn from(table: Table) -> Columns {
        let is_spread = |column: usize| {
            table.rows.iter().any(|row| matches!(row.get(column), Some(Value::Spread { .. })))
        };
        let spreads: Vec<bool> = (0..table.head.len()).map(is_spread).collect();
        let mut head = Vec::new();
        for (name, is_spread) in table.head.into_iter().zip(&spreads) {
            let more = if *is_spread { from_and_to(&name).to_vec() } else { Vec::new() };
            head.push(name);
            head.extend(more);
        }
        let apart = |row: Vec<Value>| {
            let cells = row.into_iter().zip(&spreads);
            cells.flat_map(|(cell, is_spread)| cell.apart().into_iter().take(if *is_spread { 3 } else { 1 }))
        };
        let rows = table.rows.into_iter().map(|row| apart(row).collect()).collect();
        Columns { title: table.title, head, rows }
    }
}

impl From<Columns> for Table {
    fn from(columns: Columns) -> Table {
        let mut table = Table { title: columns.title, head: Vec::new(), rows: Vec::new() };
        let mut widths = Vec::new();
        let mut names = &columns.head[..];
        while let [name, rest @ ..] = names {
            let width = if rest.starts_with(&from_and_to(name)) { 3 } else { 1 };
            table.head.push(name.clone());
            widths.push(width);
            names = &names[width..];
        }
        for row in columns.rows {
            let mut cells = row.into_iter();
            let mut next = || cells.next().unwrap_or(Value::Missing);
            let together = |width: &usize| match width {
                3 => Value::together([next(), next(), next()]),
                _ => next(),
            };
            table.rows.push(widths.iter().map(together).collect());
        }
        table
    }
}

impl Table {
    pub fn new<const N: usize>(title: &str, head: [&str; N]) -> Table {
        Table { title: title.to_owned(), head: head.map(str::to_owned).to_vec(), rows: Vec::new() }
    }

    pub fn row<const N: usize>(&mut self, cells: [Value; N]) {
        self.rows.push(cells.to_vec());
    }

    /// With all digits.
    pub fn csv(&self) -> String {
        let Columns { head, rows, .. } = self.clone().into();
        let texts = |row: Vec<Value>| row.iter().map(Value::to_string).collect();
        let line =
            |cells: Vec<String>| cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\n";
        std::iter::once(head).chain(rows.into_iter().map(texts)).map(line).collect()
    }
}

/// For people: the columns stand below each other; the first to the left, figures to the right.
impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let rounded = |row: &Vec<Value>| row.iter().map(Value::rounded).collect();
        let lines: Vec<Vec<String>> =
            std::iter::once(self.head.clone()).chain(self.rows.iter().map(rounded)).collect();
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..self.head.len()).map(|column| width(column).unwrap_or(0)).collect();
        for line in lines {
            let mut text = String::new();
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                match column {
                    0 => write!(text, "{gap}{cell:<width$}")?,
                    _ => write!(text, "{gap}{cell:>width$}")?,
                }
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of everything.
    fn table() -> Table {
        let mut table = Table::new("t", ["what", "time (ms)", "is so"]);
        let spread = Value::Spread { middle: 12.456_789, low: 11.0, high: 14.25 };
        table.row(["1,5 \"x\"".into(), spread, true.into()]);
        table.row(["b".into(), (1.0 / 3.0).into(), false.into()]);
        table.row([1234.5.into(), f64::INFINITY.into(), Value::Missing]);
        table
    }

    #[test]
    fn programs_get_all_digits_and_columns_of_a_spread() {
        let csv = "what,time (ms),time (ms) from,time (ms) to,is so\n\
                   \"1,5 \"\"x\"\"\",12.456789,11,14.25,yes\n\
                   b,0.3333333333333333,,,no\n\
                   1234.5,inf,,,\n";
        assert_eq!(table().csv(), csv);
        let json = serde_json::to_value(table()).expect("written");
        let head = ["what", "time (ms)", "time (ms) from", "time (ms) to", "is so"];
        assert_eq!(json["head"], serde_json::json!(head));
        let rows = serde_json::json!([
            ["1,5 \"x\"", 12.456_789, 11.0, 14.25, true],
            ["b", 1.0 / 3.0, null, null, false],
            [1234.5, "inf", null, null, null]
        ]);
        assert_eq!(json["rows"], rows);
        assert_eq!(serde_json::from_value::<Table>(json).expect("read"), table());
    }

    #[test]
    fn people_get_three_digits_in_columns() {
        let text = "what             time (ms)  is so\n\
                    1,5 \"x\"  12.5 (11 to 14.2)    yes\n\
                    b                   0.3333     no\n\
                    1234              infinite      -\n";
        assert_eq!(table().to_string(), text);
        let once = Value::within(2.5, 0.0);
        assert_eq!([once.rounded(), Value::within(10.3, 0.4).rounded()], ["2.50", "10.3 (9.90 to 10.7)"]);
    }

    #[test]
    fn what_is_no_number_is_missing() {
        assert_eq!([Value::from(f64::NAN), None::<f64>.into()], [Value::Missing, Value::Missing]);
        assert_eq!(Value::from(Some(3_u64)), Value::Number(3.0));
    }
}
