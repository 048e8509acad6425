//! `plimsoll ledger --rule-of-thumb`: four tables of the field from their formulas, each beside exact figures.

use std::fmt::Write as _;

use plimsoll_ledger::exact;
use plimsoll_ledger::thumb::{GIB, ThumbInputs};

use super::args::LedgerArgs;
use crate::failure::Failure;
use crate::out;

/// Writing to a `String` does not fail.
macro_rules! line {
    ($out:expr) => { let _ = writeln!($out); };
    ($out:expr, $($arg:tt)*) => { let _ = writeln!($out, $($arg)*); };
}

pub(crate) fn run(args: &LedgerArgs) -> Result<(), Failure> {
    let inputs = inputs(args)?;
    let mut out = String::new();
    memory(&mut out, &inputs)?;
    offload(&mut out, &inputs, args.steps)?;
    groups(&mut out, &inputs, args.steps)?;
    card(&mut out, &inputs, args.steps)?;
    exercises(&mut out, &inputs);
    out::result(&out)
}

fn inputs(args: &LedgerArgs) -> Result<ThumbInputs, Failure> {
    for (name, value) in [
        ("--compute-per-step", args.compute_per_step),
        ("--bus", args.bus),
        ("--second-bus", args.second_bus),
        ("--card", args.card),
    ] {
        if !(value.is_finite() && value > 0.0 && value < 1e9) {
            return Err(Failure::Usage(format!("{name} is {value}, expected a number above 0")));
        }
    }
    let beside = [("--overhead", args.overhead), ("--decode", args.decode)];
    for (name, value) in beside.into_iter().chain([("--controlnet", args.controlnet)]) {
        if !(0.0..1e9).contains(&value) {
            return Err(Failure::Usage(format!("{name} is {value}, expected 0 or more")));
        }
    }
    if args.steps == 0 || args.steps > 1_000 {
        return Err(Failure::Usage(format!("--steps is {}, expected 1 to 1000", args.steps)));
    }
    if args.group.iter().any(|blocks| !(1..=1_000).contains(blocks)) {
        return Err(Failure::Usage("--group is expected to be 1 to 1000".to_owned()));
    }
    let bus = |name: &str, rate: f64| (format!("{name}, {rate} GB/s"), rate * 1e9);
    Ok(ThumbInputs {
        overhead_gib: args.overhead,
        buses: vec![bus("PCIe 4.0 x16", args.bus), bus("PCIe 5.0 x16", args.second_bus)],
        steps: f64::from(args.steps),
        compute_per_step: args.compute_per_step,
        group_bus: args.bus * 1e9,
        groups: args.group.clone(),
        card_gib: args.card,
        decode_gib: args.decode,
        controlnets: (args.controlnets, args.controlnet * 1e9),
        ..ThumbInputs::default()
    })
}

#[expect(clippy::cast_precision_loss, reason = "printed to one digit")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB
}

fn memory(out: &mut String, inputs: &ThumbInputs) -> Result<(), Failure> {
    line!(out, "1. Memory by model and precision, all resident, in GiB");
    line!(out, "{:<28}{:^31}    {:^31}", "", "rule of thumb", "exact");
    line!(
        out,
        "{:<22}{:<5} {:>8} {:>6} {:>7} {:>7}    {:>8} {:>6} {:>7} {:>7}",
        "model",
        "",
        "denoiser",
        "text",
        "activ.",
        "total",
        "denoiser",
        "text",
        "activ.",
        "total"
    );
    for (rule, now) in inputs.memory().iter().zip(exact::memory()?) {
        line!(
            out,
            "{:<22}{:<5} {:>8.1} {:>6.1} {:>7.1} {:>7.1}    {:>8.2} {:>6.2} {:>7.2} {:>7.2}",
            rule.model,
            rule.precision,
            rule.denoiser / GIB,
            rule.text / GIB,
            rule.activations / GIB,
            rule.total / GIB,
            gib(now.denoiser),
            gib(now.text),
            gib(now.activations),
            gib(now.total)
        );
    }
    line!(
        out,
        "exact: of our own ops, VAE and context in the total; token tables stay on the host"
    );
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "printed to no digit")]
fn offload(out: &mut String, inputs: &ThumbInputs, steps: u32) -> Result<(), Failure> {
    let compute = inputs.steps * inputs.compute_per_step;
    line!(out);
    line!(
        out,
        "2. Offload of FLUX.1-dev in bf16, {steps} steps of {} s, arithmetic {compute:.1} s",
        inputs.compute_per_step
    );
    line!(out, "{:<46}{:^27}   {:^22}", "", "rule of thumb", "exact, H100");
    line!(
        out,
        "{:<24}{:<22} {:>6} {:>9} {:>9}   {:>6} {:>7} {:>7}",
        "bus",
        "strategy",
        "GB",
        "extra s",
        "picture",
        "GB",
        "extra s",
        "picture"
    );
    let rows = inputs.offload();
    for (of_bus, (_, rate)) in rows.chunks(3).zip(&inputs.buses) {
        for (rule, now) in of_bus.iter().zip(exact::offload(steps, *rate)?) {
            line!(
                out,
                "{:<24}{:<22} {:>6.0} {:>9.1} {:>9.1}   {:>6.0} {:>7.1} {:>7.1}",
                rule.bus,
                rule.strategy,
                rule.moved / 1e9,
                rule.extra,
                rule.picture,
                now.copied_bytes as f64 / 1e9,
                now.extra_seconds(),
                now.seconds
            );
        }
    }
    line!(
        out,
        "exact: weights go in only, since they do not change; modulation is hoisted out of steps"
    );
    Ok(())
}

