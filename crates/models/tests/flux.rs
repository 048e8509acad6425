//! FLUX.1 against published totals, and what hoisting takes out of the loop.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use plimsoll_graph::{DType, Graph, OpKind, PhaseKind};
use plimsoll_models::flux::is_block_matrix;
use plimsoll_models::{FluxModel, FluxRun};

fn run(steps: u32, samples: u32, hoist: bool) -> FluxRun {
    FluxRun {
        width: 1024,
        height: 1024,
        steps,
        samples,
        text_tokens: 512,
        dtype: DType::BF16,
        hoist,
        vae_tile: None,
    }
}

fn graph(model: &FluxModel, run: &FluxRun) -> Graph {
    model.graph(run, &|_, _| DType::BF16).unwrap()
}

fn parameters(graph: &Graph, component: &str) -> u64 {
    let id = graph.components.iter().position(|c| c.name == component).unwrap();
    let weights = graph.weights.iter().filter(|w| w.component.index() == id);
    let tables = graph.tables.iter().filter(|t| t.component.index() == id);
    weights.map(|w| w.rows * w.cols).sum::<u64>()
        + tables.map(|t| t.part.shape.iter().product::<u64>()).sum::<u64>()
}

/// Bytes of the weights that one pass over a phase reads.
fn phase_bytes(graph: &Graph, kind: PhaseKind) -> u64 {
    let phase = graph.phases.iter().find(|phase| phase.kind == kind).unwrap();
    phase
        .visits
        .iter()
        .flat_map(|visit| &graph.blocks[visit.block.index()].weights)
        .map(|id| graph.weight(*id).bytes())
        .sum()
}

#[test]
fn parameter_counts_are_the_published_ones() {
    let dev = graph(&FluxModel::dev(), &run(4, 1, true));
    assert_eq!(parameters(&dev, "transformer"), 11_901_408_320);
    assert_eq!(parameters(&dev, "text_encoder_2"), 4_762_310_656);
    assert_eq!(parameters(&dev, "text_encoder"), 123_060_480);
    assert_eq!(parameters(&dev, "vae"), 49_545_475);
    let schnell = graph(&FluxModel::schnell(), &run(4, 1, true));
    assert_eq!(parameters(&schnell, "transformer"), 11_891_178_560);
}

#[test]
fn hoisting_takes_the_modulation_out_of_the_loop() {
    let model = FluxModel::dev();
    let plain = graph(&model, &run(28, 1, false));
    assert_eq!(phase_bytes(&plain, PhaseKind::Denoise), 23_802_816_640);
    let hoisted = graph(&model, &run(28, 1, true));
    let (looped, ahead) =
        (phase_bytes(&hoisted, PhaseKind::Denoise), phase_bytes(&hoisted, PhaseKind::Hoist));
    assert_eq!(looped + ahead, 23_802_816_640);
    // All modulation (blocks and last layer), the conditioning MLPs and the text projection.
    let modulation = 6_457_135_104 + 37_761_024;
    let conditioning = 20_459_520 + 23_605_248 + 20_459_520 + 25_171_968;
    assert_eq!(ahead, modulation + conditioning);
    let denoise = hoisted.phases.iter().find(|p| p.kind == PhaseKind::Denoise).unwrap();
    for visit in &denoise.visits {
        for id in &hoisted.blocks[visit.block.index()].weights {
            let weight = hoisted.weight(*id);
            let modulates = weight
                .parts
                .iter()
                .any(|part| part.entry.contains("norm1") || part.entry.contains(".norm.linear"));
            assert!(!modulates, "{} is read in every step", weight.name);
        }
    }
}

#[test]
fn work_of_a_step_is_the_published_one() {
    let graph = graph(&FluxModel::dev(), &run(28, 1, true));
    let phase = graph.phases.iter().find(|p| p.kind == PhaseKind::Denoise).unwrap();
    let (mut gemm, mut attention) = (0, 0);
    for visit in &phase.visits {
        for at in visit.ops_start..visit.ops_end {
            let op = &graph.ops[at as usize];
            match op.kind {
                OpKind::Linear { .. } => gemm += op.flops(&graph),
                OpKind::Attention { .. } => attention += op.flops(&graph),
                _ => {}
            }
        }
    }
    // 59.5 and 14.9 TFLOP, less what the last block would make of the text, which nobody reads.
    assert_eq!(attention, (57 * 4608 - 512) * 4 * 4608 * 3072);
    let left_out = 2 * 512 * (3072 * 12_288 + 15_360 * 3072);
    assert!((59.45e12..59.55e12).contains(&((gemm + left_out) as f64)), "{gemm}");
}

