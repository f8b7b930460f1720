//! Tables for people: left-aligned columns two spaces apart, no lines, a bold head.

use crate::fault::printable;

/// A table to print.
#[derive(Debug)]
pub struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    #[must_use]
    pub fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; an empty cell shows as `-`.
    pub fn row(&mut self, cells: Vec<String>) {
        let shown = |cell: String| if cell.is_empty() { "-".to_owned() } else { printable(&cell) };
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    /// The text, with the head in bold; nothing at all without rows.
    #[must_use]
    pub fn text(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let widths = self.widths();
        let head: Vec<String> = self.head.iter().map(|&cell| cell.to_owned()).collect();
        let mut text = format!("\x1b[1m{}\x1b[0m\n", line(&head, &widths));
        for row in &self.rows {
            text.push_str(&line(row, &widths));
            text.push('\n');
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let width = |(column, head): (usize, &&str)| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([head.chars().count()]).max().unwrap_or(0)
        };
        self.head.iter().enumerate().map(width).collect()
    }
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, &width)| format!("{cell:width$}"));
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up_and_empty_cells_show() {
        let mut table = Table::new(&["ID", "NAME", "STATE"]);
        table.row(vec!["01".into(), "web".into(), "running".into()]);
        table.row(vec!["0202".into(), String::new(), "stopped".into()]);
        assert_eq!(table.text(), "\x1b[1mID    NAME  STATE\x1b[0m\n01    web   running\n0202  -     stopped\n");
    }

    #[test]
    fn no_rows_is_no_output() {
        assert_eq!(Table::new(&["ID"]).text(), "");
    }
}
