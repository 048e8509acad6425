//! Known machines and models together: published sizes and step times, strategies, the curve, advice, odd questions.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may stop at what it did not expect"
)]

use plimsoll_graph::Coding;
use plimsoll_ledger::{
    Ask, Binds, Codings, Forecast, LedgerError, Machines, Quality, Recipe, Verdict, advise, curve,
    fit, host_ledger, known, planned, plans, recommend, strategies,
};
use plimsoll_plan::{Line, Offload, Request};

const GIB: u64 = 1 << 30;

fn machine(gpu: &str) -> (Forecast, Option<[f64; 2]>) {
    let machines = Machines::builtin().unwrap();
    let known = machines.known(machines.card(gpu).unwrap(), None).unwrap();
    (Forecast::new(&known), known.band)
}

fn recipe(model: &str, codings: Codings) -> Recipe {
    let model = known(model).unwrap();
    model.recipe(&Ask { codings, ..model.defaults() }).unwrap()
}

const FP8: Codings = Codings { denoiser: Coding::Fp8, text: Coding::Plain };

#[test]
fn every_figure_of_the_list_has_a_source() {
    let machines = Machines::builtin().unwrap();
    let asked = [
        "3060", "4060", "4060 Ti", "4070", "4080", "4090", "5070 Ti", "5080", "5090", "A100",
        "L40S", "H100", "H200",
    ];
    let expected = [12, 8, 16, 12, 16, 24, 16, 16, 32, 80, 48, 80, 139];
    for (name, gib) in asked.into_iter().zip(expected) {
        let card = match machines.card(name) {
            Ok(card) => card,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(card.vram_bytes.value / GIB, gib, "{name}");
    }
    for card in &machines.cards {
        let mut keys = vec![
            &card.vram_bytes.source,
            &card.bf16_flops_per_second.source,
            &card.int8_ops_per_second.source,
            &card.memory_bytes_per_second.source,
            &card.bus.source,
        ];
        keys.extend(card.fp8_flops_per_second.iter().map(|fp8| &fp8.source));
        for key in keys {
            let source = machines.sources.get(key).expect("a source");
            assert!(["datasheet", "measured"].contains(&source.kind.as_str()), "{key}");
            assert!(!source.text.is_empty());
        }
        let known = machines.known(card, None).unwrap();
        let is_h200 = card.name == "h200";
        assert_eq!(known.band.is_none(), is_h200, "{}", card.name);
        assert_eq!(known.fp8_speedup.is_some(), card.fp8_flops_per_second.is_some());
    }
}

#[test]
fn unknown_names_list_the_nearest() {
    let machines = Machines::builtin().unwrap();
    let error = machines.card("rtx-4085").unwrap_err().to_string();
    assert!(error.contains("rtx-4080"), "{error}");
    let error = machines.bus("pcie6x16").unwrap_err().to_string();
    assert!(error.contains("pcie5x16"), "{error}");
    let error = known("flux1-dev").unwrap_err().to_string();
    assert!(error.contains("flux.1-dev"), "{error}");
    let error = known(&"x".repeat(10_000)).unwrap_err().to_string();
    assert!(error.len() < 200 && !error.contains('\n'), "{error}");
}

/// Seconds of a step on a card against a published figure: inside of the band.
fn in_band(gpu: &str, codings: Codings, published: f64) {
    let (machine, band) = machine(gpu);
    let recipe = recipe("flux.1-dev", codings);
    let vast = machine.with_vram(1 << 44);
    let outcome = planned(&recipe, &vast, Line::Max, Offload::None, true).unwrap();
    let [least, most] = band.expect("an estimate").map(|share| share * outcome.seconds_per_step);
    println!("{gpu}: {least:.3} to {most:.3} s, published {published} s");
    assert!((least..=most).contains(&published), "{gpu}: {least:.3} to {most:.3}");
}

#[test]
fn published_4090_fp8_step_is_in_the_band() {
    in_band("rtx-4090", FP8, 0.285);
}

#[test]
fn published_h100_compiled_step_is_in_the_band() {
    in_band("h100", Codings::default(), 0.148);
}

#[test]
fn published_h100_fp8_step_is_in_the_band() {
    in_band("h100", FP8, 0.087);
}

/// The sizes that users' logs show, in MiB; of NF4 the scales are another scheme's (4 %).
#[test]
fn sizes_of_users_logs() {
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    let near = |found: f64, seen: f64, share: f64, what: &str| {
        assert!((found / seen - 1.0).abs() <= share, "{what}: {found:.1}, seen {seen}");
    };
    let bytes = |codings: Codings, component: &str| {
        let rows = recipe("flux.1-dev", codings).components();
        let row = rows.into_iter().find(|row| row.component == component).unwrap();
        mib(row.device_bytes + row.table_bytes)
    };
    let all = |coding| Codings { denoiser: coding, text: coding };
    let plain = Codings::default();
    near(bytes(plain, "transformer"), 22_700.0, 0.01, "transformer bf16");
    near(bytes(all(Coding::Fp8), "transformer"), 11_350.0, 0.01, "transformer fp8");
    near(bytes(all(Coding::Nf4), "transformer"), 6_247.0, 0.04, "transformer nf4");
    // A block of 32 in 18 bytes is the 4.5 bits of our nf4; bitsandbytes codes its scales once more.
    near(bytes(all(Coding::Nf4), "transformer"), 6_482.0, 0.01, "transformer Q4_0");
    // The token embedding is tied and counted once.
    near(bytes(plain, "text_encoder_2"), 9_083.4, 0.01, "T5 bf16");
    near(bytes(plain, "text_encoder"), 235.0, 0.01, "CLIP bf16");
    // A plain cast to fp8 casts the token table too, which our own coding leaves as it is.
    let rows = recipe("flux.1-dev", plain).components();
    let row = |name: &str| rows.iter().find(|row| row.component == name).unwrap();
    let both = row("text_encoder_2").parameters + 2 * row("text_encoder").parameters;
    near(mib(both), 4_777.5, 0.01, "T5 fp8 and CLIP bf16");
    let t5 = row("text_encoder_2").parameters;
    near(mib(2 * (t5 + 32_128 * 4096)), 9_334.4, 0.01, "T5 with its embedding counted twice");
    near(mib(4 * row("text_encoder").parameters), 469.4, 0.01, "CLIP f32");
    let vae = 2 * (row("vae").parameters + vae_encoder());
    near(mib(vae), 159.9, 0.01, "VAE bf16");
}

/// Bytes of FLUX.2-dev and of an expert of Wan 2.2, as users' logs round them.
#[test]
fn sizes_of_users_logs_of_newer_models() {
    let bytes = |model: &str, component: &str| {
        let rows = recipe(model, Codings::default()).components();
        let row = rows.into_iter().find(|row| row.component == component).unwrap();
        (row.device_bytes + row.table_bytes) as f64
    };
    let dit = bytes("flux.2-dev", "transformer");
    assert!((dit / 64e9 - 1.0).abs() <= 0.01, "{dit:e}");
    // A run reads 30 of 40 layers, not the head, and not the encoder of pictures.
    let layer = 555_755_520.0;
    let unread = 2.0 * (10.0 * layer + 5_120.0 + 131_072.0 * 5_120.0 + 438_958_080.0);
    let text = bytes("flux.2-dev", "text_encoder") + unread;
    assert!((text / 48e9 - 1.0).abs() <= 0.01, "{text:e}");
    for expert in ["transformer", "transformer_2"] {
        // "~27 GB" is 26.6 GiB.
        let gib = bytes("wan2.2-t2v-a14b", expert) / GIB as f64;
        assert!((gib - 26.61).abs() < 0.01 && gib.round() == 27.0, "{expert}: {gib}");
    }
}

/// Parameters of the encoder of FLUX.1's VAE, which no run of text to picture reads.
fn vae_encoder() -> u64 {
    let conv = |input: u64, out: u64| 9 * input * out + out;
    let res = |input: u64, out: u64| {
        let shortcut = if input == out { 0 } else { input * out + out };
        2 * input + conv(input, out) + 2 * out + conv(out, out) + shortcut
    };
    let levels = [(128, 128), (128, 256), (256, 512), (512, 512)];
    let blocks: u64 = levels.iter().map(|(input, out)| res(*input, *out) + res(*out, *out)).sum();
    let down = conv(128, 128) + conv(256, 256) + conv(512, 512);
    let middle = 2 * res(512, 512) + 2 * 512 + 4 * (512 * 512 + 512);
    conv(3, 128) + blocks + down + middle + 2 * 512 + conv(512, 32)
}

#[test]
fn h200_at_8_gib_is_near_the_floor() {
    let (machine, _) = machine("h200");
    for (hoist, gigabytes) in [(true, 17.22), (false, 23.67)] {
        let model = known("flux.1-dev").unwrap();
        let recipe = model.recipe(&Ask { hoist, ..model.defaults() }).unwrap();
        // What the blocks read in a step, resident or not.
        let graph = &recipe.graph;
        let step = graph.phases.iter().find(|phase| phase.repeat > 1).unwrap();
        let blocks = step.visits.iter().map(|visit| &graph.blocks[visit.block.index()]);
        let blocks =
            blocks.filter(|b| b.name.starts_with("double") || b.name.starts_with("single"));
        let weights = blocks.flat_map(|block| &block.weights);
        let read: u64 = weights.map(|id| graph.weight(*id).bytes()).sum();
        let share = read as f64 / 1e9 / gigabytes - 1.0;
        println!("hoist {hoist}: blocks read {read} bytes a step");
        assert!(share.abs() <= 0.001, "hoist {hoist}: {read}");

        let request =
            Request { line: Line::Bytes(8 * GIB), offload: Offload::Auto, prefetch: true };
        let plans = plans(&recipe, &machine, &request).unwrap();
        let outcome = plimsoll_ledger::outcome(&recipe, &machine, &plans);
        let copying = outcome.copied_bytes_per_step as f64 / machine.link_bytes_per_second();
        let floor = outcome.compute_seconds_per_step.max(copying);
        let ratio = outcome.seconds_per_step / floor;
        println!("hoist {hoist}: {:.4} s, {ratio:.4} of the floor", outcome.seconds_per_step);
        assert!(ratio <= 1.05, "{ratio}");
    }
}

#[test]
fn a_4080_is_advised_to_free_the_text_encoder_in_fp8_or_better() {
    let (machine, _) = machine("rtx-4080");
    let model = known("flux.1-dev").unwrap();
    let rows = strategies(&model, &model.defaults(), &machine, Line::Percent(100.0)).unwrap();
    let row = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
    assert!(!row("all resident").fits);
    let freed = row("fp8, text freed");
    assert!(freed.fits, "{:?}", freed.outcome);
    let (best, why) = recommend(&rows).unwrap();
    println!("{}: {why}", best.name);
    assert!(best.outcome.seconds <= freed.outcome.seconds);
    assert!(best.quality != Quality::SlightLoss);
    // What the field's strategies are for: each step moves the whole model.
    let step = row("sequential").outcome.copied_bytes_per_step as f64;
    assert!((step / 1e9 - 17.3).abs() < 0.2, "{step}");
    for slow in ["sequential", "sequential + prefetch", "groups of 4", "groups of 4 + stream"] {
        assert!(row("plimsoll").outcome.seconds <= row(slow).outcome.seconds, "{slow}");
    }
}

#[test]
fn the_curve_falls_and_says_where_streaming_is_free() {
    let (machine, _) = machine("h200");
    let model = known("flux.1-dev").unwrap();
    let curve = curve(&model, &model.defaults(), &machine, false, 20).unwrap();
    assert_eq!(curve.points.len(), 20);
    for pair in curve.points.windows(2) {
        assert!(pair[0].line_bytes < pair[1].line_bytes);
        let (low, high) = (&pair[0].outcome, &pair[1].outcome);
        assert!(high.seconds_per_step <= 1.01 * low.seconds_per_step);
        assert!(low.vram_bytes <= pair[0].line_bytes);
    }
    let free = curve.free_from.expect("all resident is free");
    assert!(free > 0 && curve.points[free].binds == Binds::Compute);
    assert_eq!(curve.points[1].binds, Binds::Bus);
}

#[test]
fn a_slow_disk_binds_where_memory_is_small() {
    let recipe = recipe("flux.1-dev", Codings::default());
    let streamed = 17_300_000_000;
    let large = host_ledger(&recipe, streamed, Some(64 * GIB)).unwrap();
    assert!(large.is_cached && large.pinned_bytes == 0 && large.kv_cache_bytes == 0);
    assert!(large.file_bytes > 33_000_000_000, "{}", large.file_bytes);
    assert!(!host_ledger(&recipe, streamed, Some(16 * GIB)).unwrap().is_cached);
    let none = host_ledger(&recipe, streamed, Some(GIB)).unwrap_err();
    assert!(matches!(none, LedgerError::Ram { .. }), "{none}");
}

/// Nobody says in how many pieces: 75,600 tokens, both branches of guidance, 12 GB.
#[test]
fn wan_14b_720p_plans_under_12_gib() {
    let (machine, _) = machine("rtx-4070");
    let model = known("wan2.1-t2v-14b").unwrap();
    let line = Line::Bytes(12 * GIB);
    let request = Request { line, offload: Offload::Auto, prefetch: true };
    let found = fit(&model, &model.defaults(), &machine, &request).unwrap();
    let outcome = found.outcome;
    println!(
        "{:.2} GiB, {:.1} s a step, {:?} pieces, tile {:?}",
        outcome.vram_bytes as f64 / GIB as f64,
        outcome.seconds_per_step,
        found.ask.row_chunks,
        found.ask.tile
    );
    assert!(outcome.vram_bytes <= 12 * GIB);
    // Streaming is nothing beside this arithmetic.
    assert!(outcome.seconds_per_step <= 1.02 * outcome.compute_seconds_per_step);
    // What pieces cost is in the seconds: within 2 % of the step in one piece.
    let whole = model.recipe(&Ask { tile: Some(256), ..model.defaults() }).unwrap();
    let endless = machine.with_vram(1 << 44);
    let whole = planned(&whole, &endless, Line::Max, Offload::Auto, true).unwrap();
    assert!(outcome.seconds_per_step <= 1.02 * whole.seconds_per_step);
}

/// The pieces follow from the line: none where the whole fits, smaller tiles where less remains.
#[test]
fn tiles_are_taken_from_the_bytes_that_remain() {
    for (name, card) in [("flux.1-dev", "rtx-3060"), ("wan2.1-t2v-1.3b", "rtx-4060")] {
        let (machine, _) = machine(card);
        let model = known(name).unwrap();
        let at = |line| {
            let request = Request { line, offload: Offload::Auto, prefetch: true };
            fit(&model, &model.defaults(), &machine.clone().with_vram(1 << 44), &request).unwrap()
        };
        let whole = at(Line::Max);
        assert_eq!((whole.ask.row_chunks, whole.ask.tile), (Some(1), Some(0)), "{name}");
        let least = at(Line::Min);
        assert!(least.ask.tile.unwrap() > 0, "{name}: {:?}", least.ask);
        let fixed = Ask { tile: Some(0), row_chunks: Some(1), ..model.defaults() };
        let fixed = model.recipe(&fixed).unwrap();
        let vast = machine.clone().with_vram(1 << 44);
        let fixed = planned(&fixed, &vast, Line::Min, Offload::Auto, true).unwrap();
        assert!(least.outcome.vram_bytes < fixed.vram_bytes, "{name}");
        // The line that was found is the smallest: a MiB less has no plan.
        let less = Line::Bytes(least.outcome.vram_bytes - (1 << 20));
        let request = Request { line: less, offload: Offload::Auto, prefetch: true };
        assert!(fit(&model, &model.defaults(), &vast, &request).is_err(), "{name}");
    }
}

/// Packed fp8 is what `pack` writes: modulation, embedders and the last layer stay in bf16.
#[test]
fn ours_in_fp8_has_the_bytes_of_a_packed_folder() {
    let model = known("flux.1-dev").unwrap();
    let bytes = |packed| {
        let ask = Ask { codings: FP8, packed, ..model.defaults() };
        let rows = model.recipe(&ask).unwrap().components();
        rows.into_iter().find(|row| row.component == "transformer").unwrap()
    };
    let (packed, cast) = (bytes(true), bytes(false));
    // 11,901,408,320 parameters of which 8,607,375,360 are in matrices of 8 bits, with a scale in f32 a row.
    let narrow = 19 * 24 * 3072u64.pow(2) + 38 * 12 * 3072u64.pow(2);
    let rows = 19 * 2 * (3 + 1 + 4 + 1) * 3072 + 38 * (3 + 4 + 1) * 3072;
    assert_eq!(packed.device_bytes, 2 * 11_901_408_320 - narrow + 4 * rows);
    assert!(cast.device_bytes < packed.device_bytes);
}

#[test]
fn advice_is_never_in_force_already() {
    let (machine, _) = machine("rtx-4060");
    let model = known("wan2.1-t2v-14b").unwrap();
    let line = Line::Bytes(4 * GIB);
    let ask = Ask { row_chunks: Some(1), tile: Some(0), ..model.defaults() };
    let Verdict::DoesNotFit { smallest_bytes, changes } =
        advise(&model, &ask, &machine, line, Offload::Auto).unwrap()
    else {
        panic!("14B at 720p fits 4 GiB");
    };
    assert!(smallest_bytes > 4 * GIB);
    assert!(!changes.is_empty());
    let says = |changes: &[plimsoll_ledger::Change], word: &str| {
        changes.iter().any(|change| change.what.contains(word))
    };
    assert!(says(&changes, "both") && says(&changes, "tiles"), "{changes:?}");
    let ask = Ask { row_chunks: Some(8), tile: Some(256), ..ask };
    if let Verdict::DoesNotFit { changes, .. } =
        advise(&model, &ask, &machine, line, Offload::Auto).unwrap()
    {
        assert!(!says(&changes, "chunks") && !says(&changes, "tile"), "{changes:?}");
    }
    let model = known("flux.1-dev").unwrap();
    let Verdict::Fits { buys, outcome } =
        advise(&model, &model.defaults(), &machine, Line::Bytes(6 * GIB), Offload::Auto).unwrap()
    else {
        panic!("FLUX.1 fits 6 GiB");
    };
    for (bytes, seconds) in buys {
        assert!(bytes > 6 * GIB && seconds <= 0.95 * outcome.seconds);
    }
}

/// What the planner does by itself is no advice; a strategy that a person fixed is.
#[test]
fn advice_for_a_fixed_strategy_is_to_stream() {
    let (machine, _) = machine("rtx-4070");
    let model = known("flux.1-dev").unwrap();
    let line = Line::Bytes(11 * GIB);
    let verdict = advise(&model, &model.defaults(), &machine, line, Offload::None).unwrap();
    let Verdict::DoesNotFit { smallest_bytes, changes } = verdict else {
        panic!("33 GB fit in 11");
    };
    assert!(smallest_bytes > 30 * GIB);
    let first = &changes[0];
    assert!(first.fits && first.runs && first.what.contains("--offload auto"), "{changes:?}");
    assert!(changes.iter().all(|change| !change.what.contains("pieces")), "{changes:?}");
}
