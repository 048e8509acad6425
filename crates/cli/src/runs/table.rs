//! Tables: for a terminal of 100 columns, as Markdown, as CSV.

use serde_json::Value;

use crate::failure::Failure;
use crate::out;
use crate::runs::args::FormatArgs;

/// Columns of the narrowest terminal that is catered for.
const WIDTH: usize = 100;

/// A column is never squeezed under this.
const COLUMN_MIN: usize = 8;

/// Spaces between columns.
const GAP: usize = 2;

/// Rows under a title.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) title: String,
    /// Empty for rows of a name and a value.
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, header: &[&str]) -> Self {
        let header = header.iter().map(|&name| name.to_owned()).collect();
        Self { title: title.into(), header, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    fn text(&self) -> String {
        let clean: Vec<Vec<String>> = std::iter::once(&self.header)
            .filter(|header| !header.is_empty())
            .chain(&self.rows)
            .map(|row| row.iter().map(|cell| out::line(cell)).collect())
            .collect();
        let widths = widths(&clean);
        let mut lines = Vec::new();
        if !self.title.is_empty() {
            lines.push(out::line(&self.title));
        }
        for row in &clean {
            let cells: Vec<Vec<String>> =
                row.iter().zip(&widths).map(|(cell, width)| wrap(cell, *width)).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for at in 0..height {
                let mut line = String::new();
                for (cell, width) in cells.iter().zip(&widths) {
                    let part = cell.get(at).map_or("", String::as_str);
                    let pad = width.saturating_sub(part.chars().count()) + GAP;
                    line += part;
                    line.extend(std::iter::repeat_n(' ', pad));
                }
                lines.push(line.trim_end().to_owned());
            }
        }
        lines.join("\n")
    }

    fn markdown(&self) -> String {
        let cell = |text: &String| out::line(text).replace('\\', "\\\\").replace('|', "\\|");
        let columns = self.rows.iter().map(Vec::len).chain([self.header.len()]).max().unwrap_or(0);
        let line = |cells: &[String]| {
            let mut cells: Vec<String> = cells.iter().map(cell).collect();
            cells.resize(columns, String::new());
            format!("| {} |", cells.join(" | "))
        };
        let mut lines = Vec::new();
        if !self.title.is_empty() {
            lines.extend([format!("**{}**", out::line(&self.title)), String::new()]);
        }
        lines.push(line(&self.header));
        lines.push(format!("|{}", "---|".repeat(columns)));
        lines.extend(self.rows.iter().map(|row| line(row)));
        lines.join("\n")
    }

    /// Rows as they are, but for what a terminal would obey; the title is the first cell of each where there are
    /// several tables.
    fn csv(&self, with_title: bool) -> String {
        let field = |text: &str| {
            let needs_quotes = text.contains([',', '"', '\n', '\r']);
            if needs_quotes {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                text.to_owned()
            }
        };
        let line = |first: &str, cells: &[String]| {
            let first = with_title.then(|| field(first));
            first
                .into_iter()
                .chain(cells.iter().map(|cell| field(cell)))
                .collect::<Vec<_>>()
                .join(",")
        };
        let header = std::iter::once(&self.header).filter(|header| !header.is_empty());
        let header = header.map(|header| line("table", header));
        header
            .chain(self.rows.iter().map(|row| line(&self.title, row)))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Prints tables, or the same as JSON.
pub(crate) fn print(format: FormatArgs, tables: &[Table], json: &Value) -> Result<(), Failure> {
    let shown: Vec<&Table> = tables.iter().filter(|table| !table.rows.is_empty()).collect();
    let joined = |each: &dyn Fn(&Table) -> String, between: &str| {
        shown.iter().map(|table| each(table)).collect::<Vec<_>>().join(between)
    };
    out::result(&if format.json {
        json.to_string()
    } else if format.md {
        joined(&Table::markdown, "\n\n")
    } else if format.csv {
        let with_title = shown.len() > 1;
        joined(&|table| table.csv(with_title), "\n")
    } else {
        joined(&Table::text, "\n\n")
    })
}

/// Widths that fit the terminal: the widest columns give way first, as even as can be.
fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |at: usize| {
        rows.iter()
            .filter_map(|row| row.get(at))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..columns).map(widest).collect();
    let room = WIDTH.saturating_sub(GAP * columns.saturating_sub(1));
    while widths.iter().sum::<usize>() > room {
        let Some(most) =
            widths.iter_mut().max_by_key(|width| **width).filter(|width| **width > COLUMN_MIN)
        else {
            break;
        };
        *most -= 1;
    }
    widths
}

/// Breaks a cell at spaces, or within a word that is longer than its column; leading spaces are kept, since
/// trees are drawn with them.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let indent = text.chars().take_while(|letter| *letter == ' ').count().min(width - 1);
    let mut lines = Vec::new();
    let mut line = " ".repeat(indent);
    let mut used = indent;
    let mut has_words = false;
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        if has_words && used + 1 + letters.len() > width {
            lines.push(std::mem::take(&mut line));
            (used, has_words) = (0, false);
        }
        if has_words {
            line.push(' ');
            used += 1;
        }
        for letter in letters {
            if used == width {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(letter);
            used += 1;
        }
        has_words = true;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Table {
        let mut table = Table::new("runs", &["id", "note"]);
        table.row(["a", "short"]);
        table.row(["b", &"a long note of many words ".repeat(9)]);
        table.row(["c", &"x".repeat(250)]);
        table.row(["d", "pipes | and \u{1b}[31mcolours\n, \"quotes\""]);
        table
    }

    #[test]
    fn text_fits_a_hundred_columns_and_loses_no_word() {
        let text = example().text();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches("words").count(), 9);
        assert_eq!(text.matches('x').count(), 250);
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn markdown_and_csv_keep_cells_apart() {
        let table = example();
        let markdown = table.markdown();
        assert!(markdown.contains("pipes \\| and"));
        assert_eq!(markdown.lines().count(), 2 + 2 + 4);
        let csv = table.csv(false);
        assert!(csv.starts_with("id,note\na,short\n"));
        assert!(csv.ends_with("\n, \"\"quotes\"\"\""), "{csv}");
        assert!(table.csv(true).starts_with("table,id,note\nruns,a,short\n"));
    }
}
