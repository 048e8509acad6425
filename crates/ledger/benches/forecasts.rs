//! How long a forecast takes: `cargo bench -p plimsoll-ledger`.

use divan::{Bencher, black_box};
use plimsoll_ledger::{Ask, Forecast, KnownModel, Machines, advise, curve, fit, known};
use plimsoll_plan::{Line, Offload, Request};

fn main() {
    divan::main();
}

/// A model and a card, with nothing built yet.
fn query(model: &str, card: &str) -> (KnownModel, Forecast) {
    let machines = Machines::builtin().expect("the list");
    let card = machines.card(card).expect("a card");
    let machine = Forecast::new(&machines.known(card, None).expect("its bus"));
    (known(model).expect("a model"), machine)
}

const AUTO: Request = Request { line: Line::Percent(80.0), offload: Offload::Auto, prefetch: true };

/// Graph and plan, from the model's name: FLUX.1-dev within 50 ms, HunyuanVideo within 200 ms.
#[divan::bench(args = ["flux.1-dev", "hunyuanvideo", "wan2.1-t2v-14b", "flux.2-dev"], sample_count = 20)]
fn plan(bencher: Bencher<'_, '_>, model: &str) {
    let (model, machine) = query(model, "rtx-4090");
    bencher.bench(|| fit(black_box(&model), &model.defaults(), &machine, &AUTO));
}

/// The same with advice.
#[divan::bench(args = ["flux.1-dev"], sample_count = 10)]
fn plan_with_advice(bencher: Bencher<'_, '_>, model: &str) {
    let (model, machine) = query(model, "rtx-4090");
    let ask: Ask = model.defaults();
    bencher.bench(|| advise(black_box(&model), &ask, &machine, AUTO.line, Offload::Auto));
}

/// 50 lines of FLUX.1-dev within a second.
#[divan::bench(sample_count = 5)]
fn curve_of_50_points(bencher: Bencher<'_, '_>) {
    let (model, machine) = query("flux.1-dev", "rtx-4090");
    bencher.bench(|| curve(black_box(&model), &model.defaults(), &machine, false, 50));
}
