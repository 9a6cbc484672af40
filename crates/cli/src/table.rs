//! Tables for people.

use std::fmt;

/// Columns of text, left-aligned; those with a name and nothing but figures right-aligned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<'a>(head: impl IntoIterator<Item = &'a str>) -> Table {
        Table { rows: vec![head.into_iter().map(str::to_uppercase).collect()] }
    }

    /// A name may have anything in it: what would be no text of one line is shown as Rust writes it, `\n` a line feed.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        let mut cells = cells.into();
        for cell in cells.iter_mut().filter(|cell| cell.contains(char::is_control)) {
            *cell = cell.escape_debug().to_string();
        }
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() <= 1
    }
}

fn is_figure(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit()) && !cell.contains([':', '/'])
}

/// Stands for no figure.
fn is_none(cell: &str) -> bool {
    ["", "-"].contains(&cell)
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let has_figures = |column: usize| {
            let mut cells = self.rows.iter().skip(1).filter_map(|row| row.get(column));
            let is_named = self.rows.first().is_some_and(|head| column < head.len());
            is_named && cells.all(|cell| is_figure(cell) || is_none(cell))
        };
        let columns: Vec<_> = (0..columns).map(|column| (width(column), has_figures(column))).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, (width, has_figures)) in row.iter().zip(&columns) {
                match *has_figures && is_figure(cell) {
                    true => line.push_str(&format!("{cell:>width$}  ")),
                    false => line.push_str(&format!("{cell:<width$}  ")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["name", "count"]);
        table.row(["a".into(), "5".into()]);
        table.row(["longer".into(), "12345".into()]);
        assert_eq!(table.to_string(), "NAME    COUNT\na           5\nlonger  12345\n");
    }

    #[test]
    fn what_only_begins_with_a_figure_is_text() {
        let mut table = Table::new(["lock", "bytes"]);
        table.row(["a".into(), "all of it".into(), "4 bytes".into()]);
        table.row(["b".into(), "0-9".into(), "12 bytes at 0".into()]);
        assert_eq!(
            table.to_string(),
            "LOCK  BYTES\na     all of it  4 bytes\nb     0-9        12 bytes at 0\n"
        );
    }

    #[test]
    fn a_row_is_a_line() {
        let mut table = Table::new(["mount"]);
        table.row(["/mnt/a\nb\u{1b}[2J".into()]);
        assert_eq!(table.to_string(), "MOUNT\n/mnt/a\\nb\\u{1b}[2J\n");
    }
}
