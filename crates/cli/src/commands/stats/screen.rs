//! Groups on a screen: side by side as far as it is wide, and again and again in the same place.

use crate::table::Table;

const GAP: usize = 3;

/// The terminal that is written to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

impl Screen {
    /// `None`: standard output is a file or a pipe.
    pub(super) fn of_output() -> Option<Screen> {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        // A terminal that does not know its size, such as a serial line, says 0.
        let known = |size: u16, usual: usize| if size == 0 { usual } else { usize::from(size) };
        Some(Screen { columns: known(size.ws_col, 80), rows: known(size.ws_row, 24) })
    }

    /// Over what was there, without a blank screen in between; no more than there is room for.
    pub(super) fn in_place_of_the_last(self, text: &str) -> String {
        const HOME: &str = "\x1b[H";
        const CLEAR_LINE: &str = "\x1b[K";
        const CLEAR_BELOW: &str = "\x1b[J";
        let lines: Vec<&str> = text.trim_end().lines().collect();
        // The cursor takes a line, and so does what is said of those that are left out.
        let room = self.rows.saturating_sub(1);
        let shown = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
        let mut out = HOME.to_owned();
        for line in &lines[..shown] {
            let line: String = line.chars().take(self.columns).collect();
            out.push_str(&format!("{line}{CLEAR_LINE}\n"));
        }
        if shown < lines.len() {
            let more = format!("{} more lines: make this window larger, or use --once", lines.len() - shown);
            let more: String = more.chars().take(self.columns).collect();
            out.push_str(&format!("{more}{CLEAR_LINE}\n"));
        }
        out.push_str(CLEAR_BELOW);
        out
    }
}

/// Tables below each other, in as many piles as the columns have room for. Without a screen: one pile.
pub(super) fn side_by_side(tables: &[Table], columns: Option<usize>) -> String {
    let blocks: Vec<Vec<String>> =
        tables.iter().map(|table| table.to_string().lines().map(str::to_owned).collect()).collect();
    let width = |block: &[String]| block.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let widest = blocks.iter().map(|block| width(block)).max().unwrap_or(0);
    let piles = columns.map_or(1, |columns| (columns + GAP) / (widest + GAP)).clamp(1, blocks.len().max(1));
    let mut piled: Vec<Vec<String>> = vec![Vec::new(); piles];
    for block in blocks {
        let lowest = piled.iter_mut().min_by_key(|pile| pile.len());
        if let Some(pile) = lowest {
            pile.extend(block);
            pile.push(String::new());
        }
    }
    let widths: Vec<usize> = piled.iter().map(|pile| width(pile)).collect();
    let height = piled.iter().map(Vec::len).max().unwrap_or(0);
    let mut out = String::new();
    for row in 0..height {
        let mut line = String::new();
        for (pile, width) in piled.iter().zip(&widths) {
            let cell = pile.get(row).map_or("", String::as_str);
            line.push_str(&format!("{cell:<width$}", width = width + GAP));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
