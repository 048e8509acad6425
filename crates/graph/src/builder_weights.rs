//! Weights of a trace: checkpoint tensors as ops read them, each in the type in which the device keeps it.

use crate::DType;
use crate::builder::{Builder, index};
use crate::graph::{Coding, Part, Weight, WeightId};

impl Builder<'_> {
    /// A weight of the present block made of checkpoint tensors laid one below the other.
    ///
    /// Each part is `(entry, shape)`; the first dimension counts rows, the others make up a row; a vector
    /// is one row.
    ///
    /// Where the parts are stored as [`DType::F8E4M3`], a weight of their scales (`{entry}_scale`, `[rows]` in `f32`)
    /// follows it, which [`Builder::linear_into`] hands to its op.
    pub fn weight(&mut self, name: &str, parts: &[(String, Vec<u64>)]) -> WeightId {
        if let Some(known) = self.weight_again(parts) {
            return known;
        }
        let (mut rows, mut cols) = (0u64, 0u64);
        for (entry, shape) in parts {
            let (part_rows, part_cols) = match shape.as_slice() {
                [] => (1, 1),
                [n] => (1, *n),
                [n, rest @ ..] => (*n, rest.iter().product()),
            };
            if shape.len() == 1 && parts.len() > 1 {
                // Vectors laid side by side stay one row.
                rows = 1;
                cols += part_cols;
            } else if cols != 0 && cols != part_cols {
                self.fail(&format!("weight {name}: {entry} has other columns than the part above"));
            } else {
                rows += part_rows;
                cols = part_cols;
            }
        }
        let elements: u64 = parts.iter().map(|(_, shape)| shape.iter().product::<u64>()).sum();
        if elements != rows * cols {
            self.fail(&format!("weight {name}: its vectors and matrices do not make one"));
        }
        let Some(block) = self.block_position().map(|at| &self.blocks[at]) else {
            self.fail("a weight before any block");
            return WeightId(0);
        };
        let component = block.component;
        let component_name = &self.components[component.index()].name;
        let dtypes: Vec<DType> =
            parts.iter().map(|(entry, _)| (self.weight_dtype)(component_name, entry)).collect();
        let narrow = dtypes.iter().filter(|dtype| **dtype == DType::F8E4M3).count();
        let dtype = match narrow {
            0 if dtypes.contains(&DType::F32) => DType::F32,
            0 => DType::BF16,
            _ => DType::F8E4M3,
        };
        let is_mixed = narrow != 0 && narrow != parts.len();
        let weight = Weight {
            name: format!("{component_name}.{}.{name}", block.name),
            component,
            parts: parts
                .iter()
                .map(|(entry, shape)| Part { entry: entry.clone(), shape: shape.clone() })
                .collect(),
            rows,
            cols,
            dtype,
            coding: if rows > 1 && cols > 1 {
                (self.coding)(component_name, &block.name)
            } else {
                Coding::Plain
            },
        };
        if is_mixed {
            self.fail(&format!("weight {name}: only some of its parts are {}", dtype.name()));
        }
        let id = self.push_weight(weight);
        if dtype == DType::F8E4M3 {
            self.push_scales(id, parts);
        }
        id
    }

    fn push_weight(&mut self, weight: Weight) -> WeightId {
        self.weights.push(weight);
        let id = WeightId(index(self.weights.len() - 1));
        if let Some(at) = self.block_position() {
            self.blocks[at].weights.push(id);
        }
        id
    }

    /// The scales of the rows of `id`, behind it in its block.
    fn push_scales(&mut self, id: WeightId, parts: &[(String, Vec<u64>)]) {
        let of = &self.weights[id.index()];
        let scales = Weight {
            name: format!("{}_scale", of.name),
            component: of.component,
            parts: parts
                .iter()
                .map(|(entry, shape)| Part {
                    entry: format!("{entry}_scale"),
                    shape: shape.first().copied().into_iter().collect(),
                })
                .collect(),
            rows: 1,
            cols: of.rows,
            dtype: DType::F32,
            coding: Coding::Plain,
        };
        let scales = self.push_weight(scales);
        self.scales.insert(id, scales);
    }
}
