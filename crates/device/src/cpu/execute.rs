//! From a bound op to the function that computes it.

use plimsoll_graph::{Norm, OpKind, TileOp};

use super::arena::Space;
use super::attention::Attention;
use super::conv::Conv;
use super::epilogue::Epilogue;
use super::group_norm::GroupNorm;
use super::norm::HeadNorm;
use super::parallel::{Strand, Task};
use super::team::Round;
use super::workspace::Work;
use super::{elementwise, linear, lookup, norm, tiles};
use crate::{DeviceError, Mat, Program};

/// Sizes and numbers that `check` has compared with the arena, which fits in memory.
#[expect(clippy::cast_possible_truncation, reason = "see above")]
fn size(count: u64) -> usize {
    count as usize
}

/// Carries out one strand of a round: a phase of an op at a step; leaves off in the middle where the run is to stop.
///
/// # Errors
/// [`DeviceError::RowOutOfTable`].
pub(crate) fn execute(
    space: Space<'_>,
    program: &Program<'_>,
    work: &Work,
    round: Round,
    task: Task<'_>,
) -> Result<(), DeviceError> {
    let op = &program.ops[round.op as usize];
    let read = |mat: &Mat| space.reader(mat, round.step);
    let write = |mat: &Mat| space.writer(mat, round.step);
    let first = task.index * work.strand_floats;
    let strand =
        || Strand { task, scratch: space.scratch(op.workspace, first, work.strand_floats) };
    match &op.op.kind {
        OpKind::Input { input, out } => lookup::input(program.inputs[input.index()], write(out)),
        OpKind::Gather { table, ids, out } => {
            let table = &program.tables[table.index()];
            lookup::gather(table, program.inputs[ids.index()], write(out))?;
        }
        OpKind::Output { output, x } => {
            lookup::output(read(x), &program.outputs[output.index()]);
        }
        OpKind::Copy { x, out } => elementwise::copy(task, read(x), write(out)),
        OpKind::Add { a, b, out } => elementwise::add(task, read(a), read(b), write(out)),
        OpKind::AddWeight { a, weight, out } => {
            let rows = Mat { rows: a.rows, ..*weight };
            elementwise::add(task, read(a), read(&rows), write(out));
        }
        OpKind::Activate { x, activation, out } => {
            elementwise::activate(task, read(x), *activation, write(out));
        }
        OpKind::GluGelu { x, out } => elementwise::glu_gelu(task, read(x), write(out)),
        OpKind::Sinusoid { x, out } => elementwise::sinusoid(read(x), write(out)),
        OpKind::Linear { x, weight, weight_scale, bias, activation, residual, out } => {
            let residual = residual.as_ref();
            let epilogue = Epilogue {
                bias: bias.as_ref().map(read),
                activation: *activation,
                base: residual.map(|residual| read(&residual.base)),
                gate: residual.and_then(|residual| residual.gate.as_ref()).map(read),
            };
            let weight =
                linear::Stored { matrix: read(weight), scale: weight_scale.as_ref().map(read) };
            linear::linear(strand(), read(x), weight, epilogue, write(out));
        }
        OpKind::Norm { x, norm: kind, out } => {
            let kind = match kind {
                Norm::LayerModulated { eps, scale, shift } => {
                    Norm::LayerModulated { eps: *eps, scale: read(scale), shift: read(shift) }
                }
                Norm::LayerAffine { eps, weight, bias } => {
                    Norm::LayerAffine { eps: *eps, weight: read(weight), bias: read(bias) }
                }
                Norm::Rms { eps, weight } => Norm::Rms { eps: *eps, weight: read(weight) },
            };
            norm::norm(task, read(x), &kind, write(out));
        }
        OpKind::QkNormRope { q, k, q_weight, k_weight, rope, heads, eps } => {
            let head_norm = HeadNorm {
                q_weight: read(q_weight),
                k_weight: read(k_weight),
                rope: read(rope),
                heads: size(*heads),
                eps: *eps,
            };
            head_norm.run(task, write(q), write(k));
        }
        OpKind::Attention { q, k, v, heads, scale, causal, bias, out } => {
            let attention = Attention {
                q: read(q),
                k: read(k),
                v: read(v),
                heads: size(*heads),
                scale: *scale,
                causal: *causal,
                bias: bias.as_ref().map(|bias| read(&bias.bias)),
            };
            attention.run(strand(), write(out));
        }
        OpKind::ExpandBias { weight, buckets, out } => {
            lookup::expand_bias(read(weight), read(buckets), write(out));
        }
        OpKind::SelectRow { x, index, out } => {
            lookup::select_row(read(x), read(index), write(out));
        }
        OpKind::Euler { latent, velocity, dsigma } => {
            elementwise::euler(task, read(latent), read(velocity), read(dsigma), write(latent));
        }
        OpKind::Unpatchify { x, height: _, width, scale, shift, out } => {
            elementwise::unpatchify(task, read(x), size(*width), *scale, *shift, write(out));
        }
        OpKind::Tile(TileOp::Clear { out }) => tiles::clear(task, write(out)),
        OpKind::Tile(TileOp::Crop { x, width, top, left, out_width, out }) => {
            let [width, top, left, out_width] = [width, top, left, out_width].map(|at| size(*at));
            let at = tiles::Corner { width, top, left, out_width };
            tiles::crop(task, read(x), &at, write(out));
        }
        OpKind::Tile(TileOp::Blend { tile, width, rows, cols, out }) => {
            let width = size(*width);
            tiles::blend(task, read(tile), width, [*rows, *cols], read(out), write(out));
        }
        OpKind::GroupNorm { x, weight, bias, groups, eps, silu, out } => {
            let group_norm = GroupNorm {
                x: read(x),
                weight: read(weight),
                bias: read(bias),
                groups: size(*groups),
                eps: *eps,
                silu: *silu,
            };
            if round.phase == 0 {
                group_norm.sum(strand());
            } else {
                let own = group_norm.sum_floats();
                let rest = space.scratch(op.workspace, first + own, work.strand_floats - own);
                let sums = |index: usize| {
                    space.scratch_written(op.workspace, index * work.strand_floats, own)
                };
                group_norm.apply(task, rest, sums, write(out));
            }
        }
        OpKind::Conv3x3 { x, height, width, upscale, margin, weight, bias, residual, out } => {
            let conv = Conv {
                x: read(x),
                height: size(*height),
                width: size(*width),
                upscale: size(*upscale),
                margin: margin.map(size),
                weight: read(weight),
                bias: read(bias),
                residual: residual.as_ref().map(read),
            };
            conv.run(strand(), write(out));
        }
        // Refused when the program was loaded.
        OpKind::Planned(_) => {}
    }
    Ok(())
}
