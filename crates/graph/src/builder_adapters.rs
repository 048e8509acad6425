//! Low-rank adapters (LoRA) beside products: planned, not yet run.
//!
//! An adapter stays apart from its weight, `y = W x + B (A x)`: what it adds is the same wherever the weight lives and
//! however it is coded, and it costs its own bytes and nothing else. Each part of a stacked weight (Q, K, V) has an `A`
//! of its own. The halves belong to the weight's block, so they move with it.

use crate::DType;
use crate::builder::{Builder, Value, index};
use crate::graph::{Coding, Part, Weight, WeightId};
use crate::op::{Activation, OpKind, Residual};
use crate::planned::PlannedOp;

impl Builder<'_> {
    /// Both halves of the adapter of a weight of the present block, where it has one.
    ///
    /// Products of one row (modulation, embedders of scalars) have none.
    pub(crate) fn adapter_of(&mut self, id: WeightId, rows: u64) -> Option<[WeightId; 2]> {
        if let Some(known) = self.adapters.get(&id) {
            return Some(*known);
        }
        let block = self.blocks.last()?;
        let component = &self.components[block.component.index()].name;
        let rank = (self.adapter)(component, &block.name);
        if rank == 0 || rows < 2 || !block.weights.contains(&id) {
            return None;
        }
        let of = &self.weights[id.index()];
        let (component, name, cols) = (of.component, of.name.clone(), of.cols);
        let parts = of.parts.clone();
        let half = |suffix: &str, part: &Part, shape: [u64; 2]| Part {
            entry: format!("{}.{suffix}", part.entry.trim_end_matches(".weight")),
            shape: shape.to_vec(),
        };
        let rows_of = |part: &Part| part.shape.first().copied().unwrap_or(1);
        let down = parts.iter().map(|part| half("lora_A.weight", part, [rank, cols]));
        let up = parts.iter().map(|part| half("lora_B.weight", part, [rows_of(part), rank]));
        let pair = [("lora_A", down.collect::<Vec<_>>(), cols), ("lora_B", up.collect(), rank)];
        let ids = pair.map(|(suffix, parts, cols)| {
            let rows = parts.iter().map(rows_of).sum();
            let name = format!("{name}.{suffix}");
            self.weights.push(Weight {
                name,
                component,
                parts,
                rows,
                cols,
                dtype: DType::BF16,
                coding: Coding::Plain,
            });
            let id = WeightId(index(self.weights.len() - 1));
            if let Some(block) = self.blocks.last_mut() {
                block.weights.push(id);
            }
            id
        });
        self.adapters.insert(id, ids);
        Some(ids)
    }

    /// A product with its adapter: `out = residual + activation(x (W + B A)^T + b)`.
    #[expect(clippy::too_many_arguments, reason = "each is an operand of the one op")]
    pub(crate) fn adapted(
        &mut self,
        name: &str,
        x: Value,
        [weight, down, up]: [WeightId; 3],
        bias: Option<WeightId>,
        activation: Activation,
        residual: Option<Residual>,
        out: Value,
    ) {
        let dependence = self.tensors[out.tensor.index()].dependence;
        let none = Activation::None;
        let h_cols = self.weights[down.index()].rows;
        let h = self.buffer(&format!("{name}.lora"), x.rows, h_cols, self.dtype, dependence);
        self.plain_linear(&format!("{name}.lora_A"), x, down, None, none, None, h);
        let is_last = residual.is_none() && activation == none;
        let y = if is_last {
            out
        } else {
            self.buffer(&format!("{name}.product"), out.rows, out.cols, self.dtype, dependence)
        };
        self.plain_linear(name, x, weight, bias, none, None, y);
        let name = format!("{name}.lora_B");
        let add = |y, gate, out| OpKind::Planned(PlannedOp::LowRank { h, up, y, gate, out });
        match residual {
            None => {
                self.push(&name, add(None, None, y));
                if !is_last {
                    self.push(&format!("{name}.act"), OpKind::Activate { x: y, activation, out });
                }
            }
            Some(Residual { base, gate }) => {
                if base != out {
                    self.copy(&format!("{name}.base"), base, out);
                }
                self.push(&name, add(Some(y), gate, out));
            }
        }
    }
}
