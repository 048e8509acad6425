//! What people report, as queries of the planner: each test is named after the report's number in the project's notes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may stop at what it did not expect"
)]

use plimsoll_graph::PhaseKind;
use plimsoll_ledger::{
    Forecast, Machines, NAMES, Recipe, curve, curve_svg, host_ledger, known, timeline_svg,
};
use plimsoll_plan::{Line, Machine, Offload, Plan, Request, explain, plan};

const GIB: u64 = 1 << 30;

fn machine(gpu: &str) -> Forecast {
    let machines = Machines::builtin().unwrap();
    Forecast::new(&machines.known(machines.card(gpu).unwrap(), None).unwrap())
}

fn recipe(model: &str) -> Recipe {
    let model = known(model).unwrap();
    model.recipe(&model.defaults()).unwrap()
}

fn auto(recipe: &Recipe, machine: &dyn Machine, line: Line) -> Plan {
    let request = Request { line, offload: Offload::Auto, prefetch: true };
    plan(&recipe.graph, machine, &request).expect("a line that works")
}

/// FLUX.1-dev in bf16 on 12 GB with 32 GB of RAM: streamed, file-backed, nothing pinned beside the files.
#[test]
fn report_14_pinned_copies_eat_the_ram() {
    let recipe = recipe("flux.1-dev");
    let plan = auto(&recipe, &machine("rtx-3060"), Line::Percent(100.0));
    let ledger = explain(&recipe.graph, &plan);
    let step = ledger.rows.iter().find(|row| row.phase == "denoise").unwrap();
    assert!(step.streamed_units > 0 && step.copied_bytes > 0);
    let streamed = plan.predicted.copied_bytes_per_step;
    let host = host_ledger(&recipe.graph, streamed, Some(32 * GIB)).unwrap();
    assert_eq!(host.pinned_bytes, 0);
    assert!(host.anonymous_bytes < GIB, "{}", host.anonymous_bytes);
    // 22.2 + 8.9 + 0.4 GiB do not stand beside the system in 32 GiB as memory of a process; as files they need not.
    assert!(host.file_bytes > 31 * GIB);
    assert!(host.is_cached, "what a step streams stays in the page cache");
}

/// Every byte of every component is in a unit that moves, for every model that is known.
#[test]
fn report_15_layers_outside_of_lists_are_left_behind() {
    for name in NAMES {
        let recipe = recipe(name);
        let machine = machine("h200");
        let plan = auto(&recipe, &machine, Line::Max);
        let mut is_in = vec![0u32; recipe.graph.weights.len()];
        for unit in &plan.units {
            for entry in &unit.weights {
                is_in[entry.weight.index()] += 1;
            }
        }
        assert!(is_in.iter().all(|count| *count == 1), "{name}");
    }
}

/// FLUX.1-dev in bf16 under 6 GB: no phase passes weights through the device as a whole.
#[test]
fn report_22_offload_that_loads_everything_first() {
    let recipe = recipe("flux.1-dev");
    let line = Line::Bytes(6_000_000_000);
    let plan = auto(&recipe, &machine("rtx-4090"), line);
    assert!(plan.predicted.vram_process_bytes <= 6_000_000_000);
    for row in explain(&recipe.graph, &plan).rows {
        assert!(row.live_bytes <= plan.arena_bytes, "{}", row.phase);
    }
}

/// T5 and the transformer together are over the line: T5 is gone before the first step.
#[test]
fn report_29_text_encoder_and_transformer_in_memory_together() {
    let recipe = recipe("flux.1-dev");
    let plan = auto(&recipe, &machine("rtx-4070"), Line::Bytes(11 * GIB));
    let order: Vec<PhaseKind> = plan.phases.iter().map(|phase| phase.kind).collect();
    assert!(order.is_sorted());
    let step = plan.phases.iter().find(|phase| phase.kind == PhaseKind::Denoise).unwrap();
    for visit in &plan.visits[step.visits_start as usize..step.visits_end as usize] {
        for load in &visit.loads {
            let unit = &plan.units[plan.loads[*load as usize].unit as usize];
            let component = recipe.graph.blocks[unit.block.index()].component;
            let name = &recipe.graph.components[component.index()].name;
            assert_eq!(name, "transformer", "{}", unit.name);
        }
    }
}

/// The largest component is about as large as the card: streaming is chosen by the plan, not by a flag.
#[test]
fn report_49_largest_component_as_large_as_the_card() {
    let recipe = recipe("flux.1-dev");
    let plan = auto(&recipe, &machine("rtx-4090"), Line::Percent(90.0));
    let ledger = explain(&recipe.graph, &plan);
    let step = ledger.rows.iter().find(|row| row.phase == "denoise").unwrap();
    assert!(step.resident_units > 0);
    assert!(plan.predicted.vram_process_bytes <= 24 * GIB * 9 / 10);
}

/// HunyuanVideo 544x960, 97 frames, as FramePack users ask for it on 8 GB: planned under the limit.
#[test]
fn report_54_score_matrices_of_30_gb() {
    let model = known("hunyuanvideo").unwrap();
    let ask = plimsoll_ledger::Ask { size: [960, 544, 97], row_chunks: 4, ..model.defaults() };
    let recipe = model.recipe(&ask).unwrap();
    let plan = auto(&recipe, &machine("rtx-4060"), Line::Percent(100.0));
    assert!(plan.predicted.vram_process_bytes <= 8 * GIB);
}

#[test]
fn the_same_question_gives_the_same_bytes() {
    let (recipe, machine) = (recipe("flux.1-dev"), machine("rtx-4080"));
    let plan = auto(&recipe, &machine, Line::Percent(50.0));
    let again = auto(&recipe, &machine, Line::Percent(50.0));
    let text = |plan: &Plan| serde_json::to_string(&explain(&recipe.graph, plan)).unwrap();
    assert_eq!(text(&plan), text(&again));
    let draw = |plan: &Plan| timeline_svg(&recipe.graph, plan, &machine, "a <title>");
    let picture = draw(&plan);
    assert_eq!(picture, draw(&again));
    assert!(picture.contains("a &lt;title&gt;") && picture.contains("line 8.00 GiB"));
    assert_eq!(picture.matches("<svg").count(), picture.matches("</svg>").count());
    let drawn = curve(&recipe, &machine, false, 5).unwrap();
    let picture = curve_svg(&drawn, "the curve");
    assert_eq!(picture.matches("<circle").count(), 5);
    assert!(!picture.contains("NaN") && !picture.contains("inf"));
}
