//! Models that are planned by name against published totals: parameters, tokens, operations, what is hoisted.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use plimsoll_graph::{Coding, DType, Graph, OpKind, PhaseKind};
use plimsoll_models::{HunyuanModel, SdxlModel, VideoRun, WanModel};

fn run(width: u64, height: u64, frames: u64) -> VideoRun {
    VideoRun {
        width,
        height,
        frames,
        steps: 50,
        samples: 1,
        dtype: DType::BF16,
        hoist: true,
        row_chunks: 1,
        tile: 0,
    }
}

fn plain(_: &str, _: &str) -> Coding {
    Coding::Plain
}

fn parameters(graph: &Graph, component: &str) -> u64 {
    let id = graph.components.iter().position(|c| c.name == component).unwrap();
    let weights = graph.weights.iter().filter(|w| w.component.index() == id);
    // A table that both branches of guidance look up is one table.
    let mut tables: Vec<_> =
        graph.tables.iter().filter(|t| t.component.index() == id).map(|t| &t.part).collect();
    tables.dedup();
    weights.map(|w| w.rows * w.cols).sum::<u64>()
        + tables.iter().map(|part| part.shape.iter().product::<u64>()).sum::<u64>()
}

/// Operations of a step: products and attention.
fn work(graph: &Graph) -> [f64; 2] {
    let phase = graph.phases.iter().find(|p| p.kind == PhaseKind::Denoise).unwrap();
    let mut all = [0.0, 0.0];
    for op in phase.visits.iter().flat_map(|v| &graph.ops[v.ops_start as usize..v.ops_end as usize])
    {
        let at = usize::from(matches!(op.kind, OpKind::Attention { .. }));
        all[at] += op.flops(graph) as f64;
    }
    all
}

fn near(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() <= share, "{found:e}, expected {expected:e}");
}

#[test]
fn sdxl_has_the_published_parameters() {
    let graph = SdxlModel.graph(&run(1024, 1024, 1), &plain).unwrap();
    assert_eq!(parameters(&graph, "unet"), 2_567_463_684);
    assert_eq!(parameters(&graph, "text_encoder_2"), 694_659_840);
    // Without the last layer (7,087,872) and the final norm (1,536), which SDXL does not use.
    assert_eq!(parameters(&graph, "text_encoder") + 7_087_872 + 1_536, 123_060_480);
    // The decoder (49,490,179) and the 1x1 convolution before it (20) of the SD VAE's 83,653,863.
    assert_eq!(parameters(&graph, "vae"), 49_490_199);
}

#[test]
fn sdxl_has_the_published_work() {
    let graph = SdxlModel.graph(&run(1024, 1024, 1), &plain).unwrap();
    // 5.98 TFLOP a branch without attention, of which the hoisted text projections are a little.
    near(work(&graph)[0], 2.0 * 5.98e12, 0.02);
    near(work(&graph)[1], 2.0 * 0.75e12, 0.05);
}

#[test]
fn wan_has_the_published_parameters() {
    let large = WanModel::t2v_14b().graph(&run(1280, 720, 81), &plain).unwrap();
    assert_eq!(parameters(&large, "transformer"), 14_288_491_584);
    assert_eq!(parameters(&large, "text_encoder"), 5_680_910_336);
    let small = WanModel::t2v_1_3b().graph(&run(832, 480, 81), &plain).unwrap();
    assert_eq!(parameters(&small, "transformer"), 1_418_996_800);
    // Both halves of the VAE are 126,892,531; the encoder's and quant_conv's part by its listed shapes.
    assert_eq!(parameters(&large, "vae") + wan_encoder(), 126_892_531);
}

/// Parameters of the encoder of Wan's VAE and of the convolution after it, from the published list of its tensors.
fn wan_encoder() -> u64 {
    let conv3 = |input: u64, out: u64| out * input * 27 + out;
    let res = |input: u64, out: u64| {
        let shortcut = if input == out { 0 } else { out * input + out };
        input + conv3(input, out) + out + conv3(out, out) + shortcut
    };
    let down2 = |c: u64| c * c * 9 + c;
    let down3 = |c: u64| down2(c) + c * c * 3 + c;
    let attention = |c: u64| c + 3 * c * c + 3 * c + c * c + c;
    let levels = conv3(3, 96)
        + 2 * res(96, 96)
        + down2(96)
        + res(96, 192)
        + res(192, 192)
        + down3(192)
        + res(192, 384)
        + res(384, 384)
        + down3(384)
        + 2 * res(384, 384);
    let middle = 2 * res(384, 384) + attention(384);
    levels + middle + 384 + conv3(384, 32) + 32 * 32 + 32
}