#[test]
fn samples_share_weights_and_prompt() {
    let model = FluxModel::dev();
    let (one, two) = (graph(&model, &run(4, 1, true)), graph(&model, &run(4, 2, true)));
    assert_eq!(one.weights, two.weights);
    assert_eq!(phase_bytes(&one, PhaseKind::Denoise), phase_bytes(&two, PhaseKind::Denoise));
    assert_eq!(two.inputs.iter().filter(|input| input.name == "noise").count(), 2);
    assert_eq!(two.outputs.iter().filter(|output| output.name == "image").count(), 2);
    let once = |graph: &Graph| graph.phases[0].visits.last().unwrap().ops_end;
    assert_eq!(once(&one), once(&two));
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let model = FluxModel::dev();
    for (width, height) in [(0, 64), (1000, 1024), (64, 24), (1 << 20, 64)] {
        let run = FluxRun { width, height, ..run(4, 1, true) };
        assert!(model.graph(&run, &|_, _| DType::BF16).is_err(), "{width}x{height}");
    }
    assert!(model.graph(&run(0, 1, true), &|_, _| DType::BF16).is_err());
    assert!(model.graph(&run(4, 0, true), &|_, _| DType::BF16).is_err());
}

#[test]
fn eight_bits_halve_what_a_step_streams() {
    let narrow = |component: &str, entry: &str| {
        if is_block_matrix(component, entry) { DType::F8E4M3 } else { DType::BF16 }
    };
    let model = FluxModel::dev();
    let wide = graph(&model, &run(28, 1, true));
    let packed = model.graph(&run(28, 1, true), &narrow).unwrap();
    let (before, after) =
        (phase_bytes(&wide, PhaseKind::Denoise), phase_bytes(&packed, PhaseKind::Denoise));
    let matrices: Vec<_> =
        packed.weights.iter().filter(|weight| weight.dtype == DType::F8E4M3).collect();
    // 19 double blocks of 8 matrices, 38 single ones of 3; Q, K and V are one.
    assert_eq!(matrices.len(), 19 * 8 + 38 * 3);
    let (elements, rows) = matrices.iter().fold((0, 0), |(elements, rows), weight| {
        (elements + weight.rows * weight.cols, rows + weight.rows)
    });
    assert_eq!(before - after, elements - 4 * rows, "a byte less an element, four more a row");
    assert!(after * 1000 < before * 502, "{after} of {before} bytes");
    // What runs once is as it was.
    assert_eq!(phase_bytes(&wide, PhaseKind::Hoist), phase_bytes(&packed, PhaseKind::Hoist));
    assert_eq!(phase_bytes(&wide, PhaseKind::Decode), phase_bytes(&packed, PhaseKind::Decode));
    for weight in matrices {
        let first = format!("{}_scale", weight.parts[0].entry);
        let scale = packed.weights.iter().find(|scale| scale.parts[0].entry == first);
        let scale = scale.unwrap_or_else(|| panic!("{first} is missing"));
        assert_eq!(scale.name, format!("{}_scale", weight.name));
        assert_eq!((scale.rows, scale.cols, scale.dtype), (1, weight.rows, DType::F32));
        for (part, scales) in weight.parts.iter().zip(&scale.parts) {
            assert_eq!(scales.entry, format!("{}_scale", part.entry));
            assert_eq!(scales.shape, part.shape[..1]);
        }
    }
}

#[test]
fn eight_bits_are_refused_where_no_linear_layer_reads_them() {
    let model = FluxModel::dev();
    for (entry, what) in [
        ("transformer_blocks.0.attn.to_q.weight", "only some of its parts"),
        ("transformer_blocks.0.attn.norm_q.weight", "only matrices of linear layers"),
        ("transformer_blocks.0.attn.to_out.0.bias", "only matrices of linear layers"),
        ("decoder.conv_in.weight", "only matrices of linear layers"),
    ] {
        let of = |_: &str, name: &str| if name == entry { DType::F8E4M3 } else { DType::BF16 };
        let error = model.graph(&run(4, 1, true), &of).unwrap_err().to_string();
        assert!(error.contains(what), "{entry}: {error}");
    }
}

#[test]
fn tiles_are_no_more_than_can_be_planned_and_proved() {
    let model = FluxModel::dev();
    let with = |width, height, samples, vae_tile| FluxRun {
        width,
        height,
        samples,
        vae_tile,
        ..run(1, 1, true)
    };
    // Of 4096 pixels, 32 tiles that share a quarter; of 64 pictures, 8 by 8 each.
    for (width, height, samples, least) in
        [(1024, 1024, 1, 64), (4096, 4096, 1, 176), (16_384, 64, 1, 688), (4096, 4096, 64, 656)]
    {
        let asked = with(width, height, samples, None);
        assert_eq!(model.tile_edge_min(&asked), least, "{width}x{height} {samples}");
    }
    let error = model.graph(&with(4096, 4096, 1, Some(160)), &|_, _| DType::BF16).unwrap_err();
    assert!(error.to_string().contains("a multiple of 16 from 176 on"), "{error}");
}
