//! What a run on paper may have that no run on a device has yet.

use plimsoll_graph::{Builder, Coding, DType};

/// How weights are kept and what is beside them, in a graph that is planned and need not run.
#[derive(Clone, Copy)]
pub struct Paper<'a> {
    /// Dtype of a checkpoint tensor in device memory: `weight_dtype(component, entry)`.
    pub weight_dtype: &'a dyn Fn(&str, &str) -> DType,
    /// How the matrices of a block are kept: `coding(component, block)`.
    pub coding: &'a dyn Fn(&str, &str) -> Coding,
    /// Rank of the adapter (LoRA) beside the products of a block, 0 for none: `adapter(component, block)`.
    pub adapter: &'a dyn Fn(&str, &str) -> u64,
    /// ControlNets beside FLUX.1.
    pub controlnets: u32,
    /// Side of the decoder's tiles in pixels for models of pictures; 0 for the whole.
    pub tile: u64,
}

impl Default for Paper<'_> {
    fn default() -> Self {
        Self {
            weight_dtype: &|_, _| DType::BF16,
            coding: &|_, _| Coding::Plain,
            adapter: &|_, _| 0,
            controlnets: 0,
            tile: 0,
        }
    }
}

impl<'a> Paper<'a> {
    pub(crate) fn builder(&self, dtype: DType) -> Builder<'a> {
        Builder::new(dtype, self.weight_dtype).with_coding(self.coding).with_adapter(self.adapter)
    }
}
