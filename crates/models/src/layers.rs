//! Weights by checkpoint name, as the builders use them.

use plimsoll_graph::{Builder, WeightId};

/// A linear layer's matrix and bias.
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    pub(crate) weight: WeightId,
    pub(crate) bias: Option<WeightId>,
}

/// `[rows, cols]` matrix and `[rows]` bias named `{name}.weight` and `{name}.bias`.
pub(crate) fn linear(b: &mut Builder<'_>, name: &str, rows: u64, cols: u64) -> Linear {
    stacked(b, name, &[(name, rows)], cols, true)
}

/// Several layers over the same input as one matrix, one below the other.
pub(crate) fn stacked(
    b: &mut Builder<'_>,
    label: &str,
    parts: &[(&str, u64)],
    cols: u64,
    has_bias: bool,
) -> Linear {
    let weights: Vec<_> =
        parts.iter().map(|(name, rows)| (format!("{name}.weight"), vec![*rows, cols])).collect();
    let weight = b.weight(&format!("{}.weight", short(label)), &weights);
    let bias = has_bias.then(|| {
        let biases: Vec<_> =
            parts.iter().map(|(name, rows)| (format!("{name}.bias"), vec![*rows])).collect();
        b.weight(&format!("{}.bias", short(label)), &biases)
    });
    Linear { weight, bias }
}

/// A vector named `{name}`.
pub(crate) fn vector(b: &mut Builder<'_>, name: &str, cols: u64) -> WeightId {
    b.weight(short(name), &[(name.to_owned(), vec![cols])])
}

/// A 3x3 convolution.
pub(crate) fn conv3x3(
    b: &mut Builder<'_>,
    name: &str,
    out: u64,
    input: u64,
) -> (WeightId, WeightId) {
    let weight = b.weight(
        &format!("{}.weight", short(name)),
        &[(format!("{name}.weight"), vec![out, input, 3, 3])],
    );
    let bias = b.weight(&format!("{}.bias", short(name)), &[(format!("{name}.bias"), vec![out])]);
    (weight, bias)
}

/// A pair of `weight` and `bias` vectors.
pub(crate) fn affine(b: &mut Builder<'_>, name: &str, cols: u64) -> (WeightId, WeightId) {
    let weight =
        b.weight(&format!("{}.weight", short(name)), &[(format!("{name}.weight"), vec![cols])]);
    let bias = b.weight(&format!("{}.bias", short(name)), &[(format!("{name}.bias"), vec![cols])]);
    (weight, bias)
}

/// The last two parts of a dotted name: enough beside the block's own name.
fn short(name: &str) -> &str {
    let mut dots = name.rmatch_indices('.').map(|(at, _)| at);
    dots.nth(1).map_or(name, |at| &name[at + 1..])
}
