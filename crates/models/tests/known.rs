//! Models that are planned by name against published totals: parameters, tokens, operations, what is hoisted.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use plimsoll_graph::{Coding, DType, Graph, OpKind, PhaseKind};
use plimsoll_models::wan::high_noise_steps;
use plimsoll_models::{
    Expert, Flux2Model, FluxModel, FluxRun, HunyuanModel, Paper, SdxlModel, VideoRun, WanModel,
    ZImageModel,
};

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
    let graph = SdxlModel.graph(&run(1024, 1024, 1), &Paper::default()).unwrap();
    assert_eq!(parameters(&graph, "unet"), 2_567_463_684);
    assert_eq!(parameters(&graph, "text_encoder_2"), 694_659_840);
    // Without the last layer (7,087,872) and the final norm (1,536), which SDXL does not use.
    assert_eq!(parameters(&graph, "text_encoder") + 7_087_872 + 1_536, 123_060_480);
    // The decoder (49,490,179) and the 1x1 convolution before it (20) of the SD VAE's 83,653,863.
    assert_eq!(parameters(&graph, "vae"), 49_490_199);
}

#[test]
fn sdxl_has_the_published_work() {
    let graph = SdxlModel.graph(&run(1024, 1024, 1), &Paper::default()).unwrap();
    // 5.98 TFLOP a branch without attention, of which the hoisted text projections are a little.
    near(work(&graph)[0], 2.0 * 5.98e12, 0.02);
    near(work(&graph)[1], 2.0 * 0.75e12, 0.05);
}

#[test]
fn wan_has_the_published_parameters() {
    let large = WanModel::t2v_14b().graph(&run(1280, 720, 81), &Paper::default()).unwrap();
    assert_eq!(parameters(&large, "transformer"), 14_288_491_584);
    assert_eq!(parameters(&large, "text_encoder"), 5_680_910_336);
    let small = WanModel::t2v_1_3b().graph(&run(832, 480, 81), &Paper::default()).unwrap();
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
    let graph = model.graph(&run(1280, 720, 81), &Paper::default()).unwrap();
    near(work(&graph)[0], 2.0 * 1_810e12, 0.01);
    near(work(&graph)[1], 2.0 * 4_714e12, 0.01);
}

#[test]
fn wan_hoists_the_text_projections() {
    let graph = WanModel::t2v_14b().graph(&run(1280, 720, 81), &Paper::default()).unwrap();
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
    let graph = model.graph(&run, &Paper::default()).unwrap();
    assert_eq!(parameters(&graph, "transformer"), 12_821_012_544);
    assert_eq!(parameters(&graph, "text_encoder_2"), 123_060_480);
    // Llama 3 8B without its last two layers, final norm and head: embedding and 30 layers of 218,112,000.
    assert_eq!(parameters(&graph, "text_encoder"), 128_320 * 4096 + 30 * 218_112_000);
    assert_eq!(model.tokens(&run).unwrap().iter().product::<u64>(), 118_800);
}

#[test]
fn hunyuan_has_the_work_of_its_shapes() {
    let graph = HunyuanModel::t2v().graph(&run(1280, 720, 129), &Paper::default()).unwrap();
    let n = 119_056.0;
    let [linear, attention] = work(&graph);
    near(attention, 60.0 * 4.0 * n * n * 3072.0, 0.001);
    near(linear, 60.0 * n * 226.5e6 * 2.0 / 2.0, 0.02);
}

