//! Random questions: models, machines, lines, pieces, what is beside the model. No panic, no overflow, no plan over its
//! line, and the verifier accepts every plan.
//!
//! 2,000 questions, or `PLIMSOLL_QUERIES`; `PLIMSOLL_SEED` begins elsewhere. A question that fails is printed with its
//! number, and `PLIMSOLL_SEED=number PLIMSOLL_QUERIES=1` asks it again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may stop at what it did not expect"
)]

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_graph::{Coding, DType};
use plimsoll_ledger::{
    Ask, Codings, Fitter, Forecast, KnownModel, LedgerError, Machines, NAMES, host_ledger, known,
    outcome,
};
use plimsoll_plan::{Line, Machine, Offload, PlanError, Request, explain};

/// Numbers from a seed; each question has its own.
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % most
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Small sizes mostly, and now and then one that no device takes.
fn ask(model: &KnownModel, n: &mut Numbers) -> Ask {
    let codes = [Coding::Plain, Coding::Fp8, Coding::Nf4];
    let is_film = model.is_video();
    let size = match n.below(20) {
        0 => [16 * n.below(1_100), 16 * n.below(1_100), n.below(1_100)],
        1 => [n.below(3_000), n.below(3_000), n.below(90)],
        // Of films a rare one: in pieces, it takes seconds to plan.
        2 if !is_film || n.below(8) == 0 => model.defaults().size,
        _ => [32 * (1 + n.below(24)), 32 * (1 + n.below(24)), 1 + 4 * n.below(6)],
    };
    let frames = if is_film || n.below(30) == 0 { size[2] } else { 1 };
    Ask {
        size: [size[0], size[1], frames],
        steps: if n.below(50) == 0 { n.below(1_200) as u32 } else { 1 + n.below(4) as u32 },
        samples: n.one_of(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 0, 65]),
        text_tokens: if n.below(10) == 0 { n.below(5_000) } else { model.text_tokens },
        dtype: if n.below(4) == 0 { DType::F32 } else { DType::BF16 },
        hoist: n.below(4) > 0,
        row_chunks: (is_film && n.below(3) == 0)
            .then(|| n.one_of(&[1, 1, 1, 2, 2, 2, 3, 3, 3, 65])),
        tile: (n.below(3) == 0).then(|| n.one_of(&[0, 128, 256, 512, 77])),
        codings: Codings { denoiser: n.one_of(&codes), text: n.one_of(&codes) },
        packed: n.below(2) == 0,
        lora_rank: n.one_of(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 64, 2_000]),
        controlnets: n.one_of(&[0, 0, 0, 0, 0, 0, 1, 3]),
    }
}

fn line(n: &mut Numbers) -> Line {
    match n.below(12) {
        0 => Line::Min,
        1 => Line::Max,
        2 => Line::Percent(1.0 + n.below(100) as f64),
        3 => Line::Bytes(1 + n.below(1 << 59)),
        _ => Line::Bytes((1 + n.below(400)) << 26),
    }
}

fn offload(n: &mut Numbers) -> Offload {
    let group = Offload::Group { blocks: n.below(70) as u32 };
    match n.below(8) {
        0 => Offload::None,
        1 => Offload::Model,
        2 => Offload::Sequential,
        3 => group,
        _ => Offload::Auto,
    }
}

/// What came of a question.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    Planned = 0,
    TooSmall = 1,
    Refused = 2,
}