#[test]
fn wan_has_the_published_tokens_and_work() {
    let model = WanModel::t2v_14b();
    let tokens = |width, height, frames| {
        model.tokens(&run(width, height, frames)).unwrap().iter().product::<u64>()
    };
    assert_eq!(tokens(1280, 720, 81), 75_600);
    assert_eq!(tokens(832, 480, 81), 32_760);
    assert_eq!(tokens(1280, 720, 1), 3_600);
    // A step is two forwards: 1,810 TFLOP of products and 4,714 of attention each.
    let graph = model.graph(&run(1280, 720, 81), &plain).unwrap();
    near(work(&graph)[0], 2.0 * 1_810e12, 0.01);
    near(work(&graph)[1], 2.0 * 4_714e12, 0.01);
}

#[test]
fn wan_hoists_the_text_projections() {
    let graph = WanModel::t2v_14b().graph(&run(1280, 720, 81), &plain).unwrap();
    let phase = graph.phases.iter().find(|p| p.kind == PhaseKind::Hoist).unwrap();
    let weights = phase.visits.iter().flat_map(|v| &graph.blocks[v.block.index()].weights);
    let bytes: u64 = weights.map(|id| graph.weight(*id).bytes()).sum();
    // Keys and values of the text: 2.10e9 parameters; the MLPs of text and time beside them.
    assert!((4.19e9..4.9e9).contains(&(bytes as f64)), "{bytes}");
}

#[test]
fn hunyuan_has_the_published_parameters() {
    let model = HunyuanModel::t2v();
    let run = run(1280, 720, 129);
    let graph = model.graph(&run, &plain).unwrap();
    assert_eq!(parameters(&graph, "transformer"), 12_821_012_544);
    assert_eq!(parameters(&graph, "text_encoder_2"), 123_060_480);
    // Llama 3 8B without its last two layers, final norm and head: embedding and 30 layers of 218,112,000.
    assert_eq!(parameters(&graph, "text_encoder"), 128_320 * 4096 + 30 * 218_112_000);
    assert_eq!(model.tokens(&run).unwrap().iter().product::<u64>(), 118_800);
}

#[test]
fn hunyuan_has_the_work_of_its_shapes() {
    let graph = HunyuanModel::t2v().graph(&run(1280, 720, 129), &plain).unwrap();
    let n = 119_056.0;
    let [linear, attention] = work(&graph);
    near(attention, 60.0 * 4.0 * n * n * 3072.0, 0.001);
    near(linear, 60.0 * n * 226.5e6 * 2.0 / 2.0, 0.02);
}

#[test]
fn pieces_of_rows_change_neither_work_nor_weights() {
    for (whole, cut) in [
        (
            WanModel::t2v_1_3b().graph(&run(832, 480, 81), &plain).unwrap(),
            WanModel::t2v_1_3b()
                .graph(&VideoRun { row_chunks: 8, ..run(832, 480, 81) }, &plain)
                .unwrap(),
        ),
        (
            HunyuanModel::t2v().graph(&run(960, 544, 33), &plain).unwrap(),
            HunyuanModel::t2v()
                .graph(&VideoRun { row_chunks: 8, ..run(960, 544, 33) }, &plain)
                .unwrap(),
        ),
    ] {
        assert_eq!(whole.weights, cut.weights);
        assert_eq!(work(&whole)[1], work(&cut)[1]);
        near(work(&cut)[0], work(&whole)[0], 1e-9);
    }
}

#[test]
fn frames_that_a_vae_cannot_take_are_refused_with_the_nearest() {
    for frames in [0, 2, 80, 82, 1_000_000] {
        let wan = WanModel::t2v_14b().graph(&run(1280, 720, frames), &plain).unwrap_err();
        assert!(wan.to_string().contains("4n + 1 is needed"), "{wan}");
    }
    let error = HunyuanModel::t2v().graph(&run(1280, 720, 80), &plain).unwrap_err().to_string();
    assert!(error.contains("77 or 81"), "{error}");
    assert!(SdxlModel.graph(&run(1024, 1024, 5), &plain).is_err());
    assert!(SdxlModel.graph(&run(1000, 1024, 1), &plain).is_err());
}
