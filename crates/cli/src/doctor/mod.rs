//! `plimsoll doctor`: proves that placement is in effect on this machine.
//!
//! A setting that was asked for and one that is in effect are different facts, and a picture shows neither. So the
//! reference prompt is run three times, the device's memory is read beside the runs as the driver sees it (before
//! anything is taken, over the phases, after everything was given back), and what was seen is compared with the plan:
//! a verdict a line, with its number and, where it fails, the likely cause.
//!
//! | file | what it holds |
//! |---|---|
//! | `sampler` | reads memory beside a run |
//! | `evidence` | what was seen |
//! | `checks` | what follows from it; tested with planted faults |
//! | `print` | tables and JSON |
//!
//! # Source
//! The project's third document, section 5 (in its numbering), "three steps that show whether offload is in effect".

mod checks;
mod evidence;
mod print;
mod sampler;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_device::cpu::ArenaMeter;
use plimsoll_device::{Control, Meter, Reading};
use plimsoll_device_cuda::CardMeter;
use plimsoll_graph::DType;
use plimsoll_models::flux;
use plimsoll_pipeline::{Assembled, Generated};
use plimsoll_plan::Machine;
use plimsoll_record::{Finding, FindingCode};
use plimsoll_weights::WeightDType;

use crate::args::{DeviceName, DoctorArgs, GenerateArgs, NoiseName};
use crate::doctor::checks::{Line, Verdict};
use crate::doctor::evidence::{Component, Evidence, Observed, Place, Predicted};
use crate::doctor::sampler::Sampler;
use crate::executor::Executor;
use crate::failure::Failure;
use crate::generate::{Opened, Ready, set_up};
use crate::progress::Bar;
use crate::runs::{Draft, Recorder};
use crate::{interrupt, out};

/// As often as the field's own recipe has it: one run may be a first one, of two either may be the odd one.
const RUNS: usize = 3;

/// What the demo model was trained on.
const DEMO_PROMPT: &str = "ice cream, 3d rendered emoji";

/// The reference prompt of the project's third document.
const PROMPT: &str = "A photorealistic portrait of a woman with silver hair, wearing a silk scarf, soft studio \
                      lighting, shallow depth of field";

/// Readings of RAM's arenas, which cost next to nothing.
const CPU_PACE: Duration = Duration::from_millis(2);

/// Readings of a card: a call of the driver's library each.
const CARD_PACE: Duration = Duration::from_millis(10);

/// A driver may take a moment to book what it was given back.
const SETTLING: Duration = Duration::from_millis(20);
const SETTLING_TRIES: u32 = 25;

pub(crate) fn run(args: DoctorArgs) -> Result<(), Failure> {
    let control = interrupt::control();
    let mut recorder = Recorder::open(&args.record)?;
    let (place, meter) = meter(&args)?;
    let mut args = generate_args(args);
    // Uncalibrated rates are a guess, against which no time can be judged.
    args.run.calibrate |= place == Place::Cpu;
    // Decided once: all runs are on the same device.
    if args.run.device == DeviceName::Auto {
        args.run.device = if place == Place::Cuda { DeviceName::Cuda(0) } else { DeviceName::Cpu };
    }
    let pace = if place == Place::Cuda { CARD_PACE } else { CPU_PACE };
    let mut found: Option<Found> = None;
    let mut timed = None;
    let mut run_ids: Vec<String> = Vec::new();
    for at in 0..RUNS {
        let idle = meter.read();
        let mut draft = Draft::begin(&args);
        let sampler = Sampler::start(Arc::clone(&meter), pace);
        // The first is traced: which op ran in which numbers.
        let watched = Watched { sampler, is_traced: at == 0, timed: timed.clone() };
        let made = catch_unwind(AssertUnwindSafe(|| observe(&args, &control, &mut draft, watched)));
        let idle_again = settled(meter.as_ref(), idle);
        let (record, plan_json) = match &made {
            Ok(made) => draft.end(made.as_ref().err()),
            Err(_) => draft.end_by_bug(crate::last_panic()),
        };
        let run_id = recorder.write(record, plan_json.as_deref(), &args.output);
        let made = match made.unwrap_or_else(|bug| resume_unwind(bug)) {
            Ok(made) => made,
            Err(failure) => {
                if let Ok(Some(run_id)) = run_id {
                    out::notice(&format!("recorded as {run_id}"));
                }
                return Err(failure);
            }
        };
        if let Some(run_id) = run_id? {
            recorder.repeats(run_ids.first().unwrap_or(&run_id));
            run_ids.push(run_id);
        }
        let (about, observed) = made;
        // One measurement of the CPU's rates for all: others would make another plan.
        timed = (place == Place::Cpu).then(|| Arc::clone(&about.machine));
        let observed = Observed { idle, idle_again, ..observed };
        match &mut found {
            None => found = Some(Found { about, runs: vec![observed] }),
            Some(found) => found.runs.push(observed),
        }
    }
    let Some(Found { about, runs }) = found else { return Ok(()) };
    let evidence = Evidence { place, runs, ..about.evidence };
    let lines = checks::judge(&evidence);
    let shown = print::Shown { about: &about.title, evidence: &evidence, lines: &lines };
    // What was found is told, whatever becomes of its record.
    shown.print(args.run.json, &run_ids)?;
    note_failures(&mut recorder, run_ids.first(), &lines)?;
    match lines.iter().filter(|line| line.verdict == Verdict::Fail).count() {
        0 => Ok(()),
        failed => Err(Failure::Doctor { failed }),
    }
}