fn question(machines: &Machines, number: u64) -> Came {
    let n = &mut Numbers::new(number + 1);
    let model = known(n.one_of(&NAMES)).unwrap();
    let card = &machines.cards[n.below(machines.cards.len() as u64) as usize];
    let bus = n.one_of(&[None, Some("pcie3x16"), Some("pcie5x16")]);
    let mut machine = Forecast::new(&machines.known(card, bus).unwrap());
    if n.below(8) == 0 {
        machine = machine.without_fused_attention();
    }
    if n.below(8) == 0 {
        machine = machine.behind(1.0 + n.below(1 << 33) as f64);
    }
    let ask = ask(&model, n);
    let request = Request { line: line(n), offload: offload(n), prefetch: n.below(4) > 0 };
    if std::env::var_os("PLIMSOLL_SHOW").is_some() {
        println!("{number}: {} on {}: {ask:?}, {request:?}", model.name, card.name);
    }
    let mut fitter = Fitter::new(&model, &ask);
    match fitter.fit(&machine, &request) {
        Ok(fit) => {
            let limit = request.line.bytes(machine.vram_bytes()).unwrap_or(machine.vram_bytes());
            let recipe = fitter.recipe(&fit.ask).unwrap();
            for (part, plan) in recipe.parts().zip(&fit.plans) {
                assert!(plan.predicted.vram_process_bytes <= limit, "over its line");
                let graph = &part.graph;
                let scratch = |op: &plimsoll_graph::Op| machine.workspace_bytes(graph, op);
                let reserved = machine.reserved_bytes();
                plimsoll_verify::verify(graph, plan, reserved, &scratch).expect("a proof");
                let rows = explain(graph, plan).rows;
                assert!(!rows.is_empty());
                for row in rows {
                    let arena = plan.arena_bytes;
                    assert!(row.live_bytes <= arena, "{row:?} in an arena of {arena}");
                }
            }
            if std::env::var_os("PLIMSOLL_SHOW").is_some() {
                let ids: Vec<&str> = fit.plans.iter().map(|plan| plan.id.as_str()).collect();
                println!("{number}: plans {}", ids.join(" "));
            }
            let told = outcome(recipe, &machine, &fit.plans);
            assert!(told.vram_bytes <= limit);
            for seconds in [told.seconds, told.seconds_per_step, told.compute_seconds] {
                assert!(seconds.is_finite() && seconds > 0.0, "{told:?}");
            }
            assert!(told.seconds >= 0.999 * told.compute_seconds, "{told:?}");
            let ram = (n.below(2) == 0).then(|| n.below(1 << 37));
            match host_ledger(recipe, told.copied_bytes_per_step, ram) {
                Ok(host) => assert_eq!(host.pinned_bytes, 0),
                Err(error) => assert!(matches!(error, LedgerError::Ram { .. }), "{error}"),
            }
            Came::Planned
        }
        Err(LedgerError::Plan(PlanError::Infeasible { smallest_bytes, line_bytes, .. })) => {
            assert!(smallest_bytes > line_bytes);
            if std::env::var_os("PLIMSOLL_SHOW").is_some() {
                println!("{number}: smallest {smallest_bytes}");
            }
            Came::TooSmall
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && text.len() < 300 && !text.contains('\n'), "{text}");
            Came::Refused
        }
    }
}

#[test]
fn random_questions_are_planned_and_proved_or_refused() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let count = number("PLIMSOLL_QUERIES").unwrap_or(2_000);
    let first = number("PLIMSOLL_SEED").unwrap_or(0);
    let machines = Machines::builtin().unwrap();
    let next = AtomicU64::new(first);
    let workers = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let work = || {
        let mut came = [0u64; 3];
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= first + count {
                return came;
            }
            let begun = std::time::Instant::now();
            let asked = std::panic::AssertUnwindSafe(|| question(&machines, number));
            match std::panic::catch_unwind(asked) {
                Ok(what) => {
                    came[what as usize] += 1;
                    if std::env::var_os("PLIMSOLL_SHOW").is_some() {
                        println!("{number}: {:.3} s", begun.elapsed().as_secs_f64());
                    }
                }
                Err(panic) => {
                    eprintln!("question {number}");
                    std::panic::resume_unwind(panic);
                }
            }
        }
    };
    let mut all = [0u64; 3];
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            let came = worker.join().expect("every question has an answer");
            all.iter_mut().zip(came).for_each(|(all, one)| *all += one);
        }
    });
    let [planned, small, refused] = all;
    println!("{planned} planned and proved, {small} over their lines, {refused} refused");
    assert_eq!(planned + small + refused, count);
    if count >= 1_000 {
        assert!(planned > count / 3 && small > 0 && refused > 0);
    }
}