fn groups(out: &mut String, inputs: &ThumbInputs, steps: u32) -> Result<(), Failure> {
    line!(out);
    line!(
        out,
        "3. Groups of blocks, one ahead: a block is {:.0} MB, {:.0} ms to move, {:.0} ms to compute",
        inputs.block_bytes() / 1e6,
        inputs.block_bytes() / inputs.group_bus * 1e3,
        inputs.compute_per_step / inputs.blocks * 1e3
    );
    line!(out, "{:<8}{:^40}   {:^36}", "", "rule of thumb", "exact, H100");
    line!(
        out,
        "{:<8}{:>9} {:>9} {:>12} {:>7}   {:>9} {:>8} {:>10} {:>6}",
        "blocks",
        "GiB",
        "move ms",
        "compute ms",
        "hides",
        "GiB",
        "step ms",
        "arithm. ms",
        "hides"
    );
    let yes = |holds: bool| if holds { "yes" } else { "no" };
    let exact = exact::groups(steps, inputs.group_bus, &inputs.groups)?;
    for (rule, now) in inputs.groups().iter().zip(exact) {
        let step = now.outcome;
        line!(
            out,
            "{:<8}{:>9.1} {:>9.0} {:>12.0} {:>7}   {:>9.2} {:>8.0} {:>10.0} {:>6}",
            rule.blocks,
            rule.resident / GIB,
            rule.moving * 1e3,
            rule.computing * 1e3,
            yes(rule.hides),
            gib(now.slots),
            step.seconds_per_step * 1e3,
            step.compute_seconds_per_step * 1e3,
            yes(step.seconds_per_step <= 1.02 * step.compute_seconds_per_step)
        );
    }
    Ok(())
}

fn card(out: &mut String, inputs: &ThumbInputs, steps: u32) -> Result<(), Failure> {
    line!(out);
    line!(
        out,
        "4. FLUX.1-dev on a card of {} GiB: budget {:.1} GiB",
        inputs.card_gib,
        inputs.budget() / GIB
    );
    line!(out, "{:<32}{:^22}   {:^35}", "", "rule of thumb", "exact, RTX 4080");
    line!(
        out,
        "{:<32}{:>7} {:>5} {:>8}   {:>8} {:>5} {:>8} {:>10}",
        "way",
        "GiB",
        "fits",
        "extra s",
        "GiB",
        "fits",
        "extra s",
        "picture s"
    );
    let yes = |holds: bool| if holds { "yes" } else { "no" };
    let exact = exact::card(steps, inputs.group_bus, inputs.card_group)?;
    for (rule, now) in inputs.card().iter().zip(exact) {
        line!(
            out,
            "{:<32}{:>7.1} {:>5} {:>8.1}   {:>8.2} {:>5} {:>8.1} {:>10.1}",
            rule.way,
            rule.need / GIB,
            yes(rule.fits),
            rule.extra,
            gib(now.vram_bytes),
            yes(gib(now.vram_bytes) <= inputs.card_gib),
            now.extra_seconds(),
            now.seconds
        );
    }
    line!(
        out,
        "exact: the whole process with its context; fp8 and nf4 on paper, no device runs them yet"
    );
    Ok(())
}

fn exercises(out: &mut String, inputs: &ThumbInputs) {
    line!(out);
    line!(out, "Exercises");
    let [weights, activations, text] = inputs.hunyuan();
    line!(
        out,
        "1. HunyuanVideo in bf16: {:.0} GB of weights, {:.1} GiB of activations; freeing text saves {:.0} GB",
        weights / 1e9,
        activations / GIB,
        text / 1e9
    );
    if let Some(hidden) = inputs.offload().get(2) {
        line!(
            out,
            "2. {} s a step, {}: sequential with prefetch takes {:.1} s extra",
            inputs.compute_per_step,
            hidden.bus,
            hidden.extra
        );
    }
    let [all, one, seconds] = inputs.controlnets();
    line!(
        out,
        "3. {} ControlNets: {:.0} GB resident, or {:.1} GB and {:.2} s for the one that is used",
        inputs.controlnets.0,
        all / 1e9,
        one / 1e9,
        seconds
    );
}