/// What is held once everything has been given back, with a moment for the driver to notice.
fn settled(meter: &dyn Meter, idle: Reading) -> Reading {
    let is_above = |now: Reading| {
        now.process_bytes > idle.process_bytes || now.device_bytes > idle.device_bytes
    };
    let mut now = meter.read();
    for _ in 0..SETTLING_TRIES {
        if !is_above(now) {
            break;
        }
        std::thread::sleep(SETTLING);
        now = meter.read();
    }
    now
}

/// The runs so far.
struct Found {
    about: About,
    runs: Vec<Observed>,
}

/// What is the same of every run.
struct About {
    title: print::Title,
    /// Without its runs.
    evidence: Evidence,
    machine: Arc<dyn Machine>,
}

/// How a run is watched.
struct Watched {
    sampler: Sampler,
    /// Whether it is kept which op ran.
    is_traced: bool,
    /// The machine as an earlier run has measured it.
    timed: Option<Arc<dyn Machine>>,
}

/// Where runs will be carried out, and what reads the memory there; before any of it is taken.
fn meter(args: &DoctorArgs) -> Result<(Place, Arc<dyn Meter>), Failure> {
    let cpu = || (Place::Cpu, Arc::new(ArenaMeter) as Arc<dyn Meter>);
    match args.run.device {
        DeviceName::Cpu => Ok(cpu()),
        DeviceName::Sim => Ok((Place::Sim, Arc::new(ArenaMeter))),
        DeviceName::Cuda(index) => {
            let meter = CardMeter::open(index).map_err(Failure::Cuda)?;
            Ok((Place::Cuda, Arc::new(meter)))
        }
        DeviceName::Auto => match CardMeter::open(0) {
            // As `auto` does: a card that cannot be used leaves the CPU.
            Ok(meter) => match Executor::find(&args.run)? {
                Executor::Cuda(_) => Ok((Place::Cuda, Arc::new(meter))),
                _ => Ok(cpu()),
            },
            Err(_) => Ok(cpu()),
        },
    }
}

/// The run, as `generate` would be asked for it.
fn generate_args(args: DoctorArgs) -> GenerateArgs {
    let default = if args.run.model == "demo" { DEMO_PROMPT } else { PROMPT };
    GenerateArgs {
        prompt: args.prompt.unwrap_or_else(|| default.to_owned()),
        run: args.run,
        // Where the run that a record stands for would put its picture; nothing is written here.
        output: PathBuf::from("plimsoll-doctor.png"),
        guidance: None,
        seed: args.seed,
        noise: NoiseName::F32,
        trace: None,
        save_tensors: None,
        record: args.record,
    }
}

