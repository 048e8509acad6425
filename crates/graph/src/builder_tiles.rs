//! Recording a decoder that goes over its picture tile by tile.

use crate::DType;
use crate::builder::{Builder, Value, index};
use crate::graph::{BlockId, ComponentId, Dependence, WeightId};
use crate::op::OpKind;
use crate::tiles::{Fade, TileOp};

impl Builder<'_> {
    /// Begins a block, or goes back to the component's block of that name, whose weights are there already.
    pub fn block_again(&mut self, component: ComponentId, name: &str) {
        let known =
            self.blocks.iter().position(|block| block.component == component && block.name == name);
        let Some(at) = known else { return self.block(component, name) };
        let block = BlockId(index(at));
        self.again = Some(block);
        match self.phases.last_mut() {
            Some(phase) => phase.visits.push((block, Vec::new())),
            None => self.fail("a block before any phase"),
        }
    }

    /// The weight of these parts, where the present block was gone back to and has it.
    pub(crate) fn weight_again(&self, parts: &[(String, Vec<u64>)]) -> Option<WeightId> {
        let is_it = |id: &&WeightId| {
            let known = &self.weights[id.index()].parts;
            known.len() == parts.len()
                && known.iter().zip(parts).all(|(known, (entry, _))| known.entry == *entry)
        };
        self.blocks[self.again?.index()].weights.iter().find(is_it).copied()
    }

    /// Position of the present block.
    pub(crate) fn block_position(&self) -> Option<usize> {
        self.again.map(BlockId::index).or_else(|| self.blocks.len().checked_sub(1))
    }

    /// Says that decode goes over the picture in tiles of at most `edge` pixels a side: the picture is another one.
    pub fn decode_in_tiles(&mut self, edge: u64) {
        self.decode_tile = Some(edge);
    }

    /// A buffer of zeros in the activations' dtype.
    pub fn clear(&mut self, name: &str, rows: u64, cols: u64) -> Value {
        self.clear_of(name, rows, cols, self.dtype())
    }

    /// A buffer of zeros.
    pub fn clear_of(&mut self, name: &str, rows: u64, cols: u64, dtype: DType) -> Value {
        let out = self.buffer(name, rows, cols, dtype, Dependence::Latent);
        self.push(name, OpKind::Tile(TileOp::Clear { out }));
        out
    }

    /// The rectangle of `size` rows and columns at `[top, left]` of pixels in rows of `width`.
    pub fn crop(
        &mut self,
        name: &str,
        x: Value,
        width: u64,
        [top, left]: [u64; 2],
        [rows, cols]: [u64; 2],
    ) -> Value {
        let out = self.result(name, rows.saturating_mul(cols), x.cols, &[x]);
        self.push(name, OpKind::Tile(TileOp::Crop { x, width, top, left, out_width: cols, out }));
        out
    }

    /// Adds a tile of pixels in rows of `width` to a part of the picture, see [`TileOp::Blend`].
    pub fn blend(
        &mut self,
        name: &str,
        tile: Value,
        width: u64,
        [rows, cols]: [Fade; 2],
        out: Value,
    ) {
        self.push(name, OpKind::Tile(TileOp::Blend { tile, width, rows, cols, out }));
    }
}