#[test]
fn pieces_of_rows_change_neither_work_nor_weights() {
    for (whole, cut) in [
        (
            WanModel::t2v_1_3b().graph(&run(832, 480, 81), &Paper::default()).unwrap(),
            WanModel::t2v_1_3b()
                .graph(&VideoRun { row_chunks: 8, ..run(832, 480, 81) }, &Paper::default())
                .unwrap(),
        ),
        (
            HunyuanModel::t2v().graph(&run(960, 544, 33), &Paper::default()).unwrap(),
            HunyuanModel::t2v()
                .graph(&VideoRun { row_chunks: 8, ..run(960, 544, 33) }, &Paper::default())
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
        let wan =
            WanModel::t2v_14b().graph(&run(1280, 720, frames), &Paper::default()).unwrap_err();
        assert!(wan.to_string().contains("4n + 1 is needed"), "{wan}");
    }
    let error =
        HunyuanModel::t2v().graph(&run(1280, 720, 80), &Paper::default()).unwrap_err().to_string();
    assert!(error.contains("77 or 81"), "{error}");
    assert!(SdxlModel.graph(&run(1024, 1024, 5), &Paper::default()).is_err());
    assert!(SdxlModel.graph(&run(1000, 1024, 1), &Paper::default()).is_err());
}

/// Parameters of a layer of a language model with heads of 128.
fn layer(width: u64, heads: u64, kv_heads: u64, feed_forward: u64, head_norms: u64) -> u64 {
    let projections = 2 * width * heads * 128 + 2 * width * kv_heads * 128;
    projections + 3 * width * feed_forward + 2 * width + head_norms
}

#[test]
fn flux_2_has_the_published_parameters() {
    let graph = Flux2Model::dev().graph(&run(1024, 1024, 1), &Paper::default()).unwrap();
    // Blocks and modulation by width: 8 of 26 d^2, 48 of 13 d^2, 15 d^2, embedders and the last layer.
    let d = 6144u64;
    let embedders = (128 + 15_360 + 2 * 256 + 128) * d + 2 * d * d + 2 * d * d;
    let expected = (8 * 26 + 48 * 13 + 15) * d * d + embedders + 8 * 512 + 48 * 256;
    assert_eq!(parameters(&graph, "transformer"), expected);
    assert_eq!(expected, 32_223_281_152);
    // What a run does not read: ten layers, the last norm, the head (and the encoder of pictures).
    let unread = 10 * layer(5120, 32, 8, 32_768, 0) + 5120 + 131_072 * 5120;
    assert_eq!(parameters(&graph, "text_encoder") + unread, 23_572_403_200);
    // The decoder of FLUX.1's VAE with 16 channels more, and the 1x1 convolution before it.
    let more = 16 * 512 * 9 + 32 * 32 + 32;
    assert_eq!(parameters(&graph, "vae"), 49_545_475 + more);
}

#[test]
fn z_image_has_the_published_parameters() {
    let graph = ZImageModel::turbo().graph(&run(1024, 1024, 1), &Paper::default()).unwrap();
    // The two pad vectors are not read.
    assert_eq!(parameters(&graph, "transformer") + 2 * 3840, 6_154_908_736);
    let unread = layer(2560, 32, 8, 9728, 256) + 2560;
    assert_eq!(parameters(&graph, "text_encoder") + unread, 4_022_468_096);
}

/// Each expert of Wan 2.2 is a transformer of Wan 2.1; the second part begins where the first ends.
#[test]
fn wan_2_2_is_two_runs_of_the_same_shapes() {
    let model = WanModel::t2v_14b();
    let of = |expert| {
        let run = VideoRun { steps: 2, ..run(832, 480, 17) };
        model.expert_graph(&run, &Paper::default(), expert).unwrap()
    };
    let (high, low) = (of(Expert::HighNoise), of(Expert::LowNoise));
    assert_eq!(parameters(&high, "transformer"), 14_288_491_584);
    assert_eq!(parameters(&low, "transformer_2"), 14_288_491_584);
    assert!(high.components.iter().all(|component| component.name != "vae"));
    assert_eq!(parameters(&low, "text_encoder"), 0);
    let shape = |rows: u64, cols: u64, name: &str| (rows, cols, name.to_owned());
    for output in &high.outputs {
        let name = if output.name == "latent" { "noise" } else { &output.name };
        let out = shape(output.rows, output.cols, name);
        assert!(low.inputs.iter().any(|input| shape(input.rows, input.cols, &input.name) == out));
    }
    assert_eq!(high_noise_steps(40), 26);
    for steps in 1..=100 {
        assert!((1..=steps).contains(&high_noise_steps(steps)));
    }
}

fn flux_run() -> FluxRun {
    FluxRun {
        width: 1024,
        height: 1024,
        steps: 4,
        samples: 1,
        text_tokens: 512,
        dtype: DType::BF16,
        hoist: true,
        vae_tile: None,
    }
}

/// A net of 5 double blocks: 3.6 GB, the figure that people plan with.
#[test]
fn controlnets_are_components_of_their_own() {
    let paper = Paper { controlnets: 2, ..Paper::default() };
    let graph = FluxModel::dev().paper_graph(&flux_run(), &paper).unwrap();
    for name in ["controlnet", "controlnet_2"] {
        near(2.0 * parameters(&graph, name) as f64, 3.58e9, 0.01);
    }
    assert_eq!(parameters(&graph, "transformer"), 11_901_408_320);
}

/// Rank 64 beside attention and feed-forward layers: 36 d a double block, 17 d a single one, for each rank.
#[test]
fn an_adapter_costs_its_own_bytes() {
    let rank = |component: &str, block: &str| {
        let is_block = block.starts_with("double") || block.starts_with("single");
        if component == "transformer" && is_block { 64 } else { 0 }
    };
    for coding in [Coding::Plain, Coding::Nf4] {
        let coding = move |_: &str, _: &str| coding;
        let paper = Paper { adapter: &rank, coding: &coding, ..Paper::default() };
        let graph = FluxModel::dev().paper_graph(&flux_run(), &paper).unwrap();
        let halves = graph.weights.iter().filter(|weight| weight.name.contains("lora_"));
        let bytes: u64 = halves.map(plimsoll_graph::Weight::bytes).sum();
        assert_eq!(bytes, 2 * 64 * 3072 * (19 * 36 + 38 * 17));
    }
}

#[test]
fn a_picture_is_decoded_in_tiles() {
    let model = FluxModel::dev();
    let tiles = model.tiles(&flux_run(), 512).unwrap();
    // Of 64 latents a side 48 are new: 3 tiles over 128.
    assert_eq!((tiles.size, tiles.count), ([1, 64, 64], 9));
    assert_eq!(model.tiles(&flux_run(), 1024).unwrap().count, 1);
    for tile in [3, 56, 100, 20_000] {
        assert!(model.tiles(&flux_run(), tile).is_err(), "{tile}");
        let run = VideoRun { tile, ..run(1280, 720, 81) };
        assert!(WanModel::t2v_14b().graph(&run, &Paper::default()).is_err(), "{tile}");
    }
}