/// One run from nothing to nothing: opened, placed, carried out, given back.
fn observe(
    args: &GenerateArgs,
    control: &Control,
    draft: &mut Draft,
    watched: Watched,
) -> Result<(About, Observed), Failure> {
    let Watched { mut sampler, is_traced, timed } = watched;
    let Opened { executor, assembled } = Opened::find(args)?;
    draft.on_device(args, executor.name());
    let has_own_rates = executor.has_own_rates(&args.run);
    let Ready { mut placed, machine, prompt, device } =
        set_up(args, executor, assembled?, timed, control, draft)?;
    let timeline = placed.simulate(machine.as_ref());
    let bar = Bar::new(timeline.computes.iter().map(|(_, end)| *end).collect());
    let generated =
        placed.generate(machine.as_ref(), &prompt, control, is_traced, &mut |progress| {
            draft.at(progress.kind);
            sampler.at(progress);
            bar.show(progress);
        });
    bar.finish();
    let generated = generated?;
    let plan = placed.plan();
    let samples = sampler.stop(&plan.phases, &generated.report.stats.marks);
    draft.generated(&placed, &generated);
    for notice in &generated.notices {
        out::notice(notice);
    }
    let observed = Observed {
        plan_id: plan.id.clone(),
        predicted: Predicted {
            arena_bytes: plan.predicted.vram_peak_bytes,
            process_bytes: plan.predicted.vram_process_bytes,
            kept_bytes: plan.reserved_bytes,
            copied_bytes: plan.predicted.copied_bytes,
            seconds_per_step: plan.predicted.seconds_per_step,
        },
        idle: Reading::default(),
        idle_again: Reading::default(),
        samples,
        high_water_bytes: generated.report.stats.high_water_bytes,
        copied_bytes: generated.report.stats.copied_bytes,
        seconds_per_step: generated.report.seconds_per_step,
        latents: generated.latent_sha256.clone(),
    };
    let request = placed.request().run;
    let title = print::Title {
        model: placed.assembled().defaults().name.clone(),
        device,
        machine: machine_name(device, machine.as_ref()),
        prompt: prompt.text.clone(),
        size: format!("{}x{}, {} steps", request.width, request.height, request.steps),
        line_bytes: plan.line_bytes,
    };
    let evidence = Evidence {
        place: Place::Sim,
        has_own_rates,
        run_dtype: request.dtype,
        components: components(args, placed.assembled(), request.dtype, &generated),
        runs: Vec::new(),
    };
    // Here the arena, and on a card the context, are given back.
    drop(placed);
    Ok((About { title, evidence, machine }, observed))
}

/// The card, or the processor.
fn machine_name(device: &str, machine: &dyn Machine) -> String {
    if device == "cuda" { machine.name().to_owned() } else { crate::runs::machine::processor() }
}

/// What each component should be executed in, by its files' headers and the options alone, beside what it was.
fn components(
    args: &GenerateArgs,
    assembled: &Assembled,
    run: DType,
    generated: &Generated,
) -> Vec<Component> {
    [flux::CLIP, flux::T5, flux::TRANSFORMER, flux::VAE]
        .into_iter()
        .map(|name| {
            let executed = generated.executed.iter().find(|executed| executed.component == name);
            let is_asked_narrow = args.run.dtype.is_narrow(name);
            Component {
                name: name.to_owned(),
                expected: if is_asked_narrow {
                    Some(DType::F8E4M3)
                } else {
                    stored(assembled, name).map(|stored| slot(stored, run))
                },
                weights: executed.map(|executed| executed.weights.clone()).unwrap_or_default(),
                results: executed.map(|executed| executed.results.clone()).unwrap_or_default(),
            }
        })
        .collect()
}

/// What most bytes of a component's files are.
fn stored(assembled: &Assembled, name: &str) -> Option<WeightDType> {
    let catalog = assembled.checkpoint().components.get(name)?.catalog.as_ref()?;
    let mut bytes: Vec<(WeightDType, u64)> = Vec::new();
    for (_, entry) in catalog.iter() {
        match bytes.iter_mut().find(|(dtype, _)| *dtype == entry.dtype) {
            Some((_, sum)) => *sum = sum.saturating_add(entry.bytes()),
            None => bytes.push((entry.dtype, entry.bytes())),
        }
    }
    bytes.into_iter().max_by_key(|(_, sum)| *sum).map(|(dtype, _)| dtype)
}

/// The rule for what a stored weight is on the device: never wider than it is stored, never wider than the run.
fn slot(stored: WeightDType, run: DType) -> DType {
    match stored {
        WeightDType::F8E4M3 => DType::F8E4M3,
        WeightDType::BF16 => DType::BF16,
        _ => run,
    }
}

/// Failed lines stand in the first run's record.
fn note_failures(
    recorder: &mut Recorder,
    run_id: Option<&String>,
    lines: &[Line],
) -> Result<(), Failure> {
    let Some(run_id) = run_id else { return Ok(()) };
    for line in lines.iter().filter(|line| line.verdict == Verdict::Fail) {
        let cause = line.cause.as_deref().unwrap_or_default();
        let text = format!("{}: {}; {cause}", line.check.name(), line.seen);
        let code = FindingCode::PlacementNotInEffect;
        recorder.find(run_id, &Finding { code, text })?;
    }
    Ok(())
}
