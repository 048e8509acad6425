//! What `inspect` says about a file or folder, for people and for programs.
//!
//! The fields are a promise: programs read them through `--json`. New ones may be added.

use std::fmt;

use serde::Serialize;

use crate::layout::{Architecture, Layout};
use crate::text::one_line;

/// What a file or folder holds. All sizes are of tensors, in bytes, by their headers alone.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The path as given.
    pub path: String,
    /// `file`, `folder`, or `pipeline` for a folder with a `model_index.json`.
    pub kind: &'static str,
    /// Class of the pipeline.
    pub pipeline_class: Option<String>,
    /// Why it cannot be run as it is; `None` where it can, or is a sound part of what can.
    pub refusal: Option<String>,
    /// The components, those without weights too.
    pub components: Vec<ComponentReport>,
    /// Sum over the components.
    pub tensors: u64,
    /// Sum over the components; `None` where one does not tell.
    pub parameters: Option<u64>,
    /// Sum over the components.
    pub bytes: u64,
}

/// One component of a [`Report`].
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ComponentReport {
    /// `transformer`, `text_encoder`, `text_encoder_2`, `vae`, ...
    pub name: String,
    /// Class by `model_index.json`.
    pub class_name: Option<String>,
    /// The model; `None` for a component without weights.
    pub architecture: Option<Architecture>,
    /// Which of the architecture's variants, where the tensors tell.
    pub variant: Option<&'static str>,
    /// How it is stored; `None` for a component without weights.
    pub layout: Option<Layout>,
    /// Its weight files.
    pub files: Vec<FileReport>,
    /// Number of tensors in the files.
    pub tensors: u64,
    /// Number of weights; `None` where they are packed so that the header does not tell.
    pub parameters: Option<u64>,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Tensors and bytes by element type, most bytes first.
    pub dtypes: Vec<DTypeReport>,
}

/// One weight file.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FileReport {
    /// Its path, links resolved.
    pub path: String,
    /// Its length.
    pub bytes: u64,
}

/// One element type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DTypeReport {
    /// Its name in the file.
    pub dtype: String,
    /// Tensors of the type.
    pub tensors: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = one_line(self.pipeline_class.as_deref().unwrap_or(self.kind));
        writeln!(f, "{}: {what}, {}", self.path, size(self.bytes))?;
        let header = ["component", "holds", "layout", "tensors", "parameters", "size", "dtypes"];
        let mut rows = vec![header.map(str::to_owned)];
        rows.extend(self.components.iter().map(ComponentReport::row));
        if self.components.len() > 1 {
            let (tensors, parameters) = (grouped(self.tensors), known(self.parameters));
            let blank = String::new;
            let total = "total".to_owned();
            rows.push([total, blank(), blank(), tensors, parameters, size(self.bytes), blank()]);
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> = (0..7).map(|column| width(column).unwrap_or(0)).collect();
        for row in &rows {
            let cells = row.iter().zip(&widths).enumerate();
            let line: Vec<String> = cells
                .map(|(column, (cell, &width))| match column {
                    3..=5 => format!("{cell:>width$}"),
                    _ => format!("{cell:<width$}"),
                })
                .collect();
            writeln!(f, "  {}", line.join("  ").trim_end())?;
        }
        if let Some(refusal) = &self.refusal {
            writeln!(f, "  cannot be run: {refusal}")?;
        }
        Ok(())
    }
}

impl ComponentReport {
    fn row(&self) -> [String; 7] {
        let holds = match (self.architecture, &self.class_name, self.variant) {
            (Some(architecture), _, Some(variant)) => format!("{architecture}, {variant}"),
            (Some(Architecture::Unknown), Some(class_name), _) => one_line(class_name),
            (Some(architecture), _, None) => architecture.to_string(),
            (None, class_name, _) => class_name.as_deref().map_or_else(String::new, one_line),
        };
        let Some(layout) = self.layout else {
            let none = || "-".to_owned();
            return [self.name.clone(), holds, none(), none(), none(), none(), none()];
        };
        let dtypes: Vec<String> =
            self.dtypes.iter().map(|d| format!("{} x{}", d.dtype, d.tensors)).collect();
        [
            self.name.clone(),
            holds,
            layout.to_string(),
            grouped(self.tensors),
            known(self.parameters),
            size(self.bytes),
            dtypes.join(", "),
        ]
    }
}

fn known(parameters: Option<u64>) -> String {
    parameters.map_or("?".to_owned(), grouped)
}

/// Digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the binary unit that fits.
fn size(bytes: u64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(11_901_408_320), "11,901,408,320");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(20_092_032), "19.16 MiB");
    }
}
