//! Plans that are right are accepted, and do what the graph says in a real arena.

mod support;

use support::naive::{self, Style};
use support::{graphs, oracle, verify};

#[test]
fn naive_plans_are_proved_and_run_right() {
    let graphs = [
        graphs::tiny_flux(1, 1, true),
        graphs::tiny_flux(4, 2, true),
        graphs::tiny_flux(3, 1, false),
        graphs::skips(1, 1),
        graphs::skips(5, 1),
        graphs::skips(2, 3),
    ];
    for (index, graph) in graphs.iter().enumerate() {
        let expected = oracle::reference(graph);
        for style in [
            Style::Apart,
            Style::Slots(1),
            Style::Slots(2),
            Style::Slots(3),
            Style::Leaves(1),
            Style::Leaves(2),
            Style::Leaves(5),
            Style::Mixed(2),
        ] {
            let plan = naive::plan(graph, style);
            if let Err(violation) = verify(graph, &plan) {
                panic!("graph {index}, {style:?}: {violation}");
            }
            oracle::agrees(graph, &plan, &expected, 3)
                .unwrap_or_else(|error| panic!("graph {index}, {style:?}: {error}"));
        }
    }
}
